//! Importance matrices that are collected.
//!
//! In: small models with random weights, and tokens. Out: sums of squares as they follow from embeddings and the first
//! norm, and for experts as many tokens as the router selected.

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::simd::Level;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::imatrix::collect;
use fusebox_models::load::Model;
use fusebox_models::quantize::importance::Importance;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::weights::{Checkpoint, Stored};
use support::own::path;
use support::plain::{Attention, Grouped, Plain};

use crate::made::Made;
use crate::odd::{experts, grouped, small};

const N_TOKENS: usize = 16;

/// The file that is collected over three chunks of tokens, and these.
fn collected(made: &Made, architecture: &str) -> (Checkpoint, Vec<Vec<u32>>) {
    let [model, file] =
        ["importance-model.gguf", "importance.gguf"].map(|name| path(&format!("{architecture}-{name}")));
    made.gguf(&model, architecture);
    let chunk = |first: u32| (0..N_TOKENS as u32).map(|i| (i * 17 + first) % 50).collect();
    let chunks: Vec<Vec<u32>> = (1..4).map(chunk).collect();
    let model = Model::open(&model).unwrap_or_else(|error| panic!("{error}"));
    let device = Box::new(CpuDevice::new(Cpu::at(Level::host(), Numbers::Single).unwrap(), 2).unwrap());
    let made = collect(&model, device, (&Options::default(), &Cache::default()), &chunks, &mut |_, _| ());
    let made = made.unwrap_or_else(|error| panic!("{error}"));
    made.write(&file, "tokens").unwrap();
    // It is an importance matrix, so it is replaced.
    made.write(&file, "tokens").unwrap();
    Importance::open(&file).unwrap();
    (Checkpoint::open(&file).unwrap(), chunks)
}

fn numbers(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let info = checkpoint.tensors().get(name).unwrap_or_else(|| panic!("{name}"));
    let Stored::As(format) = info.stored else { panic!("{name}") };
    format.decode_all(checkpoint.bytes(name).unwrap(), info.n_elements()).unwrap()
}

#[test]
fn inputs_of_projections_are_summed_over_all_tokens() {
    let heads = Grouped { qk_norm: true, ..grouped(4, 2, 16) };
    let made = Made::new(&small(Attention::Grouped(heads), Format::F32));
    let (file, chunks) = collected(&made, "qwen3");
    let weight = |name: &str| {
        let own = &made.tensors[name];
        own.format.decode_all(&own.bytes, own.shape.iter().product()).unwrap()
    };
    let (table, norm) = (weight("token_embd"), weight("blk.0.attn_norm"));
    let mut expected = vec![0.0; 64];
    for token in chunks.iter().flatten() {
        let row = &table[*token as usize * 64..][..64];
        let square = row.iter().map(|x| f64::from(x * x)).sum::<f64>() / 64.0 + 1e-5;
        for ((sum, x), norm) in expected.iter_mut().zip(row).zip(&norm) {
            *sum += (f64::from(x * norm)).powi(2) / square;
        }
    }
    for name in ["attn_q", "attn_k", "attn_v"] {
        let found = numbers(&file, &format!("blk.0.{name}.weight.in_sum2"));
        let near = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() <= 1e-4 * b.abs();
        assert!(found.iter().zip(&expected).all(near), "{name}: {found:?}");
        assert_eq!(numbers(&file, &format!("blk.0.{name}.weight.counts")), [48.0]);
    }
    let n = made.tensors.keys().filter(|name| !name.contains("norm") && *name != "token_embd").count();
    assert_eq!(file.tensors().len(), 2 * n);
    assert_eq!(numbers(&file, "blk.1.ffn_down.weight.in_sum2").len(), 96);
}

#[test]
fn experts_count_the_tokens_that_select_them() {
    let heads = Grouped { qk_norm: true, ..grouped(4, 2, 16) };
    let own = small(Attention::Grouped(heads), Format::F32);
    let made = Made::new(&Plain { experts: Some(experts(6, 2)), ..own });
    let (file, _) = collected(&made, "qwen3moe");
    for (name, columns) in [("ffn_gate_exps", 64), ("ffn_up_exps", 64), ("ffn_down_exps", 40)] {
        let counts = numbers(&file, &format!("blk.1.{name}.weight.counts"));
        assert_eq!((counts.len(), counts.iter().sum::<f32>()), (6, 96.0), "{name}: {counts:?}");
        let sums = numbers(&file, &format!("blk.1.{name}.weight.in_sum2"));
        assert_eq!(sums.len(), 6 * columns, "{name}");
        for (count, sums) in counts.iter().zip(sums.chunks(columns)) {
            assert!(sums.iter().all(|sum| (*sum > 0.0) == (*count > 0.0)), "{name}: {count} {sums:?}");
        }
    }
}
