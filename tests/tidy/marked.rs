//! Blocks of documents that are made from data: held equal to it, or written again.
//!
//! In: a document, the name of a block, and what the block must hold. Out: an error where the document holds something
//! else. With `UPDATE_DOCS=1` the block is written instead.
//! A block stands between `<!-- made by NAME -->` and `<!-- end -->`, each on a line of its own.

use std::fs;
use std::sync::{Mutex, PoisonError};

use crate::root;

/// The line that ends a block.
const END: &str = "<!-- end -->";

/// Tests run side by side, and two of them may write one document.
static WRITING: Mutex<()> = Mutex::new(());

/// Whether documents are written instead of compared.
fn is_update() -> bool {
    #[expect(clippy::disallowed_methods, reason = "a switch for those who edit documents, not a knob")]
    std::env::var("UPDATE_DOCS").is_ok_and(|value| value == "1")
}

/// The text with another inside of a block; nothing where it has no such block.
pub fn replaced(text: &str, name: &str, made: &str) -> Option<String> {
    let begin = format!("<!-- made by {name} -->\n");
    let start = text.find(&begin)? + begin.len();
    let end = start + text[start..].find(END)?;
    Some([&text[..start], made.trim_end(), "\n", &text[end..]].concat())
}

/// Holds a block of a document to what is made from data.
///
/// # Errors
/// Where the document has no such block, or the block differs.
pub fn hold(document: &str, name: &str, made: &str) -> Result<(), String> {
    let _alone = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let path = root().join(document);
    let text = fs::read_to_string(&path).map_err(|error| format!("{document}: {error}"))?;
    let Some(wanted) = replaced(&text, name, made) else {
        return Err(format!("{document} has no block `<!-- made by {name} -->` that ends with `{END}`"));
    };
    if wanted == text {
        return Ok(());
    }
    if is_update() {
        return fs::write(&path, wanted).map_err(|error| format!("{document}: {error}"));
    }
    let differs = (1..).zip(wanted.lines()).zip(text.lines()).find(|((_, wanted), found)| wanted != found);
    let place = differs.map_or_else(String::new, |((line, wanted), found)| {
        format!("\nline {line} is   `{found}`\nand must be `{wanted}`")
    });
    Err(format!("{document}: the block of {name} is out of date; UPDATE_DOCS=1 writes it{place}"))
}
