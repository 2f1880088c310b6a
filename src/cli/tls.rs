//! How servers with a `rediss://` URL are verified, and what they verify of us.

use std::path::PathBuf;

use clap::Args;

// Of every command that asks servers. Not a doc comment, which clap would take for the description of the command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Lock backend")]
pub(crate) struct TlsArgs {
    /// Authorities to trust for rediss:// servers (PEM)
    ///
    /// Instead of those that this host trusts. A server's certificate is always verified.
    #[arg(id = "tls_ca", long = "tls-ca", value_name = "FILE", hide_short_help = true)]
    pub ca: Option<PathBuf>,

    /// Client certificate for rediss:// servers (PEM)
    ///
    /// With the certificates of the authorities between it and a root, if there are any.
    #[arg(id = "tls_cert", long = "tls-cert", value_name = "FILE", hide_short_help = true)]
    pub cert: Option<PathBuf>,

    /// Private key of the client certificate (PEM)
    #[arg(id = "tls_key", long = "tls-key", value_name = "FILE", hide_short_help = true)]
    pub key: Option<PathBuf>,

    /// Name in the certificate, if not the URL's host
    ///
    /// For a server behind a tunnel, or one that is named by an address. It holds for all rediss:// servers.
    #[arg(id = "tls_server_name", long = "tls-server-name", value_name = "NAME", hide_short_help = true)]
    pub server_name: Option<String>,
}
