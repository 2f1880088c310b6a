//! A real redis-server, for comparison.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct RealServer {
    pub port: u16,
    process: Child,
    _directory: tempfile::TempDir,
}

impl RealServer {
    /// `options`: as on the command line of redis-server.
    pub fn start(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let program = std::env::var("REDLOCK_TEST_REDIS_SERVER").unwrap_or("redis-server".into());
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
        let port = free.expect("a free port").port();
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--save", "", "--port"]).arg(port.to_string()).args(options);
        command.arg("--dir").arg(directory.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.spawn().expect("redis-server is installed");
        let server = Self { port, process, _directory: directory };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < Duration::from_secs(60), "redis-server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
