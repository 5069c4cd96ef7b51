//! A deterministic engine, and what the scheduler does with it.
//!
//! The next token of a sequence follows from all its tokens, so that any token computed in a wrong place shows.

use std::collections::HashMap;

use fusebox::sample::Settings;
use fusebox::tokenizer::Pair;

use super::*;
use crate::engine::{Capacity, Known};
use crate::sampling::Sampling;

const VOCAB: usize = 64;

/// Sequences as lists of tokens; pages are counted, and may be short. What closed sequences held is known while there
/// are pages for it, of open ones whole pages are.
struct Lists {
    page: usize,
    pages: usize,
    sequences: usize,
    shares: bool,
    next: usize,
    open: HashMap<SequenceId, Vec<u32>>,
    kins: HashMap<SequenceId, Kin>,
    closed: Vec<(Kin, Vec<u32>)>,
    rows: Vec<Vec<f32>>,
    /// Steps with their pieces: sequence and number of tokens.
    steps: Vec<Vec<(usize, usize)>>,
    /// A token that no step takes.
    poison: Option<u32>,
    /// The likeliest token after others.
    follows: fn(&[u32]) -> u32,
    /// How long a step takes.
    step: Duration,
}

/// The likeliest token after these.
fn follows(tokens: &[u32]) -> u32 {
    let hash = tokens.iter().fold(7u64, |hash, token| {
        (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    });
    2 + (hash >> 40) as u32 % (VOCAB as u32 - 2)
}

/// The same where text repeats itself three times of four, so that guesses are right often and not always.
fn repeats(tokens: &[u32]) -> u32 {
    let token = follows(tokens);
    if token.is_multiple_of(4) { token } else { 2 + tokens.last().unwrap() % 5 }
}

fn row(follows: fn(&[u32]) -> u32, tokens: &[u32]) -> Vec<f32> {
    let mut row = vec![0.0; VOCAB];
    row[follows(tokens) as usize] = 10.0;
    row
}

impl Lists {
    fn new(pages: usize, sequences: usize) -> Self {
        Self {
            page: 4,
            pages,
            sequences,
            shares: true,
            next: 0,
            open: HashMap::new(),
            kins: HashMap::new(),
            closed: Vec::new(),
            rows: Vec::new(),
            steps: Vec::new(),
            poison: None,
            follows,
            step: Duration::ZERO,
        }
    }

    /// One whose text repeats itself, and whose steps take a time that does not depend on their tokens.
    fn repeating(pages: usize, sequences: usize) -> Self {
        Self { follows: repeats, step: Duration::from_millis(1), ..Self::new(pages, sequences) }
    }

    fn used(&self) -> usize {
        self.open.values().map(|tokens| tokens.len().div_ceil(self.page)).sum()
    }

    /// Forgets closed sequences, the oldest first, where there are no pages for them.
    fn trim(&mut self) {
        let n_pages = |(_, tokens): &(Kin, Vec<u32>)| tokens.len().div_ceil(self.page);
        let n_over =
            (self.used() + self.closed.iter().map(n_pages).sum::<usize>()).saturating_sub(self.pages);
        let mut n_gone = 0;
        let n_closed = self.closed.iter().take_while(|own| {
            let is_wanted = n_gone < n_over;
            n_gone += n_pages(own);
            is_wanted
        });
        let n_closed = n_closed.count();
        self.closed.drain(..n_closed);
    }

    fn n_computed(&self) -> usize {
        self.steps.iter().flatten().map(|(_, n)| n).sum()
    }
}

impl Engine for Lists {
    fn capacity(&self) -> Capacity {
        let Self { page, pages, sequences, shares, .. } = *self;
        let free = pages - self.used();
        let context = 200;
        Capacity { page, pages, free, idle: 0, sequences, context, vocab: VOCAB, shares, longest: context }
    }

    fn known(&self, tokens: &[u32], kin: &Kin) -> Known {
        let common = |own: &[u32]| own.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let closed = self.closed.iter().filter(|(own, _)| own == kin).map(|(_, own)| common(own));
        let open = self.open.iter().filter(|(id, _)| self.kins[id] == *kin);
        let n = closed.chain(open.map(|(_, own)| common(own) / self.page * self.page)).max();
        Known { tokens: n.filter(|_| self.shares).unwrap_or(0), idle: 0 }
    }

    fn open(&mut self, tokens: &[u32], kin: &Kin) -> Result<(SequenceId, usize), Refused> {
        if self.open.len() == self.sequences {
            return Err(Refused::Full { needed: 1, free: 0 });
        }
        self.next += 1;
        let n = self.known(tokens, kin).tokens;
        self.open.insert(SequenceId(self.next), tokens[..n].to_vec());
        self.kins.insert(SequenceId(self.next), kin.clone());
        self.trim();
        Ok((SequenceId(self.next), n))
    }

    fn fork(&mut self, of: SequenceId, at: usize) -> Result<SequenceId, Refused> {
        let tokens = self.open[&of][..at].to_vec();
        if self.used() + tokens.len().div_ceil(self.page) > self.pages {
            return Err(Refused::Full { needed: 1, free: 0 });
        }
        let (forked, _) = self.open(&[], &self.kins[&of].clone())?;
        self.open.insert(forked, tokens);
        Ok(forked)
    }

    fn takes(&self, _: SequenceId, n: usize) -> usize {
        n
    }

    fn step(&mut self, batch: &[Piece]) -> Result<(), Refused> {
        assert!(!batch.is_empty());
        let grown = |piece: &Piece| {
            let n = self.open[&piece.sequence].len();
            (n + piece.tokens.len()).div_ceil(self.page) - n.div_ceil(self.page)
        };
        let (needed, free) = (batch.iter().map(grown).sum(), self.pages - self.used());
        if needed > free {
            return Err(Refused::Full { needed, free });
        }
        if batch.iter().any(|piece| piece.tokens.iter().any(|token| Some(*token) == self.poison)) {
            return Err(Refused::Fault("a poisoned token".to_owned()));
        }
        self.rows.clear();
        std::thread::sleep(self.step);
        self.steps.push(batch.iter().map(|piece| (piece.sequence.0, piece.tokens.len())).collect());
        for piece in batch {
            let tokens = self.open.get_mut(&piece.sequence).unwrap();
            let mut rows = Vec::new();
            for token in &piece.tokens {
                tokens.push(*token);
                if piece.scored == Rows::All {
                    rows.extend(row(self.follows, tokens));
                }
            }
            if piece.scored == Rows::Last {
                rows = row(self.follows, tokens);
            }
            self.rows.push(rows);
        }
        self.trim();
        Ok(())
    }

    fn rows(&self, piece: usize) -> &[f32] {
        &self.rows[piece]
    }

    fn truncate(&mut self, sequence: SequenceId, n: usize) {
        self.open.get_mut(&sequence).unwrap().truncate(n);
    }

    fn release(&mut self, sequence: SequenceId, is_known: bool) {
        let tokens = self.open.remove(&sequence).unwrap();
        if is_known {
            self.closed.push((self.kins[&sequence].clone(), tokens));
        }
    }

    fn save(&mut self) {}

    fn embed(&mut self, _: &Pair) -> Result<Vec<f32>, Refused> {
        Ok(Vec::new())
    }
}

type Inbox = mpsc::Receiver<(usize, Event)>;

fn job(prompt: &[u32], max_tokens: usize) -> (Job, Inbox) {
    let (events, inbox) = mpsc::channel(ROOM + 400);
    let chain = Settings { temperature: 0.0, ..Settings::default() };
    let drawer = Drawer::new(Sampling { chain, ..Sampling::default() }, VOCAB).unwrap();
    let job = Job {
        prompt: prompt.to_vec(),
        max_tokens,
        drawer,
        prompt_scores: None,
        ends: vec![0],
        stops: Vec::new(),
        min_tokens: 0,
        constraint: None,
        priority: 0,
        deadline: None,
        salt: None,
        scales: Arc::default(),
        is_cached: true,
        guesses: 0,
        events,
        choice: 0,
        cancelled: Arc::new(AtomicBool::new(false)),
        arrived: Instant::now(),
        place: None,
    };
    (job, inbox)
}

fn scheduler(batch_tokens: usize) -> Scheduler {
    Scheduler::new(Limits { batch_tokens })
}

/// What a prompt should be continued with.
fn expected(prompt: &[u32], n: usize) -> Vec<u32> {
    continued(follows, prompt, n)
}

fn continued(follows: fn(&[u32]) -> u32, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        tokens.push(follows(&tokens));
    }
    tokens.split_off(prompt.len())
}

fn run(scheduler: &mut Scheduler, engine: &mut Lists) {
    for _ in 0..10_000 {
        if scheduler.tick(engine, Instant::now()) == Tick::Idle {
            return;
        }
    }
    panic!("it does not end: {:?}", engine.steps.last());
}

fn heard(inbox: &mut Inbox) -> (Vec<u32>, Option<Event>) {
    let (mut tokens, mut last) = (Vec::new(), None);
    while let Ok((_, event)) = inbox.try_recv() {
        if let Event::Token(scored) = &event {
            tokens.push(scored.id);
        }
        last = Some(event);
    }
    (tokens, last)
}

fn prompt(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|at| 2 + (seed * 31 + at * 7) % (VOCAB as u32 - 2)).collect()
}

#[test]
fn a_crowd_gets_what_each_gets_alone() {
    let (mut scheduler, mut engine) = (scheduler(16), Lists::new(1000, 64));
    let mut inboxes = Vec::new();
    for seed in 0..40 {
        let prompt = prompt(seed, 1 + seed % 23);
        let (job, inbox) = job(&prompt, 20 + seed as usize % 9);
        scheduler.submit(job);
        inboxes.push((prompt, 20 + seed as usize % 9, inbox));
        scheduler.tick(&mut engine, Instant::now());
    }
    run(&mut scheduler, &mut engine);
    for (prompt, n, mut inbox) in inboxes {
        let (tokens, last) = heard(&mut inbox);
        assert_eq!((tokens, last), (expected(&prompt, n), Some(Event::Done(Finish::Length))));
    }
    assert!(engine.steps.iter().all(|step| step.iter().map(|(_, n)| n).sum::<usize>() <= 16));
    assert!(engine.steps.iter().any(|step| step.len() > 8), "decodes share a step");
}

#[test]
fn choices_of_a_request_compute_its_prompt_once_however_short_it_is() {
    for n_prompt in [1, 2, 9, 30] {
        let (mut scheduler, mut engine) = (scheduler(64), Lists::new(1000, 8));
        let prompt = prompt(3, n_prompt);
        let (first, mut inbox) = job(&prompt, 5);
        for choice in 1..4 {
            let (other, _) = job(&prompt, 5);
            scheduler.submit(Job { events: first.events.clone(), choice, ..other });
        }
        scheduler.submit(first);
        run(&mut scheduler, &mut engine);
        let (tokens, _) = heard(&mut inbox);
        assert_eq!(tokens.len(), 20);
        // The prompt, then of the others its last token; the last token of an answer is fed to nobody.
        assert_eq!(engine.n_computed(), n_prompt as usize + 3 + 4 * 4, "{n_prompt}: {:?}", engine.steps);
    }
    // Those of another request with the same short prompt compute their own.
    let (mut scheduler, mut engine) = (scheduler(64), Lists::new(1000, 8));
    let (one, _first) = job(&prompt(3, 9), 5);
    let (other, _second) = job(&prompt(3, 9), 5);
    scheduler.submit(one);
    scheduler.submit(other);
    run(&mut scheduler, &mut engine);
    assert_eq!(engine.n_computed(), 2 * (9 + 4));
}

#[test]
fn decodes_go_on_beside_a_long_prompt_and_short_prompts_pass_it() {
    let (mut scheduler, mut engine) = (scheduler(8), Lists::new(1000, 8));
    let (first, mut inbox) = job(&prompt(1, 3), 100);
    scheduler.submit(first);
    scheduler.tick(&mut engine, Instant::now());
    let (long, mut long_inbox) = job(&prompt(2, 90), 1);
    scheduler.submit(long);
    scheduler.tick(&mut engine, Instant::now());
    let (short, mut short_inbox) = job(&prompt(3, 5), 1);
    scheduler.submit(short);
    heard(&mut inbox);
    scheduler.tick(&mut engine, Instant::now());
    assert_eq!(heard(&mut inbox).0.len(), 1, "a decode does not wait for a prompt");
    assert_eq!(heard(&mut short_inbox).0.len(), 1, "a short prompt passes a long one");
    assert_eq!(heard(&mut long_inbox).0.len(), 0);
    run(&mut scheduler, &mut engine);
    assert_eq!(heard(&mut long_inbox).0, expected(&prompt(2, 90), 1));
}

#[test]
fn a_full_pool_preempts_the_youngest_and_nobody_is_lost() {
    let (mut scheduler, mut engine) = (scheduler(32), Lists::new(12, 8));
    let mut inboxes = Vec::new();
    for seed in 0..5 {
        let prompt = prompt(seed, 8);
        let (job, inbox) = job(&prompt, 20);
        scheduler.submit(job);
        inboxes.push((prompt, inbox));
    }
    run(&mut scheduler, &mut engine);
    assert!(scheduler.report.preemptions > 0);
    for (prompt, mut inbox) in inboxes {
        assert_eq!(heard(&mut inbox).0, expected(&prompt, 20));
    }
}

#[test]
fn a_sequence_that_the_whole_pool_cannot_hold_ends_alone() {
    let (mut scheduler, mut engine) = (scheduler(32), Lists::new(4, 8));
    let (big, mut inbox) = job(&prompt(1, 10), 50);
    scheduler.submit(big);
    run(&mut scheduler, &mut engine);
    let (tokens, last) = heard(&mut inbox);
    assert_eq!((tokens.len(), last), (7, Some(Event::Done(Finish::Context))));
    let (after, mut inbox) = job(&prompt(2, 4), 2);
    scheduler.submit(after);
    run(&mut scheduler, &mut engine);
    assert_eq!(heard(&mut inbox).0, expected(&prompt(2, 4), 2));
}

#[test]
fn a_shared_beginning_is_computed_once_even_for_those_who_come_together() {
    let (mut scheduler, mut engine) = (scheduler(16), Lists::new(1000, 64));
    let system = prompt(9, 60);
    let mut inboxes = Vec::new();
    for seed in 0..8 {
        let prompt = [system.clone(), prompt(seed, 5)].concat();
        let (job, inbox) = job(&prompt, 3);
        scheduler.submit(job);
        inboxes.push((prompt, inbox));
    }
    run(&mut scheduler, &mut engine);
    for (prompt, mut inbox) in inboxes {
        assert_eq!(heard(&mut inbox).0, expected(&prompt, 3));
    }
    let once = 60 + 8 * (5 + 2);
    assert!(engine.n_computed() <= once + 16, "{} tokens, {once} are needed", engine.n_computed());
    assert!(scheduler.report.cached_tokens >= 7 * 59, "{}", scheduler.report.cached_tokens);
}

#[test]
fn what_was_asked_is_known_to_more_requests_than_there_are_places() {
    let (mut scheduler, mut engine) = (scheduler(64), Lists::new(1000, 2));
    let mut ask = |prompt: &[u32], salt: Option<&str>, is_cached| {
        let (mut job, mut inbox) = job(prompt, 3);
        (job.salt, job.is_cached) = (salt.map(str::to_owned), is_cached);
        let before = engine.n_computed();
        scheduler.submit(job);
        run(&mut scheduler, &mut engine);
        assert_eq!(heard(&mut inbox).0, expected(prompt, 3));
        engine.n_computed() - before
    };
    let prompts: Vec<Vec<u32>> = (0..6).map(|seed| [&[seed + 2][..], &prompt(seed, 39)].concat()).collect();
    for prompt in &prompts {
        assert_eq!(ask(prompt, None, true), 40 + 2);
    }
    for prompt in prompts.iter().rev() {
        // Its answer is known up to the token before the last, which was never computed.
        let next = [prompt.clone(), expected(prompt, 3), vec![5, 6]].concat();
        assert_eq!(ask(&next, None, true), 3 + 2, "a conversation goes on from its last token");
    }
    let n_whole = 40 + 2;
    assert_eq!(ask(&prompts[0], Some("a"), true), n_whole, "a salt finds nothing of others");
    assert_eq!(ask(&[&prompts[0][..], &[3]].concat(), Some("a"), true), 1 + 2, "but its own");
    assert_eq!(ask(&prompts[1], None, false), n_whole, "who wants no cache computes");
}

#[test]
fn slots_that_share_nothing_are_taken_over_by_what_continues_them() {
    let (mut scheduler, mut engine) = (scheduler(64), Lists { shares: false, ..Lists::new(100, 2) });
    let first = prompt(1, 40);
    let (one, mut inbox) = job(&first, 4);
    scheduler.submit(one);
    run(&mut scheduler, &mut engine);
    let second = [first.clone(), heard(&mut inbox).0, prompt(3, 4)].concat();
    let before = engine.n_computed();
    let (two, mut inbox) = job(&second, 2);
    scheduler.submit(two);
    run(&mut scheduler, &mut engine);
    assert_eq!(heard(&mut inbox).0, expected(&second, 2));
    assert_eq!(engine.n_computed() - before, 1 + 4 + 1);
    // Another salt begins anew.
    let before = engine.n_computed();
    let (mut three, mut inbox) = job(&second, 1);
    three.salt = Some("other".to_owned());
    scheduler.submit(three);
    run(&mut scheduler, &mut engine);
    assert_eq!(heard(&mut inbox).0, expected(&second, 1));
    assert_eq!(engine.n_computed() - before, second.len());
}

#[test]
fn the_same_prompt_again_needs_no_replay_before_its_first_token() {
    for shares in [true, false] {
        let (mut scheduler, mut engine) = (scheduler(64), Lists { shares, ..Lists::new(100, 4) });
        let prompt = prompt(6, 20);
        for n in [5, 1, 7] {
            let before = engine.n_computed();
            let (again, mut inbox) = job(&prompt, n);
            scheduler.submit(again);
            run(&mut scheduler, &mut engine);
            assert_eq!(heard(&mut inbox).0, expected(&prompt, n));
            let n_prompt = if before == 0 { prompt.len() } else { 0 };
            assert_eq!(engine.n_computed() - before, n_prompt + n - 1);
        }
    }
}

#[test]
fn who_leaves_is_gone_before_the_next_step_and_others_stay() {
    let (mut scheduler, mut engine) = (scheduler(32), Lists::new(1000, 2));
    let (first, inbox) = job(&prompt(1, 3), 100);
    let (second, mut second_inbox) = job(&prompt(2, 3), 30);
    let (queued, queued_inbox) = job(&prompt(3, 3), 5);
    let flag = Arc::clone(&first.cancelled);
    for job in [first, second, queued] {
        scheduler.submit(job);
    }
    scheduler.tick(&mut engine, Instant::now());
    assert_eq!((scheduler.n_running(), scheduler.n_waiting()), (2, 1));
    flag.store(true, Ordering::Relaxed);
    drop(queued_inbox);
    scheduler.tick(&mut engine, Instant::now());
    assert_eq!((scheduler.n_running(), scheduler.n_waiting()), (1, 0));
    assert_eq!(scheduler.report.cancelled, 2);
    run(&mut scheduler, &mut engine);
    assert_eq!(heard(&mut second_inbox).0, expected(&prompt(2, 3), 30));
    drop(inbox);
}

#[test]
fn a_reader_without_room_is_paused_then_dropped() {
    let (mut scheduler, mut engine) = (scheduler(32), Lists::new(1000, 4));
    let (events, mut inbox) = mpsc::channel(ROOM + 3);
    let (slow, _) = job(&prompt(1, 3), 100);
    scheduler.submit(Job { events, ..slow });
    let start = Instant::now();
    for _ in 0..20 {
        scheduler.tick(&mut engine, start);
    }
    let n_steps = engine.steps.len();
    assert!(n_steps < 8, "{n_steps} steps for a reader that does not read");
    assert_eq!(scheduler.tick(&mut engine, start), Tick::Blocked);
    scheduler.tick(&mut engine, start + SLOW_READER + Duration::from_secs(1));
    assert_eq!((scheduler.n_running(), scheduler.report.slow_readers), (0, 1));
    assert!(heard(&mut inbox).0.len() < 8);
}

#[test]
fn a_deadline_is_an_error_before_the_first_token_and_an_end_after_it() {
    let (mut scheduler, mut engine) = (scheduler(32), Lists::new(1000, 1));
    let start = Instant::now();
    let (mut first, mut first_inbox) = job(&prompt(1, 3), 100);
    let (mut second, mut second_inbox) = job(&prompt(2, 3), 100);
    for late in [&mut first, &mut second] {
        late.deadline = Some(start + Duration::from_secs(5));
    }
    scheduler.submit(first);
    scheduler.submit(second);
    scheduler.tick(&mut engine, start);
    scheduler.tick(&mut engine, start + Duration::from_secs(6));
    assert_eq!(heard(&mut first_inbox).1, Some(Event::Done(Finish::Late)));
    assert!(matches!(heard(&mut second_inbox).1, Some(Event::Failed(failure)) if failure.0.status() == 504));
}

#[test]
fn one_fault_is_the_fault_of_one_request() {
    let (mut scheduler, mut engine) = (scheduler(64), Lists::new(1000, 8));
    engine.poison = Some(1);
    let (good, mut good_inbox) = job(&prompt(1, 5), 6);
    let (bad, mut bad_inbox) = job(&[3, 1, 4], 6);
    let (other, mut other_inbox) = job(&prompt(2, 5), 6);
    for job in [good, bad, other] {
        scheduler.submit(job);
    }
    run(&mut scheduler, &mut engine);
    assert!(matches!(heard(&mut bad_inbox).1, Some(Event::Failed(failure)) if failure.0.status() == 500));
    assert_eq!(heard(&mut good_inbox).0, expected(&prompt(1, 5), 6));
    assert_eq!(heard(&mut other_inbox).0, expected(&prompt(2, 5), 6));
}

#[test]
fn priority_goes_first_until_others_have_waited_too_long() {
    let (mut scheduler, mut engine) = (scheduler(64), Lists::new(1000, 1));
    let now = Instant::now();
    let (mut old, mut old_inbox) = job(&prompt(1, 3), 1);
    let (mut fresh, mut fresh_inbox) = job(&prompt(2, 3), 1);
    let (mut urgent, mut urgent_inbox) = job(&prompt(3, 3), 1);
    (old.priority, old.arrived) = (1, now);
    (fresh.priority, fresh.arrived) = (0, now + AGEING * 2);
    (urgent.priority, urgent.arrived) = (-5, now + AGEING * 2);
    for job in [fresh, old, urgent] {
        scheduler.submit(job);
    }
    scheduler.tick(&mut engine, now);
    assert_eq!(heard(&mut urgent_inbox).0.len(), 1);
    scheduler.tick(&mut engine, now);
    assert_eq!(heard(&mut old_inbox).0.len(), 1, "it has waited for long enough");
    scheduler.tick(&mut engine, now);
    assert_eq!(heard(&mut fresh_inbox).0.len(), 1);
}

#[test]
fn prompts_are_scored_token_by_token_in_chunks_of_any_size() {
    for chunk in [1, 3, 64] {
        let (mut scheduler, mut engine) = (scheduler(chunk), Lists::new(1000, 4));
        let prompt = prompt(4, 10);
        let (scored, mut inbox) = job(&prompt, 1);
        scheduler.submit(Job { prompt_scores: Some(1), ..scored });
        run(&mut scheduler, &mut engine);
        let mut scores = None;
        while let Ok((_, event)) = inbox.try_recv() {
            if let Event::Prompt(found) = event {
                scores = Some(found);
            }
        }
        let scores = scores.unwrap();
        assert_eq!(scores.iter().map(|scored| scored.id).collect::<Vec<_>>(), prompt, "{chunk}");
        assert_eq!(scores[0].logprob, None);
        for at in 1..prompt.len() {
            assert_eq!(scores[at].top[0].0, follows(&prompt[..at]), "{chunk}");
        }
    }
}

#[test]
fn the_pool_is_empty_once_everything_is_over() {
    let (mut scheduler, mut engine) = (scheduler(16), Lists::new(40, 8));
    let mut inboxes = Vec::new();
    for seed in 0..60 {
        let (job, inbox) = job(&prompt(seed, 1 + seed % 13), 1 + seed as usize % 7);
        if seed % 3 == 0 {
            job.cancelled.store(true, Ordering::Relaxed);
        }
        scheduler.submit(job);
        if seed % 5 != 0 {
            inboxes.push(inbox);
        }
        scheduler.tick(&mut engine, Instant::now());
    }
    run(&mut scheduler, &mut engine);
    assert_eq!((engine.open.len(), engine.used()), (0, 0));
}

fn guessing(prompt: &[u32], max_tokens: usize) -> (Job, Inbox) {
    let (job, inbox) = job(prompt, max_tokens);
    (Job { guesses: 8, ..job }, inbox)
}

#[test]
fn guesses_save_steps_and_change_no_token() {
    for (n, batch_tokens) in [(1, 64), (6, 64), (6, 9)] {
        let (mut scheduler, mut engine) = (scheduler(batch_tokens), Lists::repeating(1000, 8));
        let mut inboxes = Vec::new();
        for seed in 0..n {
            let prompt = prompt(seed, 3 + seed % 5);
            // One of them does not want it.
            let (job, inbox) = guessing(&prompt, 160 + seed as usize);
            scheduler.submit(if seed == 5 { Job { guesses: 0, ..job } } else { job });
            inboxes.push((prompt, 160 + seed as usize, inbox));
        }
        run(&mut scheduler, &mut engine);
        for (prompt, n, mut inbox) in inboxes {
            let (tokens, last) = heard(&mut inbox);
            assert_eq!((tokens, last), (continued(repeats, &prompt, n), Some(Event::Done(Finish::Length))));
        }
        let Report { guessed, right, .. } = scheduler.report;
        assert!(guessed > right && right > 20, "{right} of {guessed}");
        assert_eq!(scheduler.report.generated, (160..160 + n as usize).sum::<usize>());
        let n_of = |step: &Vec<(usize, usize)>| step.iter().map(|(_, n)| n).sum::<usize>();
        assert!(engine.steps.iter().all(|step| n_of(step) <= batch_tokens));
        assert!(n > 1 || engine.steps.len() < 150, "{} steps", engine.steps.len());
        assert!(engine.steps.iter().flatten().all(|(own, n)| *own != 6 || *n <= 3), "its prompt has three");
    }
}

#[test]
fn a_guess_ends_with_the_answer_and_leaves_nothing_of_itself() {
    for (ends, stops, max_tokens) in [(vec![0], vec![4], 100), (vec![5], vec![], 100), (vec![0], vec![], 9)] {
        let (mut scheduler, mut engine) = (scheduler(64), Lists::repeating(1000, 2));
        let prompt = [2, 3, 6, 2, 3, 6, 2, 3, 6, 2, 3];
        let (job, mut inbox) = guessing(&prompt, max_tokens);
        scheduler.submit(Job { ends: ends.clone(), stops: stops.clone(), min_tokens: 7, ..job });
        let (plain, mut plain_inbox) = self::job(&prompt, max_tokens);
        let mut other = self::scheduler(64);
        other.submit(Job { ends, stops, min_tokens: 7, ..plain });
        run(&mut scheduler, &mut engine);
        run(&mut other, &mut Lists::repeating(1000, 2));
        let found = heard(&mut inbox);
        assert!(found.0.len() >= 8, "{found:?}");
        assert_eq!(found, heard(&mut plain_inbox));
        // What is known of it is what was said.
        let said = [&prompt[..], &found.0].concat();
        assert!(said.starts_with(&engine.closed[0].1), "{said:?} {:?}", engine.closed);
    }
}

#[test]
fn what_is_drawn_at_random_is_drawn_alike_with_guesses() {
    let answer = |guesses| {
        let (mut scheduler, mut engine) = (scheduler(64), Lists::repeating(1000, 2));
        let (job, mut inbox) = job(&prompt(1, 5), 150);
        let chain = Settings { temperature: 2.5, seed: 7, ..Settings::default() };
        let sampling = Sampling {
            chain,
            frequency: 0.1,
            logprobs: Some(2),
            bias: vec![(9, 1.0)],
            ..Sampling::default()
        };
        scheduler.submit(Job { drawer: Drawer::new(sampling, VOCAB).unwrap(), guesses, ..job });
        run(&mut scheduler, &mut engine);
        let mut events = Vec::new();
        while let Ok((_, event)) = inbox.try_recv() {
            events.push(event);
        }
        (events, scheduler.report.guessed)
    };
    let ((plain, none), (guessed, some)) = (answer(0), answer(8));
    assert_eq!(none, 0);
    assert!(some > 0);
    assert_eq!(plain, guessed);
}

#[test]
fn a_full_pool_takes_guesses_before_it_takes_sequences() {
    // Four pages are enough for what is said, and not for what is guessed.
    let follows = |tokens: &[u32]| if tokens.len() == 16 { 50 } else { 2 + tokens.last().unwrap() % 5 };
    let (mut scheduler, mut engine) = (scheduler(64), Lists { follows, ..Lists::repeating(4, 8) });
    let (job, mut inbox) = guessing(&[2, 4, 6, 3, 5], 100);
    scheduler.submit(Job { stops: vec![50], ..job });
    run(&mut scheduler, &mut engine);
    let wanted = continued(follows, &[2, 4, 6, 3, 5], 12);
    assert_eq!(heard(&mut inbox), (wanted, Some(Event::Done(Finish::StopToken(50)))));
    assert!(scheduler.report.guessed > 0);
    // And with fewer pages nobody is lost.
    let (mut scheduler, mut engine) = (self::scheduler(64), Lists::repeating(12, 8));
    let mut inboxes = Vec::new();
    for seed in 0..5 {
        let (job, inbox) = guessing(&prompt(seed, 8), 20);
        scheduler.submit(job);
        inboxes.push((prompt(seed, 8), inbox));
    }
    run(&mut scheduler, &mut engine);
    assert!(scheduler.report.preemptions > 0);
    for (prompt, mut inbox) in inboxes {
        assert_eq!(heard(&mut inbox).0, continued(repeats, &prompt, 20));
    }
    assert!(engine.open.is_empty());
}
