//! Nothing is leaked: whatever fails between the first request and the start of the command,
//! everything requested is released.

use std::fs;
use std::path::PathBuf;

use crate::support::{
    Backend, Done, Host, Locks, OtherUsers, Redis, Run, preload, process_state, wait_until,
};

/// Options that make a leak last: for the lease, for an hour, forever.
const WAYS: [&[&str]; 3] = [&[], &["--min-hold", "1h"], &["--ttl", "none"]];
const WAYS_WITHOUT_LEASE: [&[&str]; 2] = [&[], &["--min-hold", "1h"]];

fn ways(backend: &Backend) -> &'static [&'static [&'static str]] {
    match backend.locks {
        Locks::OneServer(_) => &WAYS,
        Locks::ThreeServers(_) | Locks::ThisHost(_) => &WAYS_WITHOUT_LEASE,
    }
}

/// On a busy machine the output may be read too late, a fault in a thread may stop the command
/// before it has printed, and it is unknown what a dead guardian had started.
fn has_run(done: &Done) -> bool {
    let was_stopped = ["the command is stopped", "the command was stopped"];
    let was_stopped = was_stopped.iter().any(|words| done.stderr.contains(words));
    done.stdout.contains("ran") || done.code == Some(0) || was_stopped
}

/// If the command has not run, the key is free: only fences are left on a server, and on this host
/// one attempt is granted.
#[track_caller]
fn assert_nothing_is_left(backend: &Backend, key: &str, done: &Done, what: &str) {
    let has_run = has_run(done);
    let left = |redis: &Redis| {
        let keys = redis.keys().into_iter();
        keys.filter(|name| name.ends_with(&format!(":{key}")) && !name.starts_with("lock-fence"))
            .collect::<Vec<_>>()
    };
    match &backend.locks {
        Locks::OneServer(redis) if !has_run => {
            assert_eq!(left(redis), Vec::<String>::new(), "{what}: {done:?}");
        }
        // A request that arrives after the release finds a tombstone; the release itself may arrive
        // a moment later.
        Locks::ThreeServers(nodes) if !has_run => {
            for redis in nodes.iter() {
                wait_until(&format!("{what}: nothing is left: {done:?}"), || left(redis).is_empty());
            }
        }
        Locks::ThisHost(_) if !has_run => assert!(backend.run_on(&[key]).try_acquire(), "{what}: {done:?}"),
        Locks::OneServer(_) | Locks::ThreeServers(_) | Locks::ThisHost(_) => {}
    }
    // Before our own code runs, the language runtime prints its own messages.
    let is_ours = !done.stderr.contains("fatal runtime error");
    assert!(!is_ours || !done.stderr.contains("panicked"), "{what}: {done:?}");
}

/// With a growing limit of descriptors one step after another fails, until the limit is high
/// enough.
fn a_lack_of_descriptors_leaks_nothing(backend: &Backend) {
    let mut have_run = 0;
    for (way, options) in ways(backend).iter().enumerate() {
        for limit in 3..=24 {
            let key = format!("k{way}-{limit}");
            let via = format!("ulimit -n {limit}; exec \"$@\"");
            let done = backend.run_on(&[&key]).args(options).via(&via).cmd(&["echo", "ran"]).done();
            assert_nothing_is_left(backend, &key, &done, &format!("{limit} descriptors {options:?}"));
            have_run += usize::from(has_run(&done));
        }
    }
    assert!(have_run > 0, "no limit was high enough");
}

#[test]
fn a_lack_of_processes_leaks_nothing() {
    let Some(users) = OtherUsers::new() else { skip!("only root can run as another user") };
    let backend = Backend::one_server();
    let mut have_run = 0;
    // A user that no other test uses: the limit counts all processes of a user.
    let uid = 60_000 + std::process::id() % 5_000;
    for (way, options) in WAYS.iter().enumerate() {
        for limit in 1..=4 {
            let key = format!("k{way}-{limit}");
            let run = Run::key(backend.server(), &key).args(options).cmd(&["echo", "ran"]);
            let done = users.run_through(uid, run, &["prlimit", &format!("--nproc={limit}")]).done();
            assert_nothing_is_left(&backend, &key, &done, &format!("{limit} processes {options:?}"));
            have_run += usize::from(has_run(&done));
        }
    }
    assert!(have_run > 0, "no limit was high enough");
}

/// Call number FAULT_AT of the function FAULT fails, in redlock and in its guardian; or, with
/// FAULT_MEMORY, every allocation from there on. The file FAULT_HIT shows that the fault occurred.
/// Arguments are passed on unchanged.
const SHIM: &str = r#"
extern void *dlsym(void *, const char *);
extern char *getenv(const char *);
extern int strcmp(const char *, const char *);
extern int atoi(const char *);
extern int creat(const char *, unsigned);
extern int *__errno_location(void);
extern int getpid(void);
extern char *program_invocation_short_name;
#pragma GCC diagnostic ignored "-Wbuiltin-declaration-mismatch"
#define REAL(name) ({ static long (*real)(); if (!real) real = dlsym((void *)-1, name); real; })
static int seen, at, no_memory, ready, redlock;
static const char *fault, *hit;
__attribute__((constructor)) static void start(void) {
    fault = strcmp(program_invocation_short_name, "redlock") ? 0 : getenv("FAULT");
    at = fault ? atoi(getenv("FAULT_AT")) : 0;
    hit = getenv("FAULT_HIT");
    redlock = getpid();
    ready = 1;
}
static int fails(const char *name) {
    int is_redlocks = !strcmp(name, "poll") && getenv("FAULT_MEMORY");
    if (is_redlocks && getpid() != redlock) return 0;
    if (!ready || !fault || strcmp(fault, name) || ++seen != at) return 0;
    creat(hit, 0600);
    if (getenv("FAULT_MEMORY")) no_memory = 1;
    return !no_memory;
}
#define FAILING(name, error) long name(long a, long b, long c, long d, long e, long f) { \
    if (fails(#name)) { *__errno_location() = error; return -1; } \
    return REAL(#name)(a, b, c, d, e, f); }
enum { EINTR_ = 4, EAGAIN_ = 11, ENOMEM_ = 12, EINVAL_ = 22, EMFILE_ = 24, ECONNRESET_ = 104 };
FAILING(socket, EMFILE_) FAILING(socketpair, EMFILE_) FAILING(pipe2, EMFILE_) FAILING(signalfd, EMFILE_)
FAILING(timerfd_create, EMFILE_) FAILING(open64, EMFILE_) FAILING(dup2, EMFILE_)
FAILING(fork, EAGAIN_) FAILING(clone, EAGAIN_) FAILING(connect, ENOMEM_) FAILING(setsockopt, ENOMEM_)
FAILING(getsockopt, ENOMEM_) FAILING(fcntl, EMFILE_) FAILING(prctl, EINVAL_) FAILING(sigaction, EINVAL_)
FAILING(mmap, ENOMEM_) FAILING(mprotect, ENOMEM_) FAILING(poll, ENOMEM_) FAILING(send, ECONNRESET_)
FAILING(recv, ECONNRESET_) FAILING(timerfd_settime, ENOMEM_) FAILING(getrandom, EAGAIN_) FAILING(setpgid, EINVAL_)
long opendir(long name) { return fails("opendir") ? 0 : REAL("opendir")(name); }
long pthread_sigmask(long a, long b, long c) { return fails("pthread_sigmask") ? EAGAIN_ : REAL("pthread_sigmask")(a, b, c); }
long pthread_create(long a, long b, long c, long d) { return fails("pthread_create") ? EAGAIN_ : REAL("pthread_create")(a, b, c, d); }
void *malloc(unsigned long size) { return no_memory ? 0 : (void *)REAL("malloc")(size); }
void *realloc(void *old, unsigned long size) { return no_memory ? 0 : (void *)REAL("realloc")(old, size); }
int posix_memalign(void **to, unsigned long align, unsigned long size) {
    return no_memory ? ENOMEM_ : (int)REAL("posix_memalign")(to, align, size); }
"#;

const FUNCTIONS: [&str; 26] = [
    "socket",
    "socketpair",
    "pipe2",
    "signalfd",
    "timerfd_create",
    "open64",
    "dup2",
    "fork",
    "clone",
    "connect",
    "setsockopt",
    "getsockopt",
    "fcntl",
    "prctl",
    "sigaction",
    "mmap",
    "mprotect",
    "poll",
    "send",
    "recv",
    "timerfd_settime",
    "getrandom",
    "setpgid",
    "opendir",
    "pthread_sigmask",
    "pthread_create",
];

struct Faults {
    library: PathBuf,
    directory: tempfile::TempDir,
}

impl Faults {
    fn new() -> Faults {
        Faults { library: preload::library("faults", SHIM), directory: tempfile::tempdir().unwrap() }
    }

    /// The run with this fault, and whether the fault occurred.
    fn run(&self, run: Run, function: &str, at: usize) -> (Done, bool) {
        let hit = self.directory.path().join(format!("{function}-{at}"));
        let run = run.env("LD_PRELOAD", &self.library).env("FAULT", function);
        let run = run.env("FAULT_AT", at.to_string()).env("FAULT_HIT", &hit);
        let done = run.cmd(&["echo", "ran"]).done();
        (done, fs::remove_file(&hit).is_ok())
    }
}

/// One call after another fails, with a minimum hold of an hour, which would show a leak for as
/// long.
fn a_failing_call_leaks_nothing(backend: &Backend) {
    let faults = Faults::new();
    let mut failed = 0;
    for function in FUNCTIONS {
        for at in 1..=40 {
            let key = format!("{function}-{at}");
            let run = backend.run_on(&[&key]).args(&["--min-hold", "1h"]);
            let (done, was_hit) = faults.run(run, function, at);
            assert_nothing_is_left(backend, &key, &done, &format!("{function} fails, call {at}"));
            if !was_hit {
                assert!(has_run(&done), "{function} {at}: {done:?}");
                break;
            }
            failed += 1;
        }
    }
    assert!(failed > 20, "only {failed} calls failed");
}

/// Memory runs out at one of several steps: in redlock, or in its guardian (`clone`).
fn a_lack_of_memory_leaks_nothing(backend: &Backend) {
    let faults = Faults::new();
    for (function, most) in [("poll", 12), ("clone", 1)] {
        for at in 1..=most {
            let key = format!("{function}-{at}");
            let run = backend.run_on(&[&key]).args(&["--min-hold", "1h"]).env("FAULT_MEMORY", "1");
            let (done, was_hit) = faults.run(run, function, at);
            assert_nothing_is_left(backend, &key, &done, &format!("no memory from {function} {at} on"));
            assert!(was_hit || (function, at) > ("poll", 2), "{function} is no longer called");
        }
    }
}

fn a_panic_leaks_nothing(backend: &Backend) {
    if !cfg!(debug_assertions) {
        skip!("the switch for a panic is not in release builds");
    }
    for place in ["asked", "granted"] {
        for (way, options) in ways(backend).iter().enumerate() {
            let key = format!("{place}-{way}");
            let run = backend.run_on(&[&key]).args(options).env("REDLOCK_TEST_PANIC", place);
            let done = run.cmd(&["echo", "ran"]).done().expect_code(125);
            assert_eq!(done.stdout, "", "{done:?}");
            assert_nothing_is_left(backend, &key, &done, place);
        }
    }
}

on_backends!(
    one_server, three_servers, this_host: a_lack_of_descriptors_leaks_nothing, a_panic_leaks_nothing;
    one_server, this_host: a_failing_call_leaks_nothing, a_lack_of_memory_leaks_nothing
);

/// The same over TLS, whose sessions need more memory and more calls.
mod tls_server {
    use super::Backend;

    #[test]
    fn a_failing_call_leaks_nothing() {
        super::a_failing_call_leaks_nothing(&Backend::tls_server());
    }

    #[test]
    fn a_lack_of_memory_leaks_nothing() {
        super::a_lack_of_memory_leaks_nothing(&Backend::tls_server());
    }

    #[test]
    fn a_panic_leaks_nothing() {
        super::a_panic_leaks_nothing(&Backend::tls_server());
    }
}

/// The guardian is gone before it could start the command: the command has not run, so nothing
/// keeps the key.
#[test]
fn a_guardian_killed_while_the_run_waits_leaks_nothing() {
    let redis = Redis::start();
    let holder = crate::support::holder(&redis, "k", &[]);
    let waiter = Run::key(&redis, "k").args(&["--min-hold", "1h"]).cmd(&["echo", "ran"]).spawn();
    wait_until("the waiter is queued", || redis.queue_len("k") == 1);
    let guardian = crate::support::processes::guardian_of(waiter.pid());
    crate::support::processes::send(guardian, nix::sys::signal::Signal::SIGKILL);
    // Until then it could be sent the request to start the command.
    wait_until("the guardian is dead", || matches!(process_state(guardian), None | Some('Z')));
    holder.wait().expect_code(0);
    let done = waiter.wait().expect_code(125);
    assert_eq!(done.stdout, "");
    assert!(!redis.held("k"), "{done:?}");
}

/// The sockets between redlock and its guardian get the smallest possible buffer, as with a small
/// wmem_default.
const SMALL_BUFFERS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
int socketpair(int domain, int type, int protocol, int fds[2]) {
    int (*real)(int, int, int, int *) = dlsym(RTLD_NEXT, "socketpair"), size = 1, result = real(domain, type, protocol, fds);
    for (int i = 0; result == 0 && i < 2; i++) setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    return result;
}
"#;

#[test]
fn a_start_message_larger_than_the_socket_buffer_arrives_whole() {
    let host = Host::new();
    let held: Vec<String> = (0..2_500).map(|n| format!("00000000-0000-4000-8000-{n:012x}.1")).collect();
    let keys: Vec<String> = (0..60).map(|n| format!("{n:04}{}", "k".repeat(1_000))).collect();
    let run = host.run_on(&keys[0]).env("REDLOCK_HELD", held.join(" "));
    let run = keys[1..].iter().fold(run, |run, key| run.args(&["--key", key]));
    let run = run.env("LD_PRELOAD", preload::library("small_buffers", SMALL_BUFFERS));
    let done = run.sh("echo ${#REDLOCK_KEY} ${#REDLOCK_HELD}").done().expect_code(0);
    let lengths: Vec<usize> = done.stdout.split_whitespace().map(|n| n.parse().unwrap()).collect();
    assert!(lengths[0] == 60 * 1_005 - 1 && lengths[1] > held.join(" ").len(), "{lengths:?}");
}
