//! HTTP: refusals, fields of bodies, replies, streams to the byte, and what lies beneath.
//!
//! In: bodies and values. Out: bodies, and what a request is refused with in every dialect (`problem.rs`). `fields.rs`
//! reads the fields of a request, `reply.rs` makes responses, `frames.rs` streams, `page.rs` the page at `/`.
//! `tls/` and `stall.rs` are about sockets; `ids.rs` makes names and seeds, `json_scan.rs` finds the end of JSON.

pub(crate) mod fields;
pub(crate) mod frames;
pub(crate) mod ids;
pub(crate) mod json_scan;
pub(crate) mod page;
pub(crate) mod problem;
pub(crate) mod reply;
pub(crate) mod stall;
#[cfg_attr(not(feature = "tls"), path = "tls/none.rs")]
pub(crate) mod tls;
