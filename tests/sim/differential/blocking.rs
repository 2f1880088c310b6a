//! Clients that block, and clients that are idle.

use super::Compared;
use super::pair::{Pair, now_us, wait_until};
use super::scripts::compare_data;
use super::similar::similar;
use super::waiter::Waiter;
use crate::dice::Dice;
use crate::server::reply::Reply;

/// Pushes as the scripts do.
const PUSH: &str = "for _, list in ipairs(KEYS) do redis.call('RPUSH', list, ARGV[1]) end return #KEYS";
/// Random sequences, and their steps.
const SEEDS: u64 = 20;
const STEPS: usize = 60;
const CLIENTS: u64 = 4;

pub fn compare() -> Compared {
    let mut pair = Pair::start(&[]);
    (1..=4).for_each(|id| pair.open(id));
    a_push_in_a_script_wakes_in_order(&mut pair).map_err(|why| format!("order: {why}"))?;
    a_timeout_ends(&mut pair).map_err(|why| format!("timeout: {why}"))?;
    commands_behind_wait(&mut pair).map_err(|why| format!("pipeline: {why}"))?;
    other_keys_and_databases(&mut pair).map_err(|why| format!("other keys: {why}"))?;
    a_client_that_left_gets_nothing(&mut pair).map_err(|why| format!("left: {why}"))?;
    a_release_wakes_the_next_waiter(&mut pair).map_err(|why| format!("release: {why}"))?;
    a_stream_wakes(&mut pair).map_err(|why| format!("XREAD: {why}"))?;
    for seed in 1..=SEEDS {
        random(&mut pair, seed).map_err(|why| format!("random, seed {seed}: {why}"))?;
    }
    Ok(format!("{} replies", pair.compared))
}

/// Blocks these clients, one after the other.
fn block(pair: &mut Pair, words: &[&str], clients: &[u64]) -> Result<(), String> {
    for (count, id) in clients.iter().enumerate() {
        pair.send(*id, &[words]);
        pair.wait_for_blocked(count + 1)?;
    }
    clients.iter().try_for_each(|id| pair.nothing_arrives(*id))
}

fn a_push_in_a_script_wakes_in_order(pair: &mut Pair) -> Result<(), String> {
    // Not in the order of their numbers.
    block(pair, &["BLPOP", "list", "other", "0"], &[3, 1, 2])?;
    pair.same(0, &["EVAL", PUSH, "1", "list", "first"])?;
    pair.same_reply(3)?;
    pair.nothing_arrives(1)?;
    // Two lists, and two clients that wait for both.
    pair.same(0, &["EVAL", PUSH, "2", "other", "list", "second"])?;
    pair.same_reply(1)?;
    pair.same_reply(2)?;
    // More elements than clients: the rest stays.
    block(pair, &["BLPOP", "list", "0"], &[2, 1])?;
    pair.same(0, &["RPUSH", "list", "a", "b", "c"])?;
    pair.same_reply(2)?;
    pair.same_reply(1)?;
    pair.same(0, &["LRANGE", "list", "0", "-1"])?;
    // An element that is pushed first waits.
    pair.same(1, &["BLPOP", "list", "0"])?;
    pair.same(1, &["EXISTS", "list"])?;
    // A push that the same script takes back wakes no client.
    block(pair, &["BLPOP", "list", "0"], &[1])?;
    let gone = "redis.call('RPUSH', 'list', 'x') return redis.call('DEL', 'list')";
    pair.same(0, &["EVAL", gone, "0"])?;
    pair.same(0, &["SET", "list", "of another type"])?;
    pair.wait_for_blocked(1)?;
    pair.nothing_arrives(1)?;
    pair.same(0, &["DEL", "list"])?;
    pair.same(0, &["RPUSH", "list", "y"])?;
    pair.same_reply(1).map(drop)
}

fn a_timeout_ends(pair: &mut Pair) -> Result<(), String> {
    for id in [1, 2] {
        pair.send(id, &[&["BLPOP", "list", if id == 1 { "0.050" } else { "0.010" }], &["PING"]]);
    }
    let began = now_us();
    wait_until("the virtual server reaches the timeout", || {
        pair.tick();
        pair.ours.next_moment().is_none()
    })?;
    if now_us() - began < 40_000 {
        return Err("the virtual server did not block".into());
    }
    for id in [2, 1] {
        if pair.same_reply(id)? != Reply::NilArray {
            return Err("the real server did not block".into());
        }
        pair.same_reply(id)?;
    }
    for bad in ["many", "-1", "", "nan"] {
        pair.same(1, &["BLPOP", "list", bad])?;
    }
    pair.expect(1, &["BLPOP", "list"], "ERR wrong number of arguments").map(drop)
}

fn commands_behind_wait(pair: &mut Pair) -> Result<(), String> {
    pair.send(1, &[&["BLPOP", "list", "0"], &["GET", "k"], &["BLPOP", "list", "0"], &["GET", "k"]]);
    pair.wait_for_blocked(1)?;
    // What stands behind BLPOP comes after the rest of what the other client has sent at once.
    let push: &[&str] = &["EVAL", PUSH, "1", "list", "x"];
    pair.send(0, &[push, &["LRANGE", "list", "0", "-1"], &["SET", "k", "1"]]);
    for _ in 0..3 {
        pair.same_reply(0)?;
    }
    pair.same_reply(1)?;
    pair.same_reply(1)?;
    pair.wait_for_blocked(1)?;
    pair.nothing_arrives(1)?;
    pair.send(0, &[&["SET", "k", "2"], push, push]);
    for _ in 0..3 {
        pair.same_reply(0)?;
    }
    pair.same_reply(1)?;
    pair.same_reply(1)?;
    pair.same(0, &["DEL", "list", "k"]).map(drop)
}

fn other_keys_and_databases(pair: &mut Pair) -> Result<(), String> {
    pair.same(0, &["SET", "text", "x"])?;
    pair.expect(1, &["BLPOP", "list", "text", "0"], "WRONGTYPE")?;
    pair.same(2, &["SELECT", "3"])?;
    block(pair, &["BLPOP", "list", "0"], &[2, 1])?;
    pair.same(0, &["RPUSH", "list", "in database 0"])?;
    pair.same_reply(1)?;
    pair.nothing_arrives(2)?;
    pair.same(1, &["SELECT", "3"])?;
    pair.same(1, &["RPUSH", "list", "in database 3"])?;
    pair.same_reply(2)?;
    pair.same(1, &["SELECT", "0"])?;
    pair.same(2, &["SELECT", "0"])?;
    pair.same(0, &["DEL", "text"]).map(drop)
}

fn a_client_that_left_gets_nothing(pair: &mut Pair) -> Result<(), String> {
    block(pair, &["BLPOP", "list", "0"], &[1, 2])?;
    pair.close(1);
    pair.wait_for_blocked(1)?;
    pair.same(0, &["EVAL", PUSH, "1", "list", "x"])?;
    pair.same_reply(2)?;
    pair.open(1);
    pair.same(0, &["EXISTS", "list"]).map(drop)
}

/// The scripts of lua/ wake a waiter that blocks as the client does, and only when it is its turn.
fn a_release_wakes_the_next_waiter(pair: &mut Pair) -> Result<(), String> {
    let mut dice = Dice::new(1, 3);
    let mut waiters = [1, 2, 3].map(|number| Waiter::plain(number, "1", &mut dice));
    for (at, expected) in ["granted", "blocked", "blocked"].into_iter().enumerate() {
        let (real, ours) = pair.execute(0, &waiters[at].acquire_as_gate().words(true))?;
        waiters[at].on_reply(&real, &ours);
        let is_expected = matches!(&real, Reply::Array(fields) if fields[0] == Reply::bulk(expected));
        if !similar(&real, &ours) || !is_expected {
            return Err(format!("{expected}: real {real:?}\nours {ours:?}"));
        }
    }
    let lists = [1, 2].map(|at: usize| format!("lock-notify:{}", waiters[at].name));
    block(pair, &["BLPOP", &lists[0], "2.100"], &[1])?;
    pair.send(2, &[&["BLPOP", &lists[1], "60"], &["PING"]]);
    pair.wait_for_blocked(2)?;
    for at in [0, 1] {
        let (real, ours) = pair.execute(0, &waiters[at].release(&mut dice).words(true))?;
        if !similar(&real, &ours) || real != Reply::bulk("released") {
            return Err(format!("release: real {real:?}\nours {ours:?}"));
        }
        pair.same_reply(at as u64 + 1)?;
        if at == 0 {
            pair.nothing_arrives(2)?;
            let (real, ours) = pair.execute(1, &waiters[1].acquire_as_gate().words(true))?;
            waiters[1].on_reply(&real, &ours);
        }
    }
    pair.same_reply(2)?;
    compare_data(pair)
}

fn a_stream_wakes(pair: &mut Pair) -> Result<(), String> {
    pair.same(1, &["XREAD", "STREAMS", "log", "0-0"])?;
    pair.send(1, &[&["XREAD", "BLOCK", "20", "STREAMS", "log", "0-0"], &["PING"]]);
    wait_until("the virtual server reaches the timeout", || {
        pair.tick();
        pair.ours.next_moment().is_none()
    })?;
    pair.same_reply(1)?;
    pair.same_reply(1)?;
    block(pair, &["XREAD", "BLOCK", "60000", "STREAMS", "log", "$"], &[2, 1])?;
    pair.same(0, &["EVAL", "return redis.call('XADD', 'log', '*', 'how', 'released')", "0"])?;
    pair.same_reply(1)?;
    pair.same_reply(2)?;
    pair.same(1, &["XREAD", "BLOCK", "60000", "STREAMS", "log", "0-0"])?;
    pair.same(0, &["SET", "text", "x"])?;
    pair.expect(1, &["XREAD", "BLOCK", "60000", "STREAMS", "text", "0-0"], "WRONGTYPE")?;
    pair.same(1, &["XREAD", "BLOCK", "-1", "STREAMS", "log", "0-0"])?;
    pair.same(1, &["XREAD", "BLOCK", "many", "STREAMS", "log", "0-0"])?;
    pair.same(1, &["XREAD", "BLOCK", "1", "STREAMS", "log"])?;
    pair.same(1, &["XREAD", "STREAMS", "log", "nonsense"])?;
    pair.same(0, &["DEL", "log", "text"]).map(drop)
}

/// Clients that block on some of three lists, and pushes to them, one thing at a time.
fn random(pair: &mut Pair, seed: u64) -> Result<(), String> {
    let mut dice = Dice::new(seed, 2);
    // In the order in which they blocked.
    let mut blocked: Vec<u64> = Vec::new();
    let lists = ["l1", "l2", "l3"];
    for step in 0..STEPS {
        let why = |difference: String| format!("step {step}: {difference}");
        let id = dice.between(1, CLIENTS);
        let (first, second) = (dice.one_of(&lists), dice.one_of(&lists));
        if dice.percent(60) && !blocked.contains(&id) {
            pair.send(id, &[&["BLPOP", first, second, "0"]]);
            blocked.push(id);
        } else if dice.percent(50) {
            pair.same(0, &["EVAL", PUSH, "2", first, second, &format!("element {step}")]).map_err(why)?;
        } else {
            pair.same(0, &["RPUSH", first, "x", "y"]).map_err(why)?;
        }
        // The real server has executed the step if it has as many blocked clients.
        let mut unserved = Vec::new();
        for id in blocked.drain(..) {
            if pair.has_unread(id) {
                pair.same_reply(id).map_err(why)?;
            } else {
                unserved.push(id);
            }
        }
        blocked = unserved;
        pair.wait_for_blocked(blocked.len()).map_err(why)?;
        blocked.iter().try_for_each(|id| pair.nothing_arrives(*id)).map_err(why)?;
        for list in lists {
            pair.same(0, &["LRANGE", list, "0", "-1"]).map_err(why)?;
        }
    }
    let all: Vec<&str> = blocked.iter().map(|_| "end").collect();
    for list in lists {
        let words: Vec<&str> = ["RPUSH", list].into_iter().chain(all.iter().copied()).collect();
        if !all.is_empty() {
            pair.same(0, &words)?;
        }
    }
    for id in blocked {
        pair.same_reply(id)?;
    }
    pair.same(0, &["DEL", "l1", "l2", "l3"]).map(drop)
}

/// `timeout`: an idle connection is closed; one that is blocked, or used, is not.
pub fn compare_idle() -> Compared {
    let mut pair = Pair::start(&["--timeout", "2"]);
    pair.ours.idle_limit_us = Some(2_000_000);
    (1..=3).for_each(|id| pair.open(id));
    pair.same(1, &["PING"])?;
    block(&mut pair, &["BLPOP", "list", "0"], &[2])?;
    // Connection 0 is used all the time; the real server closes the
    // others after two to four seconds.
    wait_until("an idle connection is closed", || {
        let is_used = pair.same(0, &["PING"]).is_ok();
        let _ = pair.admin(&["PING"]);
        pair.tick();
        assert!(is_used, "a connection that is used was closed");
        pair.has_real_closed(1) && pair.has_real_closed(3)
    })?;
    pair.both_close(1)?;
    pair.both_close(3)?;
    pair.nothing_arrives(2)?;
    // With a time limit, each of the servers may close connection 2 before it sends this element.
    pair.admin(&["CONFIG", "SET", "timeout", "0"]);
    pair.ours.idle_limit_us = None;
    pair.same(0, &["EVAL", PUSH, "1", "list", "x"])?;
    pair.same_reply(2)?;
    pair.same(2, &["PING"])?;
    Ok(format!("{} replies", pair.compared))
}
