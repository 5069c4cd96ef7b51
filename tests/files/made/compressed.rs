//! Folders of `compressed-tensors` and of `ModelOpt`.

use std::fs;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::Checkpoint;
use half::bf16;
use serde_json::{Value as Json, json};
use support::packing::Tensor;

use crate::made::{
    becomes, by_words, bytes, dense, e2m1, e4m3, floats, folder, folder_of, holds, rows, scales, tensor,
    transposed,
};
use crate::refusal;

const SHAPE: [usize; 2] = [6, 128];

/// The configuration of one group of modules.
fn config(format: &str, bits: usize) -> Json {
    let weights = json!({"num_bits": bits, "type": "int", "strategy": "group", "symmetric": true});
    let group = json!({"targets": ["Linear"], "weights": weights, "input_activations": null});
    json!({
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": group},
    })
}

/// A packed matrix.
struct Packed {
    bits: usize,
    group: usize,
    scale: &'static str,
    is_symmetric: bool,
    is_dense: bool,
    order: Option<Vec<u32>>,
}

const INT4: Packed =
    Packed { bits: 4, group: 32, scale: "BF16", is_symmetric: true, is_dense: true, order: None };

impl Packed {
    /// Its tensors, and its numbers.
    fn made(&self) -> (Vec<Tensor>, Vec<f32>) {
        let [n_rows, n_columns] = SHAPE;
        let n_groups = n_columns / self.group;
        let pack = if self.is_dense { dense } else { by_words };
        let codes = rows(1, SHAPE, 1 << self.bits);
        let zeros = if self.is_symmetric {
            vec![vec![1 << (self.bits - 1); n_groups]; n_rows]
        } else {
            rows(2, [n_rows, n_groups], 1 << self.bits)
        };
        let (scale, held) =
            floats("a.weight_scale", self.scale, &[n_rows, n_groups], &scales(n_rows * n_groups));
        let words = pack(&codes, self.bits);
        let mut tensors = vec![
            tensor("a.weight_packed", "I32", &[n_rows, words.len() / 4 / n_rows], words),
            tensor(
                "a.weight_shape",
                "I64",
                &[2],
                SHAPE.iter().flat_map(|n| (*n as u64).to_le_bytes()).collect(),
            ),
            scale,
        ];
        if !self.is_symmetric {
            // Packed along columns: a column is a string of bits, whose words lie a row apart.
            let columns = pack(&transposed(&zeros), self.bits);
            let words: Vec<Vec<[u8; 4]>> =
                columns.chunks(columns.len() / n_groups).map(|one| one.as_chunks().0.to_vec()).collect();
            let words = transposed(&words);
            let shape = [words.len(), n_groups];
            tensors.push(tensor("a.weight_zero_point", "I32", &shape, words.concat().concat()));
        }
        let group =
            |column: usize| self.order.as_ref().map_or(column / self.group, |all| all[column] as usize);
        if let Some(order) = &self.order {
            let order = order.iter().flat_map(|group| group.to_le_bytes()).collect();
            tensors.push(tensor("a.weight_g_idx", "I32", &[n_columns], order));
        }
        let number = |row: usize, column: usize| {
            let group = group(column);
            held[row * n_groups + group] * (codes[row][column] as f32 - zeros[row][group] as f32)
        };
        let numbers = (0..n_rows).flat_map(|row| (0..n_columns).map(move |column| (row, column)));
        (tensors, numbers.map(|(row, column)| number(row, column)).collect())
    }

    #[track_caller]
    fn check(&self, format: Format) {
        let (tensors, numbers) = self.made();
        becomes(&folder("packed", &config("pack-quantized", self.bits), &tensors), SHAPE, format, &numbers);
    }
}

#[test]
fn packed_numbers_become_the_smallest_blocks_that_hold_them() {
    INT4.check(Format::Q4_0);
    Packed { group: 128, ..INT4 }.check(Format::Q4_0);
    Packed { is_symmetric: false, ..INT4 }.check(Format::Q5_0);
    Packed { is_symmetric: false, group: 128, scale: "F16", ..INT4 }.check(Format::Q5_0);
    Packed { bits: 8, group: 128, ..INT4 }.check(Format::Q8_0);
    Packed { bits: 8, scale: "F16", ..INT4 }.check(Format::Q8_0);
    // What eight bits above a zero of their own are needs nine.
    Packed { bits: 8, is_symmetric: false, ..INT4 }.check(Format::F32);
    for is_dense in [true, false] {
        Packed { bits: 3, is_symmetric: false, is_dense, ..INT4 }.check(Format::Q4_0);
        Packed { bits: 6, is_dense, ..INT4 }.check(Format::Q8_0);
    }
}

#[test]
fn scales_that_are_no_halves_are_kept_in_single_precision() {
    Packed { scale: "F32", ..INT4 }.check(Format::Q4Pairs);
    Packed { scale: "F32", is_symmetric: false, ..INT4 }.check(Format::Int8 { group: 32 });
    Packed { scale: "F32", bits: 8, group: 128, ..INT4 }.check(Format::Int8 { group: 128 });
    Packed { group: 16, ..INT4 }.check(Format::Int8 { group: 16 });
}

#[test]
fn inputs_may_be_in_another_order_than_their_groups() {
    let order: Vec<u32> = (0..128).map(|i| i * 7 % 128 / 32).collect();
    Packed { order: Some(order), is_symmetric: false, ..INT4 }.check(Format::F32);
    let order = (0..128).map(|i| i / 32).collect();
    Packed { order: Some(order), ..INT4 }.check(Format::Q4_0);
}

#[test]
fn bytes_with_a_sign_have_scales_of_rows() {
    let [n_rows, n_columns] = SHAPE;
    let codes = bytes(n_rows * n_columns);
    let weight = || tensor("a.weight", "I8", &SHAPE, codes.clone());
    let config = config("int-quantized", 8);
    let number = |at: usize, zero: i8| f32::from(codes[at].cast_signed()) - f32::from(zero);
    let all = 0..n_rows * n_columns;
    for (dtype, format) in [("BF16", Format::Q8_0), ("F32", Format::Int8 { group: 128 })] {
        for shape in [vec![n_rows, 1], vec![n_rows]] {
            let (scale, held) = floats("a.weight_scale", dtype, &shape, &scales(n_rows));
            let numbers: Vec<f32> = all.clone().map(|at| held[at / n_columns] * number(at, 0)).collect();
            let input = floats("a.input_scale", dtype, &[1], &[0.5]).0;
            becomes(&folder("int", &config, &[weight(), scale, input]), SHAPE, format, &numbers);
        }
    }
    let (scale, held) = floats("a.weight_scale", "F16", &[1], &[0.013]);
    let numbers: Vec<f32> = all.clone().map(|at| held[0] * number(at, 0)).collect();
    becomes(&folder("int-one", &config, &[weight(), scale]), SHAPE, Format::Q8_0, &numbers);
    let (scale, held) = floats("a.weight_scale", "F16", &[n_rows, 1], &scales(n_rows));
    let zeros: Vec<i8> = (0..n_rows as i8).map(|row| 3 * row - 7).collect();
    let zero =
        tensor("a.weight_zero_point", "I8", &[n_rows, 1], zeros.iter().map(|z| z.cast_unsigned()).collect());
    let numbers: Vec<f32> = all.map(|at| held[at / n_columns] * number(at, zeros[at / n_columns])).collect();
    becomes(&folder("int-zeros", &config, &[weight(), scale, zero]), SHAPE, Format::F32, &numbers);
}

#[test]
fn fp8_has_one_scale_or_those_of_rows_or_of_tiles() {
    let [n_rows, n_columns] = SHAPE;
    let codes = bytes(n_rows * n_columns);
    let mut config = config("float-quantized", 8);
    config["config_groups"]["group_0"]["weights"]["block_structure"] = json!([4, 32]);
    for (shape, scale_of) in [
        (vec![1], &(|_: usize, _: usize| 0_usize) as &dyn Fn(usize, usize) -> usize),
        (vec![n_rows, 1], &|row, _| row),
        (vec![2, 4], &|row, column| row / 4 * 4 + column / 32),
    ] {
        if shape == [n_rows, 1] {
            config["config_groups"]["group_0"]["weights"]["block_structure"] = Json::Null;
        } else {
            config["config_groups"]["group_0"]["weights"]["block_structure"] = json!([4, 32]);
        }
        let (scale, held) = floats("a.weight_scale", "BF16", &shape, &scales(shape.iter().product()));
        let number = |at: usize| {
            let product = e4m3(codes[at]) * held[scale_of(at / n_columns, at % n_columns)];
            bf16::from_f32(product).to_f32()
        };
        let numbers: Vec<f32> = (0..codes.len()).map(number).collect();
        let weight = tensor("a.weight", "F8_E4M3", &SHAPE, codes.clone());
        becomes(&folder("float", &config, &[weight, scale]), SHAPE, Format::BF16, &numbers);
    }
}

#[test]
fn modules_that_are_ignored_stay_as_they_are() {
    let (mut tensors, numbers) = INT4.made();
    tensors.push(tensor("lm_head.weight", "BF16", &[2, 2], vec![0; 8]));
    tensors.push(tensor("b.self_attn.k_scale", "F32", &[1], vec![0; 4]));
    let checkpoint = Checkpoint::open(&folder("ignored", &config("pack-quantized", 4), &tensors)).unwrap();
    assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), ["lm_head.weight", "a.weight"]);
    holds(&checkpoint, "a.weight", &SHAPE, Format::Q4_0, &numbers);
    holds(&checkpoint, "lm_head.weight", &[2, 2], Format::BF16, &[0.0; 4]);
}

#[test]
fn four_bits_with_an_exponent_have_two_scales_or_an_exponent() {
    let [n_rows, n_columns] = SHAPE;
    let codes = rows(4, SHAPE, 16);
    let neighbours =
        |row: &Vec<u32>| row.chunks(2).map(|two| (two[0] | two[1] << 4) as u8).collect::<Vec<u8>>();
    let packed: Vec<u8> = codes.iter().flat_map(neighbours).collect();
    let eight = bytes(n_rows * n_columns / 16);
    let scale = || tensor("a.weight_scale", "F8_E4M3", &[n_rows, n_columns / 16], eight.clone());
    let number =
        |at: usize, all: f32| e2m1(codes[at / n_columns][at % n_columns]) * (e4m3(eight[at / 16]) * all);
    let all = 0..n_rows * n_columns;
    // A power of two, so that dividing is multiplying.
    let (global, _) = floats("a.weight_global_scale", "F32", &[1], &[1024.0]);
    let weight = tensor("a.weight_packed", "U8", &[n_rows, n_columns / 2], packed.clone());
    let numbers: Vec<f32> = all.clone().map(|at| number(at, 1.0 / 1024.0)).collect();
    let made = folder("nvfp4", &config("nvfp4-pack-quantized", 4), &[weight.clone(), scale(), global]);
    becomes(&made, SHAPE, Format::Int8 { group: 16 }, &numbers);
    let second = [0.003_f32];
    let (global, held) = floats("a.weight_scale_2", "F32", &[], &second);
    let modelopt = json!({"quant_method": "modelopt", "quant_algo": "NVFP4"});
    let numbers: Vec<f32> = all.clone().map(|at| number(at, held[0])).collect();
    let plain = tensor("a.weight", "U8", &[n_rows, n_columns / 2], packed);
    let tensors = [plain, scale(), global];
    becomes(&folder("modelopt", &modelopt, &tensors), SHAPE, Format::Int8 { group: 16 }, &numbers);
    // Older folders say it in a file of its own.
    let beside = folder_of("modelopt-beside", &json!({"model_type": "llama"}), &tensors);
    let says =
        json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}});
    fs::write(beside.join("hf_quant_config.json"), says.to_string()).unwrap();
    becomes(&beside, SHAPE, Format::Int8 { group: 16 }, &numbers);
    let exponents: Vec<u8> = (0..n_rows * n_columns / 32).map(|i| 118 + (i % 9) as u8).collect();
    let numbers: Vec<f32> = all
        .map(|at| {
            e2m1(codes[at / n_columns][at % n_columns]) * 2f32.powi(i32::from(exponents[at / 32]) - 127)
        })
        .collect();
    let scale = tensor("a.weight_scale", "U8", &[n_rows, n_columns / 32], exponents.clone());
    let made = folder("mx", &config("mxfp4-pack-quantized", 4), &[weight, scale]);
    becomes(&made, SHAPE, Format::MXFP4, &numbers);
}

#[test]
fn what_changes_weights_in_other_ways_is_refused_by_its_name() {
    let said = |change: &dyn Fn(&mut Json)| {
        let mut config = config("pack-quantized", 4);
        change(&mut config);
        refusal(&folder("refused", &config, &INT4.made().0))
    };
    assert!(
        said(&|config| config["format"] = json!("marlin-24"))
            .starts_with("key `quantization_config.format`: expected one of pack-quantized, int-quantized"),
    );
    assert_eq!(
        said(&|config| config["sparsity_config"] = json!({"format": "sparse-24-bitmask"})),
        "key `quantization_config.sparsity_config.format`: expected dense, found `sparse-24-bitmask`"
    );
    let transform = json!({"config_groups": {"u": {"type": "hadamard"}}});
    assert_eq!(
        said(&|config| config["transform_config"] = transform.clone()),
        "key `quantization_config.transform_config`: expected no transforms of activations, found some"
    );
    assert_eq!(
        said(&|config| config["config_groups"]["group_0"]["weights"]["num_bits"] = json!(8)),
        "tensor `a.weight_packed`: expected rows of 128 codes of [8] bits, found 16 words"
    );
    let without = |idx: usize| {
        let mut tensors = INT4.made().0;
        tensors.remove(idx);
        refusal(&folder("without", &config("pack-quantized", 4), &tensors))
    };
    assert_eq!(without(2), "tensor `a.weight_scale`: expected a tensor, found none");
    let empty = [
        tensor("a.weight", "I8", &[1 << 40, 0], Vec::new()),
        floats("a.weight_scale", "F32", &[1], &[0.1]).0,
    ];
    assert_eq!(
        refusal(&folder("empty", &config("int-quantized", 8), &empty)),
        "tensor `a.weight`: expected a matrix with elements, found [1099511627776, 0]"
    );
    let modelopt = json!({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"});
    let sentence = refusal(&folder("algorithm", &modelopt, &INT4.made().0));
    assert!(sentence.contains("found `W4A8_AWQ`"), "{sentence}");
}
