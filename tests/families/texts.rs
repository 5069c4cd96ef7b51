//! Batches: several sequences in one session, decoded together.
//!
//! In: small models with random weights. Out: the logits of each sequence in a session of its own, whichever sequences
//! rest, and one sentence for invalid calls.

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::level::Numbers;
use fusebox_compiler::options::Options;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::Device;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::device::fake::FakeDevice;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::{SequenceId, Session};
use support::own::path;
use support::plain::{Attention, Grouped, Plain, Window};
use support::run::{Run, relative_error};

use crate::made::Made;
use crate::odd::{experts, grouped, latent, small};

/// Single precision, summed in another order.
const SAME: f64 = 1e-5;
/// The prompts of three sequences.
const PROMPTS: [&[u32]; 3] = [&[3, 14, 15, 9, 26], &[7], &[1, 41, 42, 13, 5, 6, 23, 7, 30, 31, 32, 33]];

fn processor() -> Box<dyn Device> {
    Box::new(CpuDevice::new(Cpu::host(Numbers::Single).unwrap(), 2).unwrap())
}

fn session(made: &Made, name: &str, n_texts: usize, device: Box<dyn Device>) -> Session {
    let file = path(&format!("{name}-{n_texts}.gguf"));
    made.gguf(
        &file,
        if matches!(made.config.attention, Attention::Latent(_)) { "deepseek2" } else { "llama" },
    );
    let settings =
        Settings { context: 20, chunk: 8, scored: Scored::Last, ..Run::new(Numbers::Single).settings };
    let model = Model::open(&file).unwrap();
    model.session_of_sequences(device, &settings, n_texts, &Options::default(), &Cache::default()).unwrap()
}

/// Decodes all sequences together; in some steps one rests. Returns the logits of every token, by sequence.
fn together(session: &mut Session) -> [Vec<Vec<f32>>; 3] {
    let mut rows: [Vec<Vec<f32>>; 3] = Default::default();
    for (text, prompt) in PROMPTS.iter().enumerate() {
        session.select(SequenceId(text)).unwrap();
        rows[text].push(session.feed(prompt).unwrap().to_vec());
    }
    for round in 0..6 {
        let token = |text: usize| (round % 3 != text || round < 2).then_some((7 * round + text) as u32);
        let tokens: Vec<Option<u32>> = (0..3).map(token).collect();
        session.decode_batch(&tokens).unwrap();
        for (text, _) in tokens.iter().enumerate().filter(|(_, token)| token.is_some()) {
            session.select(SequenceId(text)).unwrap();
            rows[text].push(session.logits().to_vec());
        }
    }
    rows
}

/// The same sequences, one after another.
fn alone(session: &mut Session) -> [Vec<Vec<f32>>; 3] {
    let mut rows: [Vec<Vec<f32>>; 3] = Default::default();
    for (text, prompt) in PROMPTS.iter().enumerate() {
        session.truncate(0).unwrap();
        rows[text].push(session.feed(prompt).unwrap().to_vec());
        for round in (0..6).filter(|round| round % 3 != text || *round < 2) {
            rows[text].push(session.feed(&[(7 * round + text) as u32]).unwrap().to_vec());
        }
    }
    rows
}

fn check(name: &str, config: &Plain) {
    let made = Made::new(config);
    let expected = alone(&mut session(&made, name, 1, processor()));
    for device in [processor(), Box::new(FakeDevice::default())] {
        let found = together(&mut session(&made, name, 3, device));
        for (text, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.len(), expected.len());
            for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
                let error = relative_error(found, expected);
                assert!(error <= SAME, "{name}: {error:e} in text {text} behind step {step}");
            }
        }
    }
}

#[test]
fn texts_with_windows_know_nothing_of_each_other() {
    let window = Some(Window { size: 5, full: [1].into() });
    check("texts-window", &small(Attention::Grouped(Grouped { window, ..grouped(4, 2, 16) }), Format::F32));
}

#[test]
fn texts_of_latents_and_experts_know_nothing_of_each_other() {
    let own = small(Attention::Latent(latent(false)), Format::F32);
    check("texts-latents", &Plain { experts: Some(experts(4, 2)), dense: [0].into(), ..own });
}

#[test]
fn a_text_that_is_not_there_and_tokens_for_others_are_refused() {
    let made = Made::new(&small(Attention::Grouped(grouped(4, 2, 16)), Format::F32));
    let mut session = session(&made, "texts-refused", 3, processor());
    let complaint = |result: Result<(), _>| -> String {
        let error: fusebox_runtime::error::Error = result.unwrap_err();
        error.to_string()
    };
    assert_eq!(
        complaint(session.select(SequenceId(3))),
        "sequences: there is no sequence 3, the session has 3"
    );
    let too_few = session.decode_batch(&[Some(1)]);
    assert_eq!(complaint(too_few), "tokens: expected one for each of 3 sequences, found 1");
    let unknown = session.decode_batch(&[Some(1), None, Some(50)]);
    assert_eq!(complaint(unknown), "tokens: there is no token 50, the model has 50");
    for _ in 0..20 {
        session.decode_batch(&[None, Some(1), None]).unwrap();
    }
    let full = session.decode_batch(&[Some(1), Some(1), None]);
    assert_eq!(complaint(full), "tokens: no room for 1 after 20: the context holds 20 tokens");
    session.select(SequenceId(0)).unwrap();
    assert_eq!(session.position(), 0);
}

#[test]
fn the_best_scores_of_several_texts_are_refused() {
    let made = Made::new(&small(Attention::Grouped(grouped(4, 2, 16)), Format::F32));
    let file = path("texts-best.gguf");
    made.gguf(&file, "llama");
    let base = Run::new(Numbers::Single).settings;
    let settings = Settings { context: 20, chunk: 8, scored: Scored::TopK(2), ..base };
    let model = Model::open(&file).unwrap();
    let open = |n_texts| {
        model.session_of_sequences(processor(), &settings, n_texts, &Options::default(), &Cache::default())
    };
    assert!(open(1).is_ok());
    let error = open(3).err().unwrap().to_string();
    assert_eq!(error, "a program: another one has other outputs");
}
