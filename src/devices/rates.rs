//! The rates of devices that state too little: the bandwidth of their memory is measured, once.
//!
//! In: a device by all that it is known by, its target as far as no clock is needed, and the folder of the program
//! cache. Out: the target with the bandwidth of this device.
//! What is compiled depends on rates, so they must not vary: units are those of the whole machine, whatever the number
//! of threads of a session; the bandwidth is rounded to coarse steps and kept on disk, and where nothing can be kept,
//! it is that of the name. A file that is not what was written is measured again.

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
const N_STEPS: f64 = 11.0;

/// The processor, with the rates of this machine.
pub(super) fn processor(folder: Option<&Path>) -> Target {
    let n_threads = host::n_threads();
    let named = CPU.with_rates(n_threads, CPU.gigabytes());
    measured_once(machine(), named, folder, || Some(host::probe(n_threads)))
}

/// What a processor is known by.
pub(super) fn machine() -> String {
    let n_threads = host::n_threads();
    let sizes: Vec<String> =
        host::caches().iter().map(|cache| format!("L{} {}", cache.level, cache.bytes)).collect();
    format!("{}, {n_threads} threads, {}", host::processor(), sizes.join(" "))
}

/// A device with the bandwidth that was kept for it; else it is measured in bytes a second, if it can be, and kept.
/// What the device is known by is one line.
pub(super) fn measured_once(
    device: String,
    named: Target,
    folder: Option<&Path>,
    measure: impl FnOnce() -> Option<f64>,
) -> Target {
    let folders = folder.map(Path::to_owned).into_iter().chain([files::temporary_folder()]);
    Kept { device, named, folders: folders.collect() }.target(measure)
}

/// Where the rates of a device are kept, and what they are known by there.
struct Kept {
    device: String,
    named: Target,
    folders: Vec<PathBuf>,
}

impl Kept {
    fn target(&self, measure: impl FnOnce() -> Option<f64>) -> Target {
        let name = format!("{}.rates", Key::of_bytes(self.device.as_bytes()));
        let mut paths = self.folders.iter().map(|folder| folder.join(&name));
        if let Some(target) = paths.clone().find_map(|path| self.read(&files::kept(&path)?)) {
            return target;
        }
        let Some(bandwidth) = measure() else { return self.named };
        let target = self.named.with_rates(self.named.rates.compute_units, rounded(bandwidth));
        let is_kept = paths.any(|path| files::keep(&path, self.text(&target).as_bytes()).is_ok());
        if is_kept { target } else { self.named }
    }

    /// The target that a file holds, if it is one of this device and whole.
    fn read(&self, bytes: &[u8]) -> Option<Target> {
        let text = str::from_utf8(bytes).ok()?;
        let target = Target::named(text.lines().nth(2)?)?;
        let is_own =
            target.name == self.named.name && target.rates.compute_units == self.named.rates.compute_units;
        (is_own && text == self.text(&target)).then_some(target)
    }

    /// The file of a target.
    fn text(&self, target: &Target) -> String {
        let body = format!("{HEAD}\n{}\n{target}\n", self.device);
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

    use fusebox_compiler::target::VULKAN;

    use super::*;

    fn kept(test: &str) -> (PathBuf, Kept) {
        let folder = std::env::temp_dir().join(format!("fusebox-rates-{test}-{}", std::process::id()));
        let (device, named) = ("a machine".to_owned(), CPU.with_rates(6, CPU.gigabytes()));
        (folder.clone(), Kept { device, named, folders: vec![folder] })
    }

    fn again() -> Option<f64> {
        panic!("it was kept")
    }

    #[test]
    fn a_bandwidth_is_rounded_to_the_nearest_step() {
        let steps = [0.0, 3e9, 7.0e9, 7.2e9, 19e9, 28e9, 29e9, 44e9, 1e12, 4.8e12, 1e15].map(rounded);
        assert_eq!(steps, [5, 5, 5, 10, 20, 20, 40, 40, 1280, 5120, 10240]);
    }

    #[test]
    fn what_was_measured_once_is_not_measured_again() {
        let (folder, kept) = kept("once");
        let first = kept.target(|| Some(43e9));
        assert_eq!(first.to_string(), "cpu:6:40");
        assert_eq!(kept.target(again), first);
        let other = Kept { device: "another".to_owned(), folders: vec![folder.clone()], ..kept };
        assert_eq!(other.target(|| Some(9e9)).to_string(), "cpu:6:10");
        let named = VULKAN.with_rates(6, VULKAN.gigabytes());
        let gpu = Kept { device: "a GPU".to_owned(), named, folders: vec![folder.clone()] };
        assert_eq!(gpu.target(|| Some(430e9)).to_string(), "vulkan:6:320");
        assert_eq!(gpu.target(again).to_string(), "vulkan:6:320");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_damaged_file_is_measured_again_and_replaced() {
        let (folder, kept) = kept("damaged");
        kept.target(|| Some(43e9));
        let path = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            for bytes in [&damaged[..], &whole[..at]] {
                fs::write(&path, bytes).unwrap();
                assert_eq!(kept.target(|| Some(80e9)).to_string(), "cpu:6:80", "byte {at}");
                assert_eq!(kept.target(again).to_string(), "cpu:6:80");
            }
        }
        // A whole file of another number of units, or of another kind of device, is not believed either.
        for other in [CPU.with_rates(2, 40), VULKAN.with_rates(6, 40)] {
            fs::write(&path, kept.text(&other)).unwrap();
            assert_eq!(kept.target(|| Some(80e9)).to_string(), "cpu:6:80");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn where_nothing_can_be_measured_or_kept_the_bandwidth_is_that_of_the_name() {
        let (folder, kept) = kept("nowhere");
        assert_eq!(kept.target(|| None), kept.named);
        assert!(!folder.exists(), "the next start tries again");
        fs::write(&folder, "no folder").unwrap();
        let target = kept.target(|| Some(500e9));
        assert_eq!((target.rates.compute_units, target.gigabytes()), (6, CPU.gigabytes()));
        fs::remove_file(&folder).unwrap();
    }
}
