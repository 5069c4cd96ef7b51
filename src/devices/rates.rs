//! The processor as a target: its hardware threads, and the bandwidth of its memory, which is measured once.
//!
//! In: the folder of the program cache. Out: a target whose rates are those of this machine.
//! What is compiled depends on them, so they must not vary: they are those of the whole machine, whatever the number of
//! threads of a session; the bandwidth is rounded to coarse steps and kept on disk, and where nothing can be kept, it
//! is that of the name. A file that is not what was written is measured again.

use std::path::{Path, PathBuf};

use fusebox_compiler::program::Key;
use fusebox_compiler::target::{CPU, Target};
use fusebox_runtime::files;

use crate::host;

/// The first line of the file.
const HEAD: &str = "fusebox rates 1";
/// The smallest step of bandwidth in GB/s; each other is twice the one before.
const STEP: f64 = 5.0;
/// Steps after the first.
const N_STEPS: f64 = 9.0;

/// The processor, with the rates of this machine.
pub(super) fn processor(folder: Option<&Path>) -> Target {
    let n_threads = host::n_threads();
    let sizes: Vec<String> =
        host::caches().iter().map(|cache| format!("L{} {}", cache.level, cache.bytes)).collect();
    let machine = format!("{}, {n_threads} threads, {}", host::processor(), sizes.join(" "));
    let folders = folder.map(Path::to_owned).into_iter().chain([files::temporary_folder()]);
    let kept = Kept { machine, n_threads, folders: folders.collect() };
    kept.target(|| host::probe(n_threads))
}

/// Where the rates of a machine are kept, and what they are known by there.
struct Kept {
    machine: String,
    n_threads: usize,
    folders: Vec<PathBuf>,
}

impl Kept {
    /// The target that was kept; else it is measured, and kept.
    fn target(&self, measure: impl FnOnce() -> f64) -> Target {
        let name = format!("{}.rates", Key::of_bytes(self.machine.as_bytes()));
        let mut paths = self.folders.iter().map(|folder| folder.join(&name));
        if let Some(target) = paths.clone().find_map(|path| self.read(&files::kept(&path)?)) {
            return target;
        }
        let target = CPU.with_rates(self.n_threads, rounded(measure()));
        if paths.any(|path| files::keep(&path, self.text(&target).as_bytes()).is_ok()) {
            target
        } else {
            CPU.with_rates(self.n_threads, CPU.gigabytes())
        }
    }

    /// The target that a file holds, if it is one of this machine and whole.
    fn read(&self, bytes: &[u8]) -> Option<Target> {
        let text = str::from_utf8(bytes).ok()?;
        let target = Target::named(text.lines().nth(2)?)?;
        let is_own = target.is_processor() && target.rates.compute_units == self.n_threads;
        (is_own && text == self.text(&target)).then_some(target)
    }

    /// The file of a target.
    fn text(&self, target: &Target) -> String {
        let body = format!("{HEAD}\n{}\n{target}\n", self.machine);
        let sum = Key::of_bytes(body.as_bytes());
        format!("{body}sum {sum}\n")
    }
}

/// The nearest step in GB/s to a bandwidth in bytes a second.
fn rounded(bandwidth: f64) -> usize {
    let step = (bandwidth / 1e9 / STEP).max(1.0).log2().round().min(N_STEPS);
    (STEP * step.exp2()) as usize
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn kept(test: &str) -> (PathBuf, Kept) {
        let folder = std::env::temp_dir().join(format!("fusebox-rates-{test}-{}", std::process::id()));
        let kept = Kept { machine: "a machine".to_owned(), n_threads: 6, folders: vec![folder.clone()] };
        (folder, kept)
    }

    #[test]
    fn a_bandwidth_is_rounded_to_the_nearest_step() {
        let steps = [0.0, 3e9, 7.0e9, 7.2e9, 19e9, 28e9, 29e9, 44e9, 1e12, 1e15].map(rounded);
        assert_eq!(steps, [5, 5, 5, 10, 20, 20, 40, 40, 1280, 2560]);
    }

    #[test]
    fn what_was_measured_once_is_not_measured_again() {
        let (folder, kept) = kept("once");
        let first = kept.target(|| 43e9);
        assert_eq!(first.to_string(), "cpu:6:40");
        assert_eq!(kept.target(|| panic!("it was kept")), first);
        let other = Kept { machine: "another".to_owned(), folders: vec![folder.clone()], ..kept };
        assert_eq!(other.target(|| 9e9).to_string(), "cpu:6:10");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_damaged_file_is_measured_again_and_replaced() {
        let (folder, kept) = kept("damaged");
        kept.target(|| 43e9);
        let path = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            for bytes in [&damaged[..], &whole[..at]] {
                fs::write(&path, bytes).unwrap();
                assert_eq!(kept.target(|| 80e9).to_string(), "cpu:6:80", "byte {at}");
                assert_eq!(kept.target(|| panic!("it was replaced")).to_string(), "cpu:6:80");
            }
        }
        // A whole file of another number of threads is not believed either.
        let other = Kept { n_threads: 2, folders: Vec::new(), machine: kept.machine.clone() };
        fs::write(&path, other.text(&CPU.with_rates(2, 40))).unwrap();
        assert_eq!(kept.target(|| 80e9).to_string(), "cpu:6:80");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn where_nothing_can_be_kept_the_bandwidth_is_that_of_the_name() {
        let (folder, kept) = kept("nowhere");
        fs::write(&folder, "no folder").unwrap();
        let target = kept.target(|| 500e9);
        assert_eq!((target.rates.compute_units, target.gigabytes()), (6, CPU.gigabytes()));
        fs::remove_file(&folder).unwrap();
    }
}
