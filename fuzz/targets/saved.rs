//! Saved sequences, with faults, and mostly with the checksum made right.

use std::fs;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::foundation::hash::StableHasher;
use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::simd::Level;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;

use crate::mutate::{self, chance};
use crate::targets::target::Target;

/// Magic, version, and four numbers of the header.
const HEADER_BYTES: usize = 40;

/// A session that takes what was saved.
pub(crate) struct Saved {
    path: PathBuf,
    session: Option<Session>,
    good: OnceLock<Vec<u8>>,
}

fn session() -> Result<Session, String> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/story.gguf"));
    let model = Model::open(path).map_err(|error| error.to_string())?;
    let cpu = Cpu::at(Level::host(), Numbers::Quantised).map_err(|error| error.to_string())?;
    let device = Box::new(CpuDevice::new(cpu, 1).map_err(|error| error.to_string())?);
    let settings = Settings::of_one(64, 64, Format::F16, Scored::Last);
    model
        .session(device, &settings, &Options::default(), &Cache::default())
        .map_err(|error| error.to_string())
}

impl Saved {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { path: folder.join("m.fbkv"), session: None, good: OnceLock::new() }
    }

    /// A sequence of five tokens.
    fn good(&self) -> &[u8] {
        self.good.get_or_init(|| {
            let path = self.path.with_extension("good");
            let saved = session().and_then(|mut session| {
                session.feed(&[1, 2, 3, 4, 5]).map_err(|error| error.to_string())?;
                session.save(&path).map_err(|error| error.to_string())
            });
            saved.map(|()| fs::read(&path).unwrap_or_default()).unwrap_or_default()
        })
    }
}

impl Target for Saved {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let mut bytes = self.good().to_vec();
        if chance(random, 1, 2) && bytes.len() > HEADER_BYTES {
            let (at, number) = (8 * random.below(HEADER_BYTES / 8 + 3), mutate::number(random));
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        } else {
            mutate::bytes(random, &mut bytes);
        }
        let sum_at = bytes.len().saturating_sub(8);
        if chance(random, 3, 4) {
            let mut hash = StableHasher::default();
            // As it is written: header, tokens and states are pieces of whole words.
            hash.write(&bytes[..sum_at]);
            let sum = hash.finish().to_le_bytes();
            bytes[sum_at..].iter_mut().zip(sum).for_each(|(to, from)| *to = from);
        }
        bytes
    }

    fn run(&mut self, input: &[u8]) -> Result<bool, String> {
        fs::write(&self.path, input).map_err(|error| error.to_string())?;
        if self.session.is_none() {
            self.session = Some(session()?);
        }
        let Some(session) = &mut self.session else { return Ok(false) };
        let restored = session.restore(&self.path).map(<[u32]>::len);
        let n = session.position();
        session.truncate(0).map_err(|error| error.to_string())?;
        match restored {
            Ok(tokens) if tokens == n => Ok(true),
            Ok(tokens) => Err(format!("{tokens} tokens are told, {n} are there")),
            Err(_) if n == 0 => Ok(false),
            Err(_) => Err(format!("{n} tokens are left of what was refused")),
        }
    }
}
