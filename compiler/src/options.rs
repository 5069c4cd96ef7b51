//! Every knob, declared once.
//!
//! In: defaults, then what the caller sets. Out: an [`Options`] that travels as a value; there are no globals.
//! [`KNOBS`] is the list that documents and checks go by. Environment variables are read here and nowhere else.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::rewrite::Limits;
use crate::rewrite::rules::rule::Rule;
use crate::target::{CPU, Target};

/// How a graph is compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The device that kernels are for.
    pub target: Target,
    /// How exact the device counts.
    pub numbers: Numbers,
    /// How far the e-graph of a block may grow.
    pub limits: Limits,
    /// Stop each block after this number of rewrites, and of merges, and the preparation of kernels after this number
    /// of changes: for finding the one that is wrong.
    pub fuel: Option<usize>,
    /// Choose at random among what is right, by this seed: for tests.
    pub chaos: Option<u64>,
    /// A file that the stories of all compilations are written to, one after another.
    pub story: Option<String>,
    /// The folder that programs and machine code of CUDA are kept in, if they are.
    pub cache: Option<String>,
    /// The name of the level of instructions that code is made for, instead of the processor's best.
    pub level: Option<String>,
    /// Which call of a micro-kernel panics: for tests.
    pub panic: Option<Planted>,
    /// Rewrite rules of the caller's, which are tried after those of the compiler. Programs made with them are kept on
    /// no disk: a name does not tell what a rule does.
    pub rules: Vec<Rule>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            target: CPU,
            numbers: Numbers::Quantised,
            limits: Limits::default(),
            fuel: None,
            chaos: None,
            story: None,
            cache: None,
            level: None,
            panic: None,
            rules: Vec::new(),
        }
    }
}

/// How exact code is: the numeric mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Numbers {
    /// As the interpreter does, bit for bit: one number at a time, in the order of the text. For checking.
    Exact,
    /// Single precision throughout; sums in any order, functions within a few units in the last place.
    Single,
    /// As `Single`, but activations of quantised weights are quantised to 8-bit integers first, or to another layout
    /// that suits a processor and costs no format accuracy; tensor cores multiply what they round to TF32 or bf16.
    Quantised,
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact numbers",
            Self::Single => "single precision",
            Self::Quantised => "rounded activations",
        })
    }
}

/// Which call of a micro-kernel panics, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planted {
    /// The number of the thread in its team.
    pub thread: u32,
    /// The number of the call on this thread, from 1 on.
    pub call: u32,
}

impl FromStr for Planted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once(':');
        let numbers = numbers.and_then(|(thread, call)| Some((thread.parse().ok()?, call.parse().ok()?)));
        let (thread, call) =
            numbers.ok_or_else(|| "the numbers of a thread and of a call, such as 1:40".to_owned())?;
        Ok(Self { thread, call })
    }
}

/// A knob as documents list it.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// The environment variable that sets it.
    pub variable: &'static str,
    /// What it does, in one sentence.
    pub sentence: &'static str,
    /// Sets it, or says what would be accepted.
    set: fn(&mut Options, &str) -> Result<(), String>,
}

/// Every knob.
pub const KNOBS: [Knob; 9] = [
    Knob {
        variable: "FUSEBOX_TARGET",
        sentence: "the device that kernels are for, by name, with its rates or without: `cpu`, `cuda-sm90:132:4800`",
        set: |options, text| text.parse().map(|target| options.target = target),
    },
    Knob {
        variable: "FUSEBOX_MAX_NODES",
        sentence: "e-nodes at which the rewriting of a block stops",
        set: |options, text| number(text).map(|n| options.limits.nodes = n),
    },
    Knob {
        variable: "FUSEBOX_MAX_ROUNDS",
        sentence: "rounds at which the rewriting of a block stops",
        set: |options, text| number(text).map(|n| options.limits.rounds = n),
    },
    Knob {
        variable: "FUSEBOX_FUEL",
        sentence: "rewrites, merges, and changes for the device, after which a graph is left as it is",
        set: |options, text| number(text).map(|n| options.fuel = Some(n)),
    },
    Knob {
        variable: "FUSEBOX_CHAOS",
        sentence: "a seed to choose by among what is right, instead of by cost",
        set: |options, text| number(text).map(|seed| options.chaos = Some(seed)),
    },
    Knob {
        variable: "FUSEBOX_STORY",
        sentence: "a file for the stories of all compilations of a run; one that is no story is not \
                   overwritten; empty for none",
        set: |options, text| {
            options.story = unless_empty(text);
            Ok(())
        },
    },
    Knob {
        variable: "FUSEBOX_CACHE",
        sentence: "the folder that programs and machine code of CUDA are kept in, by default `fusebox` among \
                   the user's caches; empty for none",
        set: |options, text| {
            options.cache = unless_empty(text);
            Ok(())
        },
    },
    Knob {
        variable: "FUSEBOX_LEVEL",
        sentence: "the level of instructions that code is made for: amx, avx512-bf16, avx512, avx2, neon or portable",
        set: |options, text| {
            options.level = Some(text.to_owned());
            Ok(())
        },
    },
    Knob {
        variable: "FUSEBOX_PANIC",
        sentence: "a thread and the number of its call of a micro-kernel that panics, such as `1:40`: for tests",
        set: |options, text| text.parse().map(|planted| options.panic = Some(planted)),
    },
];

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "a whole number of at least 0".to_owned())
}

fn unless_empty(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

impl Options {
    /// The defaults, changed by the environment.
    ///
    /// # Errors
    /// Names a variable whose value does not read.
    pub fn from_env() -> Result<Self, String> {
        Self { cache: default_cache(), ..Self::default() }.with_env()
    }

    /// These, changed by the environment.
    ///
    /// # Errors
    /// Names a variable whose value does not read.
    fn with_env(mut self) -> Result<Self, String> {
        for knob in KNOBS {
            if let Some(text) = variable(knob.variable) {
                self.set(knob.variable, &text)?;
            }
        }
        Ok(self)
    }

    /// Sets one knob by its variable's name.
    ///
    /// # Errors
    /// Says which value does not read, or that there is no such knob.
    pub fn set(&mut self, variable: &str, text: &str) -> Result<(), String> {
        let knob = KNOBS.iter().find(|knob| knob.variable == variable);
        let knob = knob.ok_or_else(|| format!("there is no knob {variable}"))?;
        (knob.set)(self, text).map_err(|accepted| format!("{variable} is `{text}`, expected {accepted}"))
    }

    /// The defaults for a target.
    pub fn for_target(target: Target) -> Self {
        Self { target, ..Self::default() }
    }
}

/// Whether the environment names the target, so that the device need not be looked at for its rates.
pub fn is_target_named() -> bool {
    variable("FUSEBOX_TARGET").is_some()
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Where somebody says that a toolkit of CUDA lies.
pub fn toolkits() -> Vec<PathBuf> {
    ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).map(PathBuf::from).collect()
}

/// A folder that a variable names by its whole path.
fn folder(name: &str) -> Option<PathBuf> {
    variable(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
}

/// The default folder of cached programs: below the user's cache folder.
fn default_cache() -> Option<String> {
    let caches = if cfg!(target_os = "macos") {
        folder("HOME").map(|home| home.join("Library/Caches"))
    } else if cfg!(windows) {
        folder("LOCALAPPDATA")
    } else {
        folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))
    };
    caches?.join("fusebox").to_str().map(str::to_owned)
}

/// Where commands keep what they remember from one run to the next, such as the history of chats.
pub fn state_folder() -> Option<PathBuf> {
    let states = if cfg!(target_os = "macos") {
        folder("HOME").map(|home| home.join("Library/Application Support"))
    } else if cfg!(windows) {
        folder("LOCALAPPDATA")
    } else {
        folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))
    };
    Some(states?.join("fusebox"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::accepted;

    #[test]
    fn an_empty_path_is_none() {
        let mut options = Options::default();
        for (path, expected) in [("kept", Some("kept")), ("", None)] {
            options.set("FUSEBOX_CACHE", path).unwrap();
            options.set("FUSEBOX_STORY", path).unwrap();
            assert_eq!([options.cache.as_deref(), options.story.as_deref()], [expected; 2]);
        }
    }

    #[test]
    fn a_knob_is_set_by_its_name_and_a_bad_value_is_refused() {
        let mut options = Options::default();
        options.set("FUSEBOX_TARGET", "cuda-sm90").unwrap();
        options.set("FUSEBOX_FUEL", "3").unwrap();
        assert_eq!((options.target.name, options.fuel), ("cuda-sm90", Some(3)));
        let refused = options.set("FUSEBOX_MAX_NODES", "many").unwrap_err();
        assert_eq!(refused, "FUSEBOX_MAX_NODES is `many`, expected a whole number of at least 0");
        options.set("FUSEBOX_TARGET", "cpu:2:40").unwrap();
        assert_eq!(options.target, CPU.with_rates(2, 40));
        for text in ["abacus", "cpu:0:40"] {
            let refused = options.set("FUSEBOX_TARGET", text).unwrap_err();
            assert_eq!(refused, format!("FUSEBOX_TARGET is `{text}`, expected {}", accepted()));
        }
        assert!(options.set("FUSEBOX_SPEED", "9").is_err());
        options.set("FUSEBOX_PANIC", "1:40").unwrap();
        assert_eq!(options.panic, Some(Planted { thread: 1, call: 40 }));
        for text in ["", "1", "1:", "a:2", "1:2:3"] {
            assert!(options.set("FUSEBOX_PANIC", text).is_err(), "{text}");
        }
    }
}
