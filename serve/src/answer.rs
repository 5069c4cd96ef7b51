//! The text of one choice: from tokens to pieces of content, reasoning and calls.
//!
//! In: tokens as they are drawn. Out: pieces that are certain: whole characters, nothing of a stop string, reasoning
//! apart from content, calls apart from both. Whole answers are made of the same pieces as streams.

use fusebox::stop::Stop;
use fusebox::tokenizer::Tokenizer;
use fusebox::tokenizer::stream::Stream;

use crate::sampling::Scored;
use crate::scheduler::Finish;
use crate::tools::{Format, Parser, Part, Tool};

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece {
    /// Text, with the scores of the tokens that made it, where they were wanted.
    Text(String, Vec<Scored>),
    /// Text of the model for itself.
    Reasoning(String),
    /// Call number `.0` of a function.
    Call(usize, String),
    /// More arguments of call number `.0`.
    Arguments(usize, String),
}

/// Why a choice ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reason {
    /// The model ended it.
    End,
    /// A stop string.
    StopText(String),
    /// A stop token.
    StopToken(u32),
    /// Enough tokens.
    Length,
    /// The context is full.
    Context,
    /// Calls to functions.
    Calls,
}

impl Reason {
    /// As OpenAI's `finish_reason`.
    pub(crate) fn openai(&self) -> &'static str {
        match self {
            Self::End | Self::StopText(_) | Self::StopToken(_) => "stop",
            Self::Length | Self::Context => "length",
            Self::Calls => "tool_calls",
        }
    }
}

/// What the text of a choice is looked through for.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a request, each with its own name there")]
pub(crate) struct Reading {
    pub(crate) stops: Vec<String>,
    /// Whether the stop string is part of the answer.
    pub(crate) includes_stop: bool,
    /// Whether end tokens are text.
    pub(crate) shows_ends: bool,
    /// Whether special tokens are text.
    pub(crate) shows_special: bool,
    /// Whether reasoning is taken apart, and whether the answer begins within it.
    pub(crate) thinks: Option<bool>,
    /// The tools, and how calls are written.
    pub(crate) tools: Option<(Format, Vec<Tool>)>,
    /// Whether tokens carry scores.
    pub(crate) is_scored: bool,
}

/// Where the splitter of reasoning is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thought {
    /// It may begin with reasoning.
    Start,
    Within,
    /// Reasoning is over; white space before the content is dropped.
    Over,
    Content,
}

/// Reads one choice.
pub(crate) struct Reader<'a> {
    tokenizer: &'a Tokenizer,
    stream: Stream<'a>,
    stop: Stop,
    reading: Reading,
    thought: Thought,
    /// Whether there was any reasoning.
    has_thought: bool,
    /// Text of which it is not certain whether it is a tag.
    held: String,
    parser: Option<Parser>,
    n_calls: usize,
    /// Scored tokens whose text has not come out.
    pending: Vec<Scored>,
    /// Tokens so far.
    pub(crate) n_tokens: usize,
    /// Those of reasoning.
    pub(crate) n_reasoning: usize,
    pub(crate) reason: Option<Reason>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, reading: Reading, last_of_prompt: Option<u32>) -> Self {
        let thought = match reading.thinks {
            None => Thought::Content,
            Some(false) => Thought::Start,
            Some(true) => Thought::Within,
        };
        let stops = reading.stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self {
            tokenizer,
            // Which special tokens are text is decided here.
            stream: tokenizer.stream_after(last_of_prompt, false),
            stop: Stop::new(stops).expect("no stop string is empty"),
            parser: reading.tools.as_ref().map(|(format, tools)| Parser::new(*format, tools)),
            reading,
            thought,
            has_thought: false,
            held: String::new(),
            n_calls: 0,
            pending: Vec::new(),
            n_tokens: 0,
            n_reasoning: 0,
            reason: None,
        }
    }

    /// Whether a token is text.
    fn is_shown(&self, id: u32) -> bool {
        if self.tokenizer.is_eos(id) {
            return self.reading.shows_ends;
        }
        if !self.tokenizer.is_special(id) || self.reading.shows_special {
            return true;
        }
        let bytes = self.tokenizer.token_bytes(id);
        let is = |marker: &&str| marker.as_bytes() == bytes;
        let is_tag = self.reading.thinks.is_some() && [THINK, THINK_END].iter().any(is);
        let is_marker =
            self.reading.tools.as_ref().is_some_and(|(format, _)| format.markers().iter().any(is));
        is_tag || is_marker
    }

    /// The pieces that a token makes certain. Once a stop string was found there are none.
    pub(crate) fn push(&mut self, scored: Scored, is_stop_token: bool) -> Vec<Piece> {
        if self.reason.is_some() {
            return Vec::new();
        }
        self.n_tokens += 1;
        if matches!(self.thought, Thought::Within) {
            self.n_reasoning += 1;
        }
        let is_shown = self.is_shown(scored.id) && (!is_stop_token || self.reading.includes_stop);
        if !is_shown {
            return Vec::new();
        }
        let text = self.stream.push(scored.id);
        if self.reading.is_scored {
            self.pending.push(scored);
        }
        let mut text = self.stop.push(&text);
        if let Some(found) = self.stop.found() {
            self.reason = Some(Reason::StopText(found.to_owned()));
            if self.reading.includes_stop {
                text += found;
            }
        }
        let mut pieces = Vec::new();
        self.split(&text, self.reason.is_some(), &mut pieces);
        if self.reason.is_some() {
            self.flush(&mut pieces);
        }
        pieces
    }

    /// What was held back, at the end.
    pub(crate) fn finish(&mut self, finish: Finish) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.reason.is_none() {
            let rest = self.stream.finish();
            let mut rest = self.stop.push(&rest) + &self.stop.finish();
            let found = self.stop.found().map(str::to_owned);
            if self.reading.includes_stop {
                rest += found.as_deref().unwrap_or_default();
            }
            self.reason = Some(match (found, finish) {
                (Some(found), _) => Reason::StopText(found),
                (None, Finish::End) => Reason::End,
                (None, Finish::StopToken(id)) => Reason::StopToken(id),
                (None, Finish::Length | Finish::Late) => Reason::Length,
                (None, Finish::Context) => Reason::Context,
            });
            self.split(&rest, true, &mut pieces);
            self.flush(&mut pieces);
        }
        if self.n_calls > 0 && self.reason == Some(Reason::End) {
            self.reason = Some(Reason::Calls);
        }
        pieces
    }

    fn flush(&mut self, pieces: &mut Vec<Piece>) {
        if let Some(parser) = &mut self.parser {
            let parts = parser.finish();
            self.calls(parts, pieces);
        }
        // Tokens whose text was a stop string, a tag or a call.
        let rest = std::mem::take(&mut self.pending);
        if !rest.is_empty() && !matches!(self.reason, Some(Reason::StopText(_))) && self.n_calls == 0 {
            pieces.push(Piece::Text(String::new(), rest));
        }
    }

    /// Takes reasoning apart from content.
    fn split(&mut self, text: &str, is_end: bool, pieces: &mut Vec<Piece>) {
        self.held += text;
        loop {
            match self.thought {
                Thought::Start => {
                    let begin = self.held.trim_start();
                    if begin.starts_with(THINK) {
                        let at = self.held.len() - begin.len() + THINK.len();
                        self.held.drain(..at);
                        self.pending.clear();
                        self.thought = Thought::Within;
                    } else if !is_end && THINK.starts_with(begin) {
                        return;
                    } else {
                        self.thought = Thought::Content;
                    }
                }
                Thought::Within => {
                    if !self.has_thought {
                        let lead = self.held.len() - self.held.trim_start_matches('\n').len();
                        self.held.drain(..lead);
                    }
                    if let Some(at) = self.held.find(THINK_END) {
                        let thought: String = self.held.drain(..at).collect();
                        self.held.drain(..THINK_END.len());
                        self.reasoning(thought.trim_end_matches('\n'), pieces);
                        self.thought = Thought::Over;
                        continue;
                    }
                    let undecided = if is_end { 0 } else { tag_start(&self.held) };
                    let certain = self.held.len() - undecided;
                    let certain: String = self.held.drain(..certain).collect();
                    self.reasoning(&certain, pieces);
                    return;
                }
                Thought::Over => {
                    self.pending.clear();
                    let lead = self.held.len() - self.held.trim_start().len();
                    self.held.drain(..lead);
                    if self.held.is_empty() {
                        return;
                    }
                    self.thought = Thought::Content;
                }
                Thought::Content => {
                    let text = std::mem::take(&mut self.held);
                    self.content(text, pieces);
                    return;
                }
            }
        }
    }

    fn reasoning(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        // Scores are given for content only.
        self.pending.clear();
        if !text.is_empty() {
            self.has_thought = true;
            pieces.push(Piece::Reasoning(text.to_owned()));
        }
    }

    fn content(&mut self, text: String, pieces: &mut Vec<Piece>) {
        if text.is_empty() {
            return;
        }
        if let Some(parser) = &mut self.parser {
            let parts = parser.push(&text);
            self.calls(parts, pieces);
        } else {
            let scores = std::mem::take(&mut self.pending);
            pieces.push(Piece::Text(text, scores));
        }
    }

    fn calls(&mut self, parts: Vec<Part>, pieces: &mut Vec<Piece>) {
        for part in parts {
            pieces.push(match part {
                Part::Text(text) => Piece::Text(text, std::mem::take(&mut self.pending)),
                Part::Call(name) => {
                    self.n_calls += 1;
                    self.pending.clear();
                    Piece::Call(self.n_calls - 1, name)
                }
                Part::Arguments(text) => Piece::Arguments(self.n_calls.saturating_sub(1), text),
            });
        }
    }
}

/// How many bytes at the end may be the start of the closing tag, or line ends before it.
fn tag_start(text: &str) -> usize {
    let may_begin = |n: &usize| text.ends_with(&THINK_END[..*n]);
    let tag = (1..THINK_END.len()).rev().find(may_begin).unwrap_or(0);
    let before = &text[..text.len() - tag];
    tag + before.len() - before.trim_end_matches('\n').len()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fusebox::weights::Checkpoint;
    use serde_json::json;

    use super::*;

    fn tokenizer() -> Tokenizer {
        let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/story.gguf"));
        Tokenizer::open(&Checkpoint::open(model).unwrap()).unwrap()
    }

    /// The pieces of a text, and why it ended.
    fn read(text: &str, reading: Reading) -> (Vec<Piece>, Option<Reason>) {
        let tokenizer = tokenizer();
        let mut reader = Reader::new(&tokenizer, reading, None);
        let mut pieces = Vec::new();
        for id in tokenizer.encode(text, false).unwrap() {
            pieces.extend(reader.push(Scored { id, ..Scored::default() }, false));
        }
        pieces.extend(reader.finish(Finish::End));
        (pieces, reader.reason)
    }

    fn texts(pieces: &[Piece]) -> (String, String) {
        let (mut text, mut thought) = (String::new(), String::new());
        for piece in pieces {
            match piece {
                Piece::Text(more, _) => text += more,
                Piece::Reasoning(more) => thought += more,
                Piece::Call(..) | Piece::Arguments(..) => {}
            }
        }
        (text, thought)
    }

    #[test]
    fn reasoning_is_kept_apart_wherever_it_began() {
        let thinks = |within| Reading { thinks: Some(within), ..Reading::default() };
        let (pieces, _) = read("<think>\nHm, a < b.\n</think>\n\nYes.", thinks(false));
        assert_eq!(texts(&pieces), ("Yes.".to_owned(), "Hm, a < b.".to_owned()));
        let (pieces, _) = read("\nHm.\n</think>\n\nYes </b>", thinks(true));
        assert_eq!(texts(&pieces), ("Yes </b>".to_owned(), "Hm.".to_owned()));
        let (pieces, _) = read("No thought, <thin", thinks(false));
        assert_eq!(texts(&pieces), ("No thought, <thin".to_owned(), String::new()));
        let (pieces, _) = read("It never ends", thinks(true));
        assert_eq!(texts(&pieces), (String::new(), "It never ends".to_owned()));
    }

    #[test]
    fn a_stop_string_ends_the_answer_and_is_no_part_of_it_unless_wanted() {
        let stops = vec!["big, red".to_owned()];
        let (pieces, reason) =
            read("A big, red house", Reading { stops: stops.clone(), ..Reading::default() });
        assert_eq!((texts(&pieces).0.trim_end(), reason), ("A", Some(Reason::StopText(stops[0].clone()))));
        let reading = Reading { stops, includes_stop: true, ..Reading::default() };
        assert_eq!(texts(&read("A big, red house", reading).0).0, "A big, red");
    }

    #[test]
    fn characters_stay_whole_and_every_scored_token_comes_out() {
        let text = "é 🚀 日本";
        let (pieces, _) = read(text, Reading { is_scored: true, ..Reading::default() });
        assert_eq!(texts(&pieces).0, text);
        let n_scored: usize =
            pieces.iter().map(|piece| if let Piece::Text(_, all) = piece { all.len() } else { 0 }).sum();
        assert_eq!(n_scored, tokenizer().encode(text, false).unwrap().len());
        assert!(
            pieces.iter().all(|piece| !matches!(piece, Piece::Text(text, _) if text.contains('\u{fffd}')))
        );
    }

    #[test]
    fn calls_are_the_reason_of_the_end() {
        let tool = Tool { name: "f".to_owned(), description: None, parameters: json!({}) };
        let reading = Reading { tools: Some((Format::Hermes, vec![tool])), ..Reading::default() };
        let (pieces, reason) =
            read(r#"<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>"#, reading);
        assert_eq!(reason, Some(Reason::Calls));
        assert_eq!(pieces.first(), Some(&Piece::Call(0, "f".to_owned())));
    }
}
