//! The GPU sources of a few well-known kernels, by counts.
//!
//! In: a projection, an attention of many tokens and experts that many tokens pick. Out: a snapshot with a row for
//! each kernel and language: threads, shared memory, loops, loads and stores by width, barriers, shuffles, MMA calls.
//! `fusebox story GRAPH --target TARGET --print-kernels=source` prints the sources themselves.

use fusebox_compiler::codegen::source;
use fusebox_compiler::foundation::table::table;
use fusebox_compiler::graph::parse::parse;
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::target::{CUDA_SM90, Target};
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks;

/// A projection with its norm: a product of quantised rows with a vector, as decoding has it.
const PROJECTION: &str = "
%0 = input x : f32[d:64]
%1 = mul %0 %0
%2 = reduce-sum %1 over d
%3 = const 64.0
%4 = div %2 %3
%5 = rsqrt %4
%6 = mul %0 %5
%7 = weight w : q8_0[e:64, d:64]
%8 = contract %6 %7 over [d]
output y = %8
";

/// Attention of many tokens over a cache.
const ATTENTION: &str = "
symbol P in 0..160 near 0
symbol T in 1..32 near 32
%0 = input q : f32[t:T, g:2, d:64]
%1 = state k : f16[s:192, d:64]
%2 = slice %1 s at 0 len P+T
%3 = state v : f16[s:192, d:64]
%4 = slice %3 s at 0 len P+T
%5 = cast %2 f32
%6 = cast %4 f32
%7 = contract %0 %5 over [d]
%8 = attend %7 %6 over [s]
output y = %8
";

/// Gate and up of a mixture: each of many tokens times the experts that it picks.
const EXPERTS: &str = "
symbol T in 1..300 near 300
%0 = input x : f32[t:T, d:128]
%1 = input scale : f32[d:128]
%2 = mul %0 %1
%3 = input picked : i32[t:T, k:2]
%4 = weight gate : q8_0[x:4, r:96, d:128]
%5 = gather %4 %3 along x
%6 = contract %2 %5 over [d]
%7 = weight up : q8_0[x:4, r:96, d:128]
%8 = gather %7 %3 along x
%9 = contract %2 %8 over [d]
%10 = mul %6 %9
output y = %10
";

/// The columns of the snapshot.
const COLUMNS: [&str; 12] = [
    "target",
    "kernel",
    "threads",
    "shared bytes",
    "loops",
    "nesting",
    "loads, bytes: count",
    "stores, bytes: count",
    "shared loads, stores",
    "barriers",
    "shuffles",
    "MMA",
];

fn sources(text: &str, target: &str) -> Vec<String> {
    let target = Target::named(target).expect("a named target");
    let graph = parse(text).unwrap_or_else(|error| panic!("{error}"));
    let plan = compile(&graph, &Options::for_target(target)).expect("a graph that compiles").plan;
    plan.kernels.values().map(|kernel| source(kernel, &target).expect("a source")).collect()
}

/// The counts of one source: a cell for each column but the first.
fn counts(source: &str) -> Vec<String> {
    let count = |words: &[&str]| words.iter().map(|word| source.matches(word).count()).sum::<usize>();
    let heading = |before: &str, after: &str| {
        let (_, rest) = source.split_once(before).expect("a heading tells it");
        rest.split(after).next().expect("a first part").to_owned()
    };
    let (name, threads) = (heading("// kernel \"", "\""), heading(": ", " threads"));
    let resident = source.split_once("__launch_bounds__(").map(|(_, rest)| launch_bounds(rest));
    let (n_loops, deepest) = loops(source);
    let (loads, stores) = accesses(source, "buffer_");
    let (shared_loads, shared_stores) = accesses(source, "shared_memory_");
    let number = |counts: &[(usize, usize)]| counts.iter().map(|(_, n)| n).sum::<usize>();
    let by_bytes = |counts: &[(usize, usize)]| {
        counts.iter().map(|(bytes, n)| format!("{bytes}: {n}")).collect::<Vec<_>>().join(", ")
    };
    vec![
        name,
        resident.unwrap_or(threads),
        heading("// bytes of a workgroup: ", " shared"),
        n_loops.to_string(),
        deepest.to_string(),
        by_bytes(&loads),
        by_bytes(&stores),
        format!("{}, {}", number(&shared_loads), number(&shared_stores)),
        count(&["__syncthreads()", "workgroupBarrier()", "threadgroup_barrier("]).to_string(),
        count(&["__shfl_", "simd_shuffle", "subgroupShuffle"]).to_string(),
        // The definition of each wrapper names the instruction as well; its parameters are references.
        (count(&["__mma_"]) - count(&["&reg_a_0"])).to_string(),
    ]
}

/// `256, 4` of `__launch_bounds__` as `256 x 4`: threads per block, blocks per SM.
fn launch_bounds(bounds: &str) -> String {
    bounds.split(')').next().expect("a first part").replace(", ", " x ")
}

/// The number of loops, and how deep they are nested.
fn loops(source: &str) -> (usize, usize) {
    let (mut n, mut deepest, mut open) = (0, 0, Vec::new());
    for line in source.lines() {
        let mut is_loop =
            ["for (", "while (", "loop {"].iter().any(|head| line.trim_start().starts_with(head));
        n += usize::from(is_loop);
        for brace in line.chars() {
            match brace {
                // The first brace of a loop's line is its own.
                '{' => open.push(std::mem::take(&mut is_loop)),
                '}' => assert!(open.pop().is_some(), "braces that match: {line}"),
                _ => {}
            }
        }
        deepest = deepest.max(open.iter().filter(|is_loop| **is_loop).count());
    }
    (n, deepest)
}

/// Widths in bytes with their counts, the widest first.
type Widths = Vec<(usize, usize)>;

/// Loads and stores of the arrays whose names begin with `name`.
fn accesses(source: &str, name: &str) -> (Widths, Widths) {
    let (mut loads, mut stores) = (Vec::new(), Vec::new());
    for line in source.lines() {
        for (at, _) in line.match_indices(name) {
            let word = line[at..].split(|c: char| !c.is_alphanumeric() && c != '_').next().expect("a name");
            if !line[at + word.len()..].starts_with('[') || line[at + word.len()..].starts_with("[[") {
                continue;
            }
            let is_store = line[..at].trim().is_empty();
            let list = if is_store { &mut stores } else { &mut loads };
            let bytes = width(source, word);
            match list.iter_mut().find(|(width, _)| *width == bytes) {
                Some((_, n)) => *n += 1,
                None => list.push((bytes, 1)),
            }
        }
    }
    for list in [&mut loads, &mut stores] {
        list.sort_by(|a, b| b.cmp(a));
    }
    (loads, stores)
}

/// The bytes of an element of an array, by the type that it is declared with.
fn width(source: &str, name: &str) -> usize {
    let declared = |line: &str| {
        let wgsl = line.split_once(&format!("> {name}: array<")).map(|(_, rest)| rest.to_owned());
        let pieces = line.split([',', '=']).map(str::trim);
        let mut c = pieces.filter_map(|piece| {
            let piece = piece.split(" [[").next()?;
            let before = piece.strip_suffix(name)?.trim_end().trim_end_matches("__restrict__").trim_end();
            Some(before.strip_suffix('*')?.trim_end().rsplit(' ').next()?.to_owned())
        });
        wgsl.or_else(|| c.next_back())
    };
    let declared = source.lines().find_map(declared).unwrap_or_else(|| panic!("{name} is not declared"));
    let kind = declared.trim_end_matches([';', '>']).split(", ").next().expect("a first part");
    match kind {
        "uint32_4" | "uint_4" | "vec4<u32" => 16,
        "uint32_2" | "uint_2" | "vec2<u32" => 8,
        "float" | "uint32" | "uint" | "int32" | "int" | "f32" | "u32" | "i32" => 4,
        "__half" | "half" | "f16" | "__nv_bfloat16" | "bfloat" | "uint16" | "ushort" => 2,
        "uint8" | "uchar" => 1,
        other => panic!("the bytes of `{other}` are not known here"),
    }
}

#[test]
fn sources_keep_their_counts() {
    let mut rows = vec![COLUMNS.map(str::to_owned).to_vec()];
    for graph in [PROJECTION, ATTENTION, EXPERTS] {
        for target in ["cuda-sm90", "vulkan", "metal"] {
            for source in sources(graph, target) {
                rows.push([vec![target.to_owned()], counts(&source)].concat());
            }
        }
    }
    insta::assert_snapshot!("sources_keep_their_counts", table("lllrrrllrrrr", "  ", &rows));
}

#[test]
fn loops_and_accesses_are_counted() {
    let source = "    float* buffer_0, const uint32_4* __restrict__ buffer_1,\n\
        uint32 *shared_memory_0 = reinterpret_cast<uint32*>(&dynamic_shared_mem[0]);\n\
        for (uint32 i = 0;;) {\nif (a) {\nwhile (b) {\nbuffer_0[i] = buffer_1[i].i_0 + buffer_1[j].i_1;\n}\n}\n}\n\
        for (;;) {\nshared_memory_0[i] = 1;\n}\n";
    assert_eq!(loops(source), (3, 2));
    assert_eq!(accesses(source, "buffer_"), (vec![(16, 2)], vec![(4, 1)]));
    assert_eq!(accesses(source, "shared_memory_"), (vec![], vec![(4, 1)]));
    let wgsl = "var<storage, read_write> buffer_4_global: array<vec4<u32>>;\nlet a = buffer_4_global[b];\n";
    assert_eq!(accesses(wgsl, "buffer_"), (vec![(16, 1)], vec![]));
    let metal = "    const device half * buffer_1 [[buffer(1)]],\nconst half l = buffer_1[i];\n";
    assert_eq!(accesses(metal, "buffer_"), (vec![(2, 1)], vec![]));
}

#[test]
fn a_processor_has_the_text_of_the_kernel() {
    let text = sources(PROJECTION, "cpu").concat();
    assert!(text.contains("kernel \"") && text.contains("q8_0"), "{text}");
}

#[test]
fn experts_of_many_tokens_are_tile_products_in_cuda() {
    let target = CUDA_SM90;
    for name in ["qwen3-30b-a3b", "deepseek-v2-lite", "glm-4.7-flash"] {
        // Eight tokens pick as many experts as there are, or fewer.
        for (tokens, expected) in [(8, false), (512, true)] {
            let config = blocks::named(name).expect("a named block");
            let graph = blocks::block(&config, &Sym::from(tokens)).expect("a block that fits together");
            let plan = compile(&graph, &Options::for_target(target)).expect("a block that compiles").plan;
            let kernels = plan.kernels.values().filter(|kernel| kernel.name.contains("_exps"));
            let source = |kernel| source(kernel, &target).expect("a source");
            let found: Vec<bool> = kernels.map(|kernel| source(kernel).contains("mma.sync")).collect();
            assert_eq!(found, [expected; 2], "{name}, {tokens} tokens");
        }
    }
}
