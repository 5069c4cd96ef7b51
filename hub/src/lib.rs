//! Models by name: fetched from a hub into the cache that Hugging Face's tools share.
//!
//! In: `owner/name` and a quantisation. Out: paths of files that are whole and have the right sums.
//! `name.rs` reads names, `cache.rs` knows the folders, `http.rs` asks the server, `choose.rs` picks the files of a
//! repository, `fetch.rs` brings them, `gguf.rs` reads the head of a file, `disk.rs` the free space, and `settings.rs`
//! the variables that other tools read, too.
//! Nothing here knows how a model is run: the caller says which architectures it takes and shows the progress.

pub mod cache;
pub mod choose;
mod disk;
pub mod error;
pub mod fetch;
mod gguf;
mod http;
pub mod name;
pub mod settings;
