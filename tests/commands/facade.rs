//! The library `fusebox` as a program uses it.
//!
//! In: the default model. Out: the same answers as those of the command, vectors, and sentences for what cannot be.

use std::fs;
use std::ops::ControlFlow;
use std::thread;

use fusebox::config::{Block, Config, Dense, Grouped, Mixer, Network, Pairing, QkNorm, Rope, Scaling};
use fusebox::graph::{Binary, Builder, DType, Format, Op, Unary};
use fusebox::prelude::*;
use fusebox::rewrite::{Kind, Rule, Term, binary, check};
use fusebox::{Decoder, Program, register_family};
use support::given::fixture;
use support::own;

use crate::{json, programs, told};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/story.gguf");

/// Greedy, with the program cache of the tests.
fn run() -> Run {
    Run { sampling: Some(Sampling::default()), cache: Some(programs()), ..Run::auto() }
}

fn model(run: Run) -> Model {
    Model::open(MODEL, run).expect("the default model")
}

#[test]
fn a_chat_answers_as_the_command_does() {
    let mut chat = model(Run { max_tokens: Some(16), ..run() }).chat(Some("Be brief.")).expect("a chat");
    let mut pieces = String::new();
    let answer = chat.stream("Tell me of a dog.", |piece| {
        pieces += piece;
        ControlFlow::Continue(())
    });
    let first = answer.expect("an answer").text;
    assert_eq!(pieces, first);
    let flags = ["run", MODEL, "-n", "16", "--temp", "0", "--system", "Be brief.", "Tell me of a dog."];
    assert_eq!(told(&flags), format!("{first}\n"));
    // What does not fit changes nothing; a chat goes on with all messages before.
    let long = "word ".repeat(5000);
    assert!(chat.say(&long).unwrap_err().to_string().contains("context length is 512"));
    let second = chat.say("And of a cat?").expect("an answer").text;
    let mut again = model(Run { max_tokens: Some(16), ..run() }).chat(Some("Be brief.")).expect("a chat");
    assert_eq!(again.say("Tell me of a dog.").expect("an answer").text, first);
    assert_eq!(again.say("And of a cat?").expect("an answer").text, second);
}

#[test]
fn a_text_goes_on_as_with_the_command_and_stops_when_it_is_told_to() {
    let mut writer = model(Run { max_tokens: Some(12), ..run() }).writer().expect("a writer");
    let whole = writer.go_on("The old man", |_| ControlFlow::Continue(())).expect("a text");
    assert_eq!(format!("{}\n", whole.text), told(&["run", "-p", "The old man", "-n", "12"]));
    let cut = writer.go_on("The old man", |_| ControlFlow::Break(())).expect("a text");
    assert!(cut.tokens.len() < whole.tokens.len() && whole.text.starts_with(&cut.text), "{cut:?}");
}

#[test]
fn everything_moves_between_threads() {
    fn moves<T: Send>() {}
    moves::<(Model, Engine, Chat, Writer, Embedder)>();
    let go_on = |writer: &mut Writer| writer.go_on("The old man", |_| ControlFlow::Continue(()));
    let mut writer = model(Run { max_tokens: Some(12), precise: true, ..run() }).writer().expect("a writer");
    let here = go_on(&mut writer).expect("a text").text;
    let there = thread::spawn(move || (go_on(&mut writer).expect("a text").text, writer));
    let (there, mut writer) = there.join().expect("a thread");
    assert_eq!([&there, &go_on(&mut writer).expect("a text").text], [&here, &here]);
}

#[test]
fn a_draft_is_named_and_changes_no_text() {
    let text = |draft: Option<&str>| {
        let draft = draft.map(str::to_owned);
        let run = Run { max_tokens: Some(24), precise: true, draft, ..run() };
        let answer =
            model(run).writer().expect("a writer").go_on("The old man", |_| ControlFlow::Continue(()));
        let answer = answer.expect("a text");
        (answer.text, answer.timing.n_guessed)
    };
    let (plain, n_guessed) = text(None);
    assert_eq!(n_guessed, 0);
    let (own, n_guessed) = text(Some(MODEL));
    assert_eq!(own, plain);
    assert!(n_guessed > 0);
    assert_eq!(text(Some("ngram")).0, plain);
    let none = Run { draft: Some("nothing.gguf".to_owned()), ..run() };
    assert!(model(none).writer().is_err());
}

#[test]
fn vectors_have_length_one_and_are_those_of_their_text() {
    let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let mut embedder = model(run()).embedder(Pooling::Mean).expect("an embedder");
    let mut embed = |text: &str| embedder.embed(text).expect("a vector");
    let (dog, cat, again) =
        (embed("A dog ran home."), embed("The cake was sweet."), embed("A dog ran home."));
    assert_eq!(dog, again);
    assert!((cosine(&dog, &dog) - 1.0).abs() < 1e-5);
    assert!(cosine(&dog, &cat) < 0.9);
    let last = model(run()).embedder(Pooling::Last).expect("an embedder").embed("A dog ran home.");
    assert!(cosine(&dog, &last.expect("a vector")) < 0.99);
    assert!(embedder.embed("").is_err());
}

#[test]
fn documents_are_ranked_as_with_the_command() {
    let path = fixture("rankers/bert.gguf");
    let name = path.to_str().expect("a plain path");
    let mut ranker = Model::open(name, run()).expect("a model").ranker().expect("a ranker");
    let score = ranker.rank("hello world", "a world, hello!").expect("a score");
    let told = json(&["embed", name, "--query", "hello world", "-p", "a world, hello!", "--json"]);
    assert_eq!(told["scores"][0].as_f64().map(|score| score as f32), Some(score));
    let error = ranker.rank("hello", &"world ".repeat(100)).expect_err("a sentence").to_string();
    assert!(error.contains("the query and the document have"), "{error}");
    let error = model(run()).ranker().err().expect("a sentence").to_string();
    assert!(error.contains("it cannot rank texts"), "{error}");
}

#[test]
fn what_cannot_be_is_a_sentence() {
    let refused = |name: &str, run: Run| Model::open(name, run).err().expect("a sentence").to_string();
    assert!(refused("no-such.gguf", run()).contains("no-such.gguf"));
    assert!(refused(MODEL, Run { threads: Some(0), ..run() }).contains("expected 1 to 256"));
    assert!(refused(MODEL, Run { device: Some("abacus".to_owned()), ..run() }).contains("auto, cpu"));
    let mut long = model(Run { context: Some(100_000), ..run() });
    assert!(long.writer().err().expect("a sentence").to_string().contains("the model's context length"));
}

/// The text that the default model continues with, and the tokens of it.
fn continued(run: Run) -> (String, Vec<u32>) {
    let mut writer = model(Run { max_tokens: Some(12), ..run }).writer().expect("a writer");
    let answer = writer.go_on("The old man", |_| ControlFlow::Continue(())).expect("a text");
    (answer.text, answer.tokens)
}

#[test]
fn sequences_of_an_engine_say_what_each_says_alone() {
    let precise = Run { precise: true, ..run() };
    let (_, expected) = continued(precise.clone());
    let mut engine = model(precise).engine(3).expect("an engine");
    let prompt = engine.encode("The old man").expect("tokens");
    let best = |engine: &Engine, sequence| {
        let logits = engine.logits(sequence).expect("logits");
        (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).expect("a token") as u32
    };
    let (first, other) = (engine.open(), engine.open());
    let mut batch = Batch::new();
    batch.add(first, prompt.clone());
    batch.add(other, engine.encode("A dog").expect("tokens"));
    engine.step(&batch).expect("a step");
    let forked = engine.fork(first).expect("a fork");
    let token = best(&engine, first);
    for sequence in [first, forked] {
        let mut next = token;
        for _ in 1..expected.len() {
            let mut batch = Batch::new();
            batch.add(sequence, [next]);
            batch.add(other, [next]);
            engine.step(&batch).expect("a step");
            next = best(&engine, sequence);
        }
        assert_eq!(engine.tokens(sequence).expect("tokens")[prompt.len()..], expected[..expected.len() - 1]);
    }
    // A page too few changes nothing, and says how many there are.
    let mut batch = Batch::new();
    batch.add(first, vec![5; 400]);
    batch.add(forked, vec![5; 400]);
    batch.add(other, vec![5; 400]);
    engine.step(&batch).expect("the whole context of each fits");
    let (more, mut batch) = (engine.open(), Batch::new());
    batch.add(more, vec![5; 500]);
    let refused = engine.step(&batch).expect_err("no page is left");
    assert!(refused.full().is_some_and(|(needed, free)| needed == 8 && free < needed), "{refused}");
    engine.release(other).expect("it is open");
    assert!(engine.release(other).is_err());
    engine.step(&batch).expect("its pages are free");
}

/// The default model, described by hand.
fn story() -> Config {
    let rope = Rope { theta: 1e4, pairing: Pairing::Halves, scaling: Scaling::None };
    let heads = Grouped { rope: Some(rope), qk_norm: Some(QkNorm::Head), ..Grouped::new(6, 2, 64) };
    let block = Block::new(Mixer::Grouped(heads), Network::Dense(Dense::swiglu(512)));
    Config { tied: true, ..Config::new(vec![block; 5], 256, 1536, 512) }
}

#[test]
fn a_registered_family_is_opened_by_its_name() {
    let mut bytes = fs::read(MODEL).expect("the default model");
    let key = b"general.architecture";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("it names its architecture");
    // A type and a length stand between the key and its text.
    let name = at + key.len() + 12;
    assert_eq!(&bytes[name..name + 5], b"qwen3");
    bytes[name..name + 5].copy_from_slice(b"mine5");
    let path = own::write("mine.gguf", &bytes);
    assert!(Model::open(&path, run()).err().expect("a sentence").to_string().contains("`mine5`"));
    register_family("mine5", |checkpoint| {
        assert!(!checkpoint.tensors().is_empty());
        Ok(Decoder::from(story()))
    })
    .expect("a new name");
    for known in ["mine5", "llama"] {
        assert!(register_family(known, |_| Err(String::new())).is_err_and(|what| what.contains("already")));
    }
    let mut writer = Model::open(&path, Run { max_tokens: Some(12), ..run() }).expect("it is known").writer();
    let answer = writer.as_mut().expect("a writer").go_on("The old man", |_| ControlFlow::Continue(()));
    assert_eq!(answer.expect("a text").text, continued(run()).0);
}

#[test]
fn rules_of_a_program_are_used_and_false_ones_are_named() {
    // What: `-(-x)` becomes `x`; with a slip, `-x` becomes `x`.
    const TWICE: Rule = Rule::new("neg-twice", &[Kind::Unary], |egraph, node| {
        let is_neg = |op: &Op| *op == Op::Unary(Unary::Neg);
        let below = egraph[node.args[0]].iter().filter(|inner| is_neg(&node.op) && is_neg(&inner.op));
        below.map(|inner| Term::from(inner.args[0])).collect()
    });
    const ONCE: Rule = Rule::new("neg-once", &[Kind::Unary], |_, node| {
        if *node.op == Op::Unary(Unary::Neg) { vec![Term::from(node.args[0])] } else { Vec::new() }
    });
    const DOUBLE: Rule = Rule::new("double", &[Kind::Binary], |_, node| {
        let is_sum = *node.op == Op::Binary(Binary::Add) && node.args[0] == node.args[1];
        if is_sum { vec![binary(Binary::Add, node.args[0], node.args[1])] } else { Vec::new() }
    });
    assert!(check(&TWICE).expect("it is true").n_fired > 0);
    assert!(check(&ONCE).expect_err("it is false").to_string().contains("`neg-once`: it is false"));
    // A model that is compiled with them says the same.
    assert_eq!(continued(Run { rules: vec![TWICE, DOUBLE], ..run() }), continued(run()));
}

#[test]
fn a_graph_has_inputs_and_outputs_by_name() {
    let g = Builder::new();
    let (t, d, r) = (g.dim("t", 2), g.dim("d", 256), g.dim("r", 256));
    let x = g.input("x", DType::F32, &[&t, &d]);
    let y = x.contract(&g.weight("output_norm.weight", Format::F32, &[&d]), [&d]);
    let graph = g.finish(&[("y", &y)]).expect("a graph");
    let mut program = Program::new(&graph, MODEL, &Run { precise: true, ..run() }).expect("a program");
    program.set("x", &[[1.0; 256], [2.0; 256]].concat()).expect("an input");
    program.run().expect("a run");
    let found = program.output("y").expect("an output");
    assert!(found.len() == 2 && found[0] != 0.0 && (found[1] - 2.0 * found[0]).abs() < 1e-3, "{found:?}");
    let refused = |result: Result<(), Error>| result.expect_err("a sentence").to_string();
    assert!(refused(program.set("z", &[])).contains("the graph has x"));
    assert!(refused(program.set("x", &[0.0])).contains("has 2048 bytes"));
    assert!(refused(program.output("x").map(drop)).contains("the graph has y"));
    let missing = g.weight("no such tensor", Format::F32, &[&r]);
    let graph = g.finish(&[("y", &missing.sum(&r))]).expect("a graph");
    let error = Program::new(&graph, MODEL, &run()).err().expect("a sentence").to_string();
    assert!(error.contains("no such tensor"), "{error}");
}
