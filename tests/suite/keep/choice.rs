//! The options that acquire shares with `run`: waiting, modes, slots, several keys, supersede; and
//! the forms of its output.

use serde_json::Value;

use super::{Watched, acquire, acquire_for, release, token, token_in, wait_until_free};
use crate::support::{Backend, hold, wait_until};

on_backends!(one_server, three_servers, this_host:
    only_the_token_is_on_stdout,
    a_lock_that_nobody_renews_is_reported_unless_a_ttl_was_given,
    the_json_output_is_one_object,
    a_held_lock_exits_75_or_the_chosen_code,
    a_held_lock_never_exits_0,
    an_acquire_waits_and_gives_up_in_time,
    an_acquire_waits_and_gets_the_lock,
    readers_share_and_keep_writers_out,
    several_keys_are_taken_and_released_together,
    a_token_of_several_keys_covers_all_of_them,
    only_the_newest_of_several_superseding_acquires_stays,
    fences_grow_with_those_of_runs,
    a_cancelled_wait_leaves_nothing;
one_server, this_host:
    slots_have_numbers,
);

fn only_the_token_is_on_stdout(backend: &Backend) {
    let token = token(acquire(backend));
    assert!(token.parse::<u64>().is_err(), "{token}");
    release(backend, &token).done().expect_code(0);
}

fn a_lock_that_nobody_renews_is_reported_unless_a_ttl_was_given(backend: &Backend) {
    let acquire = |more: &[&str]| backend.command(&["acquire", "--key", "k"]).args(more).done();
    let lines = |done: &crate::support::Done| done.stderr.matches("nobody renews the lock \"k\"").count();
    let silent: [&[&str]; 4] = [&["--ttl", "60s"], &["-q"], &["--watch-pid", "1", "--on-lost", "warn"], &[]];
    for options in silent {
        let done = acquire(options).expect_code(0);
        assert_eq!(lines(&done), usize::from(options.is_empty()), "{options:?}: {done:?}");
        assert!(!options.is_empty() || done.stderr.contains("in 30s"), "{done:?}");
        release(backend, done.stdout.trim()).done().expect_code(0);
        wait_until_free(backend);
    }
    let inherited = backend.command(&["acquire", "--key", "k"]).env("REDLOCK_TTL", "60s");
    release(backend, &token(inherited)).done().expect_code(0);
}

fn the_json_output_is_one_object(backend: &Backend) {
    let done = acquire(backend).arg("--json").done().expect_code(0);
    assert_eq!(done.stdout.lines().count(), 1, "{done:?}");
    let object = done.json();
    assert_eq!((&object["key"], &object["keys"]), (&"k".into(), &Value::from(vec!["k"])), "{object}");
    assert!(object["fences"][0].as_u64().is_some_and(|fence| fence > 0), "{object}");
    assert!(object["expires_ms"].as_u64().is_some_and(|left| left > 0 && left <= 60_000), "{object}");
    let token = object["token"].as_str().expect("a token");
    release(backend, token).done().expect_code(0);
    wait_until_free(backend);
}

fn a_held_lock_exits_75_or_the_chosen_code(backend: &Backend) {
    let token = token(acquire(backend).args(&["--label", "release freeze"]));
    let done = acquire(backend).arg("-n").done().expect_code(75);
    assert!(done.stdout.is_empty() && done.stderr.contains("release freeze"), "{done:?}");
    acquire(backend).args(&["-n", "-E", "9"]).done().expect_code(9);
    backend.run().args(&["-n"]).cmd(&["true"]).done().expect_code(75).expect_stderr(&["release freeze"]);
    release(backend, &token).done().expect_code(0);
}

/// A script that sees exit 0 has the lock.
fn a_held_lock_never_exits_0(backend: &Backend) {
    let token = token(acquire(backend));
    for format in [&[][..], &["--shell"]] {
        let typed = acquire(backend).args(&["-n", "-E", "0"]).args(format).done().expect_code(64);
        assert!(typed.stderr.contains("--conflict-exit-code"), "{typed:?}");
        // Meant for runs, whose command is skipped.
        let inherited = acquire(backend).arg("-n").args(format).env("REDLOCK_CONFLICT_EXIT_CODE", "0");
        inherited.done().expect_code(75);
    }
    release(backend, &token).done().expect_code(0);
}

fn an_acquire_waits_and_gives_up_in_time(backend: &Backend) {
    let holder = hold(backend.run_for_long());
    let done = acquire(backend).args(&["-w", "300ms"]).done().expect_code(75);
    assert!(done.stdout.is_empty() && done.stderr.contains("gave up"), "{done:?}");
    holder.wait().expect_code(0);
    wait_until_free(backend);
}

fn an_acquire_waits_and_gets_the_lock(backend: &Backend) {
    let holder = hold(backend.run_for_long());
    let waiter = backend.waiter(acquire(backend).args(&["-w", "50s"]), 1);
    holder.wait().expect_code(0);
    let done = waiter.wait().expect_code(0);
    let token = done.stdout.trim();
    assert!(!backend.is_free());
    release(backend, token).done().expect_code(0);
    wait_until_free(backend);
}

fn readers_share_and_keep_writers_out(backend: &Backend) {
    let first = token(acquire(backend).arg("--shared"));
    let second = token(acquire(backend).args(&["--shared", "-n"]));
    assert!(backend.reader().try_acquire());
    assert!(!backend.is_free());
    release(backend, &first).done().expect_code(0);
    assert!(!backend.is_free(), "the second reader is still there");
    release(backend, &first).done().expect_code(79);
    assert!(!backend.is_free(), "the second reader is still there");
    release(backend, &second).done().expect_code(0);
    wait_until_free(backend);
}

fn slots_have_numbers(backend: &Backend) {
    let slots = |n: &str| acquire(backend).args(&["--slots", "2", "-n"]).args(&["--label", n]);
    let (first, second) = (token(slots("a")), token(slots("b")));
    slots("c").done().expect_code(75);
    release(backend, &first).done().expect_code(0);
    let third = token(slots("c"));
    slots("d").done().expect_code(75);
    for token in [second, third] {
        release(backend, &token).done().expect_code(0);
    }
    wait_until_free(backend);
}

fn several_keys_are_taken_and_released_together(backend: &Backend) {
    let both = || backend.command(&["acquire", "--key", "k", "--key", "j", "--ttl", "60s"]);
    let holder = hold(backend.run_on(&["j"]));
    both().arg("-n").done().expect_code(75);
    wait_until_free(backend);
    holder.wait().expect_code(0);
    let token = token(both());
    assert!(!backend.run_on(&["j"]).try_acquire() && !backend.is_free());
    let release = backend.command(&["release", "--key", "k", "--key", "j", "--token", &token]);
    release.done().expect_code(0);
    backend.all_free(&["k", "j"]);
}

fn a_token_of_several_keys_covers_all_of_them(backend: &Backend) {
    let watched = Watched::start();
    let pid = watched.pid().to_string();
    for keeper in [&[][..], &["--watch-pid", &pid]] {
        let run = backend.command(&["acquire", "--key", "k", "--key", "j", "--ttl", "60s"]).args(keeper);
        let token = token(run);
        for command in [&["release"][..], &["extend", "--ttl", "90s"]] {
            for keys in [&["k"][..], &["j"], &["k", "j", "i"]] {
                let _used = backend.run_on(&["i"]).try_acquire();
                let part = backend.command(command).args(keys).args(&["--token", &token]);
                let done = part.done().expect_code(64);
                assert!(done.stderr.contains("covers 2 locks"), "{done:?}");
            }
        }
        assert!(!backend.run_on(&["j"]).try_acquire() && !backend.is_free(), "nothing was released");
        backend.command(&["release", "k", "j", "--token", &token]).done().expect_code(0);
        backend.all_free(&["k", "j"]);
        let one = super::token(acquire(backend));
        let done = backend.command(&["release", "k", "j", "--token", &one]).done().expect_code(64);
        assert!(done.stderr.contains("covers one lock"), "{done:?}");
        release(backend, &one).done().expect_code(0);
    }
}

fn only_the_newest_of_several_superseding_acquires_stays(backend: &Backend) {
    let holder = hold(backend.run_for_long());
    let old = backend.waiter(acquire(backend).arg("--supersede"), 1);
    let new = acquire(backend).arg("--supersede").spawn();
    old.wait().expect_code(75).expect_stderr(&["superseded"]);
    holder.wait().expect_code(0);
    let token = new.wait().expect_code(0).stdout;
    release(backend, token.trim()).done().expect_code(0);
}

fn fences_grow_with_those_of_runs(backend: &Backend) {
    let fence_of = || {
        let done = acquire_for(backend, "60s").arg("--json").done().expect_code(0);
        let object = done.json();
        release(backend, object["token"].as_str().expect("a token")).done().expect_code(0);
        object["fences"][0].as_u64().expect("a fence")
    };
    let fences = [fence_of(), backend.run().fence(), fence_of(), backend.run().fence()];
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
}

fn a_cancelled_wait_leaves_nothing(backend: &Backend) {
    use nix::sys::signal::Signal::{SIGINT, SIGTERM};
    let holder = hold(backend.run_for_long());
    for signal in [SIGTERM, SIGINT] {
        let waiter = backend.waiter(acquire(backend), 1);
        waiter.signal(signal);
        let done = waiter.wait();
        assert_eq!((done.signal, done.stdout.as_str()), (Some(signal as i32), ""), "{done:?}");
        wait_until("the queue is empty", || {
            backend.queued(0);
            true
        });
    }
    holder.wait().expect_code(0);
    backend.all_free(&["k"]);
    // As usual.
    let token = token_in(&acquire(backend).done());
    release(backend, &token).done().expect_code(0);
}
