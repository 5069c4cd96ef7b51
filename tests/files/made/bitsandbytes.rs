//! Folders of bitsandbytes.

use fusebox_compiler::tensor::quant::Format;
use half::{bf16, f16};
use serde_json::{Value as Json, json};
use support::packing::Tensor;

use crate::made::{becomes, bytes, floats, folder, rows, scales, tensor};
use crate::refusal;

const SHAPE: [usize; 2] = [6, 128];
const BLOCK: usize = 64;

fn method() -> Json {
    json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"})
}

/// Sixteen numbers, in no order.
fn table() -> Vec<f32> {
    (0..16_u8).map(|i| f32::from(i * 7 % 16) / 9.3 - 0.8).collect()
}

/// A matrix of four bits, and its numbers before they are rounded.
fn four(dtype: &str, is_nested: bool) -> (Vec<Tensor>, Vec<f32>) {
    let n = SHAPE[0] * SHAPE[1];
    let codes = rows(6, [1, n], 16).swap_remove(0);
    // The first of two is the high one.
    let packed: Vec<u8> = codes.chunks(2).map(|two| (two[0] << 4 | two[1]) as u8).collect();
    let mut state = json!({"quant_type": "nf4", "blocksize": BLOCK, "dtype": dtype, "shape": SHAPE});
    let mut tensors = vec![
        tensor("a.weight", "U8", &[n / 2, 1], packed),
        floats("a.weight.quant_map", "F32", &[16], &table()).0,
    ];
    let n_blocks = n / BLOCK;
    let absmax = if is_nested {
        let outer: Vec<f32> = (0..n_blocks.div_ceil(5)).map(|i| 0.2 + 0.07 * i as f32).collect();
        let map: Vec<f32> = (0..256).map(|i| i as f32 / 311.0 - 0.4).collect();
        let bytes = bytes(n_blocks);
        (state["nested_blocksize"], state["nested_offset"]) = (json!(5), json!(0.34));
        tensors.push(floats("a.weight.nested_absmax", "F32", &[outer.len()], &outer).0);
        tensors.push(floats("a.weight.nested_quant_map", "F32", &[256], &map).0);
        let absmax = |i: usize| map[usize::from(bytes[i])] * outer[i / 5] + 0.34;
        let absmax = (0..n_blocks).map(absmax).collect();
        tensors.push(tensor("a.weight.absmax", "U8", &[n_blocks], bytes));
        absmax
    } else {
        tensors.push(floats("a.weight.absmax", "F32", &[n_blocks], &scales(n_blocks)).0);
        scales(n_blocks)
    };
    let state = state.to_string().into_bytes();
    tensors.push(tensor("a.weight.quant_state.bitsandbytes__nf4", "U8", &[state.len()], state));
    (tensors, codes.iter().enumerate().map(|(i, code)| table()[*code as usize] * absmax[i / BLOCK]).collect())
}

#[test]
fn products_with_a_table_are_rounded_to_the_type_that_the_file_names() {
    for is_nested in [false, true] {
        for (dtype, format) in
            [("float32", Format::F32), ("bfloat16", Format::BF16), ("float16", Format::F16)]
        {
            let (tensors, numbers) = four(dtype, is_nested);
            let rounded = numbers.into_iter().map(|x| match format {
                Format::F32 => x,
                Format::BF16 => bf16::from_f32(x).to_f32(),
                _ => f16::from_f32(x).to_f32(),
            });
            becomes(&folder("four", &method(), &tensors), SHAPE, format, &rounded.collect::<Vec<_>>());
        }
    }
}

#[test]
fn eight_bits_have_the_largest_number_of_each_row() {
    let codes = bytes(SHAPE[0] * SHAPE[1]);
    let (scb, held) = floats("a.SCB", "F32", &[SHAPE[0]], &scales(SHAPE[0]));
    let tensors =
        [tensor("a.weight", "I8", &SHAPE, codes.clone()), scb, tensor("a.weight_format", "U8", &[], vec![0])];
    let number =
        |(at, code): (usize, &u8)| f32::from(code.cast_signed()) * (held[at / SHAPE[1]] * (1.0 / 127.0));
    let numbers: Vec<f32> = codes.iter().enumerate().map(number).collect();
    let method = json!({"quant_method": "bitsandbytes", "load_in_8bit": true});
    becomes(&folder("eight", &method, &tensors), SHAPE, Format::Int8 { group: 128 }, &numbers);
}

#[test]
fn what_does_not_fit_is_a_sentence() {
    let refused = |change: &dyn Fn(&mut Vec<Tensor>)| {
        let mut tensors = four("bfloat16", true).0;
        change(&mut tensors);
        refusal(&folder("bad", &method(), &tensors))
    };
    let state = "tensor `a.weight.quant_state.bitsandbytes__nf4`";
    let with = |json: &Json| {
        let bytes = json.to_string().into_bytes();
        refused(&|tensors| {
            let last = tensors.last_mut().unwrap();
            (last.2, last.3) = (vec![bytes.len()], bytes.clone());
        })
    };
    assert!(with(&json!([])).starts_with(state));
    let zero = json!({"blocksize": 0, "dtype": "bfloat16", "shape": SHAPE});
    assert_eq!(with(&zero), format!("{state}: expected sizes above 0"));
    let flat = json!({"blocksize": 64, "dtype": "bfloat16", "shape": SHAPE});
    assert_eq!(with(&flat), format!("{state}: expected a nested_blocksize and a nested_offset, found none"));
    let large = json!({"blocksize": 64, "dtype": "bfloat16", "shape": [1_u64 << 40, 1_u64 << 40]});
    assert_eq!(with(&large), format!("{state}: expected sizes above 0"));
    assert_eq!(
        refused(&|tensors| {
            tensors.remove(1);
        }),
        "tensor `a.weight.quant_map`: expected a tensor, found none"
    );
}
