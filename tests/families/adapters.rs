//! LoRA adapters and control vectors, at load and merged.
//!
//! In: small models with random weights, and adapters of both kinds for them. Out: the logits of a model whose weights
//! have the products of the adapters in them; and sentences for what does not fit.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::options::Numbers;
use fusebox_compiler::options::Options;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::adapters::{Adapters, Choice};
use fusebox_models::config::KvCache;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::Model;
use fusebox_models::naming::tensors::Names;
use fusebox_models::quantize::types::Type;
use fusebox_models::quantize::{Job, quantize};
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::engine::{Engine, Piece, SequenceId};
use fusebox_runtime::session::kin::Kin;
use fusebox_runtime::weights::Kind;
use serde_json::{Map, Value as Json, json};
use support::gguf::{F32, TEXT, Writer, pair, text};
use support::own::path;
use support::plain::{Attention, Grouped, Plain};
use support::run::{Run, relative_error};

use crate::files::converted::add_tokenizer;
use crate::made::{Made, Tensor, write};
use crate::odd::{experts, grouped, latent, small};

/// Single precision, summed in another order.
const SAME: f64 = 1e-5;

/// Random numbers, always the same for a seed.
fn numbers(seed: &str, n: usize) -> Vec<f32> {
    let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0193);
    let mut state = seed.bytes().fold(0x9e37_79b9, mix);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0) * 0.3
    };
    (0..n).map(|_| next()).collect()
}

/// An adapter: matrices A and B by the name of the weight in graphs, `[n, rank, columns]` and `[n, rows, rank]`.
struct Lora {
    rank: usize,
    alpha: f32,
    pairs: BTreeMap<String, [Vec<f32>; 2]>,
}

impl Lora {
    /// For these weights of a model.
    fn new(made: &Made, seed: &str, rank: usize, is_for: impl Fn(&str) -> bool) -> Self {
        let weights = made.tensors.iter().filter(|(name, own)| own.shape.len() > 1 && is_for(name));
        let pairs = weights.map(|(name, own)| {
            let [n, rows, columns] = sizes(name, own);
            let seed = format!("{seed}{name}");
            (name.clone(), [numbers(&seed, n * rank * columns), numbers(&(seed + "b"), n * rows * rank)])
        });
        Self { rank, alpha: 6.0, pairs: pairs.collect() }
    }

    /// Adds its products to the weights.
    fn merge(&self, made: &mut Made, scale: f32) {
        for (name, [a, b]) in &self.pairs {
            let own = made.tensors.get_mut(name).unwrap();
            let [n, rows, columns] = sizes(name, own);
            let mut elements = own.format.decode_all(&own.bytes, n * rows * columns).unwrap();
            for (row, elements) in elements.chunks_mut(columns).enumerate() {
                let a = &a[row / rows * self.rank * columns..];
                for (column, element) in elements.iter_mut().enumerate() {
                    let product: f64 = (0..self.rank)
                        .map(|r| f64::from(b[row * self.rank + r]) * f64::from(a[r * columns + column]))
                        .sum();
                    *element += (product * f64::from(scale * self.alpha / self.rank as f32)) as f32;
                }
            }
            own.bytes = elements.into_iter().flat_map(f32::to_le_bytes).collect();
        }
    }

    /// Writes a GGUF adapter. Rows of an embedding are looked up, so A and B change places and A is transposed.
    fn gguf(&self, path: &Path, made: &Made, architecture: &str, change: impl Fn(&mut Writer)) {
        let mut tensors = BTreeMap::new();
        for (name, [a, b]) in &self.pairs {
            let [n, rows, columns] = sizes(name, &made.tensors[name]);
            let [a, b] = if name == "token_embd" {
                [tensor(&[rows, self.rank], b), tensor(&[columns, self.rank], &transposed(a, columns))]
            } else {
                let lead: &[usize] = if name.ends_with("_exps") { &[n] } else { &[] };
                let shape = |two: [usize; 2]| [lead, &two].concat();
                [tensor(&shape([self.rank, columns]), a), tensor(&shape([rows, self.rank]), b)]
            };
            tensors.insert(format!("{name}.weight.lora_a"), a);
            tensors.insert(format!("{name}.weight.lora_b"), b);
        }
        let mut writer = Writer::good();
        writer.pairs = vec![
            pair("general.architecture", TEXT, text(architecture)),
            pair("general.type", TEXT, text("adapter")),
            pair("adapter.type", TEXT, text("lora")),
            pair("adapter.lora.alpha", F32, self.alpha.to_le_bytes()),
        ];
        change(&mut writer);
        write_named(path, writer, &tensors);
    }

    /// Writes a folder of PEFT, with experts one at a time.
    fn peft(&self, path: &Path, made: &Made, facts: &Json) {
        let mut pieces: Vec<(String, Tensor)> = Vec::new();
        let names = Names::common(Kind::Safetensors);
        for (name, [a, b]) in &self.pairs {
            let [n, rows, columns] = sizes(name, &made.tensors[name]);
            let own = |name: String| format!("base_model.model.{}", name.strip_suffix(".weight").unwrap());
            if name == "token_embd" {
                // The columns of B are those of the embedding.
                let own = own(names.of(name).remove(0));
                let turned = transposed(b, self.rank);
                pieces.push((format!("{own}.lora_embedding_A"), tensor(&[self.rank, rows], &turned)));
                let turned = transposed(a, columns);
                pieces.push((format!("{own}.lora_embedding_B"), tensor(&[columns, self.rank], &turned)));
                continue;
            }
            for i in 0..n {
                let is_expert = name.ends_with("_exps");
                let all = if is_expert { names.expert(name, i) } else { names.of(name) };
                let own = own(all[0].clone());
                let a = &a[i * self.rank * columns..(i + 1) * self.rank * columns];
                let b = &b[i * rows * self.rank..(i + 1) * rows * self.rank];
                pieces.push((format!("{own}.lora_A.weight"), tensor(&[self.rank, columns], a)));
                pieces.push((format!("{own}.lora_B.weight"), tensor(&[rows, self.rank], b)));
            }
        }
        let mut config = json!({
            "peft_type": "LORA", "lora_alpha": self.alpha, "r": self.rank, "bias": "none", "use_dora": false,
        });
        config.as_object_mut().unwrap().extend(facts.as_object().unwrap().clone());
        write_peft(path, pieces, &config);
    }
}

fn write_peft(path: &Path, pieces: Vec<(String, Tensor)>, config: &Json) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, own) in pieces {
        let offsets = [data.len(), data.len() + own.bytes.len()];
        header.insert(name, json!({"dtype": "F32", "shape": own.shape, "data_offsets": offsets}));
        data.extend(own.bytes);
    }
    let header = Json::Object(header).to_string();
    let whole = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::create_dir_all(path).unwrap();
    fs::write(path.join("adapter_model.safetensors"), whole).unwrap();
    fs::write(path.join("adapter_config.json"), config.to_string()).unwrap();
}

/// Writes tensors by exactly these names.
fn write_named(path: &Path, mut writer: Writer, tensors: &BTreeMap<String, Tensor>) {
    (writer.tensors, writer.data) = (Vec::new(), Vec::new());
    for (name, own) in tensors {
        let sizes: Vec<u64> = own.shape.iter().rev().map(|size| *size as u64).collect();
        writer.tensors.push(support::gguf::tensor(name, &sizes, 0, writer.data.len() as u64));
        writer.data.extend(&own.bytes);
        writer.data.resize(writer.data.len().next_multiple_of(32), 0);
    }
    fs::write(path, writer.bytes()).unwrap();
}

fn tensor(shape: &[usize], numbers: &[f32]) -> Tensor {
    let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor { shape: shape.to_vec(), format: Format::F32, bytes }
}

fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let rows = matrix.len() / columns;
    (0..columns).flat_map(|column| (0..rows).map(move |row| matrix[row * columns + column])).collect()
}

/// The numbers of matrices, rows and columns.
fn sizes(name: &str, own: &Tensor) -> [usize; 3] {
    let columns = *own.shape.last().unwrap();
    let n = if name.ends_with("_exps") { own.shape[0] } else { 1 };
    [n, own.shape.iter().product::<usize>() / n / columns, columns]
}

fn loras(paths: &[(&Path, f32)]) -> Adapters {
    let loras = paths.iter().map(|(path, scale)| (path.to_path_buf(), *scale)).collect();
    Adapters { loras, ..Adapters::default() }
}

fn session(file: &Path, adapters: &Adapters, scored: Scored) -> Session {
    let model = Model::open(file).and_then(|model| model.with_adapters(adapters));
    let model = model.unwrap_or_else(|error| panic!("{error}"));
    let mut run = Run::new(Numbers::Single);
    (run.settings.context, run.settings.chunk, run.settings.scored) = (40, 16, scored);
    let device = Box::new(CpuDevice::new(Cpu::at(run.level, run.numbers).unwrap(), 2).unwrap());
    model.session(device, &run.settings, &Options::default(), &Cache::default()).unwrap()
}

/// A prompt, and one more token.
fn prompt() -> Vec<u32> {
    (1..20).collect()
}
const NEXT: u32 = 11;

/// Logits after a prompt, and after one more token.
fn logits(file: &Path, adapters: &Adapters) -> Vec<f32> {
    let mut session = session(file, adapters, Scored::Last);
    let first = session.feed(&prompt()).unwrap().to_vec();
    [first, session.feed(&[NEXT]).unwrap().to_vec()].concat()
}

/// Compares a model that has adapters with one that has them in its weights, and is another than without.
#[track_caller]
fn check(file: &Path, adapters: &Adapters, merged: &Path) {
    let expected = logits(merged, &Adapters::default());
    let error = relative_error(&logits(file, adapters), &expected);
    assert!(error <= SAME, "{}: {error:e}", file.display());
    let plain = relative_error(&logits(file, &Adapters::default()), &expected);
    assert!(plain > 100.0 * SAME, "{}: nothing changed, {plain:e}", file.display());
}

/// Projections, and both ends.
fn is_projection(name: &str) -> bool {
    !name.contains("norm")
}

fn dense(tied: bool) -> Plain {
    let heads = Grouped { qk_norm: true, ..grouped(4, 2, 32) };
    Plain { tied, ..small(Attention::Grouped(heads), Format::F32) }
}

#[test]
fn adapters_add_their_products_to_every_projection_and_both_ends() {
    let made = Made::new(&dense(false));
    let [file, merged_file] = ["lora-base.gguf", "lora-merged.gguf"].map(path);
    made.gguf(&file, "qwen3");
    let first = Lora::new(&made, "a", 4, is_projection);
    let second = Lora::new(&made, "b", 3, |name| name.contains("attn_q") || name.contains("ffn_down"));
    let [one, other] = ["lora-first.gguf", "lora-second"].map(path);
    first.gguf(&one, &made, "qwen3", |_| ());
    // Its scale is by the root of the rank, and one module has another alpha.
    let facts = json!({"use_rslora": true, "alpha_pattern": {"q_proj": 6.0 / 3_f32.sqrt()}});
    second.peft(&other, &made, &facts);
    let mut merged = made.clone();
    first.merge(&mut merged, 1.0);
    let mut second = second;
    second.pairs.retain(|name, _| name.contains("attn_q"));
    second.merge(&mut merged, -0.5);
    let mut down = Lora::new(&made, "b", 3, |name| name.contains("ffn_down"));
    down.alpha *= 3_f32.sqrt();
    down.merge(&mut merged, -0.5);
    merged.gguf(&merged_file, "qwen3");
    check(&file, &loras(&[(&one, 1.0), (&other, -0.5)]), &merged_file);
}

#[test]
fn experts_and_their_routers_take_adapters_of_both_kinds() {
    let config = Plain { experts: Some(experts(6, 2)), ..dense(false) };
    let made = Made::new(&config);
    let lora = Lora::new(&made, "x", 2, is_projection);
    let mut merged = made.clone();
    lora.merge(&mut merged, 1.0);
    let [file, folder, merged_file] = ["lora-moe.gguf", "lora-moe", "lora-moe-merged.gguf"].map(path);
    made.gguf(&file, "qwen3moe");
    made.folder(&folder, "qwen3_moe");
    merged.gguf(&merged_file, "qwen3moe");
    let [one, other] = ["lora-moe-adapter.gguf", "lora-moe-adapter"].map(path);
    lora.gguf(&one, &made, "qwen3moe", |_| ());
    lora.peft(&other, &made, &json!({}));
    for base in [&file, &folder] {
        for adapter in [&one, &other] {
            check(base, &loras(&[(adapter, 1.0)]), &merged_file);
        }
    }
}

#[test]
fn rows_of_llama_are_in_the_order_of_the_model() {
    let config = small(Attention::Grouped(grouped(4, 2, 16)), Format::F32);
    let made = Made::new(&Plain { tied: false, ..config });
    let lora = Lora::new(&made, "l", 4, |name| name.contains("attn_q") || name.contains("attn_k"));
    let mut merged = made.clone();
    lora.merge(&mut merged, 1.0);
    let [folder, merged_folder, adapter] =
        ["lora-llama", "lora-llama-merged", "lora-llama-adapter"].map(path);
    made.folder(&folder, "llama");
    add_tokenizer(&folder);
    merged.folder(&merged_folder, "llama");
    lora.peft(&adapter, &made, &json!({}));
    let file = written(&folder, "lora-llama.gguf", &Job::to(Type::named("F32").unwrap(), 2));
    // As the converter of adapters stores it.
    let mut turned = Lora { pairs: lora.pairs.clone(), ..lora };
    for [_, b] in turned.pairs.values_mut() {
        let from = |row: usize| row / 16 * 16 + row % 16 % 2 * 8 + row % 16 / 2;
        *b = (0..b.len() / 4).flat_map(|row| b[from(row) * 4..][..4].to_vec()).collect();
    }
    let other = path("lora-llama-adapter.gguf");
    turned.gguf(&other, &made, "llama", |_| ());
    for base in [&folder, &file] {
        for adapter in [&adapter, &other] {
            check(base, &loras(&[(adapter, 1.0)]), &merged_folder);
        }
    }
}

/// A model written anew.
fn written(input: &Path, name: &str, job: &Job) -> PathBuf {
    let output = path(name);
    // What an earlier run has left.
    let _ = fs::remove_file(&output);
    quantize(input, &output, job, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"));
    output
}

#[test]
fn a_merged_model_is_the_model_with_its_adapters() {
    let made = Made::new(&Plain { experts: Some(experts(4, 2)), ..dense(false) });
    let lora = Lora::new(&made, "m", 4, is_projection);
    let [file, folder] = ["merge.gguf", "merge"].map(path);
    made.gguf(&file, "qwen3moe");
    made.folder(&folder, "qwen3_moe");
    add_tokenizer(&folder);
    let [one, other] = ["merge-adapter.gguf", "merge-adapter"].map(path);
    lora.gguf(&one, &made, "qwen3moe", |_| ());
    lora.peft(&other, &made, &json!({}));
    for (base, adapter) in [(&file, &one), (&file, &other), (&folder, &one), (&folder, &other)] {
        let adapters = loras(&[(adapter, 0.5)]);
        let job = Job { adapters: adapters.clone(), n_threads: 2, ..Job::default() };
        let merged = written(base, "merge-out.gguf", &job);
        check(base, &adapters, &merged);
    }
}

#[test]
fn sequences_of_a_batch_have_adapters_of_their_own() {
    let made = Made::new(&Plain { experts: Some(experts(4, 2)), ..dense(false) });
    let [file, of_all, one, other] =
        ["choices", "choices-all", "choices-one", "choices-other"].map(|name| path(&format!("{name}.gguf")));
    made.gguf(&file, "qwen3moe");
    // Of different ranks, and for different projections.
    Lora::new(&made, "all", 2, |name| name.contains("attn_k")).gguf(&of_all, &made, "qwen3moe", |_| ());
    Lora::new(&made, "one", 4, is_projection).gguf(&one, &made, "qwen3moe", |_| ());
    let is_some = |name: &str| name.contains("attn_k") || name.contains("down_exps");
    Lora::new(&made, "other", 3, is_some).gguf(&other, &made, "qwen3moe", |_| ());
    let choice = |path: &Path, scale| Choice { name: path.display().to_string(), path: path.into(), scale };
    let adapters =
        Adapters { choices: vec![choice(&one, 1.0), choice(&other, 0.5)], ..loras(&[(&of_all, 1.0)]) };
    let model = Model::open(&file).unwrap().with_adapters(&adapters).unwrap();
    let mut run = Run::new(Numbers::Single);
    let cache = KvCache { format: Format::F32, page_rows: 4, n_pages: 60, n_sequences: 8 };
    (run.settings.context, run.settings.chunk, run.settings.batch) = (40, 16, 8);
    (run.settings.cache, run.settings.scored) = (cache, Scored::Last);
    let device = Box::new(CpuDevice::new(Cpu::at(run.level, run.numbers).unwrap(), 2).unwrap());
    let mut engine = model.engine(device, &run.settings, &Options::default(), &Cache::default()).unwrap();

    let alone = |others: &[(&Path, f32)]| logits(&file, &loras(&[&[(&*of_all, 1.0)], others].concat()));
    let expected =
        [alone(&[]), alone(&[(&one, 1.0)]), alone(&[(&other, 0.5)]), alone(&[(&one, -1.0), (&other, 1.0)])];
    let kins = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 2.0]].map(|own| Kin::new(0, &model.scales(&own)));
    let n_vocab = expected[0].len() / 2;
    let is_same = |engine: &Engine, id: SequenceId, expected: &[f32]| {
        let error = relative_error(engine.logits(id).unwrap(), expected);
        assert!(error <= SAME, "{error:e}");
    };
    // The same prompt, of which nobody may find what another has left.
    let ids = kins.each_ref().map(|kin| {
        let id = engine.open_as(kin).unwrap();
        assert_eq!(engine.share_prefix(id, &prompt()).unwrap(), 0);
        engine.step(&[Piece::of(id, &prompt())]).unwrap();
        id
    });
    for (i, own) in expected.iter().enumerate() {
        for other in &expected[..i] {
            assert!(relative_error(other, own) > 100.0 * SAME, "an adapter changes nothing");
        }
    }
    let forked = engine.fork(ids[1]).unwrap();
    let pieces = ids.map(|id| Piece::of(id, &[NEXT]));
    engine.step(&pieces).unwrap();
    for (id, expected) in ids.iter().zip(&expected) {
        is_same(&engine, *id, &expected[n_vocab..]);
    }
    engine.step(&[Piece::of(forked, &[NEXT])]).unwrap();
    is_same(&engine, forked, &expected[1][n_vocab..]);
    // What one leaves is found by its kin.
    engine.release(ids[1]).unwrap();
    let again = engine.open_as(&kins[1]).unwrap();
    assert_eq!(engine.share_prefix(again, &prompt()).unwrap(), 18);
    engine.step(&[Piece::of(again, &prompt()[18..])]).unwrap();
    is_same(&engine, again, &expected[1][..n_vocab]);
    let error = engine.open_as(&Kin::new(0, &[1.0].into())).unwrap_err().to_string();
    assert!(error.contains("expected 7 factors on adapters, found 1"), "{error}");
}

#[test]
fn a_control_vector_is_added_to_the_blocks_of_its_range() {
    let made = Made::new(&Plain { n_layers: 3, ..dense(true) });
    let file = path("control.gguf");
    made.gguf(&file, "qwen3");
    let directions: BTreeMap<String, Tensor> =
        (1..3).map(|i| (format!("direction.{i}"), tensor(&[64], &numbers("c", 64)))).collect();
    let vector = path("control-vector.gguf");
    let mut writer = Writer::good();
    writer.pairs = vec![
        pair("general.architecture", TEXT, text("controlvector")),
        pair("controlvector.model_hint", TEXT, text("qwen3")),
    ];
    write_named(&vector, writer, &directions);
    let hidden = |scale: f32, layers| {
        let control_vectors = vec![(vector.clone(), scale)];
        let adapters = Adapters { control_vectors, control_layers: layers, ..Adapters::default() };
        session(&file, &adapters, Scored::Unnormed).feed(&[1, 2, 3]).unwrap().to_vec()
    };
    let plain = session(&file, &Adapters::default(), Scored::Unnormed).feed(&[1, 2, 3]).unwrap().to_vec();
    assert_eq!(hidden(2.0, Some([3, 9])), plain);
    // After the last block nothing follows.
    let expected: Vec<f32> =
        plain.iter().zip(numbers("c", 64).iter().cycle()).map(|(x, c)| x + 2.0 * c).collect();
    assert!(relative_error(&hidden(2.0, Some([2, 9])), &expected) <= SAME);
    let all = hidden(2.0, None);
    assert!(relative_error(&all, &expected) > 100.0 * SAME, "the block before the last is changed, too");
    assert_eq!(hidden(2.0, Some([1, 2])), all);
}

#[track_caller]
fn refuses(file: &Path, adapter: &Path, expected: &str) {
    let model = Model::open(file).unwrap();
    let error = model.with_adapters(&loras(&[(adapter, 1.0)])).expect_err("it does not fit").to_string();
    assert!(error.lines().count() == 1 && error.contains(expected), "{error}");
    assert!(error.starts_with(&adapter.display().to_string()), "{error}");
}

#[test]
fn what_does_not_fit_is_a_sentence() {
    let made = Made::new(&dense(true));
    let [file, adapter, folder] = ["refuse.gguf", "refuse-adapter.gguf", "refuse-adapter"].map(path);
    made.gguf(&file, "qwen3");
    let lora =
        |made: &Made| Lora::new(made, "r", 2, |name| name.contains("attn_q.") || name.ends_with("attn_q"));
    lora(&made).gguf(&adapter, &made, "llama", |_| ());
    refuses(&file, &adapter, "expected `qwen3`, found `llama`");
    lora(&made).gguf(&adapter, &made, "qwen3", |writer| writer.pairs.truncate(3));
    refuses(&file, &adapter, "adapter.lora.alpha");
    let wide = Made::new(&Plain { hidden: 96, ..dense(true) });
    lora(&wide).gguf(&adapter, &wide, "qwen3", |_| ());
    refuses(&file, &adapter, "is it for this model?");
    let deep = Made::new(&Plain { n_layers: 3, ..dense(true) });
    lora(&deep).gguf(&adapter, &deep, "qwen3", |_| ());
    refuses(&file, &adapter, "expected an adapter of this model's projections");
    refuses(&file, &file, "general.type");
    for (facts, expected) in [
        (json!({"use_dora": true}), "key `use_dora`: expected false"),
        (json!({"bias": "all"}), "key `bias`: expected \"none\""),
        (json!({"modules_to_save": ["lm_head"]}), "key `modules_to_save`"),
        (json!({"peft_type": "IA3"}), "expected LORA, found IA3"),
        (json!({"alpha_pattern": {"(": 1}}), "alpha_pattern"),
    ] {
        lora(&made).peft(&folder, &made, &facts);
        refuses(&file, &folder, expected);
    }
    // The same numbers in matrices of other sizes.
    let pieces = [("lora_A", [2, 32]), ("lora_B", [256, 2])].map(|(part, shape)| {
        let name = format!("base_model.model.model.layers.0.self_attn.q_proj.{part}.weight");
        (name, tensor(&shape, &numbers(part, shape[0] * shape[1])))
    });
    write_peft(&folder, pieces.into(), &json!({"peft_type": "LORA", "lora_alpha": 2}));
    refuses(&file, &folder, "is it for this model?");
    // Up-projections of latents are multiplied with no activation.
    let made = Made::new(&Plain {
        rope: latent(false).turn,
        ..small(Attention::Latent(latent(false)), Format::F32)
    });
    made.gguf(&file, "deepseek2");
    let up = Lora::new(&made, "u", 2, |name| name.ends_with("attn_output"));
    up.gguf(&adapter, &made, "deepseek2", |_| ());
    Model::open(&file).unwrap().with_adapters(&loras(&[(&adapter, 1.0)])).unwrap();
    write(&adapter, Writer::good(), &BTreeMap::new());
    refuses(&file, &adapter, "general.type");
}
