//! `redlock extend`: set the lease of a grant anew, by its token.

use super::bearer;
use crate::exit::Exit;
use crate::lock::Extended;
use crate::report::{self, Verbosity};
use crate::settings::ExtendSettings;

pub(super) fn run(settings: &ExtendSettings) -> anyhow::Result<Exit> {
    let grant = &settings.grant;
    match bearer::open(grant, settings.ttl)?.extend() {
        Extended::Until(..) => {
            if grant.location.verbosity == Verbosity::Verbose {
                report::extended(&grant.keys, settings.ttl);
            }
            Ok(Exit::Code(0))
        }
        Extended::Lost(loss) => Ok(bearer::no_longer_ours(grant, &loss)),
        Extended::Unknown(error) => Err(bearer::failure("extend", grant, &error).into()),
    }
}
