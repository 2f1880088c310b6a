//! TLS on a connection that does not block. rustls does no I/O of its own: it gets the bytes that
//! were received and returns those to be sent. Without a `rediss://` server nothing here runs, and
//! no certificate is read.
//!
//! The server's certificate is always verified before a request is sent.

mod stream;

use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SignatureScheme};

use crate::lock::redis::password::read_again;
use crate::lock::{TlsProblem, TlsSetupProblem};
use crate::world::Wire;

pub(super) use stream::TlsStream;

/// A file in PEM, by its absolute path, and its content when it was last read.
#[derive(PartialEq, Eq)]
pub(crate) struct PemFile {
    pub path: PathBuf,
    pub content: Vec<u8>,
}

impl PemFile {
    fn read_again(&self) -> Self {
        let content = read_again(&self.path).unwrap_or_else(|| self.content.clone());
        Self { path: self.path.clone(), content }
    }
}

/// The user's files.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// Certificates of authorities to trust instead of the system's.
    pub authorities: Option<PemFile>,
    /// A certificate chain and its key.
    pub identity: Option<(PemFile, PemFile)>,
}

impl TlsFiles {
    fn read_again(&self) -> Self {
        let (authorities, identity) = (self.authorities.as_ref(), self.identity.as_ref());
        Self {
            authorities: authorities.map(PemFile::read_again),
            identity: identity.map(|(certificate, key)| (certificate.read_again(), key.read_again())),
        }
    }
}

/// How to speak TLS to all servers of this process. They share it, so that a later connection can
/// resume the session of an earlier one: this saves a round trip with TLS 1.2, the certificates
/// with 1.3.
#[derive(Default)]
pub(crate) struct Tls {
    /// The name that the certificate must have, instead of the host in the URL.
    server_name: Option<String>,
    identity_and_trust: Mutex<IdentityAndTrust>,
    was_accepted: AtomicBool,
}

#[derive(Default)]
struct IdentityAndTrust {
    files: TlsFiles,
    /// Made of the files at the first use.
    config: Option<Arc<ClientConfig>>,
}

impl IdentityAndTrust {
    /// The configuration for the next session. Files that were replaced since the last one count,
    /// unless they cannot be used: a new certificate and its key may be written one by one.
    fn refresh(&mut self) -> Result<Arc<ClientConfig>, TlsSetupProblem> {
        let Some(last) = &self.config else {
            let config = self.config.insert(configure(&self.files)?.into());
            return Ok(Arc::clone(config));
        };
        let files = self.files.read_again();
        if files == self.files {
            return Ok(Arc::clone(last));
        }
        let Ok(config) = configure(&files) else { return Ok(Arc::clone(last)) };
        self.files = files;
        Ok(Arc::clone(self.config.insert(config.into())))
    }
}

impl Tls {
    pub(crate) fn new(files: TlsFiles, server_name: Option<String>) -> Self {
        let identity_and_trust = Mutex::new(IdentityAndTrust { files, config: None });
        Self { server_name, identity_and_trust, was_accepted: AtomicBool::new(false) }
    }

    /// Check what is needed.
    pub(crate) fn prepare(&self) -> Result<(), TlsSetupProblem> {
        if self.server_name.as_deref().is_some_and(|name| server_name(name).is_none()) {
            return Err(TlsSetupProblem::ServerName);
        }
        self.identity_and_trust().refresh().map(|_| ())
    }

    fn identity_and_trust(&self) -> MutexGuard<'_, IdentityAndTrust> {
        self.identity_and_trust.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server has accepted us, and we have accepted it.
    pub(in crate::lock::redis) fn accepted(&self) {
        self.was_accepted.store(true, Ordering::Relaxed);
    }

    /// Whether this problem may pass: our files and a server cannot change at the same moment.
    pub(in crate::lock::redis) fn may_be_changing(&self, problem: &TlsProblem) -> bool {
        problem.is_about_our_files() && self.was_accepted.load(Ordering::Relaxed)
    }

    /// Start a session with this host; nothing is sent yet.
    pub(in crate::lock::redis) fn start(&self, host: &str, wire: Wire) -> Result<TlsStream, TlsProblem> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = server_name(name).ok_or(TlsSetupProblem::ServerName).map_err(TlsProblem::Setup)?;
        let mut current = self.identity_and_trust();
        let config = current.refresh().map_err(TlsProblem::Setup)?;
        let mut session =
            ClientConnection::new(config, name).map_err(|error| TlsProblem::Handshake(error.to_string()))?;
        // As without TLS, the queue is bounded by the size of our requests.
        session.set_buffer_limit(None);
        let TlsFiles { identity, authorities } = &current.files;
        Ok(TlsStream::new(wire, session, identity.is_some(), authorities.is_some()))
    }
}

/// Prints no keys.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
fn configure(files: &TlsFiles) -> Result<ClientConfig, TlsSetupProblem> {
    let roots = match &files.authorities {
        Some(file) => authorities(&file.content)?,
        None => system_authorities()?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsSetupProblem::Key(error.to_string()))?
        .with_root_certificates(roots);
    let Some((PemFile { content: certificate, .. }, PemFile { content: key, .. })) = &files.identity else {
        return Ok(watched(builder.with_no_client_auth()));
    };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsSetupProblem::NoCertificate)?;
    if chain.is_empty() {
        return Err(TlsSetupProblem::NoCertificate);
    }
    let is_encrypted = key.windows(10).any(|part| part == b"ENCRYPTED ");
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| if is_encrypted { TlsSetupProblem::EncryptedKey } else { TlsSetupProblem::NoKey })?;
    builder.with_client_auth_cert(chain, key).map(watched).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => TlsSetupProblem::OtherKey,
        error => TlsSetupProblem::Key(error.to_string()),
    })
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, TlsSetupProblem> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        certificate
            .ok()
            .and_then(|certificate| roots.add(certificate).ok())
            .ok_or(TlsSetupProblem::NoAuthority)?;
    }
    if roots.is_empty() { Err(TlsSetupProblem::NoAuthority) } else { Ok(roots) }
}

/// The authorities that this host trusts. What cannot be read or used is left out: one of a hundred
/// may be malformed.
fn system_authorities() -> Result<RootCertStore, TlsSetupProblem> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(TlsSetupProblem::NoSystemRoots) } else { Ok(roots) }
}

/// A name or an address. Certificates have names without the last dot of an absolute name.
fn server_name(host: &str) -> Option<ServerName<'static>> {
    match host.parse::<IpAddr>() {
        Ok(address) => Some(ServerName::IpAddress(address.into())),
        Err(_) => ServerName::try_from(host.trim_end_matches('.').to_owned()).ok(),
    }
}

thread_local! {
    /// A server has asked for our certificate in the bytes that this thread passed to a session.
    /// The resolver that notices it belongs to the configuration, which all sessions share.
    static WAS_ASKED: Cell<bool> = const { Cell::new(false) };
}

/// Our certificate, if we have one. Records that a server has asked for it.
#[derive(Debug)]
struct WatchedIdentity(Arc<dyn ResolvesClientCert>);

fn watched(mut config: ClientConfig) -> ClientConfig {
    config.client_auth_cert_resolver = Arc::new(WatchedIdentity(config.client_auth_cert_resolver));
    config
}

impl ResolvesClientCert for WatchedIdentity {
    fn resolve(&self, hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        WAS_ASKED.set(true);
        self.0.resolve(hints, schemes)
    }

    fn has_certs(&self) -> bool {
        self.0.has_certs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{HandshakeKind, ServerConfig, ServerConnection, SupportedProtocolVersion};
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn server(version: &'static SupportedProtocolVersion) -> (Arc<ServerConfig>, Tls) {
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.der().clone()], key.into())
            .unwrap();
        config.ticketer = rustls::crypto::ring::Ticketer::new().unwrap();
        let authorities = Some(PemFile { path: PathBuf::new(), content: issued.cert.pem().into_bytes() });
        (Arc::new(config), Tls::new(TlsFiles { authorities, identity: None }, None))
    }

    /// One request and its reply on a new connection.
    fn converse(server: &Arc<ServerConfig>, tls: &Tls) -> HandshakeKind {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let wire = Wire::Socket(OwnedFd::from(ours).into());
        let mut stream = tls.start("localhost", wire).unwrap();
        let mut session = ServerConnection::new(Arc::clone(server)).unwrap();
        let (mut request, mut reply) = (b"PING".to_vec(), Vec::new());
        theirs.set_nonblocking(true).unwrap();
        for _ in 0..100 {
            stream.send(&mut request).unwrap();
            let _ = session.read_tls(&mut theirs);
            session.process_new_packets().unwrap();
            if session.reader().read(&mut [0; 4]).is_ok_and(|length| length == 4) {
                session.writer().write_all(b"PONG").unwrap();
            }
            while session.wants_write() {
                session.write_tls(&mut theirs).unwrap();
            }
            stream.receive(&mut reply, 100).unwrap();
            if reply == b"PONG" {
                return stream.session.handshake_kind().unwrap();
            }
        }
        panic!("no reply, but {reply:?}");
    }

    #[test]
    fn a_later_connection_resumes_the_session() {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let (server, tls) = server(version);
            assert_eq!(converse(&server, &tls), HandshakeKind::Full);
            assert_eq!(converse(&server, &tls), HandshakeKind::Resumed);
        }
    }

    #[test]
    fn the_last_dot_of_a_host_is_not_compared_with_the_certificate() {
        for (host, name) in [("a.example.", "a.example"), ("my_redis", "my_redis"), ("::1", "::1")] {
            assert_eq!(server_name(host).unwrap().to_str(), name);
        }
        assert_eq!(server_name("a b"), None);
    }
}
