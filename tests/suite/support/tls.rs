//! A certificate authority for tests, its certificates, and servers that use them.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::redis::{free_port, free_port_for_cluster};
use super::{Proxy, Redis, Run};

/// Issues certificates; its files are deleted with it.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: tempfile::TempDir,
}

/// When a certificate is valid.
#[derive(Clone, Copy)]
pub enum Valid {
    Now,
    /// Until 2001-02-03.
    Before,
    /// From 2121-02-03 on.
    Later,
    /// For five more days.
    Soon,
}

/// A certificate and its key, in PEM.
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("the authority's certificate");
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).expect("write the certificate");
        Authority { issuer, directory }
    }

    /// The file with its own certificate.
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// A certificate for these names and addresses.
    pub fn issue(&self, names: &[&str], valid: Valid) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        (params.not_before, params.not_after) = match valid {
            Valid::Now => (date_time_ymd(2001, 2, 3), date_time_ymd(2121, 2, 3)),
            Valid::Before => (date_time_ymd(2000, 2, 3), date_time_ymd(2001, 2, 3)),
            Valid::Later => (date_time_ymd(2121, 2, 3), date_time_ymd(2122, 2, 3)),
            Valid::Soon => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
                let end = now + Duration::from_secs(5 * 24 * 3600);
                (date_time_ymd(2001, 2, 3), date_time_ymd(1970, 1, 1) + end)
            }
        };
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        self.write(&certificate.pem(), &key.serialize_pem())
    }

    fn write(&self, certificate: &str, key: &str) -> Identity {
        let number = free_port();
        let path = |kind| self.directory.path().join(format!("{number}.{kind}"));
        let identity = Identity { certificate: path("pem"), key: path("key") };
        std::fs::write(&identity.certificate, certificate).expect("write the certificate");
        std::fs::write(&identity.key, key).expect("write the key");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&identity.key, mode).expect("the key's mode");
        identity
    }

    /// A server for localhost and 127.0.0.1.
    pub fn serve(&self) -> TlsRedis {
        self.serve_with(&["localhost", "127.0.0.1"], Valid::Now, &[])
    }

    /// With a certificate for these names, and further arguments for redis-server. Clients need no
    /// certificate, unless the arguments say otherwise.
    pub fn serve_with(&self, names: &[&str], valid: Valid, args: &[&str]) -> TlsRedis {
        let port = free_port_for_cluster();
        let settings = self.settings(names, valid, port);
        let mut all: Vec<String> =
            settings.into_iter().flat_map(|(name, value)| [format!("--{name}"), value]).collect();
        if !args.contains(&"--tls-auth-clients") {
            all.extend(["--tls-auth-clients".into(), "no".into()]);
        }
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        TlsRedis { plain: Redis::start_with(&all), port }
    }

    /// The configuration of a server on this port, with a certificate for these names.
    pub fn settings(&self, names: &[&str], valid: Valid, port: u16) -> Vec<(&'static str, String)> {
        let identity = self.issue(names, valid);
        let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        vec![
            ("tls-port", port.to_string()),
            ("tls-cert-file", text(&identity.certificate)),
            ("tls-key-file", text(&identity.key)),
            ("tls-ca-cert-file", text(&self.file())),
        ]
    }

    /// Acts like a TLS proxy whose server is down: accepts connections on this port, asks for a
    /// certificate and closes them, for as long as the value lives.
    pub fn closes_after_handshake(&self, port: u16) -> Closing {
        let identity = self.issue(&["127.0.0.1"], Valid::Now);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("the authority's certificate");
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
        let verifier = verifier.allow_unauthenticated().build().expect("a verifier");
        let chain = vec![CertificateDer::from_pem_file(identity.certificate).expect("its certificate")];
        let key = PrivateKeyDer::from_pem_file(identity.key).expect("its key");
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_client_cert_verifier(verifier).with_single_cert(chain, key))
            .expect("a server's configuration");
        Closing::start(Arc::new(config), port)
    }

    /// `redlock run --tls-ca FILE --redis URL --key KEY`
    pub fn run(&self, url: &str, key: &str) -> Run {
        Run::at(url, key).arg("--tls-ca").arg(self.file())
    }
}

/// See [`Authority::closes_after_handshake`].
pub struct Closing {
    port: u16,
    is_over: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Closing {
    fn start(config: Arc<ServerConfig>, port: u16) -> Closing {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let is_over = Arc::new(AtomicBool::new(false));
        let connections = Arc::new(AtomicUsize::new(0));
        let (must_end, closed) = (Arc::clone(&is_over), Arc::clone(&connections));
        let thread = thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                if must_end.load(Ordering::SeqCst) {
                    return;
                }
                let mut socket = socket;
                let mut session = ServerConnection::new(Arc::clone(&config)).expect("a session");
                let _ = session.complete_io(&mut socket);
                closed.fetch_add(1, Ordering::SeqCst);
            }
        });
        Closing { port, is_over, connections, thread: Some(thread) }
    }

    /// The number of connections that it has closed.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A server that uses TLS on one port, and plain TCP on another, for the test itself.
pub struct TlsRedis {
    pub plain: Redis,
    pub(super) port: u16,
}

impl TlsRedis {
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        url(self.port)
    }

    pub fn proxy(&self) -> Proxy {
        Proxy::to_port(self.port)
    }
}

/// The URL of a TLS server on this host.
pub fn url(port: u16) -> String {
    format!("rediss://127.0.0.1:{port}")
}
