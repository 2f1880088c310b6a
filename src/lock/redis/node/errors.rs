//! What a failure of the connection, or of the server, means.

use std::io;

use super::Node;
use crate::lock::redis::connection::{CLOSED, Connection, ConnectionError, Stage};
use crate::lock::redis::server::Target;
use crate::lock::{BackendError, Problem, ServerError, TlsProblem};

impl Node {
    pub(in crate::lock::redis) fn timed_out(&self) -> BackendError {
        if let Some(delay) = &self.delay {
            return delay.why.clone();
        }
        let stage = self.connection.as_ref().map(Connection::stage);
        let is_before_tls = stage == Some(Stage::Connected) && !self.has_answered;
        self.error(if is_before_tls { Problem::Tls(TlsProblem::NoAnswer) } else { Problem::TimedOut })
    }

    pub(in crate::lock::redis) fn error(&self, problem: Problem) -> BackendError {
        BackendError::new(self.name_now(), problem)
    }

    pub(super) fn server_error(&self, error: &redis::ServerError, during: &'static str) -> BackendError {
        self.error(Problem::Server(ServerError::new(error.code(), error.details(), during)))
    }

    pub(super) fn broken(&mut self, error: ConnectionError) -> BackendError {
        self.disconnect();
        self.error(self.connection_problem(error))
    }

    pub(super) fn connection_problem(&self, error: ConnectionError) -> Problem {
        match error {
            ConnectionError::Io(error) => self.unreachable(&error).problem,
            // It was addressed in the right way, and with the right certificate, before.
            ConnectionError::Unanswered | ConnectionError::ClosedWithTls(_) if self.has_answered => {
                Problem::Connection(CLOSED.into())
            }
            ConnectionError::Unanswered => Problem::ClosedUnanswered,
            ConnectionError::Tls(problem) | ConnectionError::ClosedWithTls(problem) => Problem::Tls(problem),
        }
    }

    pub(super) fn unreachable(&self, error: &io::Error) -> BackendError {
        self.error(match (error.kind(), &self.server.target) {
            (io::ErrorKind::ConnectionRefused, _) => Problem::ConnectionRefused,
            (io::ErrorKind::NotFound, Target::Unix(_)) => Problem::NoSocket,
            (io::ErrorKind::PermissionDenied, _) => Problem::SocketPermission,
            _ => Problem::Connection(error.to_string()),
        })
    }
}
