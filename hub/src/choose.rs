//! Which files of a repository are fetched.
//!
//! In: the list of files, a quantisation or free memory. Out: the files of one model: GGUF, in one file or in parts, or
//! a folder with safetensors. Where no quantisation is named, it is `Q8_0` if a quarter of the free memory holds that,
//! else `Q4_K_M`, else the largest that fits.

use std::path::Path;

use crate::error::Error;

/// Quantisations that can be run, as file names spell them, from the best to the smallest.
pub const QUANTS: [&str; 25] = [
    "F32",
    "F16",
    "BF16",
    "Q8_0",
    "Q6_K",
    "Q5_K_M",
    "Q5_K_S",
    "Q5_1",
    "Q5_0",
    "Q4_K_M",
    "Q4_K_S",
    "Q4_1",
    "Q4_0",
    "Q4_K",
    "Q5_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "MXFP4_MOE",
    "Q3_K_L",
    "Q3_K_M",
    "Q3_K_S",
    "Q3_K",
    "Q2_K_L",
    "Q2_K",
];
/// Where the names of ours are no part of a name: these come before the weights of a safetensors folder.
const SIDECARS: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "chat_template.jinja",
    "special_tokens_map.json",
    "model.safetensors.index.json",
];
/// Files beside a model that are no language models.
const OTHERS: [&str; 4] = ["mmproj", "imatrix", "vocab-only", "ggml-vocab"];

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path in the repository.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256, where the server tells.
    pub sha256: Option<String>,
    /// What the server calls its content.
    pub blob: String,
}

/// The files of one model, in the order in which they are fetched; the first is what is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// What the choice is called, where there was one.
    pub quant: Option<String>,
    /// The files.
    pub files: Vec<File>,
    /// Whether they are a folder with safetensors.
    pub is_folder: bool,
}

impl Chosen {
    /// All bytes.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

/// The quantisation that a file name states.
pub fn quant_of(path: &str) -> Option<String> {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_uppercase();
    let stem = name.strip_suffix(".GGUF")?;
    let words: Vec<&str> = stem.split(['-', '.', ' ']).collect();
    let is_quant = |word: &&str| {
        let is_float = ["F16", "F32", "BF16", "FP16"].contains(word);
        let starts =
            |start: &str| word.strip_prefix(start).is_some_and(|rest| rest.starts_with(char::is_numeric));
        is_float || ["Q", "IQ", "TQ", "MXFP"].into_iter().any(starts)
    };
    let word = words.into_iter().rev().find(is_quant)?;
    Some(if word == "FP16" { "F16".to_owned() } else { word.to_owned() })
}

/// Chooses the files of a model.
///
/// # Errors
/// Where there are none, or none of the wanted quantisation; says which there are.
pub fn choose(files: &[File], wanted: Option<&str>, free: Option<u64>) -> Result<Chosen, Error> {
    let groups = groups(files);
    if groups.is_empty() {
        return folder(files, wanted);
    }
    let names = || {
        let names: Vec<String> = groups.iter().map(|group| label(group)).collect();
        names.join(", ")
    };
    let chosen = match wanted {
        Some(wanted) => {
            let is_named = |group: &&Vec<File>| label(group).eq_ignore_ascii_case(wanted);
            let stem = |group: &&Vec<File>| {
                group[0].path.to_ascii_uppercase().contains(&wanted.to_ascii_uppercase())
            };
            let found = groups.iter().find(is_named).or_else(|| groups.iter().find(stem));
            found.ok_or_else(|| Error::new(format!("there is no {wanted}, expected one of {}", names())))?
        }
        None => default(&groups, free).ok_or_else(|| {
            Error::new(format!("none of {} can be run, expected one of {}", names(), QUANTS.join(", ")))
        })?,
    };
    Ok(Chosen { quant: quant_of(&chosen[0].path), files: chosen.clone(), is_folder: false })
}

/// What a group of files is called: its quantisation, or its name.
fn label(group: &[File]) -> String {
    quant_of(&group[0].path).unwrap_or_else(|| group[0].path.clone())
}

/// The quantisation that is taken where none is named.
fn default(groups: &[Vec<File>], free: Option<u64>) -> Option<&Vec<File>> {
    let size = |group: &Vec<File>| group.iter().map(|file| file.size).sum::<u64>();
    let fits = |group: &Vec<File>, share: u64| free.is_none_or(|free| size(group) <= free / 100 * share);
    let named = |quant: &str| groups.iter().find(|group| quant_of(&group[0].path).as_deref() == Some(quant));
    if let Some(group) = named("Q8_0").filter(|group| free.is_some() && fits(group, 25)) {
        return Some(group);
    }
    if let Some(group) = named("Q4_K_M").filter(|group| fits(group, 80)) {
        return Some(group);
    }
    let can_run =
        |group: &&Vec<File>| quant_of(&group[0].path).is_none_or(|quant| QUANTS.contains(&quant.as_str()));
    let runs: Vec<&Vec<File>> = groups.iter().filter(can_run).collect();
    let largest = runs.iter().filter(|group| fits(group, 80)).max_by_key(|group| size(group));
    // Where nothing fits, the smallest comes nearest.
    largest.or_else(|| runs.iter().min_by_key(|group| size(group))).copied()
}

/// The GGUF files, those in parts together.
fn groups(files: &[File]) -> Vec<Vec<File>> {
    let is_model = |file: &&File| {
        let name = file.path.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
        Path::new(&name).extension().is_some_and(|ending| ending == "gguf")
            && !OTHERS.iter().any(|other| name.contains(other))
    };
    let mut groups: Vec<Vec<File>> = Vec::new();
    for file in files.iter().filter(is_model) {
        let key = whole(&file.path);
        match groups.iter_mut().find(|group| whole(&group[0].path) == key) {
            Some(group) => group.push(file.clone()),
            None => groups.push(vec![file.clone()]),
        }
    }
    for group in &mut groups {
        group.sort_by(|a, b| a.path.cmp(&b.path));
    }
    groups
}

/// The path without the number of a part, `-00001-of-00003`.
fn whole(path: &str) -> &str {
    let stem = path.strip_suffix(".gguf").unwrap_or(path);
    let part = stem.len().checked_sub("-00001-of-00003".len()).and_then(|at| stem.split_at_checked(at));
    match part {
        Some((stem, part)) if part[6..].starts_with("-of-") => stem,
        _ => stem,
    }
}

/// A folder with safetensors.
fn folder(files: &[File], wanted: Option<&str>) -> Result<Chosen, Error> {
    if let Some(wanted) = wanted {
        return Err(Error::new(format!("there is no GGUF file, so none is {wanted}")));
    }
    let is_here = |name: &str| files.iter().find(|file| file.path == name);
    let weights: Vec<File> = files
        .iter()
        .filter(|file| file.path.ends_with(".safetensors") && !file.path.contains('/'))
        .cloned()
        .collect();
    if weights.is_empty() || is_here("config.json").is_none() {
        return Err(Error::new("there is neither a GGUF file nor a config.json with safetensors"));
    }
    let files = SIDECARS.iter().filter_map(|name| is_here(name)).cloned().chain(weights).collect();
    Ok(Chosen { quant: None, files, is_folder: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, size: u64) -> File {
        File { path: path.to_owned(), size, sha256: None, blob: "0".to_owned() }
    }

    fn chosen(files: &[File], wanted: Option<&str>, free: u64) -> Vec<String> {
        let chosen = choose(files, wanted, Some(free)).unwrap();
        chosen.files.into_iter().map(|file| file.path).collect()
    }

    #[test]
    fn names_of_files_state_the_quantisation() {
        for (path, quant) in [
            ("SmolLM2-135M-Instruct-Q8_0.gguf", Some("Q8_0")),
            ("Q4/qwen3.q4_k_m.gguf", Some("Q4_K_M")),
            ("llama-3.2-1b-IQ4_XS.gguf", Some("IQ4_XS")),
            ("model-fp16.gguf", Some("F16")),
            ("big-Q4_K_M-00001-of-00002.gguf", Some("Q4_K_M")),
            ("Qwen3-0.6B.gguf", None),
            ("config.json", None),
        ] {
            assert_eq!(quant_of(path).as_deref(), quant, "{path}");
        }
    }

    #[test]
    fn memory_decides_unless_a_quantisation_is_named() {
        let all = [
            file("m-F16.gguf", 200),
            file("m-Q8_0.gguf", 100),
            file("m-Q4_K_M.gguf", 60),
            file("m-Q4_0.gguf", 50),
            file("m-IQ2_XS.gguf", 20),
            file("mmproj-m-F16.gguf", 30),
        ];
        assert_eq!(chosen(&all, None, 400), ["m-Q8_0.gguf"]);
        assert_eq!(chosen(&all, None, 399), ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen(&all, None, 70), ["m-Q4_0.gguf"]);
        assert_eq!(chosen(&all, None, 10), ["m-Q4_0.gguf"]);
        assert_eq!(chosen(&all, Some("f16"), 10), ["m-F16.gguf"]);
        let sentence = choose(&all, Some("Q3_K_L"), None).unwrap_err().to_string();
        assert_eq!(sentence, "there is no Q3_K_L, expected one of F16, Q8_0, Q4_K_M, Q4_0, IQ2_XS");
        assert!(choose(&all[4..], None, None).unwrap_err().to_string().starts_with("none of IQ2_XS"));
    }

    #[test]
    fn parts_stay_together_and_a_folder_has_its_side_files_first() {
        let parts = [file("m-Q4_0-00002-of-00002.gguf", 5), file("m-Q4_0-00001-of-00002.gguf", 5)];
        assert_eq!(chosen(&parts, None, 100), ["m-Q4_0-00001-of-00002.gguf", "m-Q4_0-00002-of-00002.gguf"]);
        let folder = [file("model.safetensors", 9), file("onnx/m.safetensors", 9), file("config.json", 1)];
        assert_eq!(chosen(&folder, None, 100), ["config.json", "model.safetensors"]);
        assert!(choose(&folder[..2], None, None).is_err());
    }
}
