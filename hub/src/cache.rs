//! The cache that Hugging Face's tools share: which files of which repositories lie in it.
//!
//! In: a folder. Out: models in it, by name. A repository is a folder `models--owner--name`; in it `blobs/` holds each
//! content once, `snapshots/COMMIT/` has the files of a commit as links to them, and `refs/main` names the newest.

use std::fs;
use std::path::{Path, PathBuf};

use crate::choose::quant_of;
use crate::error::Error;
use crate::name::Name;

/// The revision that a name means.
pub(crate) const REVISION: &str = "main";

/// The cache.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name, with the quantisation that its file name states.
    pub name: Name,
    /// What is opened: a GGUF file, or a folder with safetensors.
    pub path: PathBuf,
    /// Its files.
    pub files: Vec<PathBuf>,
    /// Their bytes together.
    pub size: u64,
}

impl Cache {
    /// The cache in a folder.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a repository.
    pub(crate) fn repository(&self, name: &Name) -> PathBuf {
        self.folder.join(name.folder())
    }

    /// The folder of the newest commit of a repository that is here.
    fn snapshot(&self, name: &Name) -> Option<PathBuf> {
        let repository = self.repository(name);
        let commit = fs::read_to_string(repository.join("refs").join(REVISION)).ok()?;
        let snapshot = repository.join("snapshots").join(checked(commit.trim())?);
        snapshot.is_dir().then_some(snapshot)
    }

    /// The models of a repository.
    pub fn models(&self, name: &Name) -> Vec<Stored> {
        let Some(snapshot) = self.snapshot(name) else { return Vec::new() };
        let mut files = Vec::new();
        collect(&snapshot, &mut files, 0);
        files.sort();
        let mut models: Vec<Stored> = Vec::new();
        let is_gguf = |path: &Path| path.extension().is_some_and(|ending| ending == "gguf");
        for path in files.iter().filter(|path| is_gguf(path)) {
            let text = path.file_name().unwrap_or_default().to_string_lossy();
            let quant = quant_of(&text);
            let size = fs::metadata(path).map_or(0, |about| about.len());
            let is_part = text.contains("-of-");
            match models
                .last_mut()
                .filter(|last| is_part && last.name.quant == quant && !last.files.is_empty())
            {
                Some(last) => {
                    last.files.push(path.clone());
                    last.size += size;
                }
                None => models.push(Stored {
                    name: Name { quant, ..name.clone() },
                    path: path.clone(),
                    files: vec![path.clone()],
                    size,
                }),
            }
        }
        if models.is_empty() && snapshot.join("config.json").is_file() {
            let has_weights =
                files.iter().any(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
            let size = files.iter().filter_map(|path| fs::metadata(path).ok()).map(|about| about.len()).sum();
            let name = Name { quant: None, ..name.clone() };
            models.extend(has_weights.then_some(Stored { name, path: snapshot, files, size }));
        }
        models
    }

    /// Every model, by name.
    pub fn all(&self) -> Vec<Stored> {
        let folders = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = folders.filter_map(|folder| Name::of_folder(folder.file_name().to_str()?));
        let mut all: Vec<Stored> = names.flat_map(|name| self.models(&name)).collect();
        all.sort_by_key(|stored| stored.name.to_string().to_ascii_lowercase());
        all
    }

    /// The model that a text names: `owner/name`, or `name` alone where that is one owner's, with or without a
    /// quantisation, or the name of a file.
    ///
    /// # Errors
    /// Where several models have that name.
    pub fn find(&self, text: &str) -> Result<Option<Stored>, Error> {
        let (wanted, quant) = text.split_once(':').map_or((text, None), |(name, quant)| (name, Some(quant)));
        let is_quant = |stored: &Stored| {
            quant.is_none_or(|quant| {
                stored.name.quant.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(quant))
            })
        };
        let is_meant = |stored: &Stored| {
            let file = stored.path.file_stem().unwrap_or_default().to_string_lossy();
            let names = [stored.name.repository(), stored.name.name.clone(), file.into_owned()];
            names.iter().any(|name| name.eq_ignore_ascii_case(wanted)) && is_quant(stored)
        };
        let mut found: Vec<Stored> = self.all().into_iter().filter(is_meant).collect();
        let is_one_repository =
            found.windows(2).all(|pair| pair[0].name.repository() == pair[1].name.repository());
        if found.len() > 1 && !is_one_repository {
            let names: Vec<String> = found.iter().map(|stored| stored.name.to_string()).collect();
            return Err(Error::new(format!("{text} may be any of {}", names.join(", "))));
        }
        // The largest is the one that was asked for by a name alone.
        found.sort_by_key(|stored| stored.size);
        Ok(found.pop())
    }

    /// Deletes the files of a model, and its repository where nothing else is left there; returns the bytes.
    ///
    /// # Errors
    /// Where a file cannot be deleted.
    pub fn delete(&self, stored: &Stored) -> Result<u64, Error> {
        for path in &stored.files {
            // A link leads to its content, which goes with it.
            if let Ok(content) = fs::canonicalize(path)
                && content.starts_with(fs::canonicalize(&self.folder).unwrap_or_default())
                && content != *path
            {
                fs::remove_file(&content).map_err(|error| Error::at(&content, error))?;
            }
            fs::remove_file(path).map_err(|error| Error::at(path, error))?;
        }
        let name = Name { quant: None, ..stored.name.clone() };
        if self.models(&name).is_empty() {
            let repository = self.repository(&name);
            fs::remove_dir_all(&repository).map_err(|error| Error::at(&repository, error))?;
        }
        Ok(stored.size)
    }
}

/// A word that is safe as a part of a path: a commit, or the name of a content.
pub(crate) fn checked(word: &str) -> Option<&str> {
    let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    (is_plain && (1..=128).contains(&word.len())).then_some(word)
}

/// The files below a folder.
fn collect(folder: &Path, files: &mut Vec<PathBuf>, depth: usize) {
    /// Repositories are flat.
    const MAX_DEPTH: usize = 8;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && depth < MAX_DEPTH {
            collect(&path, files, depth + 1);
        } else if path.is_file() {
            files.push(path);
        }
    }
}
