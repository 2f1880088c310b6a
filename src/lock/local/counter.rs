//! The short lock under which everything about a lock file is decided.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::poll::PollFlags;

use super::file::LockFile;
use super::layout::COUNTER;
use super::ranges::{Kind, Ranges};
use crate::lock::later::Later;
use crate::lock::wait::{Wait, wait};
use crate::lock::{BootTime, Error, Fault, Observer};

/// Others are in and out within microseconds.
const COMES_WITHIN: Duration = Duration::from_secs(5);

/// How a thread gets it for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Errand {
    Wanted,
    /// We have given up: it goes back at once.
    NotWanted,
    Taken,
    GivenBack,
}

#[derive(Debug)]
struct Messenger {
    later: Later<()>,
    errand: Arc<Mutex<Errand>>,
}

impl Messenger {
    fn send(ranges: Ranges) -> io::Result<Self> {
        let errand = Arc::new(Mutex::new(Errand::Wanted));
        let theirs = Arc::clone(&errand);
        let later = Later::start("turn", move || {
            ranges.lock(COUNTER, Kind::Write)?;
            let mut errand = theirs.lock().unwrap_or_else(PoisonError::into_inner);
            *errand = match *errand {
                Errand::Wanted | Errand::Taken => Errand::Taken,
                Errand::NotWanted | Errand::GivenBack => {
                    ranges.unlock(COUNTER);
                    Errand::GivenBack
                }
            };
            Ok(())
        })?;
        Ok(Self { later, errand })
    }

    /// Say what we want now; returns what has become of it.
    fn want(&self, wanted: bool) -> Errand {
        let mut errand = self.errand.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*errand, Errand::Wanted | Errand::NotWanted) {
            *errand = if wanted { Errand::Wanted } else { Errand::NotWanted };
        }
        *errand
    }
}

/// One for each open lock file. A thread that still asks the kernel when we have given up must not meet us there
/// again, since to the kernel we are the same; so it is remembered.
#[derive(Debug, Default)]
pub struct Counter {
    asking: RefCell<Option<Messenger>>,
}

impl Counter {
    /// Alone with the file until [`Counter::leave`]: a few system calls. Whoever stays longer is not redlock, or
    /// is stopped.
    pub fn enter(
        &self,
        file: &LockFile,
        mut observer: Option<&mut (dyn Observer + '_)>,
    ) -> Result<(), Error> {
        let fail = |e: io::Error| Error::Node(file.error(Fault::Unavailable, &e));
        let mut asking = self.asking.borrow_mut();
        let messenger = match asking.take().filter(|asking| asking.want(true) != Errand::GivenBack) {
            Some(messenger) => messenger,
            None if file.ranges().try_lock(COUNTER, Kind::Write).map_err(fail)? => return Ok(()),
            None => Messenger::send(file.ranges().clone()).map_err(fail)?,
        };
        let until = BootTime::now() + COMES_WITHIN;
        let error = loop {
            let bell = [(messenger.later.bell(), PollFlags::POLLIN)];
            match wait(&bell, until, observer.as_deref_mut()) {
                Wait::Ready => {
                    let gone = || Err(io::ErrorKind::BrokenPipe.into());
                    return messenger.later.answer().unwrap_or_else(gone).map_err(fail);
                }
                Wait::Cancelled => break Error::Cancelled,
                Wait::Over if until.has_passed() => {
                    let text = "somebody keeps this file locked as a whole, which redlock never does";
                    break Error::Node(file.error_text(Fault::Unavailable, text));
                }
                Wait::Over => {}
            }
        };
        match messenger.want(false) {
            Errand::Taken => self.leave(file),
            _ => *asking = Some(messenger),
        }
        Err(error)
    }

    pub fn leave(&self, file: &LockFile) {
        file.ranges().unlock(COUNTER);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Deaf, Folder};
    use super::*;

    #[test]
    fn who_gave_up_gives_it_back_when_it_comes() {
        let folder = Folder::new();
        let (ours, theirs) = (folder.eyes(), folder.eyes());
        for _ in 0..20 {
            assert!(theirs.ranges().try_lock(COUNTER, Kind::Write).unwrap());
            let cancelled = ours.counter().enter(&ours, Some(&mut Deaf::cancelled()));
            assert!(matches!(cancelled, Err(Error::Cancelled)));
            theirs.ranges().unlock(COUNTER);
            let asking = ours.counter().asking.borrow();
            let errand = || asking.as_ref().map_or(Errand::GivenBack, |messenger| messenger.want(false));
            let started = BootTime::now();
            while errand() != Errand::GivenBack {
                assert!(started.elapsed() < Duration::from_secs(20), "it comes, and goes back");
            }
            assert_eq!(theirs.ranges().in_the_way(COUNTER, Kind::Write).unwrap(), None);
        }
    }
}
