//! Tests of the test rig itself: do lines delay, lose and refuse as configured, and does a server's
//! clock follow?

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::{
    Client, Links, MS, Nodes, PATIENCE, Proxy, Redis, ServerClock, assert_takes_less_than, wait_until,
};

fn client(line: &Proxy) -> Client {
    Client::to_port(line.port()).expect("the line is open")
}

fn ping(client: &mut Client) -> Duration {
    let start = Instant::now();
    assert_eq!(client.cmd(&["PING"]), "PONG");
    start.elapsed()
}

#[test]
fn a_delay_applies_to_its_direction_and_changes_at_once() {
    let redis = Redis::start();
    let line = Proxy::to(&redis);
    let mut client = client(&line);
    ping(&mut client);
    for (there, back) in [(60, 0), (0, 60), (30, 40), (0, 0)] {
        line.to_server(there * MS);
        line.to_client(back * MS);
        let due = (there + back) * MS;
        assert_takes_less_than(due + 50 * MS, || {
            let before = redis.calls("ping");
            let start = Instant::now();
            client.send(&["PING"]).unwrap();
            wait_until("the request has arrived", || redis.calls("ping") > before);
            let arrived = start.elapsed();
            client.reply().unwrap();
            let answered = start.elapsed();
            assert!(arrived >= there * MS && answered >= due, "{arrived:?} {answered:?}");
            answered
        });
    }
    // The first bytes of a connection arrive as if its handshake had taken a round trip.
    line.each_way(50 * MS);
    line.handshake(true);
    let mut fresh = self::client(&line);
    assert!(ping(&mut fresh) >= 200 * MS);
    assert_takes_less_than(180 * MS, || ping(&mut fresh));
}

#[test]
fn a_delay_keeps_the_order_and_costs_no_throughput() {
    let redis = Redis::start();
    let line = Proxy::to(&redis);
    line.each_way(50 * MS);
    line.jitter(20 * MS);
    assert_takes_less_than(1000 * MS, || {
        let mut client = client(&line);
        let start = Instant::now();
        for number in 0..100 {
            client.send(&["ECHO", &number.to_string()]).unwrap();
            std::thread::sleep(MS); // in separate packets
        }
        for number in 0..100 {
            assert_eq!(client.reply().unwrap(), number.to_string().as_bytes());
        }
        start.elapsed()
    });
}

#[test]
fn stalled_bytes_arrive_later_and_cut_bytes_never() {
    let redis = Redis::start();
    let line = Proxy::to(&redis);
    let mut kept = client(&line);
    ping(&mut kept);
    line.pause();
    kept.send(&["INCR", "kept"]).unwrap();
    wait_until("the proxy has the request", || line.requests() == 2);
    assert_eq!(redis.cmd(&["GET", "kept"]), "");
    line.resume();
    assert_eq!(kept.reply().unwrap(), b"1");
    line.pause();
    kept.send(&["INCR", "lost"]).unwrap();
    wait_until("the proxy has the request", || line.requests() == 3);
    line.cut();
    line.resume();
    assert!(kept.reply().is_err());
    ping(&mut client(&line));
    assert_eq!(redis.cmd(&["GET", "lost"]), "");
    // The request of a client that is gone still arrives.
    line.each_way(100 * MS);
    let mut gone = client(&line);
    gone.send(&["INCR", "late"]).unwrap();
    drop(gone);
    wait_until("the request arrives", || redis.cmd(&["GET", "late"]) == "1");
}

#[test]
fn a_line_that_refuses_or_is_silent_can_be_mended_on_the_same_port() {
    let redis = Redis::start();
    let line = Proxy::to(&redis);
    let address = ([127, 0, 0, 1], line.port()).into();
    for _ in 0..3 {
        let mut before = client(&line);
        ping(&mut before);
        line.refuse();
        assert!(before.try_cmd(&["PING"]).is_err(), "the connection is gone");
        let refused = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        line.mend();
        let mut before = client(&line);
        ping(&mut before);
        line.blackhole();
        before.send(&["PING"]).unwrap();
        let silent = TcpStream::connect_timeout(&address, 100 * MS).unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::TimedOut);
        line.mend();
        assert_eq!(before.reply().unwrap(), b"PONG", "the request was only held back");
        ping(&mut client(&line));
    }
}

#[test]
fn hosts_use_one_name_for_a_server_and_reach_it_by_their_own_lines() {
    let links = Links::start(3, 2);
    assert_eq!(links.urls(0), links.urls(1));
    let ports: Vec<String> = (0..3).map(|server| links.port(0, server)).collect();
    assert!(ports.is_sorted() && ports.iter().all(|port| port.len() == 5), "{ports:?}");
    for host in [0, 1] {
        links.run(host, "k").cmd(&["true"]).done().expect_code(0);
        // A line may accept later than a majority replies.
        wait_until("each host uses its own lines", || {
            links.lines_of(host).iter().all(|line| line.connections() > 0)
        });
        assert!(links.lines_of(1).iter().all(|line| (line.connections() > 0) == (host == 1)));
    }
    let own = Links::own_names(3, 2);
    for host in [0, 1] {
        let ports: Vec<u16> = own.lines_of(host).iter().map(Proxy::port).collect();
        assert!(ports.is_sorted(), "{ports:?}");
        own.run(host, "k").cmd(&["true"]).done().expect_code(0);
    }
    let ports: Vec<u16> = Nodes::start(9).iter().map(Redis::port).collect();
    assert!(ports.is_sorted(), "{ports:?}");
}

#[test]
fn a_servers_clock_can_be_set_forward_and_back() {
    let (redis, clock) = ServerClock::start();
    let time = || redis.cmd(&["TIME"]).lines().next().unwrap().parse::<i64>().unwrap();
    let right = time();
    for (ahead, expected) in [(3600, 3600..3660), (-600, -601..-540), (0, -1..60)] {
        clock.set_ahead(ahead);
        // Valkey reads its clock once per event loop iteration.
        wait_until("the server has read its clock", || expected.contains(&(time() - right)));
        let in_script = redis.cmd(&["EVAL", "return redis.call('TIME')[1]", "0"]).parse::<i64>().unwrap();
        assert!(expected.contains(&(in_script - right)), "{in_script}");
    }
}

#[test]
fn connects_to_a_killed_server_are_refused_on_all_lines_until_it_is_back() {
    let mut links = Links::start(3, 2);
    for _ in 0..2 {
        let mut before: Vec<Client> = links.lines_to(0).map(client).collect();
        before.iter_mut().for_each(|client| assert!(ping(client) < PATIENCE));
        links.kill(0);
        for (line, mut before) in links.lines_to(0).zip(before) {
            assert!(before.try_cmd(&["PING"]).is_err(), "the connection is gone");
            assert!(Client::to_port(line.port()).is_err());
        }
        links.restart(0);
        links.lines_to(0).for_each(|line| assert!(ping(&mut client(line)) < PATIENCE));
    }
}
