//! `redlock release`: give a grant back, by its token.

use super::bearer;
use crate::exit::Exit;
use crate::lock::Released;
use crate::report::{self, Verbosity};
use crate::settings::TokenSettings;

pub(super) fn run(settings: &TokenSettings) -> anyhow::Result<Exit> {
    match bearer::open(settings, None)?.release() {
        Released::Done(_) => {
            if settings.location.verbosity == Verbosity::Verbose {
                report::released(&settings.keys);
            }
            Ok(Exit::Code(0))
        }
        Released::Lost(loss) => Ok(bearer::no_longer_ours(settings, &loss)),
        Released::Unknown(error) => Err(bearer::failure("release", settings, &error).into()),
    }
}
