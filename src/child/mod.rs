//! The command and all that comes from it: started, signalled, stopped, never left alone.
//!
//! The only room with `unsafe`. It knows processes, signals and the lease's deadline; nothing of
//! servers, queues or words for people.
//!
//!     redlock  --orders-->  guardian  --parent of-->  command -> ...
//!              <-notices--
//!
//! See guardian.rs for who stops the tree, and when.

mod guardian;
mod inherited;
pub mod signals;
mod spawn;
pub mod terminal;
mod tree;
mod words;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, dup2_stdin, dup2_stdout, fork, getpgrp};

pub use guardian::{Ends, Plan, Stop};
pub use inherited::Inherited;
pub use spawn::Group;
pub use tree::is_stopped;
use words::Order;
pub use words::{Ending, Environment, Notice, Until};

use crate::lock::BootTime;

/// For the panic hook, which has no other way to the guardian.
static EMERGENCY: OnceLock<Orders> = OnceLock::new();

/// Gives orders to the guardian; every thread may have one.
#[derive(Clone, Debug)]
pub struct Orders {
    socket: Arc<UnixStream>,
    guardian: Pid,
}

impl Orders {
    /// The command must be gone before this moment.
    pub fn deadline(&self, moment: BootTime) {
        self.give(&Order::Deadline(moment));
    }

    /// Pass a signal on to the command: to its whole tree if it is one that ends or stops.
    pub fn pass(&self, signal: Signal) {
        self.give(&Order::Pass(signal));
    }

    /// The lock is lost: stop the tree, gently first.
    pub fn stop(&self) {
        self.give(&Order::Stop);
    }

    pub fn kill(&self) {
        self.give(&Order::Kill);
    }

    /// The command's parent-death signal then ends it, and the notice [`Notice::Vanished`] follows.
    pub fn kill_guardian(&self) {
        let _ = kill(self.guardian, Signal::SIGKILL);
    }

    fn wait_for_guardian(&self) {
        while waitpid(self.guardian, None) == Err(Errno::EINTR) {}
    }

    fn give(&self, order: &Order) {
        // A guardian that is gone is noticed where its notices are read.
        let _ = words::send(&order.to_bytes(), &self.socket);
    }
}

/// redlock's side of the supervision.
pub struct Supervisor {
    orders: Orders,
}

impl Supervisor {
    /// Fork the guardian. While the program has one thread only.
    pub fn start(plan: Plan) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        // If the guardian itself is killed, what it leaves becomes ours to stop.
        set_child_subreaper(true)?;
        // SAFETY: no thread has been started yet, so the new process may go on like any other.
        match unsafe { fork() }? {
            ForkResult::Child => {
                drop(ours);
                let done = guardian::Guardian::new(theirs, plan).map(guardian::Guardian::watch);
                std::process::exit(i32::from(done.is_err()))
            }
            ForkResult::Parent { child } => {
                let orders = Orders { socket: Arc::new(ours), guardian: child };
                let _ = EMERGENCY.set(orders.clone());
                Ok(Self { orders })
            }
        }
    }

    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Start the command, with these added to its environment.
    pub fn start_command(&self, environment: Environment, until: Until) {
        self.orders.give(&Order::Start { environment, until });
        let_go_of_stdin_and_stdout();
    }

    /// Readable when there is a notice.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.orders.socket.as_fd()
    }

    /// The next notice; blocks until there is one.
    pub fn notice(&self) -> Notice {
        Notice::receive(&*self.orders.socket)
    }

    /// After the last notice, or to give up before the command was started.
    pub fn dismiss(self) {
        let _ = self.orders.socket.shutdown(std::net::Shutdown::Both);
        self.orders.wait_for_guardian();
    }
}

/// The guardian is gone: do its last duty. Returns when nothing of the command's tree is left.
pub fn stop_what_is_left() {
    tree::extinguish(|_, _| {});
}

/// From the panic hook: have the tree stopped, and return when it is. False if there was none.
pub fn stop_in_emergency() -> bool {
    if let Some(orders) = EMERGENCY.get() {
        orders.kill();
        let _ = orders.socket.shutdown(std::net::Shutdown::Write);
        orders.wait_for_guardian();
    }
    EMERGENCY.get().is_some()
}

/// Where the command runs: with us on a terminal, in a group of its own elsewhere.
pub fn group(on_terminal: bool) -> Group {
    if on_terminal { Group::Join(getpgrp()) } else { Group::Own }
}

/// They are the command's: whoever is at the other end must see it close them.
fn let_go_of_stdin_and_stdout() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
}
