//! What can be wrong with TLS, as values.

use std::time::SystemTime;

use super::error::Fault;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TlsProblem {
    /// Our own side cannot be set up.
    Setup(TlsSetupProblem),
    /// The server's certificate is no longer valid since then.
    Expired(SystemTime),
    NotYetValid(SystemTime),
    /// The certificate is for these names, and not for the one that was asked for.
    OtherName {
        wanted: String,
        names: Vec<String>,
    },
    /// The certificate is from an authority that is not trusted.
    UnknownIssuer {
        has_own_authorities: bool,
    },
    /// The certificate is an authority's own, which must not be a server's at the same time.
    IsAuthority,
    /// Anything else about the certificate.
    Certificate(String),
    /// The answer is not TLS.
    NotTls,
    /// The server accepts a connection, and is silent.
    NoAnswer,
    ClosedInHandshake,
    /// The server wants a certificate of ours, and there is none.
    IdentityWanted,
    /// The server does not accept our certificate; its reason, if it arrived.
    IdentityRefused(Option<String>),
    /// No common version of the protocol, for example.
    Handshake(String),
}

/// What can be wrong with the files and names that a user has set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TlsSetupProblem {
    /// There are no authorities that the system trusts.
    NoSystemRoots,
    /// The file of authorities has no usable certificate.
    NoAuthority,
    NoCertificate,
    NoKey,
    EncryptedKey,
    /// The key does not belong to the certificate.
    OtherKey,
    /// The key, or the certificate, is of no use; why.
    Key(String),
    /// Not a host name.
    ServerName,
}

impl TlsProblem {
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::NoAnswer | Self::ClosedInHandshake => Fault::Unavailable,
            Self::IdentityWanted | Self::IdentityRefused(_) => Fault::Refused,
            Self::Setup(_)
            | Self::Expired(_)
            | Self::NotYetValid(_)
            | Self::OtherName { .. }
            | Self::UnknownIssuer { .. }
            | Self::IsAuthority
            | Self::Certificate(_)
            | Self::NotTls
            | Self::Handshake(_) => Fault::Unfit,
        }
    }
}
