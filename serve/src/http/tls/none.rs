//! What takes the place of `mod.rs` in a build without TLS.
//!
//! In: two files. Out: a sentence that says how to get TLS.

use std::convert::Infallible;
use std::path::Path;

/// A stream that there is not.
pub(crate) type Stream<S> = S;

/// Nobody shakes hands.
#[derive(Clone)]
pub(crate) struct Tls(Infallible);

impl Tls {
    pub(crate) fn open(_: &Path, _: &Path) -> Result<Self, String> {
        Err("this build has no TLS; its feature `tls` has it".to_owned())
    }

    #[expect(clippy::unused_async, reason = "the other build waits")]
    pub(crate) async fn accept<S>(&self, _: S) -> Option<Stream<S>> {
        match self.0 {}
    }
}
