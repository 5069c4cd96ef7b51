//! Whether the slow set of tests is asked for.
//!
//! In: the environment variable `SLOW`. Out: how much a test does. This is the only place of the tests that looks.

/// So many by default, so many where the slow set is asked for.
pub fn count(usual: u64, slow: u64) -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place of the tests that reads the environment"
    )]
    let is_slow = std::env::var("SLOW").is_ok_and(|value| value == "1");
    if is_slow { slow } else { usual }
}
