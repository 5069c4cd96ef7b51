//! The whole road: compile a model, run its plan slowly, compare with the definition.
//!
//! In: the named blocks and models, shrunk so that the slow evaluators keep up, and at full size for counts.
//! Counts are exact: kernels, bytes of a cache, steps. Nothing here is timed.

use fusebox_compiler::error::Error;
use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::op::{Binary, Fold};
use fusebox_compiler::graph::parse::parse;
use fusebox_compiler::kernel::walk::nests;
use fusebox_compiler::kernel::{Expr, Folding, Kernel, Nest, Part, Place};
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::reference::compare::{Tolerance, close};
use fusebox_compiler::reference::{evaluate, random};
use fusebox_compiler::schedule::{self, Place as Storage, Plan};
use fusebox_compiler::story::Story;
use fusebox_compiler::target::{TARGETS, Target};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks;
use fusebox_models::config::attention::Latent;
use fusebox_models::config::network::{Dense, Experts};
use fusebox_models::config::{Config, Formats, KvCache, Mixer, Network};
use fusebox_models::layers::step::Step;
use fusebox_runtime::session::classes::{self, Class};
use fusebox_runtime::session::names::PAGES;
use support::plain::with_micro_kernels;

fn options(target: &str) -> Options {
    Options::for_target(Target::named(target).expect("a named target"))
}

fn block_story(name: &str, tokens: i64, target: &str) -> Story {
    let config = blocks::named(name).expect("a named block");
    let graph = blocks::block(&config, &Sym::from(tokens)).expect("a block that fits together");
    compile(&graph, &options(target)).expect("a block that compiles").story
}

/// Compiles, runs the plan, and compares outputs and states with the reference.
pub(crate) fn check(graph: &Graph, options: &Options, seed: u64) -> Result<(), String> {
    let bindings = random::bindings(graph, seed, &[]);
    let expected = evaluate(graph, &bindings).map_err(|error| error.to_string())?;
    let plan = compile(graph, options).map_err(|error| error.to_string())?.plan;
    let actual = schedule::run::run(&plan, &bindings).map_err(|error| error.to_string())?;
    for (name, value) in expected.outputs.iter().chain(&expected.states) {
        let own =
            actual.outputs.get(name).or(actual.states.get(name)).ok_or(format!("`{name}` is missing"))?;
        close(value, own, Tolerance::of(graph)).map_err(|what| format!("`{name}` {what}"))?;
    }
    Ok(())
}

#[test]
fn a_compiled_model_computes_what_was_asked() {
    for name in blocks::NAMES {
        let config = blocks::named(name).unwrap().shrunk();
        for (index, target) in TARGETS.into_iter().enumerate() {
            let tokens = Sym::from([1, 2, 5][index % 3]);
            let graph = blocks::model(&config, &tokens, 2).unwrap();
            check(&graph, &Options::for_target(target), 3)
                .unwrap_or_else(|what| panic!("{name} {target}: {what}"));
        }
    }
}

#[test]
fn a_compiled_model_computes_the_same_at_any_rates() {
    let targets =
        ["cpu:1:5", "cuda-sm90:1:100", "cpu:96:400", "cuda-sm80:96:2560", "vulkan:1:10", "metal:96:1280"];
    for (index, name) in blocks::NAMES.iter().enumerate() {
        for (tokens, more) in [(1i64, 0), (3, 1)] {
            let target = targets[(2 * index + more) % targets.len()];
            let graph = blocks::model(&blocks::named(name).unwrap().shrunk(), &Sym::from(tokens), 2).unwrap();
            check(&graph, &options(target), 3)
                .unwrap_or_else(|what| panic!("{name} T={tokens} {target}: {what}"));
        }
    }
}

#[test]
fn attention_is_split_for_idle_cores_only() {
    let skeletons = |target: &str| -> Vec<String> {
        let story = block_story("qwen2.5-0.5b", 1, target);
        story.launches().map(|kernel| kernel.skeleton.clone()).collect()
    };
    let combines = |target: &str| skeletons(target).iter().any(|skeleton| skeleton == "combine");
    assert_eq!(["cpu:1:10", "cpu:2:40", "cpu:16:80"].map(combines), [false, false, true]);
}

#[test]
fn a_compiled_model_computes_the_same_whatever_is_chosen() {
    for name in blocks::NAMES {
        let graph = blocks::model(&blocks::named(name).unwrap().shrunk(), &Sym::from(2i64), 2).unwrap();
        for seed in 0..3 {
            let options = Options { chaos: Some(seed), ..options("cpu") };
            check(&graph, &options, seed).unwrap_or_else(|what| panic!("{name} seed {seed}: {what}"));
        }
    }
}

/// A block writes a state, and a node after the block reads it.
const STATE_READ_AFTER_BLOCK: &str = "symbol P in 0..6 near 2
%0 = input x : f32[t:2, f:4]
block blk.0
%1 = state blk.0.rows : f16[s:8, f:4]
%2 = cast %0 f16
%90 = iota t:2
%91 = symbolic P
%92 = add %90 %91
%3 = write %1 %2 %92 along [s]
end
%4 = slice %3 s at 0 len P+2
output rows = %4
";

#[test]
fn a_state_is_read_behind_the_block_that_writes_it() {
    let apart = STATE_READ_AFTER_BLOCK.replace("block blk.0\n", "").replace("end\n", "");
    let later = apart.replace("%4 =", "block blk.1\n%4 =").replace("output", "end\noutput");
    for (text, target) in [STATE_READ_AFTER_BLOCK, &apart, &later]
        .into_iter()
        .flat_map(|text| TARGETS.map(|target| (text, target)))
    {
        let graph = parse(text).unwrap();
        check(&graph, &Options::for_target(target), 3)
            .unwrap_or_else(|what| panic!("{target}: {what}\n{text}"));
    }
}

/// Results that equal an input or each other, and lie in another order; a repeated block reads the input.
const IN_ANOTHER_ORDER: [(&str, &[(&str, &str)]); 2] = [
    (
        "%3 = merge %0 [h, e] into d
%4 = split %3 d into [h:2, e:4]
output y = %2
output z = %4
",
        &[("x", "[e:4, h:2]"), ("z", "[h:2, e:4]")],
    ),
    (
        "%3 = neg %2
%4 = neg %2
output y = %3
output z = %4 stored [h, e]
",
        &[("y", "[e:4, h:2]"), ("z", "[h:2, e:4]")],
    ),
];

#[test]
fn a_result_in_another_order_moves_nothing_that_equals_it() {
    let blocks = "%0 = input x : f32[e:4, h:2]
block blk.0
%1 = mul %0 %0
end
block blk.1
%2 = mul %1 %1
end
";
    for (rest, lies) in IN_ANOTHER_ORDER {
        let graph = parse(&format!("{blocks}{rest}")).unwrap();
        for target in TARGETS {
            let options = Options::for_target(target);
            check(&graph, &options, 3).unwrap_or_else(|what| panic!("{target}: {what}\n{graph}"));
            let plan = compile(&graph, &options).unwrap().plan;
            for (name, shape) in lies {
                let slot = plan.buffers.values().find(|slot| &*slot.name == *name).unwrap();
                assert_eq!(slot.shape.to_string(), *shape, "{name}\n{graph}");
            }
        }
    }
}

#[test]
fn fuel_stops_everywhere_and_leaves_a_right_program() {
    let graph = blocks::block(&blocks::named("qwen3-0.6b").unwrap().shrunk(), &Sym::from(2i64)).unwrap();
    for fuel in [0, 1, 7, 30] {
        let options = Options { fuel: Some(fuel), ..options("cpu") };
        check(&graph, &options, 5).unwrap_or_else(|what| panic!("fuel {fuel}: {what}"));
    }
}

#[test]
fn decoding_takes_few_kernels_a_block() {
    let at_most = [
        ("qwen3-0.6b", 5, 6),
        ("qwen3-8b", 5, 7),
        ("llama-3.2-1b", 5, 6),
        ("deepseek-v2-lite", 10, 10),
        ("glm-4.7-flash", 10, 10),
        ("qwen3-30b-a3b", 10, 10),
    ];
    for (name, on_cpu, on_gpu) in at_most {
        for (target, most) in [("cpu", on_cpu), ("cuda-sm90", on_gpu)] {
            let n = block_story(name, 1, target).steps.len();
            assert!(n <= most, "{name} on {target}: {n} kernels, at most {most}");
        }
    }
}

#[test]
fn no_norm_rotation_or_residual_of_qwen3_is_a_kernel() {
    let story = block_story("qwen3-0.6b", 1, "cpu");
    let skeletons: Vec<&str> = story.launches().map(|kernel| kernel.skeleton.as_str()).collect();
    assert_eq!(skeletons, ["matrix-vector", "attention", "matrix-vector", "matrix-vector", "matrix-vector"]);
}

#[test]
fn a_whole_step_adds_at_most_four_kernels_to_its_blocks() {
    let config = blocks::named("qwen3-0.6b").unwrap();
    let graph = blocks::model(&config, &Sym::from(1i64), 28).unwrap();
    let story = compile(&graph, &options("cpu")).unwrap().story;
    assert!(story.steps.len() <= 5 * 28 + 4, "{}", story.steps.len());
    assert_eq!(story.blocks.len(), 3, "an embedding, one distinct block, a head");
}

/// The elements of the latent cache that a step reads, and the widest value it ever stores, per cached position.
fn latent_traffic(tokens: i64, target: &str) -> (Vec<String>, bool) {
    let story = block_story("deepseek-v2-lite", tokens, target);
    let lines: Vec<String> = story.launches().flat_map(|kernel| kernel.traffic.clone()).collect();
    let expands = lines.iter().any(|line| line.starts_with("writes") && line.contains('N'));
    (lines.into_iter().filter(|line| line.ends_with(" of latent")).collect(), expands)
}

#[test]
fn decoding_reads_the_latent_cache_once_and_expands_nothing() {
    for target in ["cpu", "cuda-sm90"] {
        let (lines, expands) = latent_traffic(1, target);
        assert_eq!(lines, ["writes 576 f32 of latent", "reads 36864*N f32 of latent"], "{target}");
        assert!(!expands, "keys or values of every cached position are stored on {target}");
    }
}

#[test]
fn a_long_prefill_picks_the_expanded_form_of_the_same_graph_and_says_so() {
    let (_, expands) = latent_traffic(512, "cpu");
    assert!(expands, "keys and values are expanded once for many queries");
    let absorbed = |tokens| {
        let story = block_story("deepseek-v2-lite", tokens, "cpu");
        let block = &story.blocks[0];
        assert!(block.forms.iter().any(|form| form.contains("contract-reassociate")), "{:#?}", block.forms);
        block.rules_used.iter().any(|rule| rule == "contract-reassociate")
    };
    assert!(absorbed(1) && !absorbed(512));
}

#[test]
fn a_value_that_price_refused_first_tells_that_price_beside_the_last_reason() {
    let story = block_story("qwen3-8b", 1, "cuda-sm90");
    let reasons = story.blocks[0].regions.iter().flat_map(|region| &region.stores).map(|(_, reason)| reason);
    let priced: Vec<&String> = reasons.filter(|reason| reason.ends_with("; at last: state write")).collect();
    assert_eq!(priced.len(), 1, "{:#?}", story.blocks[0].regions);
    assert!(priced[0].starts_with("several readers; computed where it is read, "), "{}", priced[0]);
}

/// Whether a processor has a function for a nest, if that adds up products of what is stored: such a function takes
/// factors that lie in rows, one of them in single precision.
fn has_function(kernel: &Kernel, part: &Part, nest: &Nest) -> bool {
    let Some(Folding { fold: Fold::Sum, .. }) = nest.fold else { return true };
    let Expr::Binary(Binary::Mul, a, b) = nest.exprs[nest.value] else { return true };
    let is_wide = |factor| match nest.loaded(factor) {
        Some((Place::Param(param), _)) => kernel.params[param].format == Format::F32,
        Some((Place::Tile(tile), _)) => part.tiles[tile].dtype == DType::F32,
        None => true,
    };
    let is_chosen = nest.exprs.values().any(|expr| matches!(expr, Expr::Select(..)));
    !is_chosen && (is_wide(a) || is_wide(b))
}

#[test]
fn processors_have_functions_for_all_products() {
    let caches = [Format::F32, Format::F16, Format::Q8_0, Format::Q4_0];
    let weights = [Format::F16, Format::Q8_0, Format::Q4K];
    let all = with_micro_kernels().into_iter().flat_map(|name| caches.map(|cache| (name, cache)));
    for (name, cache, weights) in all.flat_map(|(name, cache)| weights.map(|weights| (name, cache, weights)))
    {
        let named = blocks::named(name).unwrap();
        if !named.hidden.is_multiple_of(weights.block_len()) {
            continue;
        }
        let in_pages = KvCache { format: cache, ..named.cache };
        let config = Config { cache: in_pages, formats: Formats::Uniform(weights), ..named };
        for tokens in [1, 8, 512] {
            let graph = blocks::block(&config, &Sym::from(tokens)).unwrap();
            for kernel in compile(&graph, &options("cpu")).unwrap().plan.kernels.values() {
                for part in &kernel.parts {
                    let all_have = nests(&part.body).all(|nest| has_function(kernel, part, nest));
                    assert!(all_have, "{name}, {tokens} tokens, {cache} {weights}: {kernel}");
                }
            }
        }
    }
}

#[test]
fn depth_changes_neither_blocks_nor_kernels() {
    let config = blocks::named("qwen3-0.6b").unwrap().with_layers(64);
    let story = |layers| {
        let graph = blocks::model(&config, &Sym::from(1i64), layers).unwrap();
        compile(&graph, &options("cpu")).unwrap().story
    };
    let (few, many) = (story(4), story(64));
    assert_eq!(many.steps.len() - few.steps.len(), 5 * 60);
    assert_eq!(few.arena_bytes, many.arena_bytes);
    let kernels = |story: &Story| -> Vec<String> {
        story.blocks.iter().flat_map(|block| &block.kernels).map(|kernel| kernel.text.clone()).collect()
    };
    assert_eq!(kernels(&few), kernels(&many));
}

#[test]
fn the_same_graph_gives_the_same_bytes() {
    for name in blocks::NAMES {
        let config = blocks::named(name).unwrap();
        let graph = blocks::model(&config, &Sym::from(1i64), 3).unwrap();
        let told = || {
            let compiled = compile(&graph, &options("vulkan")).unwrap();
            format!("{compiled}{:?}", compiled.plan)
        };
        assert_eq!(told(), told(), "{name}");
    }
}

#[test]
fn a_graph_that_does_not_fit_together_is_refused_with_its_place() {
    let mut graph = parse("%0 = input x : f32[d:4]\n%1 = mul %0 %0\noutput y = %1\n").unwrap();
    let first = graph.nodes.ids().next().unwrap();
    graph.outputs.push(("y".into(), first));
    let error = compile(&graph, &options("cpu")).unwrap_err();
    assert!(matches!(error, Error::Input { .. }), "{error}");
}

/// The plan of a block for a class of token counts.
fn plan_of(config: &Config, class: Class, target: &str) -> Plan {
    let graph = blocks::block(config, Step::of(class)).expect("a block that fits together");
    compile(&graph, &options(target)).expect("a block that compiles").plan
}

/// Whether a plan stores a value of every cached position in its arena.
fn stores_every_position(plan: &Plan) -> bool {
    let mut slots = plan.buffers.values().filter(|slot| matches!(slot.place, Storage::Arena { .. }));
    slots.any(|slot| {
        let mut sizes = slot.shape.iter().flat_map(|(_, size)| size.symbols());
        sizes.any(|symbol| symbol.name.as_str() == PAGES)
    })
}

#[test]
fn up_to_128_tokens_read_the_latents_and_expand_nothing() {
    let named = |name| blocks::named(name).expect("a named block");
    let (lite, glm) = (named("deepseek-v2-lite"), named("glm-4.7-flash"));
    // Of the sizes of the recorded models: expanding costs little, and is still not done.
    let small = Latent {
        n_heads: 4,
        q_lora: Some(128),
        kv_lora: 256,
        nope: 64,
        rope: 32,
        value: 64,
        is_joint: false,
        turn: lite.rope().expect("it has RoPE").clone(),
    };
    let network = Network::Dense(Dense::swiglu(512));
    let small = Config { hidden: 256, ..lite.clone() }
        .with_mixer(&Mixer::Latent(small))
        .with_network(&network, |_| true);
    for config in [small, lite, glm] {
        for class in [Class::runs(512), Class::batches(256)].concat() {
            for target in ["cpu", "cuda-sm90"] {
                let (expands, most) = (stores_every_position(&plan_of(&config, class, target)), class.most);
                let may_expand = class.form == classes::Form::Run && most > 128;
                assert!(
                    may_expand || !expands,
                    "{:?} on {target}, up to {most} tokens",
                    config.blocks[0].mixer
                );
                // With more tokens a processor is faster with keys and values, so the question is a real one.
                assert!(
                    target != "cpu" || expands == may_expand,
                    "{:?}, {most} tokens",
                    config.blocks[0].mixer
                );
            }
        }
    }
}

#[test]
fn no_plan_stores_the_weights_of_the_experts_that_tokens_choose() {
    let moe = blocks::named("qwen3-30b-a3b").expect("a named block");
    let of_8 = |ff| {
        let experts = moe.experts().expect("it has experts").clone();
        let network = Network::Sparse(Experts { n_routed: 8, top_k: 2, ff, ..experts });
        Config { hidden: 256, formats: Formats::Uniform(Format::Q4K), ..moe.clone() }
            .with_network(&network, |_| true)
    };
    // What flows between kernels: a few vectors for each token and expert, and the parts of split attention. Weights
    // of two experts would be 1 MiB for each token.
    let most = |class: Class| (8 << 20) + class.most * (256 << 10);
    for config in [of_8(256), of_8(512), moe.clone()] {
        for class in
            [Class::runs(512), Class::batches(64)].concat().into_iter().filter(|class| class.most > 1)
        {
            for target in ["cpu", "cuda-sm90", "vulkan"] {
                let found = plan_of(&config, class, target).arena_bytes;
                assert!(found <= most(class), "{found} bytes for {} tokens on {target}", class.most);
            }
        }
    }
}
