//! The sampling flags, and what they are where none is given.
//!
//! In: flags, and what the files of the model recommend. Out: settings of a sampler.
//! A completion is greedy unless a flag asks for a draw. A chat takes the model's own recommendation, else temperature
//! 0.7 and top-p 0.95. Flags have the names of llama.cpp, and `/set` in a chat takes the same names.

use clap::Args;
use fusebox::sample::penalties::{Breakers, breakers};
use fusebox::sample::recommended::Recommended;
use fusebox::sample::{Sampler, Settings, Step};
use fusebox::sampling::{TEMPERATURE, drawn_seed, of_chat};
use fusebox::tokenizer::Tokenizer;
use fusebox_models::error::Error;

/// What ends an agreement for DRY, as in llama.cpp.
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Sampling settings.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingFlags {
    /// Sampling temperature; 0 is greedy: always the most likely token [default: 0; in a chat the model's own, else
    /// 0.7].
    #[arg(long, alias = "temperature", value_name = "X", value_parser = |text: &str| {
        number(text, |temperature, all| Settings { temperature, ..all })
    })]
    temp: Option<f32>,
    /// Top-k sampling: keep only the N most likely tokens; 0 keeps all.
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Top-p (nucleus) sampling: keep the smallest set of most likely tokens whose probabilities sum to P [default: 1;
    /// in a chat the model's own, else 0.95].
    #[arg(long, value_name = "P", value_parser = |text: &str| number(text, |top_p, all| Settings { top_p, ..all }))]
    top_p: Option<f32>,
    /// Min-p sampling: drop tokens less likely than P times the most likely one.
    #[arg(long, value_name = "P", value_parser = |text: &str| number(text, |min_p, all| Settings { min_p, ..all }))]
    min_p: Option<f32>,
    /// Locally typical sampling: keep tokens about as surprising as expected, up to probability P; 1 is off.
    #[arg(long, alias = "typical", value_name = "P", value_parser = |text: &str| {
        number(text, |typical_p, all| Settings { typical_p, ..all })
    })]
    typical_p: Option<f32>,
    /// Top-n-sigma: keep tokens whose logits are at most N standard deviations below the largest; 0 is off.
    #[arg(long, alias = "top-nsigma", value_name = "N", value_parser = |text: &str| {
        number(text, |top_n_sigma, all| Settings { top_n_sigma, ..all })
    })]
    top_n_sigma: Option<f32>,
    /// XTC: the probability that likely tokens are dropped, all but the least likely of them; 0 is off.
    #[arg(long, value_name = "P", value_parser = |text: &str| {
        number(text, |xtc_probability, all| Settings { xtc_probability, ..all })
    })]
    xtc_probability: Option<f32>,
    /// XTC: how likely a token is that counts as likely [default: 0.1].
    #[arg(long, value_name = "P", value_parser = |text: &str| {
        number(text, |xtc_threshold, all| Settings { xtc_threshold, ..all })
    })]
    xtc_threshold: Option<f32>,
    /// Repeat penalty: divides the logits of recent tokens (multiplies negative ones); 1 is off.
    #[arg(long, value_name = "X", value_parser = |text: &str| {
        number(text, |repeat_penalty, all| Settings { repeat_penalty, ..all })
    })]
    repeat_penalty: Option<f32>,
    /// How many of the last tokens count as recent; -1 is all [default: 64].
    #[arg(long, value_name = "N", value_parser = last)]
    repeat_last_n: Option<usize>,
    /// Frequency penalty: subtracted from the logit of a recent token for each of its uses; 0 is off.
    #[arg(long, value_name = "X", value_parser = |text: &str| {
        number(text, |frequency_penalty, all| Settings { frequency_penalty, ..all })
    })]
    frequency_penalty: Option<f32>,
    /// Presence penalty: subtracted from the logit of every recent token; 0 is off.
    #[arg(long, value_name = "X", value_parser = |text: &str| {
        number(text, |presence_penalty, all| Settings { presence_penalty, ..all })
    })]
    presence_penalty: Option<f32>,
    /// DRY: penalty of a token that would lengthen a repeated passage; 0 is off.
    #[arg(long, value_name = "X", value_parser = |text: &str| {
        number(text, |multiplier, mut all| {
            all.dry.multiplier = multiplier;
            all
        })
    })]
    dry_multiplier: Option<f32>,
    /// DRY: what the penalty is multiplied with for each further token [default: 1.75].
    #[arg(long, value_name = "X", value_parser = |text: &str| {
        number(text, |base, mut all| {
            all.dry.base = base;
            all
        })
    })]
    dry_base: Option<f32>,
    /// DRY: the longest repetition without a penalty [default: 2].
    #[arg(long, value_name = "N")]
    dry_allowed_length: Option<usize>,
    /// DRY: how many of the last tokens count; -1 is all [default: -1].
    #[arg(long, value_name = "N", value_parser = last)]
    dry_penalty_last_n: Option<usize>,
    /// DRY: a text that ends a repetition; may be repeated; none switches all off [default: new line, colon, double
    /// quote, asterisk].
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    dry_sequence_breaker: Vec<String>,
    #[arg(
        long,
        value_name = "STEPS",
        value_parser = steps,
        help = "The steps of sampling in their order, with semicolons between [default: \
                penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]"
    )]
    samplers: Option<Steps>,
    /// Seed of the random number generator; -1 draws one [default: -1].
    #[arg(short, long, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    seed: Option<Seed>,
}

/// The steps of sampling.
#[derive(Clone, Debug)]
pub(crate) struct Steps(Vec<Step>);

/// A seed, or that one is to be drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seed {
    Fixed(u64),
    Drawn,
}

/// Parses a number and checks it as a sampling setting.
fn number(text: &str, set: fn(f32, Settings) -> Settings) -> Result<f32, String> {
    let number = text.parse().unwrap_or(f32::NAN);
    match Sampler::new(set(number, Settings::default()), 0) {
        Ok(_) => Ok(number),
        Err(Error::Setting { expected, .. }) if number == f32::INFINITY => {
            Err(format!("expected {expected}, no larger than {:e}", f32::MAX))
        }
        Err(Error::Setting { expected, .. }) => Err(format!("expected {expected}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a number of tokens, where -1 is all.
fn last(text: &str) -> Result<usize, String> {
    if text == "-1" {
        return Ok(usize::MAX);
    }
    text.parse().map_err(|_| "expected a whole number of at least 0, or -1 for all".to_owned())
}

fn seed(text: &str) -> Result<Seed, String> {
    if text == "-1" {
        return Ok(Seed::Drawn);
    }
    let number = text.parse().map(Seed::Fixed);
    number.map_err(|_| "expected a whole number of at least 0, or -1 for a drawn one".to_owned())
}

/// Parses the names of steps: those of llama.cpp, with `;` or `,` between, or its letters in one word.
fn steps(text: &str) -> Result<Steps, String> {
    let named = |name: &str| {
        Step::named(match name.trim() {
            "top-k" => "top_k",
            "top-p" | "nucleus" => "top_p",
            "min-p" => "min_p",
            "typical" | "typical-p" | "typical_p" | "typ-p" | "typ" => "typ_p",
            "top-n-sigma" => "top_n_sigma",
            "temp" => "temperature",
            name => name,
        })
    };
    let by_letter = |letter: char| {
        let at = "edskypmxt".find(letter)?;
        Some(Step::ALL[at])
    };
    let by_name = || text.split([';', ',']).filter(|name| !name.trim().is_empty()).map(named).collect();
    let all: Option<Vec<Step>> =
        Option::or_else(by_name(), || text.chars().map(by_letter).collect::<Option<Vec<Step>>>());
    all.map(Steps).ok_or_else(|| {
        let names: Vec<&str> = Step::ALL.iter().map(|step| step.name()).collect();
        format!("expected steps of {} with semicolons between", names.join(";"))
    })
}

impl SamplingFlags {
    /// Settings of a chat or a completion. `tokenizer` finds the breakers of DRY.
    pub(crate) fn settings(
        &self,
        recommended: &Recommended,
        is_chat: bool,
        tokenizer: Option<&Tokenizer>,
    ) -> Settings {
        let base = if is_chat {
            of_chat(recommended)
        } else if self.asks_for_a_draw() {
            Settings { temperature: TEMPERATURE, ..Settings::default() }
        } else {
            Settings::default()
        };
        let mut settings = Settings {
            temperature: self.temp.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            typical_p: self.typical_p.unwrap_or(base.typical_p),
            top_n_sigma: self.top_n_sigma.unwrap_or(base.top_n_sigma),
            xtc_probability: self.xtc_probability.unwrap_or(base.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(base.xtc_threshold),
            repeat_penalty: self.repeat_penalty.unwrap_or(base.repeat_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            repeat_last: self.repeat_last_n.unwrap_or(base.repeat_last),
            dry: base.dry,
            steps: self.samplers.clone().map_or(base.steps, |steps| steps.0),
            seed: match self.seed {
                Some(Seed::Fixed(seed)) => seed,
                Some(Seed::Drawn) | None => drawn_seed(),
            },
        };
        let dry = &mut settings.dry;
        dry.multiplier = self.dry_multiplier.unwrap_or(dry.multiplier);
        dry.base = self.dry_base.unwrap_or(dry.base);
        dry.allowed_length = self.dry_allowed_length.unwrap_or(dry.allowed_length);
        dry.last = self.dry_penalty_last_n.unwrap_or(dry.last);
        if dry.multiplier != 0.0 {
            dry.breakers = self.breakers(tokenizer);
        }
        settings
    }

    /// Whether a seed was chosen.
    pub(crate) fn has_seed(&self) -> bool {
        matches!(self.seed, Some(Seed::Fixed(_)))
    }

    /// Whether a flag makes sense for a draw only.
    fn asks_for_a_draw(&self) -> bool {
        let numbers = [
            self.top_p,
            self.min_p,
            self.typical_p,
            self.top_n_sigma,
            self.xtc_probability,
            self.xtc_threshold,
        ];
        self.top_k.is_some() || numbers.iter().any(Option::is_some)
    }

    fn breakers(&self, tokenizer: Option<&Tokenizer>) -> Breakers {
        let Some(tokenizer) = tokenizer else { return Breakers::new() };
        let mut texts = self.dry_sequence_breaker.clone();
        if texts.is_empty() {
            texts = BREAKERS.map(str::to_owned).to_vec();
        }
        texts.retain(|text| text != "none");
        let encode = |text: &str| tokenizer.encode(text, false).unwrap_or_default();
        breakers(&texts, tokenizer.n_tokens(), |id| tokenizer.token_bytes(id), encode)
    }
}

/// The settings in a few words.
pub(crate) fn in_words(settings: &Settings) -> String {
    if settings.temperature == 0.0 {
        return "greedy".to_owned();
    }
    let base = Settings::default();
    let mut words = vec![format!("temperature {}", settings.temperature)];
    if settings.top_k != base.top_k {
        words.push(format!("top-k {}", settings.top_k));
    }
    let numbers = [
        ("top-p", settings.top_p, base.top_p),
        ("min-p", settings.min_p, base.min_p),
        ("typical-p", settings.typical_p, base.typical_p),
        ("top-n-sigma", settings.top_n_sigma, base.top_n_sigma),
        ("xtc-probability", settings.xtc_probability, base.xtc_probability),
        ("repeat-penalty", settings.repeat_penalty, base.repeat_penalty),
        ("frequency-penalty", settings.frequency_penalty, base.frequency_penalty),
        ("presence-penalty", settings.presence_penalty, base.presence_penalty),
        ("dry-multiplier", settings.dry.multiplier, base.dry.multiplier),
    ];
    words.extend(
        numbers.iter().filter(|(_, own, off)| own != off).map(|(name, own, _)| format!("{name} {own}")),
    );
    words.push(format!("seed {}", settings.seed));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(flags: &SamplingFlags, recommended: &Recommended, is_chat: bool) -> [f32; 2] {
        let settings = flags.settings(recommended, is_chat, None);
        [settings.temperature, settings.top_p]
    }

    #[test]
    fn a_chat_draws_and_a_completion_takes_the_likeliest() {
        let (none, flags) = (Recommended::default(), SamplingFlags::default());
        assert_eq!(resolved(&flags, &none, true), [0.7, 0.95]);
        assert_eq!(resolved(&flags, &none, false), [0.0, 1.0]);
        let own = Recommended { temperature: Some(0.6), ..none.clone() };
        assert_eq!(resolved(&flags, &own, true), [0.6, 1.0]);
        assert_eq!(resolved(&flags, &own, false), [0.0, 1.0]);
        let narrow = SamplingFlags { top_k: Some(40), ..SamplingFlags::default() };
        assert_eq!(resolved(&narrow, &own, false), [0.7, 1.0]);
        let fixed = SamplingFlags { temp: Some(0.0), ..SamplingFlags::default() };
        assert_eq!(resolved(&fixed, &own, true), [0.0, 1.0]);
    }

    #[test]
    fn steps_are_named_as_in_llama_cpp() {
        let parsed = |text: &str| steps(text).map(|steps| steps.0);
        assert_eq!(parsed("edskypmxt"), Ok(Step::ALL.to_vec()));
        assert_eq!(parsed("temp;top-k"), Ok(vec![Step::Temperature, Step::TopK]));
        assert_eq!(parsed("min_p,typical"), Ok(vec![Step::MinP, Step::Typical]));
        assert!(parsed("mirostat").is_err_and(|sentence| sentence.contains("penalties;dry")));
    }
}
