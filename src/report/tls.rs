//! Messages about problems with TLS, with advice.

use std::time::SystemTime;

use crate::lock::{TlsProblem, TlsSetupProblem};
use crate::moment::printable;

/// At most this many names of a certificate are listed.
const NAMES_SHOWN: usize = 5;

pub(super) fn problem(problem: &TlsProblem) -> String {
    match problem {
        TlsProblem::Setup(problem) => setup_problem(problem),
        TlsProblem::Expired(since) => format!("the server's certificate has expired (on {})", date(*since)),
        TlsProblem::NotYetValid(from) => {
            format!(
                "the server's certificate is not valid before {} (is this host's clock right?)",
                date(*from)
            )
        }
        TlsProblem::OtherName { wanted, names } => format!(
            "the server's certificate is for {}, not for {wanted}: use its name in the URL, or set --tls-server-name",
            listed(names)
        ),
        TlsProblem::UnknownIssuer { has_own_authorities: true } => {
            "the server's certificate was not issued by an authority in the --tls-ca file".into()
        }
        TlsProblem::UnknownIssuer { has_own_authorities: false } => {
            "the server's certificate was issued by an authority that this host does not trust: pass that \
             authority's certificate with --tls-ca FILE"
                .into()
        }
        TlsProblem::IsAuthority => {
            "the server uses an authority's certificate (CA:TRUE), which is not accepted: issue a server \
             certificate with it"
                .into()
        }
        TlsProblem::Certificate(why) => format!("the server's certificate cannot be used: {why}"),
        TlsProblem::NotTls => "this port does not speak TLS: use redis://, or the server's TLS port".into(),
        TlsProblem::NoAnswer => {
            "no reply to the TLS handshake (is the server stopped? if this port has no TLS, use redis://)"
                .into()
        }
        TlsProblem::ClosedInHandshake => "the server closed the connection during the TLS handshake".into(),
        TlsProblem::IdentityWanted => {
            "the server requires a client certificate: pass --tls-cert FILE and --tls-key FILE".into()
        }
        TlsProblem::IdentityRefused(Some(why)) => {
            format!("the server does not accept the certificate in the --tls-cert file ({why})")
        }
        TlsProblem::IdentityRefused(None) => {
            "the server closed the connection: it may not accept the certificate in the --tls-cert file"
                .into()
        }
        TlsProblem::Handshake(why) => format!("the TLS handshake failed: {why}"),
    }
}

/// The settings put the file's name in front.
pub(crate) fn setup_problem(problem: &TlsSetupProblem) -> String {
    match problem {
        TlsSetupProblem::NoSystemRoots => {
            "this host has no CA certificates: install ca-certificates, or pass --tls-ca FILE".into()
        }
        TlsSetupProblem::NoAuthority => "contains no usable certificate (expected PEM)".into(),
        TlsSetupProblem::NoCertificate => "contains no certificate (expected PEM)".into(),
        TlsSetupProblem::NoKey => "contains no private key (expected PEM)".into(),
        TlsSetupProblem::EncryptedKey => {
            "the key is encrypted, which is not supported: decrypt it (openssl pkey) into a file that \
             only this user can read"
                .into()
        }
        TlsSetupProblem::OtherKey => "the key does not belong to the certificate".into(),
        TlsSetupProblem::Key(why) => format!("cannot be used: {why}"),
        TlsSetupProblem::ServerName => "not a host name or an IP address, which TLS needs".into(),
    }
}

fn date(moment: SystemTime) -> String {
    humantime::format_rfc3339_seconds(printable(moment)).to_string().replace('T', " ").replace('Z', " UTC")
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "no name (it needs a subjectAltName)".into(),
        names => {
            let shown: Vec<&str> = names.iter().take(NAMES_SHOWN).map(String::as_str).collect();
            let rest = names.len() - shown.len();
            let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
            format!("{}{rest}", shown.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_bad_certificate_is_described() {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        assert_eq!(
            problem(&TlsProblem::Expired(since)),
            "the server's certificate has expired (on 2023-11-14 22:13:20 UTC)"
        );
        let names = |count: usize| (0..count).map(|n| format!("n{n}")).collect();
        let other = |count| problem(&TlsProblem::OtherName { wanted: "h".into(), names: names(count) });
        assert!(other(0).contains("for no name (it"), "{}", other(0));
        assert!(other(2).contains("is for n0, n1, not for h"), "{}", other(2));
        assert!(other(7).contains("n4 and 2 more, not for h"), "{}", other(7));
    }
}
