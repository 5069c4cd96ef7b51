//! Compiled programs on disk, so that nothing is compiled twice.
//!
//! In: a graph and options. Out: its program, from the folder if it is there, else from the compiler, and then it is
//! written to the folder. A file that is truncated, of another compiler or of another format counts as missing and is
//! replaced. A folder that cannot be written costs the next start its time and nothing else.
//! Clones of a cache share their counts: a session keeps one for the programs that it compiles later.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fusebox_compiler::graph::Graph;
use fusebox_compiler::options::Options;
use fusebox_compiler::program::{Key, Program};

use crate::error::Error;
use crate::files;

/// How every story begins, by which one is told from other files.
const STORY: &[u8] = b"# ";

/// A folder of programs, or none.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    folder: Option<PathBuf>,
    told: Arc<Mutex<Told>>,
}

/// What all copies of a cache have in common.
#[derive(Debug, Default)]
struct Told {
    /// The stories of all programs that were compiled.
    stories: Vec<String>,
    counts: Counts,
}

/// Where programs came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Kernels that were lowered.
    pub n_lowered: usize,
    /// Kernels that were read from the folder.
    pub n_from_cache: usize,
}

impl Cache {
    /// A cache in this folder, which is made when it is needed; without one nothing is kept.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, ..Self::default() }
    }

    /// How many kernels were compiled, and how many came from the folder.
    pub fn counts(&self) -> Counts {
        self.told().counts
    }

    /// What is counted and told; a thread that panicked leaves numbers that are as good as any.
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program of a graph.
    ///
    /// # Errors
    /// Where the graph does not compile.
    pub fn program(&self, graph: &Graph, options: &Options) -> Result<Program, Error> {
        let key = Key::of(graph, options);
        // What rules of the caller's do is not part of the key.
        let folder = self.folder.as_ref().filter(|_| options.rules.is_empty());
        let path = folder.map(|folder| folder.join(format!("{key}.program")));
        // A program that was kept has no story: where one is asked for, all is compiled.
        let kept = path.as_deref().filter(|_| options.story.is_none());
        if let Some(program) = kept.and_then(|path| read(path, key)) {
            self.told().counts.n_from_cache += program.plan.kernels.len();
            return Ok(program);
        }
        let (program, story) = Program::compile(key, graph, options)?;
        self.told().counts.n_lowered += program.plan.kernels.len();
        if let Some(path) = &options.story {
            let mut told = self.told();
            told.stories.push(story.to_string());
            tell(path, &told.stories.join("\n"))?;
        }
        let Some(path) = path else { return Ok(program) };
        let bytes = program.to_bytes();
        // Failing is no loss.
        let _ = files::keep(&path, &bytes);
        // Reading numbers the expressions of a kernel anew, and sources follow these numbers: a program that is used as
        // later starts will read it has the sources that they will have, and so their machine code is kept now.
        Ok(Program::from_bytes(&bytes, key).unwrap_or(program))
    }
}

/// Writes stories to the file that `FUSEBOX_STORY` names.
///
/// # Errors
/// Where that file cannot be written, or is none of stories.
pub fn tell(path: &str, stories: &str) -> Result<(), Error> {
    let written = files::write(Path::new(path), STORY, stories.as_bytes());
    written.map_err(|fault| Error::Variable { variable: "FUSEBOX_STORY", fault: Box::new(fault) })
}

fn read(path: &Path, key: Key) -> Option<Program> {
    Program::from_bytes(&files::kept(path)?, key)
}
