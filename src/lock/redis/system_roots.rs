//! The certificates of the authorities that this host trusts, where distributions put them.

use std::path::{Path, PathBuf};
use std::{env, fs};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

const BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt", // Debian, Ubuntu, Arch, Gentoo, Alpine
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, RHEL
    "/etc/pki/tls/certs/ca-bundle.crt",   // older ones of these
    "/etc/ssl/ca-bundle.pem",             // openSUSE
    "/var/lib/ca-certificates/ca-bundle.pem",
    "/etc/ssl/cert.pem", // Alpine without the package
];
/// One certificate a file, where there is no bundle.
const DIRECTORIES: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];

/// From OpenSSL's variables, if one is set; else the first place that has any. `None` if there are none.
pub(super) fn system_roots() -> Option<RootCertStore> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match (variable("SSL_CERT_FILE"), variable("SSL_CERT_DIR")) {
        (None, None) => {
            let bundle = BUNDLES.iter().find_map(|path| filled(|roots| add_file(roots, Path::new(path))));
            let in_directory =
                || DIRECTORIES.iter().find_map(|path| filled(|roots| add_directory(roots, Path::new(path))));
            bundle.or_else(in_directory)
        }
        (file, directory) => filled(|roots| {
            if let Some(path) = file {
                add_file(roots, &path);
            }
            if let Some(path) = directory {
                add_directory(roots, &path);
            }
        }),
    }
}

fn filled(fill: impl FnOnce(&mut RootCertStore)) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    fill(&mut roots);
    Some(roots).filter(|roots| !roots.is_empty())
}

/// What cannot be read or used is left out: among a hundred authorities one may be odd.
fn add_file(roots: &mut RootCertStore, path: &Path) {
    let pem = fs::read(path).unwrap_or_default();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
}

fn add_directory(roots: &mut RootCertStore, path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        add_file(roots, &entry.path());
    }
}
