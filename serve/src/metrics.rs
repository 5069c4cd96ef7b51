//! Counters, gauges and histograms, and their text for Prometheus.
//!
//! In: what the scheduler reports after each tick. Out: the text of `GET /metrics`, and the numbers of the page.
//! Names follow vLLM's, for which dashboards exist, with a prefix of our own; those of llama.cpp are given beside them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::scheduler::Report;

/// Upper bounds of buckets in seconds.
const SECONDS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];
/// Upper bounds of buckets in tokens.
const TOKENS: [f64; 13] =
    [1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 32768.0, 131_072.0];

/// Values in buckets.
#[derive(Clone, Debug)]
struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
    n: u64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], sum: 0.0, n: 0 }
    }

    fn add(&mut self, value: f64) {
        if let Some(at) = self.bounds.iter().position(|bound| value <= *bound) {
            self.counts[at] += 1;
        }
        self.sum += value;
        self.n += 1;
    }

    fn mean(&self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / self.n as f64)
    }

    fn write(&self, name: &str, help: &str, text: &mut String) {
        head(text, name, help, "histogram");
        let mut all = 0;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            all += count;
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {all}");
        }
        let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {}", self.n);
        let _ = writeln!(text, "{name}_sum {}\n{name}_count {}", self.sum, self.n);
    }
}

fn head(text: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn one(text: &mut String, name: &str, help: &str, kind: &str, value: f64) {
    head(text, name, help, kind);
    let _ = writeln!(text, "{name} {value}");
}

/// What is true now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Gauges {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) pages: usize,
    pub(crate) free_pages: usize,
    pub(crate) idle_pages: usize,
    pub(crate) sequences: usize,
}

#[derive(Debug)]
struct All {
    prompt_tokens: u64,
    cached_tokens: u64,
    queried_tokens: u64,
    generated: u64,
    guessed: u64,
    right: u64,
    preemptions: u64,
    cancelled: u64,
    slow_readers: u64,
    refused: BTreeMap<u16, u64>,
    finished: BTreeMap<&'static str, u64>,
    steps: u64,
    step_sequences: u64,
    replay_seconds: f64,
    prefill_seconds: f64,
    mask_seconds: f64,
    longest: usize,
    first_token: Histogram,
    between: Histogram,
    whole: Histogram,
    queue: Histogram,
    replay: Histogram,
    prompt: Histogram,
    generation: Histogram,
    gauges: Gauges,
}

/// The metrics of one model.
#[derive(Debug)]
pub(crate) struct Metrics(Mutex<All>);

impl Metrics {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(All {
            prompt_tokens: 0,
            cached_tokens: 0,
            queried_tokens: 0,
            generated: 0,
            guessed: 0,
            right: 0,
            preemptions: 0,
            cancelled: 0,
            slow_readers: 0,
            refused: BTreeMap::new(),
            finished: BTreeMap::from([("stop", 0), ("length", 0), ("error", 0)]),
            steps: 0,
            step_sequences: 0,
            replay_seconds: 0.0,
            prefill_seconds: 0.0,
            mask_seconds: 0.0,
            longest: 0,
            first_token: Histogram::new(&SECONDS),
            between: Histogram::new(&SECONDS),
            whole: Histogram::new(&SECONDS),
            queue: Histogram::new(&SECONDS),
            replay: Histogram::new(&SECONDS),
            prompt: Histogram::new(&TOKENS),
            generation: Histogram::new(&TOKENS),
            gauges: Gauges::default(),
        }))
    }

    fn all(&self) -> std::sync::MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what a tick reported, and says what is true now.
    pub(crate) fn add(&self, report: Report, gauges: Gauges) {
        let mut all = self.all();
        all.prompt_tokens += report.prompt_tokens as u64;
        all.cached_tokens += report.cached_tokens as u64;
        all.queried_tokens += report.queried_tokens as u64;
        all.generated += report.generated as u64;
        all.guessed += report.guessed as u64;
        all.right += report.right as u64;
        all.preemptions += report.preemptions as u64;
        all.cancelled += report.cancelled as u64;
        all.slow_readers += report.slow_readers as u64;
        all.steps += report.steps as u64;
        all.step_sequences += report.step_sequences as u64;
        all.replay_seconds += report.replay.as_secs_f64();
        all.prefill_seconds += report.prefill.as_secs_f64();
        all.mask_seconds += report.mask.as_secs_f64();
        if report.steps > 0 {
            all.replay.add(report.replay.as_secs_f64() / report.steps as f64);
        }
        let seconds = |times: &[Duration], histogram: &mut Histogram| {
            for time in times {
                histogram.add(time.as_secs_f64());
            }
        };
        seconds(&report.first_token, &mut all.first_token);
        seconds(&report.between, &mut all.between);
        seconds(&report.queued, &mut all.queue);
        for (name, whole, n_prompt, n_generated) in report.finished {
            *all.finished.entry(name).or_default() += 1;
            all.whole.add(whole.as_secs_f64());
            all.prompt.add(n_prompt as f64);
            all.generation.add(n_generated as f64);
            all.longest = all.longest.max(n_prompt + n_generated);
        }
        all.gauges = gauges;
    }

    /// Counts a request that was refused.
    pub(crate) fn refused(&self, status: u16) {
        *self.all().refused.entry(status).or_default() += 1;
    }

    pub(crate) fn slow_reader(&self) {
        self.all().slow_readers += 1;
    }

    pub(crate) fn gauges(&self) -> Gauges {
        self.all().gauges
    }

    /// How long a request waits in the queue and for its tokens, on average, in seconds.
    pub(crate) fn mean_request(&self) -> f64 {
        self.all().whole.mean().unwrap_or(1.0)
    }

    /// The text for Prometheus.
    pub(crate) fn text(&self) -> String {
        let all = self.all();
        let mut text = String::new();
        all.write_counters(&mut text);
        all.write_gauges(&mut text);
        let histograms = [
            ("time_to_first_token_seconds", "From arrival to the first token.", &all.first_token),
            ("inter_token_latency_seconds", "Between two tokens of a sequence.", &all.between),
            ("e2e_request_latency_seconds", "From arrival to the last token.", &all.whole),
            ("request_queue_time_seconds", "From arrival to the first replay.", &all.queue),
            ("replay_seconds", "One replay.", &all.replay),
            ("request_prompt_tokens", "Tokens of a prompt.", &all.prompt),
            ("request_generation_tokens", "Tokens of an answer.", &all.generation),
        ];
        for (name, help, histogram) in histograms {
            histogram.write(&format!("fusebox_{name}"), help, &mut text);
        }
        all.write_llama_cpp(&mut text);
        text
    }
}

impl All {
    fn write_counters(&self, text: &mut String) {
        let counters = [
            ("prompt_tokens_total", "Prompt tokens computed.", self.prompt_tokens as f64),
            ("generation_tokens_total", "Tokens generated.", self.generated as f64),
            (
                "prefix_cache_queries_total",
                "Prompt tokens looked up in the prefix cache.",
                self.queried_tokens as f64,
            ),
            (
                "prefix_cache_hits_total",
                "Prompt tokens found in the prefix cache.",
                self.cached_tokens as f64,
            ),
            ("spec_decode_num_draft_tokens_total", "Tokens guessed.", self.guessed as f64),
            ("spec_decode_num_accepted_tokens_total", "Guessed tokens that came.", self.right as f64),
            ("preemptions_total", "Sequences preempted.", self.preemptions as f64),
            ("requests_cancelled_total", "Sequences cancelled.", self.cancelled as f64),
            (
                "slow_readers_dropped_total",
                "Sequences dropped because nobody read them.",
                self.slow_readers as f64,
            ),
            ("replays_total", "Replays.", self.steps as f64),
            ("mask_wait_seconds_total", "Seconds spent on the masks of grammars.", self.mask_seconds),
        ];
        for (name, help, value) in counters {
            one(text, &format!("fusebox_{name}"), help, "counter", value);
        }
        head(text, "fusebox_request_success_total", "Sequences that ended, by reason.", "counter");
        for (reason, n) in &self.finished {
            let _ = writeln!(text, "fusebox_request_success_total{{finished_reason=\"{reason}\"}} {n}");
        }
        head(text, "fusebox_requests_refused_total", "Requests refused, by status.", "counter");
        for (status, n) in &self.refused {
            let _ = writeln!(text, "fusebox_requests_refused_total{{status=\"{status}\"}} {n}");
        }
    }

    fn write_gauges(&self, text: &mut String) {
        let Gauges { running, waiting, pages, free_pages, idle_pages, .. } = self.gauges;
        let share = |part: u64, all: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 };
        let used = if pages == 0 { 0.0 } else { (pages - free_pages.min(pages)) as f64 / pages as f64 };
        one(text, "fusebox_requests_running", "Sequences in the batch.", "gauge", running as f64);
        one(text, "fusebox_requests_waiting", "Sequences in the queue.", "gauge", waiting as f64);
        one(text, "fusebox_kv_cache_usage_ratio", "Share of the pages in use.", "gauge", used);
        one(
            text,
            "fusebox_prefix_cache_usage_ratio",
            "Share of the pages that hold prompts of earlier requests and are free for others.",
            "gauge",
            share(idle_pages as u64, pages as u64),
        );
        one(
            text,
            "fusebox_prefix_cache_hit_ratio",
            "Share of prompt tokens found in the prefix cache.",
            "gauge",
            share(self.cached_tokens, self.queried_tokens),
        );
    }

    fn write_llama_cpp(&self, text: &mut String) {
        let rate = |n: u64, seconds: f64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let decode = (self.replay_seconds - self.prefill_seconds).max(0.0);
        let busy = if self.steps == 0 { 0.0 } else { self.step_sequences as f64 / self.steps as f64 };
        let values = [
            ("prompt_tokens_total", "counter", self.prompt_tokens as f64),
            ("prompt_seconds_total", "counter", self.prefill_seconds),
            ("tokens_predicted_total", "counter", self.generated as f64),
            ("tokens_predicted_seconds_total", "counter", decode),
            ("n_decode_total", "counter", self.steps as f64),
            ("n_tokens_max", "counter", self.longest as f64),
            ("n_busy_slots_per_decode", "counter", busy),
            ("prompt_tokens_seconds", "gauge", rate(self.prompt_tokens, self.prefill_seconds)),
            ("predicted_tokens_seconds", "gauge", rate(self.generated, decode)),
            ("requests_processing", "gauge", self.gauges.running as f64),
            ("requests_deferred", "gauge", self.gauges.waiting as f64),
        ];
        for (name, kind, value) in values {
            one(text, &format!("llamacpp:{name}"), "As llama-server names it.", kind, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_has_its_help_and_type_and_is_a_number() {
        let metrics = Metrics::new();
        let report = Report { first_token: vec![Duration::from_millis(3)], steps: 1, ..Report::default() };
        metrics.add(report, Gauges::default());
        metrics.refused(429);
        let text = metrics.text();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().unwrap().is_finite(), "{line}");
            let family = name.split('{').next().unwrap();
            let bare = ["_bucket", "_sum", "_count"].iter().find_map(|end| family.strip_suffix(end));
            let has = |name: &str| text.contains(&format!("# TYPE {name} "));
            assert!(has(family) || bare.is_some_and(has), "{line}");
        }
        assert!(text.contains("fusebox_time_to_first_token_seconds_bucket{le=\"0.005\"} 1"));
        assert!(text.contains("fusebox_requests_refused_total{status=\"429\"} 1"));
    }
}
