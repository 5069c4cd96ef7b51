//! Files and folders that flags name: looked at before anything else is done with them.
//!
//! In: a flag, the path that it names, and what is wanted there. Out: a text, or one sentence with the flag, the path,
//! what would be accepted and what was found.

use std::fs::{self, File, Metadata};
use std::path::Path;

use fusebox::files;
use fusebox::text::fault_of_io;

/// What is accepted as a model by commands that take files only.
pub(crate) const MODEL: &str =
    "a GGUF file, a safetensors file or folder, a qwen3.c checkpoint or a Qorus file";

/// A path, and the flag that names it.
#[derive(Clone, Copy)]
pub(crate) struct Given<'p> {
    flag: &'p str,
    path: &'p Path,
}

impl<'p> Given<'p> {
    /// The path that a flag names.
    pub(crate) fn new(flag: &'p str, path: &'p Path) -> Self {
        Self { flag, path }
    }

    /// Refuses a path where nothing is that can be read.
    pub(crate) fn check_there(self, wanted: &str) -> Result<(), String> {
        self.about(wanted).map(|_| ())
    }

    /// Refuses a path where no file is that can be read.
    pub(crate) fn check_file(self, wanted: &str) -> Result<(), String> {
        if self.about(wanted)?.is_dir() { Err(self.refusal(wanted, "this is a folder")) } else { Ok(()) }
    }

    /// Refuses a path where no text is that can be read; `-` is standard input.
    pub(crate) fn check_text(self) -> Result<(), String> {
        if self.path == Path::new("-") {
            Ok(())
        } else {
            self.check_file("a text file, or - for standard input")
        }
    }

    /// Refuses a path where no file can be written, before it is computed in vain.
    pub(crate) fn check_target(self) -> Result<(), String> {
        let wanted = "the name of a file to write";
        if self.path.is_dir() {
            return Err(self.refusal(wanted, "this is a folder"));
        }
        match self.path.parent() {
            Some(folder) if folder != Path::new("") && !folder.is_dir() => {
                let what = if folder.exists() { "is a file" } else { "is not there" };
                Err(self.refusal(wanted, &format!("the folder {} {what}", folder.display())))
            }
            _ => Ok(()),
        }
    }

    /// Makes the folder, unless it is there.
    pub(crate) fn make_folder(self) -> Result<(), String> {
        let wanted = "a folder, or the name of a new one";
        if self.path.exists() && !self.path.is_dir() {
            return Err(self.refusal(wanted, "this is a file"));
        }
        fs::create_dir_all(self.path).map_err(|error| self.refusal(wanted, &fault_of_io(&error)))
    }

    /// The text in a file of at most `max_bytes`, or on standard input, which is called `-`.
    pub(crate) fn text(self, max_bytes: usize) -> Result<String, String> {
        self.check_text()?;
        let is_input = self.path == Path::new("-");
        let text =
            if is_input { files::standard_input(max_bytes) } else { files::text(self.path, max_bytes) };
        text.map_err(|error| error.to_string())
    }

    fn about(self, wanted: &str) -> Result<Metadata, String> {
        let about = fs::metadata(self.path);
        // A pipe would wait for its other end.
        let about = about
            .and_then(|about| if about.is_file() { File::open(self.path)?.metadata() } else { Ok(about) });
        about.map_err(|error| self.refusal(wanted, &fault_of_io(&error)))
    }

    fn refusal(self, wanted: &str, fault: &str) -> String {
        format!("{} is {}: {fault}; expected {wanted}", self.flag, self.path.display())
    }
}
