//! The output of `redlock history`.

use crate::support::{Backend, Done, Pty, Redis, Run};

/// A server with a history of these runs: when they ended and how long they held the lock, in
/// seconds before now, and more fields.
fn server_with_history(runs: &[(u64, u64, &str)]) -> Redis {
    let redis = Redis::start();
    let now = redis.connect().now_ms();
    for (at, (ago, held, more)) in runs.iter().enumerate() {
        let (id, held) = (format!("{}-{at}", now - ago * 1000), (held * 1000).to_string());
        let claim = format!("{at:08x}-0000-4000-8000-000000000000.1");
        let mut words =
            vec!["XADD", "lock-log:k", &id, "claim", &claim, "held", &held, "host", "web1", "pid", "42"];
        words.extend(more.split_ascii_whitespace());
        redis.cmd(&words);
    }
    redis
}

const FINE: &str = "user ci how released exit 0 waited 0 fence 7 command deploy.sh";

fn history(redis: &Redis, args: &[&str]) -> Run {
    Run::bare().args(&["history", "--redis", &redis.url(), "k"]).args(args).env("TZ", "UTC")
}

fn text(redis: &Redis, args: &[&str]) -> String {
    history(redis, args).env("LC_ALL", "C.UTF-8").done().expect_code(0).stdout
}

#[test]
fn a_row_describes_a_run_completely() {
    let redis = server_with_history(&[
        (7200, 60, FINE),
        (
            3600,
            600,
            "user ci how lost exit 79 waited 31000 fence 8 label nightly command x job_url https://ci/17",
        ),
        (1800, 0, "user ci how gave_up waited 600000 command x"),
    ]);
    let shown = text(&redis, &[]);
    let rows: Vec<Vec<&str>> = shown
        .lines()
        .skip_while(|line| !line.starts_with("STARTED"))
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(rows[0], ["STARTED", "WAITED", "HELD", "EXIT", "FENCE", "WHO"], "{shown}");
    assert_eq!(rows[2][1..], ["31s", "10m", "79 lost", "8", "ci@web1 42 nightly", "https://ci/17"]);
    assert_eq!(rows[3][1..], ["0s", "1m", "0", "7", "ci@web1 42 deploy.sh"]);
    assert!(shown.starts_with("k: 2 runs since "), "{shown}");
    assert!(shown.lines().next().unwrap().ends_with(", 1 failed, 1 did not get the lock"), "{shown}");
    assert!(shown.contains("\nheld    1m       10m      10m, "), "{shown}");
}

#[test]
fn the_timeline_shows_holders_waiters_and_failures() {
    // From two hours ago on: an hour of the first, half an hour of none, half an hour of the
    // second.
    let redis = server_with_history(&[
        (3600, 3600, "user ci how released exit 0 waited 0 label first"),
        (0, 1800, "user ci how released exit 1 waited 900000 label second"),
    ]);
    let shown = text(&redis, &[]);
    let row = |label: &str| {
        let line =
            shown.lines().find(|line| line.starts_with(label)).unwrap_or_else(|| panic!("{label}: {shown}"));
        line.chars().skip(9).collect::<Vec<char>>()
    };
    let held = row("held ");
    let all: String = held.iter().collect();
    assert!(all.contains("█first█") && all.contains("▓second▓"), "{shown}");
    let idle = held.iter().filter(|sign| **sign == ' ').count();
    assert!(
        (held.len() / 5..held.len() / 3).contains(&idle),
        "a quarter of the time: {idle} of {}\n{shown}",
        held.len()
    );
    let waiting = row("waiting").iter().filter(|sign| **sign != ' ').count();
    assert!(
        (held.len() / 10..held.len() / 6).contains(&waiting),
        "an eighth of the time: {waiting}\n{shown}"
    );
    assert_eq!(row("failed").last(), Some(&'✗'));
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(!shown.contains('\u{1b}'), "no colours off a terminal");
}

#[test]
fn the_output_without_unicode_is_plain_ascii_as_in_cron() {
    let redis =
        server_with_history(&[(60, 30, FINE), (20, 10, FINE), (5, 1, "user ci how expired waited 4000")]);
    for run in [
        history(&redis, &[]).env("LC_ALL", "C"),
        Run::bare().through(&["env", "-i"]).args(&["history", "--redis", &redis.url(), "k"]),
    ] {
        let shown = run.done().expect_code(0).stdout;
        assert!(shown.is_ascii() && shown.contains('#') && shown.contains("-+-"), "{shown}");
    }
}

#[test]
fn hundreds_of_runs_fit_and_the_last_ones_are_listed() {
    let runs: Vec<(u64, u64, &str)> = (0..300).rev().map(|at| (at * 60, 20, FINE)).collect();
    let redis = server_with_history(&runs);
    let shown = text(&redis, &[]);
    assert!(shown.starts_with("k: 300 runs since ") && shown.lines().count() < 24, "{shown}");
    assert!(shown.contains("and 290 more; --limit 300 lists them all"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let five = text(&redis, &["--limit", "5"]);
    assert!(five.starts_with("k: 5 runs since ") && !five.contains("more"), "{five}");
    let hour = history(&redis, &["--since", "1h", "--json"]).done().expect_code(0).stdout;
    assert!((58..=60).contains(&hour.lines().count()), "{}", hour.lines().count());
}

#[test]
fn many_simultaneous_runs_are_drawn_as_a_number() {
    let runs: Vec<(u64, u64, &str)> =
        (0..40).rev().map(|at| (at, 600, "user ci how released exit 0 waited 0 mode shared:")).collect();
    let shown = text(&server_with_history(&runs), &[]);
    assert!(shown.contains("\nholders  ") && shown.lines().count() < 24, "{shown}");
    let three = text(&server_with_history(&runs[..3]), &[]);
    assert_eq!(three.lines().filter(|line| line.contains('█')).count(), 3, "{three}");
}

#[test]
fn times_are_read_as_local_time_and_invalid_ones_are_refused() {
    let redis = server_with_history(&[(60, 1, FINE)]);
    let count = |since: &str, zone: &str| {
        let run = history(&redis, &["--json", "--since", since]).env("TZ", zone);
        run.done().expect_code(0).stdout.lines().count()
    };
    let minutes_ago = |minutes: u64, ahead: u64| {
        let moment = std::time::SystemTime::now() - std::time::Duration::from_secs(minutes * 60)
            + std::time::Duration::from_secs(ahead * 3600);
        let text = humantime_like(moment);
        text[..16].replace('T', " ")
    };
    assert_eq!((count(&minutes_ago(10, 0), "UTC"), count(&minutes_ago(10, 5), "XYZ-5")), (1, 1));
    assert_eq!((count(&minutes_ago(10, 5), "UTC"), count("2020-01-01T00:00:00Z", "UTC")), (0, 1));
    for args in [
        &["--since", "tomorrow"][..],
        &["--limit", "0"],
        &["--limit", "x"],
        &["--json", "--svg", "-"],
        &["--since", "-1h"],
    ] {
        let done = history(&redis, args).done().expect_code(64);
        assert!(done.stderr.contains(args[0]), "{done:?}");
    }
    let typed = history(&redis, &["--key", "other"]).done().expect_code(64);
    assert!(typed.stderr.contains("give one key"), "{typed:?}");
}

/// "2026-11-16T09:14:05"
fn humantime_like(moment: std::time::SystemTime) -> String {
    let seconds = moment.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let output = std::process::Command::new("date")
        .args(["-u", "-d", &format!("@{seconds}"), "+%Y-%m-%dT%H:%M:%S"])
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap().trim().to_owned()
}

#[test]
fn a_terminal_gets_colours_unless_disabled() {
    let redis = server_with_history(&[(60, 30, FINE), (20, 10, "user ci how released exit 1 waited 0")]);
    let screen = |no_colour: &str| {
        let run =
            history(&redis, &[]).env("LC_ALL", "C.UTF-8").env("TERM", "xterm").env("NO_COLOR", no_colour);
        let pty = Pty::run(run);
        pty.wait_for("WHO");
        let screen = pty.screen();
        pty.wait().expect_code(0);
        screen
    };
    let coloured = screen("");
    assert!(coloured.contains("\u{1b}[31m") && coloured.contains("\u{1b}[0m"), "{coloured:?}");
    assert!(!screen("1").contains("\u{1b}["));
}

#[test]
fn rows_are_shortened_to_the_width_of_a_terminal_and_whole_elsewhere() {
    let url = format!("https://ci.example.org/{}", "7".repeat(80));
    let fine = format!("{FINE} job_url {url}");
    let broken = "user ci how broken exit 79 by {\"host\":\"bastion-host-of-the-release-team\",\"user\":\"alice\",\"pid\":\"7\"}";
    let redis = server_with_history(&[(60, 30, &fine), (20, 10, broken)]);
    for key in [&["k"][..], &[]] {
        let run = || Run::bare().args(&["history", "--redis", &redis.url()]).args(key);
        let pty = Pty::run(run().via("stty cols 80; exec \"$@\"").env("NO_COLOR", "1").env("LC_ALL", "C"));
        let shown = pty.wait().expect_code(0).stdout;
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        let rows: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("STARTED")).skip(1).collect();
        assert!(rows[0].contains("79 broken by alice@") && rows[0].ends_with("ci@we..."), "{shown}");
        let whole = run().done().expect_code(0).stdout;
        assert!(whole.contains(&url) && whole.contains("alice@bastion-host-of-the-release-team"), "{whole}");
    }
}

#[test]
fn text_from_a_run_is_escaped_for_the_terminal_and_the_picture() {
    let redis = Redis::start();
    let label = "a\u{1b}]0;owned\u{7}<script>&\"";
    Run::key(&redis, "k")
        .args(&["--label", label])
        .cmd(&["sh", "-c", "exit 0", "secret-argument"])
        .done()
        .expect_code(0);
    for args in [&[][..], &["--json"], &["--svg", "-"]] {
        let shown = text(&redis, args);
        assert!(!shown.contains(['\u{1b}', '\u{7}']) && !shown.contains("secret-argument"), "{shown:?}");
        assert!(args != ["--svg", "-"] || !shown.contains("<script"), "{shown}");
        assert!(shown.contains("owned"), "{shown}");
    }
}

#[test]
fn the_picture_is_a_self_contained_file() {
    let backend = Backend::this_host();
    backend.run().args(&["--label", "nightly"]).sh("exit 1").done().expect_code(1);
    let file = backend.notes().join("k.svg");
    let svg = |path: &str| backend.subcommand("history").args(&["k", "--svg", path]).done();
    let silent = |done: &Done| assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
    silent(&svg(file.to_str().unwrap()).expect_code(0));
    let picture = std::fs::read_to_string(&file).unwrap();
    assert!(picture.starts_with("<svg xmlns=") && picture.trim_end().ends_with("</svg>"), "{picture}");
    for part in [
        "<title",
        "<desc",
        "role=\"img\"",
        "prefers-color-scheme:dark",
        "nightly",
        "class=\"failed\"",
        "class=\"cross\"",
    ] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    assert!(
        !picture.contains("href") && !picture.contains("url("),
        "the picture refers to nothing else: {picture}"
    );
    assert_eq!(svg("-").expect_code(0).stdout.lines().count(), picture.lines().count());
    let refused = svg("/nowhere/k.svg").expect_code(78);
    assert!(refused.stderr.contains("--svg: cannot write /nowhere/k.svg"), "{refused:?}");
    let never = backend.subcommand("history").args(&["never", "--svg", "-"]).done().expect_code(0);
    assert!(never.stdout.contains("never: no runs in its history"), "{never:?}");
}
