//! A real redis-server, for comparison.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub struct RealServer {
    pub port: u16,
    process: Child,
    _directory: tempfile::TempDir,
}

impl RealServer {
    /// `options`: as on the command line of redis-server.
    pub fn start(options: &[&str]) -> Self {
        // One at a time: a port that is free may not be free for two.
        static STARTING: Mutex<()> = Mutex::new(());
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let started = Instant::now();
        loop {
            if let Some(server) = Self::start_once(options) {
                return server;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "redis-server does not start");
        }
    }

    /// `None` if another process has taken the port.
    fn start_once(options: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let program = std::env::var("REDLOCK_TEST_REDIS_SERVER").unwrap_or("redis-server".into());
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
        let port = free.expect("a free port").port();
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--save", "", "--port"]).arg(port.to_string()).args(options);
        command.arg("--dir").arg(directory.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.spawn().expect("redis-server is installed");
        let mut server = Self { port, process, _directory: directory };
        let is_ours = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        loop {
            if server.process.try_wait().expect("our child").is_some() {
                return None;
            }
            if is_ours() {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
