//! The thread that owns an engine.
//!
//! In: jobs over a channel. Out: their events. It ticks the scheduler while there is work and sleeps otherwise.
//! Whoever cancels sets a flag or drops the receiver; both are looked at before every replay.
//! A panic of the engine fails what runs; the engine is then made again, and what waits goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fusebox::tokenizer::Pair;
use tokio::sync::oneshot;

use crate::engine::{Capacity, Engine};
use crate::http::problem::Problem;
use crate::metrics::{Gauges, Metrics};
use crate::scheduler::{Job, Limits, Look, Queue, Scheduler, Tick};

/// How long a blocked scheduler waits before it looks again.
const PAUSE: Duration = Duration::from_millis(5);

/// Makes an engine on the thread that will own it.
pub(crate) type MakeEngine = Box<dyn FnMut() -> Result<Box<dyn Engine>, String> + Send>;

/// What the thread is asked for.
enum Order {
    Jobs(Vec<Job>),
    Embed(Pair, oneshot::Sender<Result<Vec<f32>, String>>),
    /// To write what is known of prompts to disk.
    Save(oneshot::Sender<()>),
}

/// Bounds of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    /// Sequences.
    pub(crate) requests: usize,
    /// Prompt tokens.
    pub(crate) tokens: usize,
}

/// The handle of an engine's thread; the thread ends with its last handle.
pub(crate) struct Worker {
    orders: Sender<Order>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) capacity: Capacity,
    queue: QueueLimits,
    waiting: Arc<Queue>,
    looks: Arc<Mutex<Vec<Look>>>,
    /// When the thread last finished a tick, in milliseconds since `start`; and whether it has work.
    beat: Arc<(AtomicUsize, AtomicUsize)>,
    start: Instant,
}

impl Worker {
    /// Starts the thread, and waits until it has its engine.
    ///
    /// # Errors
    /// The sentence of the engine.
    pub(crate) fn start(make: MakeEngine, limits: Limits, queue: QueueLimits) -> Result<Self, String> {
        let (orders, inbox) = channel();
        let (ready, is_ready) = channel();
        let metrics = Arc::new(Metrics::new());
        let looks = Arc::new(Mutex::new(Vec::new()));
        let beat = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let start = Instant::now();
        let (own_metrics, own_looks, own_beat) =
            (Arc::clone(&metrics), Arc::clone(&looks), Arc::clone(&beat));
        let run = move || {
            let thread = Thread {
                inbox,
                metrics: own_metrics,
                looks: own_looks,
                beat: own_beat,
                start,
                scheduler: Scheduler::new(limits),
                has_changed: false,
            };
            thread.run(make, &ready);
        };
        let spawned = thread::Builder::new().name("engine".to_owned()).spawn(run);
        spawned.map_err(|error| format!("cannot start a thread for the engine: {error}"))?;
        let capacity =
            is_ready.recv().map_err(|_| "the engine's thread ended while it started".to_owned())??;
        let waiting = Arc::new(Queue::default());
        Ok(Self { orders, metrics, capacity, queue, waiting, looks, beat, start })
    }

    /// Puts the sequences of one request into the queue.
    ///
    /// # Errors
    /// Where the queue is full.
    pub(crate) fn submit(&self, mut jobs: Vec<Job>) -> Result<(), Problem> {
        let n_tokens: usize = jobs.iter().map(|job| job.prompt.len()).sum();
        let (n_waiting, n_waiting_tokens) = self.waiting.size();
        // What can start at once is not refused for its size.
        let is_full = n_waiting > 0
            && (n_waiting + jobs.len() > self.queue.requests
                || n_waiting_tokens + n_tokens > self.queue.tokens);
        if is_full {
            let turns = (n_waiting / self.capacity.sequences.max(1) + 1) as f64;
            let seconds = (turns * self.metrics.mean_request()).ceil().clamp(1.0, 120.0);
            return Err(Problem::queue_full(seconds as u64));
        }
        for job in &mut jobs {
            job.place = Some(self.waiting.place(job.prompt.len()));
        }
        self.orders.send(Order::Jobs(jobs)).map_err(|_| Problem::fault("The engine has stopped."))
    }

    /// The vector of a text, or what a head makes of two.
    pub(crate) async fn embed(&self, input: Pair) -> Result<Vec<f32>, Problem> {
        let (answer, answered) = oneshot::channel();
        let gone = || Problem::fault("The engine has stopped.");
        self.orders.send(Order::Embed(input, answer)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?.map_err(Problem::fault)
    }

    /// Writes what is known of prompts to disk, where that is wanted, and waits for it.
    pub(crate) async fn save(&self) {
        let (done, is_done) = oneshot::channel();
        if self.orders.send(Order::Save(done)).is_ok() {
            // Without an engine there is nothing to write.
            let _ = is_done.await;
        }
    }

    /// The running sequences.
    pub(crate) fn look(&self) -> Vec<Look> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How long the thread has been in one replay; zero where it has no work.
    pub(crate) fn stuck(&self) -> Duration {
        if self.beat.1.load(Ordering::Relaxed) == 0 {
            return Duration::ZERO;
        }
        let beat = Duration::from_millis(self.beat.0.load(Ordering::Relaxed) as u64);
        self.start.elapsed().saturating_sub(beat)
    }
}

/// What the thread itself has.
struct Thread {
    inbox: Receiver<Order>,
    metrics: Arc<Metrics>,
    looks: Arc<Mutex<Vec<Look>>>,
    beat: Arc<(AtomicUsize, AtomicUsize)>,
    start: Instant,
    scheduler: Scheduler,
    /// Whether anything was computed since prompts were written to disk.
    has_changed: bool,
}

impl Thread {
    fn run(mut self, mut make: MakeEngine, ready: &Sender<Result<Capacity, String>>) {
        let mut engine = match make() {
            Ok(engine) => engine,
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        let _ = ready.send(Ok(engine.capacity()));
        let mut tick = Tick::Idle;
        loop {
            if !self.receive(tick, &mut *engine) {
                self.save(&mut *engine);
                return;
            }
            self.note(&*engine);
            let outcome =
                catch_unwind(AssertUnwindSafe(|| self.scheduler.tick(&mut *engine, Instant::now())));
            tick = if let Ok(tick) = outcome {
                tick
            } else {
                self.scheduler.fail_running(&Problem::fault("The engine failed."));
                match make() {
                    Ok(made) => engine = made,
                    Err(error) => {
                        self.scheduler.fail_all(&Problem::fault(error));
                        return;
                    }
                }
                Tick::Worked
            };
            self.note(&*engine);
        }
    }

    /// Takes orders; waits for one where there is nothing to do. False where nobody can send one any more.
    fn receive(&mut self, tick: Tick, engine: &mut dyn Engine) -> bool {
        let first = match tick {
            Tick::Worked => None,
            Tick::Blocked => match self.inbox.recv_timeout(PAUSE) {
                Ok(order) => Some(order),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return false,
            },
            Tick::Idle => match self.inbox.recv() {
                Ok(order) => Some(order),
                Err(_) => return false,
            },
        };
        let mut next = first;
        loop {
            let order = match next.take() {
                Some(order) => order,
                None => match self.inbox.try_recv() {
                    Ok(order) => order,
                    Err(_) => return true,
                },
            };
            match order {
                Order::Jobs(jobs) => {
                    self.has_changed = true;
                    for job in jobs {
                        self.scheduler.submit(job);
                    }
                }
                Order::Save(done) => {
                    self.save(engine);
                    let _ = done.send(());
                }
                // Nobody waits for it any more.
                Order::Embed(_, answer) if answer.is_closed() => {}
                Order::Embed(input, answer) => {
                    let vector = catch_unwind(AssertUnwindSafe(|| engine.embed(&input)));
                    let vector = vector.map_or_else(
                        |_| Err("The engine failed.".to_owned()),
                        |outcome| outcome.map_err(|refused| refused.to_string()),
                    );
                    let _ = answer.send(vector);
                }
            }
        }
    }

    fn save(&mut self, engine: &mut dyn Engine) {
        if std::mem::take(&mut self.has_changed) {
            engine.save();
        }
    }

    /// Tells the others what is true now.
    fn note(&mut self, engine: &dyn Engine) {
        let capacity = engine.capacity();
        let gauges = Gauges {
            running: self.scheduler.n_running(),
            waiting: self.scheduler.n_waiting(),
            pages: capacity.pages,
            free_pages: capacity.free,
            idle_pages: capacity.idle,
            sequences: capacity.sequences,
        };
        self.metrics.add(std::mem::take(&mut self.scheduler.report), gauges);
        *self.looks.lock().unwrap_or_else(PoisonError::into_inner) = self.scheduler.look();
        let now = self.start.elapsed().as_millis() as usize;
        self.beat.0.store(now, Ordering::Relaxed);
        self.beat.1.store(usize::from(gauges.running > 0), Ordering::Relaxed);
    }
}
