//! Faults on request, so that tests can observe what a failing redlock does to the command and the
//! lock. Not in release builds.

/// Panic here if the environment names this place.
pub(crate) fn panic_if_requested(place: &str) {
    if cfg!(debug_assertions) {
        let is_requested = std::env::var_os("REDLOCK_TEST_PANIC").is_some_and(|requested| requested == place);
        assert!(!is_requested, "requested by REDLOCK_TEST_PANIC");
    }
}
