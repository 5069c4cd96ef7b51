//! Invalid hyper-parameters, and tensors that do not fit: each is one sentence with the file and the key, before
//! anything is compiled.
//!
//! In: a valid small file of each kind, with one hyper-parameter or one tensor changed. Out: the sentence.

use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::network::{Experts, Gate, Groups};
use fusebox_models::config::rope::{Pairing, Rope, Scaling};
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::session::classes::{Class, Form};
use serde_json::{Value as Json, json};
use support::own::path;
use support::plain::{Attention, Grouped, Plain};

use crate::made::Made;
use crate::odd::{experts, grouped, latent, small};

/// The error of a file, without its path.
fn refusal(file: &std::path::Path) -> String {
    let error = Model::open(file).expect_err("a senseless file is refused").to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    let name = format!("{}: ", file.display());
    error.strip_prefix(&name).unwrap_or_else(|| panic!("{error} does not name {name}")).to_owned()
}

fn good(config: &Plain) -> Made {
    Made::new(config)
}

fn dense() -> Made {
    good(&small(Attention::Grouped(grouped(4, 2, 16)), Format::F32))
}

fn sparse() -> Made {
    let groups = Some(Groups { n_groups: 2, top_k: 1, score_top_k: 2 });
    let experts = Experts { gate: Gate::Sigmoid, router_bias: true, groups, ..experts(8, 2) };
    let own = small(Attention::Latent(latent(false)), Format::F32);
    let rope = Rope { pairing: Pairing::Interleaved, ..own.rope.clone() };
    good(&Plain { dense: [0].into(), experts: Some(experts), rope, ..own })
}

/// Each hyper-parameter, changed alone, is refused with these words.
fn refuses(made: &Made, architecture: &str, facts: &[(&str, Json, &str)]) {
    for (key, value, expected) in facts {
        let (mut made, file) = (made.clone(), path(&format!("refused-{architecture}.gguf")));
        made.facts.insert((*key).to_owned(), value.clone());
        made.gguf(&file, architecture);
        let found = refusal(&file);
        assert!(found.starts_with(&format!("key `{architecture}.{key}`: ")), "{key}: {found}");
        assert!(found.contains(expected), "{key}: {found}");
    }
}

#[test]
fn caches_whose_rows_fill_no_blocks_are_a_sentence() {
    let file = path("refused-caches.gguf");
    dense().gguf(&file, "llama");
    let model = Model::open(&file).unwrap();
    let graph = |cache| {
        let settings = Settings::of_one(32, 8, cache, Scored::Last);
        model
            .graph(&settings, Class { form: Form::Run, least: 2, most: 8 })
            .map_err(|error| error.to_string())
    };
    assert!(graph(Format::F16).is_ok());
    for cache in [Format::Q8_0, Format::Q4_0] {
        let error = graph(cache).unwrap_err();
        let rows = "rows of a multiple of 32 elements, this model's have 16; f16 and f32 take any";
        assert_eq!(error, format!("{}: a KV cache of {cache} needs {rows}", file.display()));
    }
}

#[test]
fn senseless_sizes_of_a_dense_model_are_sentences() {
    refuses(
        &dense(),
        "llama",
        &[
            ("attention.head_count", json!(0), "from 1 to"),
            ("attention.head_count", json!("four"), "from 1 to"),
            ("attention.head_count", Json::Null, "found none"),
            ("attention.head_count_kv", json!(0), "from 1 to"),
            ("attention.head_count_kv", json!(3), "a divisor of the 4 query heads, found 3"),
            ("attention.head_count_kv", json!(8), "a divisor of the 4 query heads, found 8"),
            ("attention.key_length", json!(15), "an even number"),
            ("attention.key_length", json!(1 << 20), "an even number up to"),
            ("attention.value_length", json!(8), "expected 16 like the keys, found 8"),
            ("rope.dimension_count", json!(18), "expected at most the 16 elements of a head, found 18"),
            ("rope.dimension_count", json!(7), "an even number"),
            ("rope.freq_base", json!(0.0), "a positive number"),
            ("rope.freq_base", json!("fast"), "a positive number"),
            ("attention.causal", json!(false), "expected true, found false"),
            ("attention.temperature_scale", json!(0.5), "expected 0, found 0.5"),
            ("attention.layer_norm_rms_epsilon", Json::Null, "a positive number, found none"),
            ("rope.scaling.type", json!("longer"), "longrope, proportional, yarn, found `longer`"),
            ("attention.layer_norm_rms_epsilon", json!(-1.0), "a positive number"),
            ("embedding_length", json!(0), "from 1 to"),
            ("feed_forward_length", json!(0), "from 1 to"),
            ("vocab_size", json!(0), "from 1 to"),
            ("context_length", json!(0), "from 1 to"),
            ("block_count", json!(0), "from 1 to"),
            ("block_count", json!(3), "found 3, the last of which is missing"),
            ("block_count", json!(1), "found 1, and there are more"),
            ("block_count", json!(16_000_000), "found 16000000, the last of which is missing"),
            ("block_count", json!(4_000_000_000u32), "from 1 to"),
            ("nextn_predict_layers", json!(2), "less than the 2 blocks, found 2"),
        ],
    );
    let mut stretched = dense();
    stretched.facts.insert("rope.scaling.type".to_owned(), json!("linear"));
    refuses(&stretched, "llama", &[("rope.scaling.factor", Json::Null, "found none")]);
}

#[test]
fn heads_that_do_not_divide_the_stream_are_a_sentence() {
    let mut made = dense();
    made.facts.insert("attention.key_length".to_owned(), Json::Null);
    refuses(&made, "llama", &[("attention.head_count", json!(6), "a divisor of the 64 elements")]);
}

#[test]
fn senseless_sizes_of_experts_and_latents_are_sentences() {
    refuses(
        &sparse(),
        "deepseek2",
        &[
            ("expert_used_count", json!(9), "at most the 8 experts, found 9"),
            ("expert_used_count", json!(0), "from 1 to"),
            ("expert_group_count", json!(3), "a divisor of the 8 experts, found 3"),
            ("expert_group_used_count", json!(3), "at most the 2 groups, found 3"),
            ("expert_gating_func", json!(7), "1 to 4, found 7"),
            ("expert_weights_scale", json!(-1.0), "a positive number"),
            ("rope.dimension_count", json!(7), "an even number"),
            ("rope.dimension_count", json!(0), "from 1 to"),
            ("attention.key_length_mla", json!(8), "more than the 8 rotary dimensions, found 8"),
            ("attention.kv_lora_rank", json!(0), "from 1 to"),
            ("attention.head_count", json!(0), "from 1 to"),
        ],
    );
    let mut many = sparse();
    many.facts.insert("expert_used_count".to_owned(), json!(6));
    refuses(
        &many,
        "deepseek2",
        &[("expert_group_used_count", json!(1), "enough for 6 experts, found 1 of 2")],
    );
}

#[test]
fn a_factor_alone_stretches_all_pairs_of_gguf_files() {
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        let (mut made, file) = (dense(), path("stretched.gguf"));
        made.facts.insert(key.to_owned(), json!(4.0));
        made.gguf(&file, "llama");
        assert_eq!(Model::open(&file).unwrap().config.rope().unwrap().scaling.linear(), Some(4.0), "{key}");
    }
}

#[test]
fn positions_that_are_stretched_by_parts_were_as_many_as_the_context_unless_it_is_said() {
    let own = small(Attention::Grouped(Grouped { qk_norm: true, ..grouped(4, 2, 16) }), Format::F32);
    let (mut made, file) = (good(&own), path("stretched"));
    for (more, expected) in [(json!({}), 48.0), (json!({"original_max_position_embeddings": 12}), 12.0)] {
        let mut scaling = json!({"type": "yarn", "factor": 4.0});
        scaling.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        made.facts.insert("rope_scaling".to_owned(), scaling);
        made.folder(&file, "qwen3");
        let Scaling::Yarn { original, .. } = Model::open(&file).unwrap().config.rope().unwrap().scaling
        else {
            panic!()
        };
        assert!((original - expected).abs() < 1e-9, "{original}");
    }
}

#[test]
fn senseless_facts_of_a_folder_are_sentences() {
    let heads = Grouped { qk_norm: true, ..grouped(4, 2, 16) };
    let own = small(Attention::Grouped(heads), Format::F32);
    let made = good(&Plain { experts: Some(experts(4, 2)), ..own });
    for (key, value, expected) in [
        ("hidden_act", json!("selu"), "expected silu, gelu, gelu_pytorch_tanh, relu or relu2, found `selu`"),
        ("hidden_act", json!(7), "expected a string, found 7"),
        ("tie_word_embeddings", json!("no"), "expected true or false, found no"),
        ("norm_topk_prob", json!(1.5), "expected true or false, found 1.5"),
        ("num_hidden_layers", json!(1), "found 1, and there are more"),
        ("model_type", json!("a\u{1b}[2J"), "`a\\u{1b}[2J`"),
        ("partial_rotary_factor", json!(1.5), "expected at most the 16 elements of a head, found 24"),
        ("partial_rotary_factor", json!(0.2), "an even number"),
        ("partial_rotary_factor", json!(-0.5), "a positive number"),
        ("num_experts_per_tok", json!(5), "at most the 4 experts"),
        ("num_hidden_layers", json!(9), "the last of which is missing"),
        ("rope_scaling", json!({"type": "yarn"}), "a positive number, found none"),
        ("rope_scaling", json!({"factor": 4.0}), "expected a scaling type for the factor, found none"),
        ("rope_scaling", json!([4.0]), "expected an object"),
        (
            "rope_parameters",
            json!({"full_attention": {"rope_theta": 1e6}}),
            "`rope_parameters.full_attention`: expected one value for all blocks, found an object",
        ),
        ("is_causal", json!(false), "expected true, found false"),
        ("rope_parameters", json!({"type": "longrope"}), "expected 8 positive numbers, found 0"),
        (
            "rope_scaling",
            json!({"type": "yarn", "factor": 4.0, "beta_fast": 1, "beta_slow": 32}),
            "`rope_scaling.beta_fast`: expected at least beta_slow 32, found 1",
        ),
        ("rope_scaling", json!("yarn"), "expected an object, found yarn"),
    ] {
        let (mut made, file) = (made.clone(), path("refused"));
        made.facts.insert(key.to_owned(), value);
        made.folder(&file, "qwen3_moe");
        let error = Model::open(&file).expect_err(key).to_string();
        assert!(error.contains("config.json: key `") || key == "model_type", "{error}");
        assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn a_model_without_a_name_is_a_sentence() {
    let (mut made, folder) = (dense(), path("nameless"));
    let refused = |file: &std::path::Path, sentence: &str| {
        let error = Model::open(file).expect_err(sentence).to_string();
        assert_eq!(error, format!("{}{sentence}", folder.display()));
    };
    let key = "/config.json: key `model_type`: expected the name of an architecture, found";
    for (name, shown) in [(Json::Null, "none"), (json!(7), "7")] {
        made.facts.insert("model_type".to_owned(), name);
        made.folder(&folder, "llama");
        refused(&folder, &format!("{key} {shown}"));
    }
    std::fs::remove_file(folder.join("config.json")).unwrap();
    refused(&folder, "/config.json: expected the config.json of the weights next to it, found no file");
    let alone = "safetensors alone can only be inspected, expected their folder with its config.json";
    refused(&folder.join("model.safetensors"), &format!("/model.safetensors: {alone}"));
    // With its config.json next to it, the file is a whole folder.
    dense().folder(&folder, "llama");
    assert!(Model::open(&folder.join("model.safetensors")).is_ok());
}

#[test]
fn what_a_folder_says_twice_it_says_alike() {
    let own = small(Attention::Grouped(Grouped { qk_norm: true, ..grouped(4, 2, 16) }), Format::F32);
    let file = path("twice");
    let opened = |facts: Json| {
        let mut made = good(&own);
        made.facts.extend(facts.as_object().unwrap().clone());
        made.folder(&file, "qwen3");
        Model::open(&file)
            .map(|model| model.config.rope().unwrap().scaling.clone())
            .map_err(|error| error.to_string())
    };
    let refused = |facts: Json, expected: &str| {
        let error = opened(facts).expect_err(expected);
        assert_eq!(error, format!("{}: key {expected}", file.join("config.json").display()));
    };
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12});
    let same = json!({
        "rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 12, "rope_theta": own.rope.theta,
    });
    let both = opened(json!({"rope_scaling": yarn, "rope_parameters": same}));
    assert_eq!(both, opened(json!({"rope_scaling": yarn})));
    let beside = "`rope_scaling`: expected the same as in `rope_parameters`, found another";
    for (key, value) in [("beta_fast", json!(8)), ("factor", json!(2.0)), ("rope_type", json!("linear"))] {
        let mut other = same.clone();
        other[key] = value;
        refused(json!({"rope_scaling": yarn, "rope_parameters": other}), &format!("{beside} `{key}`"));
    }
    assert_eq!(opened(json!({"rope_scaling": yarn, "original_max_position_embeddings": 12})), both);
    refused(
        json!({"rope_scaling": yarn, "original_max_position_embeddings": 24}),
        "`original_max_position_embeddings`: expected 12 as under \
         `rope_scaling.original_max_position_embeddings`, found 24",
    );
}

#[test]
fn latents_of_glm_whose_positions_turn_in_part_are_a_sentence() {
    let (mut made, file) = (sparse(), path("turned-in-part"));
    for (model_type, part, is_fine) in
        [("glm4_moe_lite", 1.0, true), ("glm4_moe_lite", 0.5, false), ("deepseek_v3", 0.5, true)]
    {
        made.facts.insert("partial_rotary_factor".to_owned(), json!(part));
        made.folder(&file, model_type);
        let error = Model::open(&file).err().map(|error| error.to_string());
        let sentence = "config.json: key `partial_rotary_factor`: expected 1, found 0.5";
        let is_said = error.as_ref().is_some_and(|error| error.ends_with(sentence));
        assert!(if is_fine { error.is_none() } else { is_said }, "{model_type}: {error:?}");
    }
}

/// The error about a tensor after one change.
fn spoilt(made: &Made, architecture: &str, spoil: impl Fn(&mut Made)) -> String {
    let (mut made, file) = (made.clone(), path(&format!("spoilt-{architecture}.gguf")));
    spoil(&mut made);
    made.gguf(&file, architecture);
    refusal(&file)
}

#[test]
fn tensors_that_do_not_fit_are_sentences() {
    let missing = spoilt(&dense(), "llama", |made| {
        made.tensors.remove("blk.1.ffn_up");
    });
    assert_eq!(missing, "tensor `blk.1.ffn_up.weight`: expected a tensor of shape [96, 64], found none");
    let other = spoilt(&dense(), "llama", |made| {
        made.tensors.insert("blk.0.attn_k".to_owned(), made.tensors["blk.0.attn_q"].clone());
    });
    assert_eq!(other, "tensor `blk.0.attn_k.weight`: expected the shape [2, 16, 64], found [64, 64]");
    let bias = spoilt(&dense(), "llama", |made| {
        made.tensors.insert("blk.1.attn_norm.bias".to_owned(), made.tensors["output_norm"].clone());
    });
    assert_eq!(bias, "tensor `blk.1.attn_norm.bias`: expected no bias here, found one");
    let unread = spoilt(&dense(), "llama", |made| {
        made.tensors.insert("blk.1.ffn_up_shexp".to_owned(), made.tensors["blk.1.ffn_up"].clone());
    });
    let what = "expected no such tensor according to the hyper-parameters, found one";
    assert_eq!(unread, format!("tensor `blk.1.ffn_up_shexp.weight`: {what}"));
    let unknown = spoilt(&dense(), "llama", |made| {
        made.tensors.insert("blk.1.attn_sinks".to_owned(), made.tensors["output_norm"].clone());
    });
    assert_eq!(unknown, format!("tensor `blk.1.attn_sinks.weight`: {what}"));
    let joint = spoilt(&dense(), "llama", |made| {
        let parts = ["attn_q", "attn_k"].map(|part| format!("blk.0.{part}"));
        made.tensors.remove("blk.0.attn_v");
        made.join(&parts, "blk.0.attn_qkv");
    });
    assert_eq!(joint, "tensor `blk.0.attn_qkv.weight`: expected the shape [128, 64], found [96, 64]");
    let factors = spoilt(&dense(), "llama", |made| {
        made.tensors.insert("rope_freqs".to_owned(), made.tensors["output_norm"].clone());
    });
    assert_eq!(factors, "tensor `rope_freqs.weight`: expected the shape [8], found [64]");
    let twice = spoilt(&dense(), "llama", |made| {
        made.facts.insert("rope.scaling.type".to_owned(), json!("yarn"));
        made.facts.insert("rope.scaling.factor".to_owned(), json!(4.0));
        made.tensors.insert("rope_freqs".to_owned(), made.tensors["output_norm"].clone());
    });
    assert_eq!(
        twice,
        "tensor `rope_freqs.weight`: expected no per-pair factors together with yarn, found some"
    );
}

#[test]
fn more_experts_than_the_model_says_are_a_sentence() {
    let heads = Grouped { qk_norm: true, ..grouped(4, 2, 16) };
    let own = small(Attention::Grouped(heads), Format::F32);
    let mut made = good(&Plain { experts: Some(experts(4, 2)), ..own });
    made.facts.insert("num_experts".to_owned(), json!(3));
    for block in 0..2 {
        let router = made.tensors.get_mut(&format!("blk.{block}.ffn_gate_inp")).unwrap();
        router.bytes.truncate(64 * 3 * 4);
        router.shape[0] = 3;
    }
    let file = path("experts-more");
    made.folder(&file, "qwen3_moe");
    let error = Model::open(&file).expect_err("an expert is too many").to_string();
    assert!(error.contains("mlp.experts.3.down_proj.weight`: expected 3 experts, found more"), "{error}");
}

#[test]
fn experts_that_are_not_alike_are_a_sentence() {
    let heads = Grouped { qk_norm: true, ..grouped(4, 2, 16) };
    let own = small(Attention::Grouped(heads), Format::F32);
    let mut made = good(&Plain { experts: Some(experts(4, 2)), ..own });
    made.config.experts = Some(experts(5, 2));
    made.facts.insert("num_experts".to_owned(), json!(5));
    let router = made.tensors["blk.0.ffn_gate_inp"].bytes[..64 * 4].to_vec();
    for block in 0..2 {
        let router_of = made.tensors.get_mut(&format!("blk.{block}.ffn_gate_inp")).unwrap();
        router_of.bytes.extend(&router);
        router_of.shape[0] = 5;
    }
    let file = path("experts-missing");
    made.folder(&file, "qwen3_moe");
    let error = Model::open(&file).expect_err("an expert is missing").to_string();
    assert!(error.contains("mlp.experts.4.down_proj.weight`: expected a tensor"), "{error}");
}
