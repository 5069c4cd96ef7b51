//! Matrices of four bits, packed as GPTQ and AWQ do.
//!
//! In: sizes, or numbers to round. Out: the tensors of a checkpoint, and the numbers they stand for, by plain
//! dequantisation.

use std::ops::Range;

use fusebox_compiler::foundation::random::Random;
use half::f16;

/// Which of eight neighbours AWQ puts where, from the lowest bits on.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
/// The same of GPTQ.
const GPTQ_ORDER: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// A matrix before it is packed.
pub struct Matrix {
    /// The length of a row.
    pub n_inputs: usize,
    /// The number of rows.
    pub n_outputs: usize,
    /// Inputs that share a scale.
    group: usize,
    /// By input, then output.
    q: Vec<u32>,
    /// By group, then output.
    zeros: Vec<u32>,
    scales: Vec<f16>,
}

/// A tensor of a folder: name, type, shape and bytes.
pub type Tensor = (String, &'static str, Vec<usize>, Vec<u8>);

impl Matrix {
    /// One with zeros from a range.
    pub fn random([n_outputs, n_inputs]: [usize; 2], group: usize, zeros: Range<u32>) -> Self {
        let mut random = Random::new(9);
        let n_scales = n_inputs / group * n_outputs;
        let mut below = |n: u32| random.below(n as usize) as u32;
        let q = (0..n_inputs * n_outputs).map(|_| below(16)).collect();
        let spread = zeros.end - zeros.start;
        let zeros = (0..n_scales).map(|_| zeros.start + below(spread)).collect();
        let scales = (0..n_scales).map(|_| f16::from_f32(below(1000) as f32 / 7e4 + 1e-3)).collect();
        Self { n_inputs, n_outputs, group, q, zeros, scales }
    }

    /// Numbers by output, then input, rounded; with one zero for all, or each group with its own.
    pub fn rounded(numbers: &[f32], n_inputs: usize, group: usize, is_even: bool) -> Self {
        let (n_outputs, n_groups) = (numbers.len() / n_inputs, n_inputs / group);
        let (mut q, mut zeros, mut scales) = (vec![0; numbers.len()], Vec::new(), Vec::new());
        for at in 0..n_groups * n_outputs {
            let (first, output) = (at / n_outputs * group, at % n_outputs);
            let own = &numbers[output * n_inputs + first..][..group];
            let [least, most] = [f32::min, f32::max].map(|pick| own.iter().copied().fold(0.0, pick));
            let scale = if is_even { most.max(-least) / 7.5 } else { (most - least) / 15.0 };
            let scale = f16::from_f32(scale.max(1e-4));
            let zero = if is_even { 8 } else { (-least / scale.to_f32()).round().clamp(1.0, 15.0) as u32 };
            for (i, number) in own.iter().enumerate() {
                let rounded = (number / scale.to_f32()).round() + zero as f32;
                q[(first + i) * n_outputs + output] = rounded.clamp(0.0, 15.0) as u32;
            }
            zeros.push(zero);
            scales.push(scale);
        }
        Self { n_inputs, n_outputs, group, q, zeros, scales }
    }

    /// What it stands for, by output, then input.
    pub fn numbers(&self) -> Vec<f32> {
        let number = |at: usize| {
            let (output, input) = (at / self.n_inputs, at % self.n_inputs);
            let group = input / self.group * self.n_outputs + output;
            let q = self.q[input * self.n_outputs + output] as f32 - self.zeros[group] as f32;
            self.scales[group].to_f32() * q
        };
        (0..self.q.len()).map(number).collect()
    }

    /// The tensors of GPTQ; the stored zeros lack so much.
    pub fn gptq(&self, name: &str, lacking: u32) -> Vec<Tensor> {
        let zeros: Vec<u32> = self.zeros.iter().map(|zero| zero - lacking).collect();
        let order: Vec<u32> = (0..self.n_inputs).map(|input| (input / self.group) as u32).collect();
        let (n_words, n_groups) = (self.n_outputs / 8, self.n_inputs / self.group);
        vec![
            words(name, "qweight", &[self.n_inputs / 8, self.n_outputs], &self.down()),
            words(name, "qzeros", &[n_groups, n_words], &across(&zeros, GPTQ_ORDER)),
            self.scales(name),
            words(name, "g_idx", &[self.n_inputs], &order),
        ]
    }

    /// The tensors of AWQ.
    pub fn awq(&self, name: &str) -> Vec<Tensor> {
        let (n_words, n_groups) = (self.n_outputs / 8, self.n_inputs / self.group);
        vec![
            words(name, "qweight", &[self.n_inputs, n_words], &across(&self.q, AWQ_ORDER)),
            words(name, "qzeros", &[n_groups, n_words], &across(&self.zeros, AWQ_ORDER)),
            self.scales(name),
        ]
    }

    fn scales(&self, name: &str) -> Tensor {
        let bytes = self.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        (format!("{name}.scales"), "F16", vec![self.n_inputs / self.group, self.n_outputs], bytes)
    }

    /// Eight inputs in a word.
    fn down(&self) -> Vec<u32> {
        let word = |at: usize| {
            let (row, output) = (at / self.n_outputs * 8, at % self.n_outputs);
            (0..8).fold(0, |word, i| word | self.q[(row + i) * self.n_outputs + output] << (4 * i))
        };
        (0..self.q.len() / 8).map(word).collect()
    }
}

/// Eight outputs in a word, in an order.
fn across(q: &[u32], order: [usize; 8]) -> Vec<u32> {
    let word = |eight: &[u32]| (0..8).fold(0, |word, i| word | eight[order[i]] << (4 * i));
    q.chunks_exact(8).map(word).collect()
}

fn words(name: &str, part: &str, shape: &[usize], words: &[u32]) -> Tensor {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    (format!("{name}.{part}"), "I32", shape.to_vec(), bytes)
}
