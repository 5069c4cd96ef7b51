//! Whether the slow set of tests runs.
//!
//! In: the environment variable `SLOW`. Out: how much a test does. This is the only place of the tests that looks.

/// `usual` by default, `slow` where the slow set runs.
pub fn count(usual: u64, slow: u64) -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place of the tests that reads the environment"
    )]
    let is_slow = std::env::var("SLOW").is_ok_and(|value| value == "1");
    if is_slow { slow } else { usual }
}
