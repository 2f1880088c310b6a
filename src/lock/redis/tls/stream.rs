//! One TLS connection: bytes in and out, and what its failures mean.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, SystemTime};

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{AlertDescription, CertificateError, ClientConnection, RootCertStore};

use super::WAS_ASKED;
use crate::lock::TlsProblem;
use crate::lock::redis::connection::{CLOSED, ConnectionError};
use crate::world::Wire;

/// Our own certificate.
#[derive(Debug)]
struct ClientCertificate {
    is_set: bool,
    /// The server has asked for it.
    was_asked: bool,
}

/// The latest that the server has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TlsProgress {
    Nothing,
    Handshake,
    /// Data after the handshake: the server has accepted us.
    Reply,
}

#[derive(Debug)]
pub(in crate::lock::redis) struct TlsStream {
    wire: Wire,
    pub(super) session: ClientConnection,
    certificate: ClientCertificate,
    has_own_authorities: bool,
    received: TlsProgress,
}

impl TlsStream {
    pub(super) fn new(
        wire: Wire,
        session: ClientConnection,
        has_identity: bool,
        has_own_authorities: bool,
    ) -> Self {
        let certificate = ClientCertificate { is_set: has_identity, was_asked: false };
        Self { wire, session, certificate, has_own_authorities, received: TlsProgress::Nothing }
    }

    pub(in crate::lock::redis) fn wire(&self) -> &Wire {
        &self.wire
    }

    pub(in crate::lock::redis) fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    pub(in crate::lock::redis) fn has_received(&self) -> bool {
        self.received > TlsProgress::Nothing
    }

    pub(in crate::lock::redis) fn is_established(&self) -> bool {
        !self.session.is_handshaking()
    }

    /// When the server's certificate expires.
    pub(in crate::lock::redis) fn certificate_expires(&self) -> Option<SystemTime> {
        expires(self.session.peer_certificates()?.first()?)
    }

    /// Take these bytes and send what fits. None of them is sent before the handshake is over.
    pub(in crate::lock::redis) fn send(&mut self, outgoing: &mut Vec<u8>) -> Result<(), ConnectionError> {
        self.session.writer().write_all(outgoing)?;
        outgoing.clear();
        self.flush().map_err(|error| self.cut_off(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut &self.wire) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Append what has arrived, until `incoming` has about `at_most` bytes. Everything that was
    /// decrypted is taken, as poll would not report it.
    pub(in crate::lock::redis) fn receive(
        &mut self,
        incoming: &mut Vec<u8>,
        at_most: usize,
    ) -> Result<(), ConnectionError> {
        let mut chunk = [0; 4096];
        while incoming.len() <= at_most {
            match (&self.wire).read(&mut chunk) {
                Ok(0) => return Err(self.cut_off(io::Error::new(ErrorKind::UnexpectedEof, CLOSED))),
                Ok(length) => self.decrypt(&chunk[..length], incoming)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(self.cut_off(e)),
            }
        }
        // The next message of the handshake, or new keys.
        self.flush().map_err(|error| self.cut_off(error))
    }

    fn decrypt(&mut self, mut bytes: &[u8], incoming: &mut Vec<u8>) -> Result<(), ConnectionError> {
        // A server without TLS replies in plain text.
        if self.received == TlsProgress::Nothing && !is_tls_record(bytes) {
            return Err(TlsProblem::NotTls.into());
        }
        self.received = self.received.max(TlsProgress::Handshake);
        while !bytes.is_empty() {
            self.session.read_tls(&mut bytes)?;
            WAS_ASKED.set(false);
            let processed = self.session.process_new_packets();
            self.certificate.was_asked |= WAS_ASKED.get();
            let state = processed.map_err(|error| {
                // Send the alert.
                let _ = self.flush();
                self.failed(error)
            })?;
            let arrived = state.plaintext_bytes_to_read();
            if arrived > 0 {
                self.received = TlsProgress::Reply;
                let start = incoming.len();
                incoming.resize(start + arrived, 0);
                self.session.reader().read_exact(&mut incoming[start..])?;
            }
            if state.peer_has_closed() {
                return Err(self.cut_off(io::Error::new(ErrorKind::UnexpectedEof, CLOSED)));
            }
        }
        Ok(())
    }

    /// The connection has ended without a reason. A server that rejects our certificate sends one,
    /// but it may be lost if we have sent more meanwhile.
    fn cut_off(&self, error: io::Error) -> ConnectionError {
        if self.certificate.was_asked && self.received < TlsProgress::Reply {
            ConnectionError::ClosedWithTls(self.refused(None))
        } else if !self.is_established() {
            TlsProblem::ClosedInHandshake.into()
        } else {
            error.into()
        }
    }

    fn refused(&self, alert: Option<AlertDescription>) -> TlsProblem {
        if self.certificate.is_set {
            TlsProblem::IdentityRefused(alert.map(|alert| format!("{alert:?}")))
        } else {
            TlsProblem::IdentityWanted
        }
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    fn failed(&self, error: rustls::Error) -> ConnectionError {
        use AlertDescription as Alert;
        match error {
            rustls::Error::InvalidCertificate(error) => self.unfit_certificate(error).into(),
            rustls::Error::AlertReceived(
                alert @ (Alert::CertificateRequired
                | Alert::NoCertificate
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied),
            ) => self.refused(Some(alert)).into(),
            rustls::Error::AlertReceived(alert)
                if self.certificate.was_asked && self.received < TlsProgress::Reply =>
            {
                self.refused(Some(alert)).into()
            }
            error if self.is_established() => io::Error::new(ErrorKind::InvalidData, error).into(),
            error => TlsProblem::Handshake(error.to_string()).into(),
        }
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    fn unfit_certificate(&self, error: CertificateError) -> TlsProblem {
        match error {
            CertificateError::ExpiredContext { not_after, .. } => TlsProblem::Expired(moment(not_after)),
            CertificateError::NotValidYetContext { not_before, .. } => {
                TlsProblem::NotYetValid(moment(not_before))
            }
            CertificateError::NotValidForNameContext { expected, presented } => TlsProblem::OtherName {
                wanted: expected.to_str().into_owned(),
                names: presented.iter().map(|name| bare_name(name)).collect(),
            },
            // BadSignature: an authority of the same name with another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                TlsProblem::UnknownIssuer { has_own_authorities: self.has_own_authorities }
            }
            CertificateError::Other(error) if error.to_string().contains("CaUsedAsEndEntity") => {
                TlsProblem::IsAuthority
            }
            error => TlsProblem::Certificate(error.to_string()),
        }
    }
}

/// Announces the end, so that the server does not take it for an attack.
impl Drop for TlsStream {
    fn drop(&mut self) {
        self.session.send_close_notify();
        let _ = self.flush();
    }
}

/// Whether these bytes may begin a handshake.
fn is_tls_record(bytes: &[u8]) -> bool {
    const ALERT: u8 = 0x15;
    const HANDSHAKE: u8 = 0x16;
    bytes.first().is_some_and(|kind| [ALERT, HANDSHAKE].contains(kind))
}

/// rustls does not expose the date, but names it when it rejects the certificate for being too old.
/// It checks this before it looks for an issuer.
fn expires(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let certificate = ParsedCertificate::try_from(certificate).ok()?;
    let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let no_roots = RootCertStore::empty();
    match verify_server_cert_signed_by_trust_anchor(&certificate, &no_roots, &[], end_of_time, &[]) {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Some(moment(not_after))
        }
        Ok(()) | Err(_) => None,
    }
}

fn moment(time: UnixTime) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs())
}

/// rustls writes `DnsName("*.example")` and `IpAddress(127.0.0.1)`.
fn bare_name(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    #[test]
    fn the_expiry_of_a_certificate_is_known() {
        for (year, expected) in [(2031, "2031-02-03T00:00:00Z"), (2121, "2121-02-03T00:00:00Z")] {
            let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
            (params.not_before, params.not_after) = (date_time_ymd(2001, 2, 3), date_time_ymd(year, 2, 3));
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let expires = expires(certificate.der()).unwrap();
            assert_eq!(humantime::format_rfc3339(expires).to_string(), expected);
        }
        assert_eq!(expires(&CertificateDer::from(&b"no certificate"[..])), None);
    }
}
