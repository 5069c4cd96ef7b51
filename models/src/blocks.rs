//! The graphs that tools and tests select by name.
//!
//! In: a name from [`NAMES`], or any config, and the tokens of a step: how many of one sequence, or of how many
//! sequences one each. Out: a graph, or all errors in it. The numbers may be symbols. The result depends on the
//! arguments alone.
//! How a block is built is in `layers/block.rs`.

use fusebox_compiler::error::Error;
use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::build::Tensor;
use fusebox_compiler::tensor::dtype::DType;

use crate::config::Config;
use crate::families::published;
use crate::layers::block;
use crate::layers::embed::{Entry, Scored};
use crate::layers::scope::Scope;
use crate::layers::step::Step;

/// A published model: its name, and its config.
type Published = (&'static str, fn() -> Config);

const PUBLISHED: [Published; NAMES.len()] = [
    ("qwen3-0.6b", published::qwen3_0_6b),
    ("qwen3-8b", published::qwen3_8b),
    ("qwen3-30b-a3b", published::qwen3_30b_a3b),
    ("llama-3.2-1b", published::llama_3_2_1b),
    ("mistral-7b", published::mistral_7b),
    ("qwen2.5-0.5b", published::qwen2_5_0_5b),
    ("deepseek-v2-lite", published::deepseek_v2_lite),
    ("glm-4.7-flash", published::glm_4_7_flash),
    ("gemma-4-e4b", published::gemma_4_e4b),
    ("gpt-oss-20b", published::gpt_oss_20b),
    ("qwen3.6-27b", published::qwen3_6_27b),
    ("lfm2.5", published::lfm2_5),
    ("nemotron-3-nano", published::nemotron_3_nano),
];

/// The names that [`named`] knows.
pub const NAMES: [&str; 13] = [
    "qwen3-0.6b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "llama-3.2-1b",
    "mistral-7b",
    "qwen2.5-0.5b",
    "deepseek-v2-lite",
    "glm-4.7-flash",
    "gemma-4-e4b",
    "gpt-oss-20b",
    "qwen3.6-27b",
    "lfm2.5",
    "nemotron-3-nano",
];

/// The config of a published model.
pub fn named(name: &str) -> Option<Config> {
    PUBLISHED.iter().find(|(own, _)| *own == name).map(|(_, config)| config())
}

/// The first block of the most common kind.
fn most_common(config: &Config) -> usize {
    let count = |layer: &usize| config.blocks.iter().filter(|block| **block == config.blocks[*layer]).count();
    (0..config.n_layers()).rev().max_by_key(count).unwrap_or(0)
}

/// One block, with experts where the model has them: `x` `[t, d]` to `y` `[t, d]`.
pub fn block(config: &Config, step: impl Into<Step>) -> Result<Graph, Error> {
    let m = Scope::new(config, &step.into());
    let x = m.g.input("x", DType::F32, &[&m.t, &m.d]);
    let layer = most_common(config);
    let own = config.per_layer.map(|width| m.g.input("own", DType::F32, &[&m.t, &m.g.dim("p", width)]));
    let y = block::block(&m, layer, &x, own.as_ref());
    m.g.finish(&[("y", &y)])
}

/// A whole step through `n_layers` blocks: `tokens` `[t]` to `logits` `[v]` of the next token.
pub fn model(config: &Config, step: impl Into<Step>, n_layers: usize) -> Result<Graph, Error> {
    part(config, step, n_layers, Entry::Tokens, Scored::Last)
}

/// As [`model`], starting from embeddings `x` `[t, d]` or ending with hidden states `hidden` `[t, d]` where selected.
/// With [`Scored::TopK`] `logits` and `ids` are `[k]`. In a step that scores every token and in a batch, where every
/// token is the last of its sequence, all of these have an axis `t`.
pub fn part(
    config: &Config,
    step: impl Into<Step>,
    n_layers: usize,
    from: Entry,
    scored: Scored,
) -> Result<Graph, Error> {
    let m = Scope::new(config, &step.into());
    let results = block::step(&m, n_layers, from, scored);
    let results: Vec<(&str, &Tensor)> = results.iter().map(|(name, result)| (*name, result)).collect();
    m.g.finish(&results)
}

#[cfg(test)]
mod tests {
    use fusebox_compiler::graph::op::Op;
    use fusebox_compiler::tensor::label::Label;
    use fusebox_compiler::tensor::quant::Format;
    use fusebox_compiler::tensor::sym::{Sym, Symbol};

    use super::*;
    use crate::config::attention::Grouped;
    use crate::config::{KvCache, Mixer};

    fn configs() -> Vec<Config> {
        let published: Vec<Config> = NAMES.iter().map(|name| named(name).unwrap()).collect();
        let shrunk: Vec<Config> = published.iter().map(Config::shrunk).collect();
        [published, shrunk].concat()
    }

    fn steps(config: &Config) -> [Sym; 3] {
        let most = if config.context > 512 { 512 } else { 8 };
        let any = Symbol::new(Label::new("T").unwrap(), 1, most, most / 2);
        [Sym::from(1), Sym::from(most), Sym::from(any)]
    }

    fn output(graph: &Graph) -> String {
        let (name, node) = &graph.outputs[0];
        format!("{name} {}", graph.nodes[*node].ty.shape)
    }

    /// The weights and states, as `name format shape`, sorted by name.
    fn stored_tensors(graph: &Graph) -> Vec<String> {
        let line = |op: &Op| match op {
            Op::Weight { name, shape, format } => Some(format!("{name} {format} {shape}")),
            Op::State { name, shape, .. } => Some(format!("{name} state {shape}")),
            _ => None,
        };
        let mut lines: Vec<String> = graph.nodes.iter().filter_map(|(_, node)| line(&node.op)).collect();
        lines.sort();
        lines
    }

    #[test]
    fn every_block_fits_for_one_token_many_and_any_number() {
        for config in configs() {
            for tokens in steps(&config) {
                let graph = block(&config, &tokens).unwrap();
                assert_eq!(output(&graph), format!("y [t:{tokens}, d:{}]", config.hidden));
                assert_eq!(graph.blocks.len(), 1);
            }
        }
    }

    #[test]
    fn every_model_fits_for_one_token_many_and_any_number() {
        for config in configs() {
            for tokens in steps(&config) {
                let graph = model(&config, &tokens, config.n_layers()).unwrap();
                assert_eq!(output(&graph), format!("logits [v:{}]", config.vocab));
                assert_eq!(graph.blocks.len(), config.n_layers());
            }
        }
    }

    #[test]
    fn blocks_of_quantised_weights_fill_the_rows() {
        for config in configs() {
            for (_, node) in model(&config, &Sym::from(1), 2).unwrap().nodes.iter() {
                if let Op::Weight { name, shape, format } = &node.op {
                    let (_, row) = shape.iter().last().unwrap();
                    assert_eq!(row.as_const().unwrap() % format.block_len() as i64, 0, "{name} {shape}");
                }
            }
        }
    }

    #[test]
    fn a_model_that_does_not_fit_says_where() {
        let config = named("qwen3-0.6b").unwrap();
        let cache = KvCache { format: Format::Q8_0, ..config.cache };
        let odd = Config { cache, ..config.with_mixer(&Mixer::Grouped(Grouped::new(16, 8, 100))) };
        let error = block(&odd, &Sym::from(512)).unwrap_err().to_string();
        assert!(error.contains("layers/attention/mod.rs") && error.contains("e:100"), "{error}");
    }

    #[test]
    fn a_grouped_block_stores_what_its_file_holds() {
        let graph = block(&named("qwen3-0.6b").unwrap(), &Sym::from(1)).unwrap();
        let expected = [
            "blk.0.attn_k q8_0 [kv:8, e:128, d:1024]",
            "blk.0.attn_k_norm f32 [e:128]",
            "blk.0.attn_norm f32 [d:1024]",
            "blk.0.attn_output q8_0 [d:1024, kv:8, g:2, e:128]",
            "blk.0.attn_q q8_0 [kv:8, g:2, e:128, d:1024]",
            "blk.0.attn_q_norm f32 [e:128]",
            "blk.0.attn_v q8_0 [kv:8, e:128, d:1024]",
            "blk.0.ffn_down q8_0 [d:1024, f:3072]",
            "blk.0.ffn_gate q8_0 [f:3072, d:1024]",
            "blk.0.ffn_norm f32 [d:1024]",
            "blk.0.ffn_up q8_0 [f:3072, d:1024]",
            "blk.0.k state [page:64, kv:8, r:64, e:128]",
            "blk.0.v state [page:64, kv:8, r:64, e:128]",
        ];
        assert_eq!(stored_tensors(&graph), expected);
    }

    #[test]
    fn a_latent_block_with_experts_stores_what_its_file_holds() {
        let graph = block(&named("glm-4.7-flash").unwrap(), &Sym::from(1)).unwrap();
        let expected = [
            "blk.1.attn_k_b q8_0 [h:20, c:512, e:192]",
            "blk.1.attn_kv_a_mqa q8_0 [c:576, d:2048]",
            "blk.1.attn_kv_a_norm f32 [c:512]",
            "blk.1.attn_norm f32 [d:2048]",
            "blk.1.attn_output q8_0 [d:2048, h:20, e:256]",
            "blk.1.attn_q_a q8_0 [q:768, d:2048]",
            "blk.1.attn_q_a_norm f32 [q:768]",
            "blk.1.attn_q_b q8_0 [h:20, e:256, q:768]",
            "blk.1.attn_v_b q8_0 [h:20, e:256, c:512]",
            "blk.1.exp_probs_b.bias f32 [x:64]",
            "blk.1.ffn_down_exps q8_0 [x:64, d:2048, f:1536]",
            "blk.1.ffn_down_shexp q8_0 [d:2048, f:1536]",
            "blk.1.ffn_gate_exps q8_0 [x:64, f:1536, d:2048]",
            "blk.1.ffn_gate_inp f32 [x:64, d:2048]",
            "blk.1.ffn_gate_shexp q8_0 [f:1536, d:2048]",
            "blk.1.ffn_norm f32 [d:2048]",
            "blk.1.ffn_up_exps q8_0 [x:64, f:1536, d:2048]",
            "blk.1.ffn_up_shexp q8_0 [f:1536, d:2048]",
            "blk.1.latent state [page:64, r:64, c:576]",
        ];
        assert_eq!(stored_tensors(&graph), expected);
    }

    #[test]
    fn a_model_has_its_ends_and_a_dense_first_block() {
        let ends = |name| {
            let lines = stored_tensors(&model(&named(name).unwrap(), &Sym::from(1), 2).unwrap());
            lines
                .into_iter()
                .filter(|line| !line.contains("attn") && !line.contains("blk.1"))
                .collect::<Vec<_>>()
        };
        let deepseek = [
            "blk.0.ffn_down q8_0 [d:2048, f:10944]",
            "blk.0.ffn_gate q8_0 [f:10944, d:2048]",
            "blk.0.ffn_norm f32 [d:2048]",
            "blk.0.ffn_up q8_0 [f:10944, d:2048]",
            "blk.0.latent state [page:64, r:64, c:576]",
            "output q8_0 [v:102400, d:2048]",
            "output_norm f32 [d:2048]",
            "token_embd q8_0 [v:102400, d:2048]",
        ];
        assert_eq!(ends("deepseek-v2-lite"), deepseek);
        let tied = ends("llama-3.2-1b");
        assert!(tied.iter().all(|line| !line.starts_with("output ")), "{tied:?}");
    }
}
