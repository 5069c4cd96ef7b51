//! scratch
#![allow(warnings)]
use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::level::{Level, Numbers};
use fusebox_compiler::options::Options;
use fusebox_compiler::tensor::dtype::DType;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::cache::Cache;
use std::path::Path;
use std::time::Instant;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let threads: usize = args[2].parse().unwrap();
    let t = Instant::now();
    let model = Model::open(Path::new(&args[1])).unwrap();
    println!("open {:?}", t.elapsed());
    for pass in 0..2 {
        let t = Instant::now();
        let cpu = Cpu::host(Numbers::Quantised).unwrap();
        let device = Box::new(CpuDevice::new(cpu, threads).unwrap());
        let settings = Settings { context: 1024, chunk: 512, cache: DType::F16, scored: Scored::Last };
        let mut cache = Cache::new(Some("/tmp/zzcache".into()));
        let t1 = Instant::now();
        let g = model.graphs(&settings).unwrap();
        println!("graphs {:?}", t1.elapsed());
        let mut session = model.session(device, &settings, &Options::default(), &mut cache).unwrap();
        println!("session {:?} {:?} emitted {}", t.elapsed(), cache.counts, session.footprint().n_emitted);
        let toks: Vec<u32> = (0..512u32).map(|i| (i * 7919 + 13) % 30000).collect();
        session.feed(&toks[..32]).unwrap();
        for _ in 0..2 {
            let t = Instant::now();
            let n = 32;
            for i in 0..n {
                session.feed(&[i]).unwrap();
            }
            println!("decode@32 {:.1} tok/s", n as f64 / t.elapsed().as_secs_f64());
            session.truncate(32);
        }
        let times = session.profile(5).unwrap();
        let plan = session.plans()[0];
        let mut per: std::collections::BTreeMap<usize, (String, f64, usize)> = Default::default();
        for (s, t) in plan.steps.iter().zip(&times) {
            let k = format!("{}", s.kernel);
            let e =
                per.entry(k[6..].parse().unwrap()).or_insert((plan.kernels[s.kernel].name.clone(), 0.0, 0));
            e.1 += t.as_secs_f64() * 1e6;
            e.2 += 1;
        }
        for (k, (n, us, c)) in per {
            println!("  k{k} x{c} {:.1} us  {n}", us / c as f64);
        }
        session.truncate(0);
        for _ in 0..2 {
            let t = Instant::now();
            session.feed(&toks).unwrap();
            println!("prefill512 {:.1} tok/s", 512.0 / t.elapsed().as_secs_f64());
            session.truncate(0);
        }
        session.feed(&toks).unwrap();
        let t = Instant::now();
        for i in 0..32 {
            session.feed(&[i]).unwrap();
        }
        println!("decode@512 {:.1} tok/s", 32.0 / t.elapsed().as_secs_f64());
    }
    let s = std::fs::read_to_string("/proc/self/status").unwrap();
    for l in s.lines().filter(|l| l.starts_with("Vm") || l.starts_with("Rss")) {
        println!("{l}");
    }
}
