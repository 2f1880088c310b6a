//! What can be wrong with TLS, as values.

use std::time::SystemTime;

use super::error::Fault;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TlsProblem {
    /// Our own settings cannot be used.
    Setup(TlsSetupProblem),
    /// The server's certificate has expired at this time.
    Expired(SystemTime),
    NotYetValid(SystemTime),
    /// The certificate is for these names only.
    OtherName {
        wanted: String,
        names: Vec<String>,
    },
    /// The certificate's authority is not trusted.
    UnknownIssuer {
        has_own_authorities: bool,
    },
    /// The certificate is an authority's, which a server must not use.
    IsAuthority,
    /// Anything else about the certificate.
    Certificate(String),
    /// The server does not speak TLS.
    NotTls,
    /// The server accepts a connection, but sends nothing.
    NoAnswer,
    ClosedInHandshake,
    /// The server requires a client certificate, and none is set.
    IdentityWanted,
    /// The server rejects our certificate; its reason, if it arrived.
    IdentityRefused(Option<String>),
    /// For example, there is no common version of the protocol.
    Handshake(String),
}

/// What can be wrong with the user's files and names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TlsSetupProblem {
    /// This host has no list of trusted authorities.
    NoSystemRoots,
    /// The file of authorities has no usable certificate.
    NoAuthority,
    NoCertificate,
    NoKey,
    EncryptedKey,
    /// The key does not belong to the certificate.
    OtherKey,
    /// The key or the certificate cannot be used, for this reason.
    Key(String),
    /// Not a host name.
    ServerName,
}

impl TlsProblem {
    /// Whether another certificate or list of authorities of ours may be right.
    pub(crate) fn is_about_our_files(&self) -> bool {
        matches!(self, Self::IdentityRefused(_) | Self::UnknownIssuer { has_own_authorities: true })
    }

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
