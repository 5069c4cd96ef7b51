//! Models without their ends: from embeddings instead of token ids, to hidden states instead of logits.
//!
//! In: small models with random weights, whole, and without embedding matrix and head. Out: the same numbers either
//! way, hidden states whose normalised product with the head gives the logits, and scores of a head that ranks.

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::embed::Embedder;
use fusebox_models::embed::pooling::Pooling;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;
use support::own::path;
use support::plain::{Attention, Plain};
use support::run::relative_error;

use crate::made::{Made, Tensor};
use crate::odd::{grouped, small};

const TOKENS: [u32; 13] = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 38];

fn made() -> Made {
    let own = small(Attention::Grouped(grouped(4, 2, 16)), Format::F32);
    Made::new(&Plain { tied: false, ..own })
}

fn session(model: &Model, scored: Scored) -> Result<Session, String> {
    let device = Box::new(CpuDevice::new(Cpu::host(Numbers::Single).unwrap(), 1).unwrap());
    let settings = Settings { scores_every: true, ..Settings::of_one(40, 16, Format::F32, scored) };
    let session = model.session(device, &settings, &Options::default(), &Cache::default());
    session.map_err(|error| error.to_string())
}

/// The elements of a tensor.
fn numbers(made: &Made, name: &str) -> Vec<f32> {
    made.tensors[name].bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

/// The embeddings of some tokens.
fn vectors(made: &Made, tokens: &[u32]) -> Vec<f32> {
    let (table, d) = (numbers(made, "token_embd"), made.config.hidden);
    tokens.iter().flat_map(|token| table[*token as usize * d..][..d].to_vec()).collect()
}

fn rows_of_tokens(session: &mut Session, tokens: &[u32]) -> Vec<f32> {
    let mut rows = Vec::new();
    session.score(tokens, &mut |row| rows.extend_from_slice(row)).unwrap();
    rows
}

fn rows_of_vectors(session: &mut Session, vectors: &[f32]) -> Vec<f32> {
    let mut rows = Vec::new();
    session.score_vectors(vectors, &mut |row| rows.extend_from_slice(row)).unwrap();
    rows
}

#[test]
fn vectors_of_the_table_are_as_good_as_tokens() {
    let (made, file) = (made(), path("whole.gguf"));
    made.gguf(&file, "llama");
    let (whole, backbone) = (Model::open(&file).unwrap(), Model::backbone(&file).unwrap());
    for scored in [Scored::Last, Scored::Unnormed, Scored::Normed] {
        let mut from_tokens = session(&whole, scored).unwrap();
        let mut from_vectors = session(&backbone, scored).unwrap();
        let expected = rows_of_tokens(&mut from_tokens, &TOKENS);
        let width = expected.len() / TOKENS.len();
        let found = rows_of_vectors(&mut from_vectors, &vectors(&made, &TOKENS));
        assert!(relative_error(&found, &expected) <= 1e-5);
        // The sequence continues after a truncation, and starts over.
        from_vectors.truncate(10).unwrap();
        assert_eq!(from_vectors.position(), 10);
        let found = rows_of_vectors(&mut from_vectors, &vectors(&made, &TOKENS[10..]));
        assert!(relative_error(&found, &expected[10 * width..]) <= 1e-5);
        from_vectors.truncate(0).unwrap();
        let found = rows_of_vectors(&mut from_vectors, &vectors(&made, &TOKENS[..1]));
        assert!(relative_error(&found, &expected[..width]) <= 1e-5);
        assert_eq!(from_vectors.logits(), found);
    }
}

#[test]
fn hidden_vectors_are_what_scores_are_made_of() {
    let (made, file) = (made(), path("hidden.gguf"));
    made.gguf(&file, "llama");
    let model = Model::open(&file).unwrap();
    let rows = |scored| rows_of_tokens(&mut session(&model, scored).unwrap(), &TOKENS);
    let (unnormed, normed, scores) = (rows(Scored::Unnormed), rows(Scored::Normed), rows(Scored::Last));
    let (d, gain, table) = (made.config.hidden, numbers(&made, "output_norm"), numbers(&made, "output"));
    let norm = |x: &[f32]| -> Vec<f32> {
        let mean = x.iter().map(|x| x * x).sum::<f32>() / d as f32;
        let scale = 1.0 / (mean + made.config.eps).sqrt();
        x.iter().zip(&gain).map(|(x, gain)| x * scale * gain).collect()
    };
    let own: Vec<f32> = unnormed.chunks(d).flat_map(norm).collect();
    assert!(relative_error(&own, &normed) <= 1e-5);
    let score = |x: &[f32]| -> Vec<f32> {
        table.chunks(d).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    };
    let own: Vec<f32> = normed.chunks(d).flat_map(score).collect();
    assert!(relative_error(&own, &scores) <= 1e-5);
}

#[test]
fn a_backbone_needs_no_table_and_no_head() {
    let (mut made, folder) = (made(), path("backbone"));
    made.folder(&folder, "llama");
    let expected =
        rows_of_tokens(&mut session(&Model::open(&folder).unwrap(), Scored::Normed).unwrap(), &TOKENS);
    let vectors = vectors(&made, &TOKENS);
    made.tensors.remove("token_embd");
    made.tensors.remove("output");
    made.folder(&folder, "llama");
    // A model saved without its head has tensor names without the prefix.
    let file = folder.join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    let n_header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + n_header].to_vec()).unwrap().replace("model.", "");
    let bare = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + n_header..]];
    std::fs::write(&file, bare.concat()).unwrap();

    let error = Model::open(&folder).unwrap_err().to_string();
    assert!(error.contains("expected a tensor of shape [50, 64], found none"), "{error}");
    let backbone = Model::backbone(&folder).unwrap();
    let error = session(&backbone, Scored::Last).err().unwrap();
    assert!(
        error.ends_with("expected an output head for logits, found none: this model returns hidden states"),
        "{error}"
    );
    let mut session = session(&backbone, Scored::Normed).unwrap();
    assert!(relative_error(&rows_of_vectors(&mut session, &vectors), &expected) <= 1e-5);
    let error = session.feed(&[1]).unwrap_err().to_string();
    assert_eq!(error, "tokens: this session starts from something else");
    let error = session.score_vectors(&vectors[..65], &mut |_| {}).unwrap_err().to_string();
    assert_eq!(error, "vectors: expected whole vectors of 64 numbers, found 65");
    assert!(session.score_vectors(&[], &mut |_| {}).is_err());
    assert_eq!(session.position(), TOKENS.len());
}

#[test]
fn a_head_for_yes_and_no_returns_their_logits_after_the_last_token() {
    const ANSWERS: [usize; 2] = [7, 30];
    let (mut made, file) = (made(), path("answers.gguf"));
    let (head, d) = (made.tensors["output"].clone(), made.config.hidden);
    let row = |id: usize| &head.bytes[id * d * 4..][..d * 4];
    let bytes = ANSWERS.map(row).concat();
    made.tensors.insert("cls.output".to_owned(), Tensor { shape: vec![2, d], bytes, ..head.clone() });
    made.gguf(&file, "llama");
    // More than a replay takes.
    let tokens = [TOKENS, TOKENS].concat();
    let mut whole = session(&Model::open(&file).unwrap(), Scored::Last).unwrap();
    let logits = whole.feed(&tokens).unwrap();
    let expected = ANSWERS.map(|id| logits[id]);
    let ranker = Model::either(&file).unwrap();
    let mut embedder = Embedder::new(&ranker, session(&ranker, Scored::Ranked).unwrap(), Pooling::Rank);
    let found = embedder.embed(&tokens).unwrap();
    assert!(relative_error(&found, &expected) <= 1e-5, "{found:?}, expected {expected:?}");
}
