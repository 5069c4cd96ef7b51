//! The defaults of a folder's hyper-parameters, and values that do not count.
//!
//! In: small models with random weights, one hyper-parameter changed or left out. Out: what Transformers makes of it.

use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::network::{Experts, Gate, Groups};
use fusebox_models::config::{Config, Mixer};
use fusebox_models::load::Model;
use serde_json::{Value as Json, json};
use support::own::path;
use support::plain::{Attention, Grouped, Plain, Window, window_of};

use crate::made::{Made, Tensor};
use crate::odd::{experts, grouped, latent, small};

/// The config read from a folder with these hyper-parameters changed.
fn read(made: &Made, model_type: &str, facts: &[(&str, Json)]) -> Config {
    let (mut made, folder) = (made.clone(), path(&format!("unsaid-{model_type}")));
    made.facts.extend(facts.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    made.folder(&folder, model_type);
    Model::open(&folder).unwrap_or_else(|error| panic!("{error}")).config
}

fn dense() -> Made {
    Made::new(&small(Attention::Grouped(grouped(4, 2, 16)), Format::F32))
}

fn normed() -> Plain {
    small(Attention::Grouped(Grouped { qk_norm: true, ..grouped(4, 2, 16) }), Format::F32)
}

fn sparse(gate: Gate, groups: Option<Groups>) -> Made {
    let experts = Experts { gate, router_bias: gate == Gate::Sigmoid, groups, ..experts(8, 2) };
    let own = small(Attention::Latent(latent(false)), Format::F32);
    Made::new(&Plain { experts: Some(experts), ..own })
}

#[test]
fn a_head_of_its_own_is_used_although_a_folder_says_it_is_the_table() {
    let mut made = dense();
    assert!(read(&made, "llama", &[]).tied);
    made.tensors.insert("output".to_owned(), made.tensors["token_embd"].clone());
    assert!(read(&made, "llama", &[]).tied);
    made.tensors.get_mut("output").unwrap().bytes[0] ^= 1;
    assert!(!read(&made, "llama", &[]).tied);
}

#[test]
fn positions_turn_as_fast_as_transformers_has_it() {
    let made = Made::new(&normed());
    let theta = |facts: &[(&str, Json)]| read(&made, "qwen3", facts).rope().unwrap().theta;
    assert_eq!(theta(&[("rope_theta", Json::Null)]).to_bits(), 1e4f64.to_bits());
    let both = [("rope_theta", json!(5e5)), ("rope_parameters", json!({"rope_theta": 2e6}))];
    assert_eq!(theta(&both).to_bits(), 2e6f64.to_bits());
}

#[test]
fn a_window_counts_where_the_family_has_one() {
    let window =
        |made: &Made, model_type: &str, facts: &[(&str, Json)]| window_of(&read(made, model_type, facts));
    let of_all = |size| Some(Window { size, full: [].into() });
    assert_eq!(
        window(&dense(), "llama", &[("sliding_window", json!(8)), ("use_sliding_window", Json::Null)]),
        None
    );
    let made = Made::new(&Plain { experts: Some(experts(4, 2)), ..normed() });
    let used = [
        ("use_sliding_window", json!(true)),
        ("max_window_layers", json!(1)),
        ("sliding_window", Json::Null),
    ];
    assert_eq!(window(&made, "qwen3_moe", &used), of_all(4096));
    assert_eq!(window(&Made::new(&normed()), "qwen3", &used), Some(Window { size: 4096, full: [0].into() }));
    // Null means none.
    let other = ("use_sliding_window", json!(false));
    assert_eq!(window(&dense(), "mistral", &[other, ("sliding_window", Json::Null)]), of_all(4096));
    assert_eq!(window(&dense(), "mistral", &[]), None);
    assert_eq!(window(&Made::new(&normed()), "qwen3", &used[..2]), None);
}

#[test]
fn heads_are_as_wide_as_transformers_has_it() {
    let made = |head| {
        let heads = Grouped { qk_norm: true, ..grouped(4, 2, head) };
        Made::new(&small(Attention::Grouped(heads), Format::F32))
    };
    for (head, model_type) in [(128, "qwen3"), (16, "qwen3_moe")] {
        let Mixer::Grouped(heads) =
            &read(&made(head), model_type, &[("head_dim", Json::Null)]).blocks[0].mixer
        else {
            panic!("latents")
        };
        assert_eq!(heads.head, head, "{model_type}");
    }
}

#[test]
fn experts_are_weighed_as_their_family_has_it() {
    let unsaid = ["topk_method", "routed_scaling_factor", "rms_norm_eps", "n_group", "topk_group"];
    let unsaid = unsaid.map(|key| (key, Json::Null));
    let grouped = |n, top_k, score_top_k| Some(Groups { n_groups: n, top_k, score_top_k });
    let softmax = sparse(Gate::Softmax, grouped(2, 1, 1));
    assert_eq!(read(&softmax, "deepseek_v2", &unsaid[..1]).experts().unwrap().groups, None);
    let sigmoid = sparse(Gate::Sigmoid, None);
    let v3 = read(&sigmoid, "deepseek_v3", &unsaid).experts().unwrap().clone();
    assert_eq!((v3.scale.to_bits(), v3.groups), (2.5f32.to_bits(), grouped(8, 4, 1)));
    let glm = read(&sigmoid, "glm4_moe_lite", &unsaid);
    assert_eq!(glm.eps.to_bits(), 1e-5f32.to_bits());
    assert_eq!(glm.experts().unwrap().scale.to_bits(), 1.8f32.to_bits());
}

#[test]
fn a_router_is_read_by_its_family_whatever_its_blocks_store() {
    let own = small(Attention::Latent(latent(false)), Format::F32);
    // Without a bias, and without experts in the last block.
    let made = Made::new(&Plain { experts: Some(experts(8, 2)), dense: [1].into(), ..own });
    let gate = |model_type, word| read(&made, model_type, &[("scoring_func", word)]).experts().unwrap().gate;
    for (model_type, usual) in [
        ("deepseek_v2", Gate::Softmax),
        ("deepseek_v3", Gate::Sigmoid),
        ("glm4_moe_lite", Gate::Sigmoid),
        ("youtu", Gate::Sigmoid),
    ] {
        assert_eq!(gate(model_type, Json::Null), usual, "{model_type}");
        assert_eq!(gate(model_type, json!("softmax")), Gate::Softmax, "{model_type}");
    }
}

#[test]
fn experts_of_every_token_are_as_many_as_transformers_has_them() {
    let own = small(Attention::Latent(latent(false)), Format::F32);
    let made = |n_shared: usize| {
        let experts = Experts { shared_ff: 40 * n_shared, ..experts(8, 2) };
        Made::new(&Plain { experts: Some(experts), ..own.clone() })
    };
    for (n_shared, model_type) in [(2, "deepseek_v2"), (1, "deepseek_v3"), (1, "glm4_moe_lite")] {
        let config = read(&made(n_shared), model_type, &[("n_shared_experts", Json::Null)]);
        assert_eq!(config.experts().unwrap().shared_ff, 40 * n_shared, "{model_type}");
    }
    // None of them may be stored as tensors without rows.
    let mut none = made(0);
    let up = Tensor { shape: vec![0, 64], format: Format::F32, bytes: Vec::new() };
    none.tensors.insert("blk.0.ffn_up_shexp".to_owned(), up);
    assert_eq!(read(&none, "deepseek_v2", &[]).experts().unwrap().shared_ff, 0);
}

#[test]
fn biases_are_seen_in_any_block() {
    let own = small(Attention::Latent(latent(false)), Format::F32);
    let experts = Some(Experts { shared_ff: 40, ..experts(8, 2) });
    let biased = ["ffn_gate", "ffn_up", "ffn_down", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
    let biased = biased.map(str::to_owned).into();
    let made = Made::new(&Plain { experts, dense: [0].into(), biased, ..own });
    assert_eq!(read(&made, "deepseek_v2", &[]).biased, made.config.biased);
}
