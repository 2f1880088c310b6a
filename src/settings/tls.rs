//! Certificates, keys and names for TLS. The files are read only if a server has a `rediss://` URL.

use std::path::Path;
use std::sync::Arc;
use std::{fs, path};

use super::sources::Sources;
use crate::cli::BackendArgs;
use crate::exit::{Failure, UNFIT};
use crate::lock::{PemFile, Tls, TlsFiles, TlsSetupProblem};
use crate::report::{io_error, tls_setup_problem};

const IDS: [&str; 4] = ["tls_ca", "tls_cert", "tls_key", "tls_server_name"];

/// For servers that use TLS.
pub(super) fn tls(args: &BackendArgs, sources: Sources<'_>) -> Result<Arc<Tls>, Failure> {
    let identity = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            Some((read(certificate, "tls_cert", sources)?, read(key, "tls_key", sources)?))
        }
        (Some(_), None) => return Err(incomplete("tls_cert", "--tls-key", sources)),
        (None, Some(_)) => return Err(incomplete("tls_key", "--tls-cert", sources)),
        (None, None) => None,
    };
    let authorities = args.tls_ca.as_deref().map(|path| read(path, "tls_ca", sources)).transpose()?;
    let tls = Tls::new(TlsFiles { authorities, identity }, args.tls_server_name.clone());
    tls.prepare().map_err(|problem| failure(&problem, args, sources))?;
    Ok(Arc::new(tls))
}

/// A typed TLS option without a TLS server: its user believes that the connection is protected.
pub(super) fn without_tls(sources: Sources<'_>) -> Result<(), Failure> {
    match IDS.iter().find(|id| sources.was_typed(id)) {
        Some(id) => Err(sources.bad(id, format!("{} needs a server with TLS (rediss://)", sources.name(id)))),
        None => Ok(()),
    }
}

fn incomplete(id: &str, missing: &str, sources: Sources<'_>) -> Failure {
    sources.bad(id, format!("{} also needs {missing}", sources.name(id)))
}

fn read(path: &Path, id: &str, sources: Sources<'_>) -> Result<PemFile, Failure> {
    let content = fs::read(path);
    // A keeper changes its working directory.
    let file = content.and_then(|content| Ok(PemFile { path: path::absolute(path)?, content }));
    file.map_err(|error| {
        Failure::new(UNFIT, format!("{}: {}: {}", sources.name(id), path.display(), io_error(&error)))
    })
}

fn failure(problem: &TlsSetupProblem, args: &BackendArgs, sources: Sources<'_>) -> Failure {
    let why = tls_setup_problem(problem);
    let (id, file) = match problem {
        TlsSetupProblem::NoSystemRoots => return Failure::new(UNFIT, why),
        TlsSetupProblem::NoAuthority => ("tls_ca", &args.tls_ca),
        TlsSetupProblem::NoCertificate => ("tls_cert", &args.tls_cert),
        TlsSetupProblem::NoKey
        | TlsSetupProblem::EncryptedKey
        | TlsSetupProblem::OtherKey
        | TlsSetupProblem::Key(_) => ("tls_key", &args.tls_key),
        TlsSetupProblem::ServerName => {
            let name = sources.name("tls_server_name");
            return sources.bad("tls_server_name", format!("{name}: {why}"));
        }
    };
    let path = file.as_deref().unwrap_or(Path::new("")).display();
    Failure::new(UNFIT, format!("{}: {path}: {why}", sources.name(id)))
}
