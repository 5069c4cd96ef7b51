//! Program classes: which program takes which tokens, and when it is compiled.
//!
//! In: the most tokens of a replay, and what compiles the program of a class. Out: a program for each form and number
//! of tokens, compiled when it is first wanted.
//! What is best for a few tokens is wrong for many: a latent cache is expanded for a long prompt, and must not be for
//! two tokens. So a program is made for numbers of tokens that are of one kind, and estimates are made near its usual
//! number. All programs of a session work on the same states.
//! The table of classes is here and nowhere else.

use fusebox_compiler::program::Program;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::sym::{Sym, Symbol};

use crate::error::Error;
use crate::session::names::TOKENS;

/// The most tokens of each class but the last, which goes up to the most tokens of a replay; the first takes one token.
const BOUNDS: [usize; 3] = [1, 16, 128];
/// The same for runs whose every token is scored, which begin with two tokens; the last is the most of any.
const SCORED_BOUNDS: [usize; 2] = [16, 128];
/// The same for batches, which begin with two tokens.
const BATCH_BOUNDS: [usize; 5] = [4, 8, 16, 32, 64];

/// Whose tokens a replay takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A run of tokens of one sequence: a chunk of a prompt, or one token.
    Run,
    /// The same with a row of output for every token: a draft to be verified, a text whose perplexity is measured.
    Scored,
    /// A token of each of several sequences, or a few: a decode step of a batch, with what was guessed.
    Batch,
    /// The last tokens of one sequence once more, for how much attention they pay to each row of the KV cache; nothing
    /// is written.
    Attention,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Run, Self::Scored, Self::Batch, Self::Attention];
}

/// The tokens that one program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Whose they are.
    pub form: Form,
    /// The fewest tokens.
    pub least: usize,
    /// The most tokens.
    pub most: usize,
}

impl Class {
    /// The classes of runs, by the most tokens of each, smallest first.
    pub fn runs(most_tokens: usize) -> Vec<Self> {
        Self::between(Form::Run, 1, &BOUNDS, most_tokens.max(1))
    }

    /// The classes of runs of at most `most_tokens` that are all scored, smallest first; none where that is one token.
    pub fn scored_runs(most_tokens: usize) -> Vec<Self> {
        let [bound, most] = SCORED_BOUNDS;
        Self::between(Form::Scored, 2, &[bound], most_tokens.min(most))
    }

    /// The classes of batches, by the most tokens of each, smallest first; none where a replay takes one sequence.
    pub fn batches(most_tokens: usize) -> Vec<Self> {
        Self::between(Form::Batch, 2, &BATCH_BOUNDS, most_tokens)
    }

    /// The class that asks the last `n_tokens` for their attention; none where that is no token.
    fn attention(n_tokens: usize) -> Option<Self> {
        (n_tokens > 0).then_some(Self { form: Form::Attention, least: n_tokens, most: n_tokens })
    }

    fn between(form: Form, mut least: usize, bounds: &[usize], most: usize) -> Vec<Self> {
        let bounds = bounds.iter().copied().filter(|bound| *bound < most).chain([most]);
        let class = |most| {
            let class = Self { form, least, most };
            least = most + 1;
            class
        };
        bounds.map(class).filter(|class| class.least <= class.most).collect()
    }

    /// Whether a replay of so many tokens is of this class.
    pub fn takes(self, form: Form, n_tokens: usize) -> bool {
        self.form == form && (self.least..=self.most).contains(&n_tokens)
    }

    /// How many tokens a replay of this class takes, for a graph: a number, or a symbol within the bounds of the class.
    /// Estimates are made for half of the most.
    pub fn tokens(self) -> Sym {
        let Self { least, most, .. } = self;
        if least == most {
            return Sym::from(most);
        }
        let name = Label::new(TOKENS).expect("one letter fits");
        Symbol::new(name, least as i64, most as i64, most as i64 / 2).into()
    }
}

/// Compiles the program of a class, or fetches it from where compiled programs are kept.
pub type Compile = Box<dyn FnMut(Class) -> Result<Program, Error> + Send>;

/// The programs of a session, one for each class, compiled when they are first wanted.
pub struct Programs {
    classes: Vec<Class>,
    /// Of each class, the program that nobody has taken yet.
    compiled: Vec<Option<Program>>,
    compile: Compile,
}

impl Programs {
    /// Programs for runs of at most `most_tokens`, for runs of at most `most_scored` that are all scored, and for
    /// batches of at most `most_batched`.
    pub fn new(most_tokens: usize, most_scored: usize, most_batched: usize, compile: Compile) -> Self {
        let runs = [Class::runs(most_tokens), Class::scored_runs(most_scored)].concat();
        let classes = [runs, Class::batches(most_batched)].concat();
        let compiled = classes.iter().map(|_| None).collect();
        Self { classes, compiled, compile }
    }

    /// The same, and a program that says how much attention the last `n_tokens` of a sequence pay to each row, unless
    /// that is none.
    #[must_use]
    pub fn with_attention(mut self, n_tokens: usize) -> Self {
        self.classes.extend(Class::attention(n_tokens));
        self.compiled.resize_with(self.classes.len(), || None);
        self
    }

    /// The classes: those of runs, of which the first takes one token, of scored runs, of batches, and of attention.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The program of a class by its number, which stays here.
    ///
    /// # Errors
    /// Where it does not compile.
    pub fn program(&mut self, class: usize) -> Result<&Program, Error> {
        let program = match self.compiled[class].take() {
            Some(program) => program,
            None => (self.compile)(self.classes[class])?,
        };
        Ok(self.compiled[class].insert(program))
    }

    /// The program of a class by its number, given away.
    pub(super) fn take(&mut self, class: usize) -> Result<Program, Error> {
        match self.compiled[class].take() {
            Some(program) => Ok(program),
            None => (self.compile)(self.classes[class]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::names::refused;

    fn bounds(classes: &[Class]) -> Vec<(usize, usize)> {
        classes.iter().map(|class| (class.least, class.most)).collect()
    }

    #[test]
    fn every_number_of_tokens_is_in_one_class() {
        let runs = |most| bounds(&Class::runs(most));
        assert_eq!(runs(512), [(1, 1), (2, 16), (17, 128), (129, 512)]);
        assert_eq!(runs(2000), [(1, 1), (2, 16), (17, 128), (129, 2000)]);
        assert_eq!(runs(128), [(1, 1), (2, 16), (17, 128)]);
        assert_eq!(runs(8), [(1, 1), (2, 8)]);
        assert_eq!(runs(1), [(1, 1)]);
        assert_eq!(runs(0), [(1, 1)]);
        let scored = |most| bounds(&Class::scored_runs(most));
        assert_eq!(scored(1), []);
        assert_eq!(scored(8), [(2, 8)]);
        assert_eq!(scored(512), [(2, 16), (17, 128)]);
        let batches = |most| bounds(&Class::batches(most));
        assert_eq!(batches(1), []);
        assert_eq!(batches(2), [(2, 2)]);
        assert_eq!(batches(20), [(2, 4), (5, 8), (9, 16), (17, 20)]);
        assert_eq!(batches(256), [(2, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, 256)]);
    }

    #[test]
    fn a_program_is_compiled_once_and_when_it_is_wanted() {
        let mut n_asked = 0;
        let refuse: Compile = Box::new(move |class| {
            n_asked += 1;
            Err(refused("a class", format!("up to {}, question {n_asked}", class.most)))
        });
        let mut programs = Programs::new(20, 0, 1, refuse);
        assert_eq!(programs.classes().len(), 3);
        let found = |error: Error| error.to_string();
        assert!(found(programs.program(2).unwrap_err()).contains("up to 20, question 1"));
        assert!(found(programs.take(1).unwrap_err()).contains("up to 16, question 2"));
    }

    #[test]
    fn estimates_are_made_within_the_class() {
        for class in [Class::runs(512), Class::batches(64)].concat() {
            let tokens = class.tokens();
            assert_eq!((tokens.least(), tokens.most()), (class.least as i64, class.most as i64));
            assert!((tokens.least()..=tokens.most()).contains(&tokens.near()));
        }
    }
}
