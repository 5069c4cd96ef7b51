//! Models whose numbers other programs recorded.

pub(crate) mod decoders;
pub(crate) mod encoders;
pub(crate) mod oracles;
pub(crate) mod rankers;
pub(crate) mod recorded;
