//! Sentences about TLS: what is wrong, and what to do about it.

use std::time::SystemTime;

use crate::lock::{TlsProblem, TlsSetupProblem};

/// Names of a certificate that are worth listing.
const NAMES_SHOWN: usize = 5;

pub(super) fn problem(problem: &TlsProblem) -> String {
    match problem {
        TlsProblem::Setup(problem) => setup_problem(problem),
        TlsProblem::Expired(since) => format!("the server's certificate has expired (on {})", date(*since)),
        TlsProblem::NotYetValid(from) => {
            format!("the server's certificate is not valid before {} (is this host's clock right?)", date(*from))
        }
        TlsProblem::OtherName { wanted, names } => format!(
            "the server's certificate is for {}, not for {wanted}: use that name in the URL, or set --tls-server-name",
            listed(names)
        ),
        TlsProblem::UnknownIssuer { has_own_authorities: true } => {
            "the server's certificate was not issued by an authority in the --tls-ca file".into()
        }
        TlsProblem::UnknownIssuer { has_own_authorities: false } => {
            "the server's certificate was issued by an authority that this host does not trust: give that \
             authority's certificate with --tls-ca FILE"
                .into()
        }
        TlsProblem::IsAuthority => {
            "the server uses an authority's certificate (CA:TRUE) as its own, which is not accepted: issue one for \
             the server with it"
                .into()
        }
        TlsProblem::Certificate(why) => format!("the server's certificate cannot be used: {why}"),
        TlsProblem::NotTls => "this port does not speak TLS: use redis://, or the server's TLS port".into(),
        TlsProblem::NoAnswer => {
            "no answer to the TLS handshake (server stopped, or without TLS on this port? then use redis://)".into()
        }
        TlsProblem::ClosedInHandshake => "the server closed the connection during the TLS handshake".into(),
        TlsProblem::IdentityWanted => {
            "the server requires a client certificate: give --tls-cert FILE and --tls-key FILE".into()
        }
        TlsProblem::IdentityRefused(Some(why)) => {
            format!("the server does not accept the certificate in the --tls-cert file ({why})")
        }
        TlsProblem::IdentityRefused(None) => {
            "the server closed the connection: it may not accept the certificate in the --tls-cert file".into()
        }
        TlsProblem::Handshake(why) => format!("the TLS handshake failed: {why}"),
    }
}

/// Without the name of the file, which settings know.
pub(crate) fn setup_problem(problem: &TlsSetupProblem) -> String {
    match problem {
        TlsSetupProblem::NoSystemRoots => "no certificates of authorities found on this host: install \
             ca-certificates, or give --tls-ca FILE"
            .into(),
        TlsSetupProblem::NoAuthority => "there is no usable certificate in it (PEM is expected)".into(),
        TlsSetupProblem::NoCertificate => "there is no certificate in it (PEM is expected)".into(),
        TlsSetupProblem::NoKey => "there is no private key in it (PEM is expected)".into(),
        TlsSetupProblem::EncryptedKey => {
            "the key is encrypted, which is not supported: decrypt it (openssl pkey), readable by this user only"
                .into()
        }
        TlsSetupProblem::OtherKey => "the key does not belong to the certificate".into(),
        TlsSetupProblem::Key(why) => format!("cannot be used: {why}"),
        TlsSetupProblem::ServerName => "not a host name or an address, which TLS needs".into(),
    }
}

fn date(moment: SystemTime) -> String {
    humantime::format_rfc3339_seconds(moment).to_string().replace('T', " ").replace('Z', " UTC")
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "no name at all (it needs a subjectAltName)".into(),
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
    fn certificates_are_described_by_what_is_wrong() {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        assert_eq!(
            problem(&TlsProblem::Expired(since)),
            "the server's certificate has expired (on 2023-11-14 22:13:20 UTC)"
        );
        let names = |count: usize| (0..count).map(|n| format!("n{n}")).collect();
        let other = |count| problem(&TlsProblem::OtherName { wanted: "h".into(), names: names(count) });
        assert!(other(0).contains("for no name at all"), "{}", other(0));
        assert!(other(2).contains("is for n0, n1, not for h"), "{}", other(2));
        assert!(other(7).contains("n4 and 2 more, not for h"), "{}", other(7));
    }
}
