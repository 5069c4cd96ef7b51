//! The targets with names, and how a name states rates.
//!
//! In: a name such as `cuda-sm90`, or `cuda-sm90:132:4800` with compute units and GB/s. Out: the target. The rates of a
//! name alone are constants, so that what is compiled for it is the same everywhere.

use std::fmt;
use std::str::FromStr;

use super::{Capabilities, Code, GemmTile, MIN_POSITIONS_PER_STEP, Rates, Target, Tuning};

/// The most compute units that a name may state.
const MAX_UNITS: usize = 4096;
/// The most GB/s that a name may state.
const MAX_GIGABYTES: usize = 100_000;

/// A processor.
pub const CPU: Target = Target {
    name: "cpu",
    capabilities: Capabilities {
        code: Code::Machine,
        tile_bytes: 512 << 10,
        shared_bytes: 0,
        has_tensor_cores: false,
        tensors_per_kernel: usize::MAX,
        dequantises_to_tiles: false,
    },
    rates: Rates {
        compute_units: 8,
        bandwidth: 50e9,
        // A core's caches hold all that its tasks read again.
        l2_bandwidth: f64::INFINITY,
        l2_bandwidth_per_unit: f64::INFINITY,
        // Products run in fast microkernels, so what counts is recomputation: this is the rate of generated code.
        flops: 300e9,
        launch: 2e-6,
    },
    tuning: Tuning {
        rows_per_task: 64,
        // Unpacking pays for many tokens only, and attention wants whole squares of tiles.
        gemm_tiles: &[GemmTile { tokens: 256, rows: 32 }],
        expert_rows_per_task: 32,
        routed_rows_per_task: 2048,
        k_step: 256,
        stages_operands: false,
        queries_per_task: 128,
        // Keys and values alternate in memory token by token: long pieces of both.
        scores_per_step: 512,
        splits_joined_weights: true,
    },
};

/// A GPU driven through Vulkan; the others differ from it.
pub const VULKAN: Target = Target {
    name: "vulkan",
    capabilities: Capabilities {
        code: Code::Wgsl,
        tile_bytes: 32 << 10,
        shared_bytes: 32 << 10,
        has_tensor_cores: false,
        // Some drivers bind no more than 32 buffers; a tensor has up to two, and symbols and scratch have one each.
        tensors_per_kernel: 15,
        dequantises_to_tiles: true,
    },
    rates: Rates {
        compute_units: 64,
        bandwidth: 500e9,
        l2_bandwidth: 2.5e12,
        l2_bandwidth_per_unit: 16e9,
        flops: 10e12,
        launch: 4e-6,
    },
    tuning: Tuning {
        rows_per_task: 8,
        gemm_tiles: &[GemmTile { tokens: 16, rows: 8 }],
        expert_rows_per_task: 8,
        routed_rows_per_task: 1,
        k_step: 256,
        stages_operands: false,
        queries_per_task: 32,
        scores_per_step: MIN_POSITIONS_PER_STEP,
        splits_joined_weights: true,
    },
};

/// An NVIDIA GPU of compute capability 9.0 (Hopper): the rates are those of an H200.
pub const CUDA_SM90: Target = Target {
    name: "cuda-sm90",
    capabilities: Capabilities {
        code: Code::Cuda,
        tile_bytes: 200 << 10,
        // Every NVIDIA GPU since 2020 has it; more than 48 KiB is opted into at launch.
        shared_bytes: 96 << 10,
        has_tensor_cores: true,
        ..VULKAN.capabilities
    },
    rates: Rates {
        compute_units: 132,
        bandwidth: 4.8e12,
        l2_bandwidth: 12e12,
        l2_bandwidth_per_unit: 36e9,
        flops: 60e12,
        launch: 1.5e-6,
    },
    tuning: Tuning {
        gemm_tiles: &[
            GemmTile { tokens: 128, rows: 128 },
            GemmTile { tokens: 128, rows: 64 },
            GemmTile { tokens: 64, rows: 64 },
            GemmTile { tokens: 64, rows: 32 },
            GemmTile { tokens: 32, rows: 32 },
            GemmTile { tokens: 16, rows: 32 },
        ],
        expert_rows_per_task: 64,
        k_step: 64,
        stages_operands: true,
        ..VULKAN.tuning
    },
};

/// One of compute capability 8.0 (Ampere): the rates are an A100's, from its data sheet. The same code runs on it.
pub const CUDA_SM80: Target = Target {
    name: "cuda-sm80",
    rates: Rates {
        compute_units: 108,
        bandwidth: 2e12,
        l2_bandwidth: 5.5e12,
        flops: 19.5e12,
        launch: 2e-6,
        ..CUDA_SM90.rates
    },
    ..CUDA_SM90
};

/// One of compute capability 8.9 (Ada): the rates are an RTX 4090's, from its data sheet. The same code runs on it.
pub const CUDA_SM89: Target = Target {
    name: "cuda-sm89",
    rates: Rates { compute_units: 128, bandwidth: 1e12, l2_bandwidth: 5e12, flops: 80e12, ..CUDA_SM90.rates },
    ..CUDA_SM90
};

/// An Apple GPU.
pub const METAL: Target = Target {
    name: "metal",
    capabilities: Capabilities { code: Code::Msl, ..VULKAN.capabilities },
    rates: Rates { bandwidth: 400e9, launch: 3e-6, compute_units: 40, ..VULKAN.rates },
    ..VULKAN
};

/// A target for each kind of code, which documents and tests go through.
pub const TARGETS: [Target; 4] = [CPU, CUDA_SM90, VULKAN, METAL];

/// Every named target.
pub const NAMED: [Target; 6] = [CPU, CUDA_SM80, CUDA_SM89, CUDA_SM90, VULKAN, METAL];

/// The target of an NVIDIA GPU by its compute capability: that of its memory and its units, as the same code runs on
/// all from 8.0 on.
pub fn cuda((major, minor): (i32, i32)) -> Target {
    match (major, minor) {
        (..=7, _) | (8, ..=5) => CUDA_SM80,
        // GDDR memory, and 128 lanes an SM.
        (8 | 12.., _) => CUDA_SM89,
        (9..=11, _) => CUDA_SM90,
    }
}

/// What is accepted as the name of a target.
pub fn accepted() -> String {
    let names = NAMED.map(|target| target.name).join(", ");
    format!(
        "one of {names}, or one with its rates, NAME:UNITS:GB/S with 1 to {MAX_UNITS} compute units and 1 to \
         {MAX_GIGABYTES} GB/s, such as cpu:2:40"
    )
}

impl Target {
    /// The target of this name, with rates or without.
    pub fn named(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let name = parts.next()?;
        let target = NAMED.into_iter().find(|target| target.name == name)?;
        let rates: Vec<&str> = parts.collect();
        match rates[..] {
            [] => Some(target),
            [units, gigabytes] => {
                Some(target.with_rates(amount(units, MAX_UNITS)?, amount(gigabytes, MAX_GIGABYTES)?))
            }
            _ => None,
        }
    }

    /// This kind of device with other rates: its compute units, and its memory's GB/s. L2 grows with the units, and so
    /// does arithmetic, except on a processor: products keep up with any memory there, and are counted at the same rate
    /// as the rest. Latencies stay.
    #[must_use]
    pub fn with_rates(self, units: usize, gigabytes: usize) -> Self {
        let compute_units = units.clamp(1, MAX_UNITS);
        let bandwidth = gigabytes.clamp(1, MAX_GIGABYTES) as f64 * 1e9;
        let own = NAMED.iter().find(|target| target.name == self.name).unwrap_or(&self).rates;
        let more_units = compute_units as f64 / own.compute_units as f64;
        let more_arithmetic = if self.is_processor() { bandwidth / own.bandwidth } else { more_units };
        let rates = Rates {
            compute_units,
            bandwidth,
            l2_bandwidth: own.l2_bandwidth * more_units,
            flops: own.flops * more_arithmetic,
            ..own
        };
        Self { rates, ..self }
    }

    /// Its memory's GB/s.
    pub fn gigabytes(&self) -> usize {
        (self.rates.bandwidth / 1e9).round() as usize
    }
}

/// A number of at least 1, in digits only.
fn amount(text: &str, most: usize) -> Option<usize> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|n| is_plain && (1..=most).contains(n))
}

impl FromStr for Target {
    type Err = String;

    /// Reads a name; the error says what is accepted.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::named(text).ok_or_else(accepted)
    }
}

impl fmt::Display for Target {
    /// The name, with the rates where they are not those of the name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, rates, .. } = self;
        f.write_str(name)?;
        if NAMED.iter().any(|target| target.name == *name && target.rates == *rates) {
            return Ok(());
        }
        write!(f, ":{}:{}", rates.compute_units, self.gigabytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for target in NAMED {
            assert_eq!(Target::named(target.name), Some(target));
            assert_eq!(target.to_string(), target.name);
        }
        assert!(TARGETS.iter().all(|target| NAMED.contains(target)));
        assert_eq!(Target::named("gpu"), None);
    }

    #[test]
    fn a_name_with_rates_is_read_back_as_it_is_printed() {
        for (text, printed) in [
            ("cpu:2:40", "cpu:2:40"),
            ("cpu:8:50", "cpu"),
            ("cuda-sm90:132:4800", "cuda-sm90"),
            ("cuda-sm90:132:3352", "cuda-sm90:132:3352"),
            ("vulkan:1:1", "vulkan:1:1"),
            ("metal:4096:100000", "metal:4096:100000"),
        ] {
            let target = Target::named(text).unwrap();
            assert_eq!(target.to_string(), printed);
            assert_eq!(Target::named(printed), Some(target), "{text}");
        }
        let target = Target::named("cuda-sm80:54:1000").unwrap();
        assert_eq!((target.rates.compute_units, target.rates.bandwidth), (54, 1e12));
        assert_eq!(target.rates.flops, CUDA_SM80.rates.flops / 2.0);
        assert_eq!((target.tuning, target.capabilities), (CUDA_SM80.tuning, CUDA_SM80.capabilities));
        assert_eq!(target.with_rates(108, 2000), CUDA_SM80);
    }

    #[test]
    fn arithmetic_and_l2_grow_and_latencies_stay() {
        let (own, half) = (CUDA_SM90.rates, CUDA_SM90.with_rates(66, 1000).rates);
        assert_eq!((half.compute_units, half.bandwidth), (66, 1e12));
        assert_eq!((half.flops, half.l2_bandwidth), (own.flops / 2.0, own.l2_bandwidth / 2.0));
        assert_eq!((half.launch, half.l2_bandwidth_per_unit), (own.launch, own.l2_bandwidth_per_unit));
        let (own, few) = (CPU.rates, CPU.with_rates(2, 100).rates);
        assert_eq!((few.flops, few.l2_bandwidth), (2.0 * own.flops, f64::INFINITY));
    }

    #[test]
    fn other_rates_are_refused_with_what_is_accepted() {
        for text in [
            "",
            "abacus",
            "abacus:2:40",
            "cpu:",
            "cpu:2",
            "cpu:2:",
            "cpu::40",
            "cpu:0:40",
            "cpu:2:0",
            "cpu:-2:40",
            "cpu:+2:40",
            "cpu: 2:40",
            "cpu:2.5:40",
            "cpu:4097:40",
            "cpu:2:100001",
            "cpu:2:40:1",
            "cpu:99999999999999999999:40",
            "CPU:2:40",
        ] {
            let refused = text.parse::<Target>().unwrap_err();
            assert!(refused.contains("cuda-sm90, vulkan, metal") && refused.contains("cpu:2:40"), "{text}");
        }
    }

    #[test]
    fn gpus_are_priced_as_the_nearest_with_a_name() {
        let names = |capability| cuda(capability).name;
        assert_eq!([(7, 5), (8, 0)].map(names), ["cuda-sm80"; 2]);
        assert_eq!([(8, 6), (8, 9), (12, 0)].map(names), ["cuda-sm89"; 3]);
        assert_eq!([(9, 0), (10, 0)].map(names), ["cuda-sm90"; 2]);
    }
}
