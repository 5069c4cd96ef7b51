//! Whether the slow set of tests runs.
//!
//! In: the environment variable `SLOW`. Out: how much a test does. This is the only place of the tests that looks.

/// `usual` by default, `slow` where the slow set runs, and `n` times that with `SLOW=n`.
pub fn count(usual: u64, slow: u64) -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place of the tests that reads the environment"
    )]
    let times = std::env::var("SLOW").ok().and_then(|value| value.parse().ok()).unwrap_or(0);
    if times == 0 { usual } else { slow.saturating_mul(times) }
}
