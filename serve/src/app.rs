//! What all requests share: settings, models, and whether the server is ready.
//!
//! In: requests. Out: the model that a request names, loaded if it was not.
//! Several models are loaded on demand, and the one that was idle for longest is unloaded where memory is short. One
//! that is busy is never unloaded.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use serde_json::Value;
use tokio::sync::Mutex as AsyncMutex;

use crate::http::problem::Problem;
use crate::metrics::Metrics;
use crate::model::{Served, Terms, is_name};
use crate::settings::Settings;
use crate::worker::QueueLimits;

/// A model that may be asked for.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its names; the first is that in answers.
    pub names: Vec<String>,
    /// Its file.
    pub path: PathBuf,
}

/// A request that may be answered.
pub(crate) struct Request {
    pub(crate) body: Value,
    pub(crate) headers: HeaderMap,
}

/// How far the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The first model is loading.
    Loading,
    Ready,
    /// Requests are still taken, and balancers are warned.
    Leaving,
    /// Requests are refused, and streams end.
    Draining,
}

/// What all requests share.
pub(crate) struct App {
    pub(crate) settings: Settings,
    pub(crate) models: Models,
    stage: AtomicU8,
    pub(crate) start: Instant,
    /// Of requests that reach no model.
    pub(crate) metrics: Metrics,
}

/// A model and when it was used.
struct Slot {
    source: Source,
    /// Held while it is loaded.
    loading: AsyncMutex<()>,
    state: Mutex<State>,
}

struct State {
    served: Option<Arc<Served>>,
    used: Instant,
    /// When it may be unloaded; none for the usual time.
    keep: Option<Duration>,
}

/// The models by name.
pub(crate) struct Models {
    slots: Vec<Slot>,
    /// The names of adapters of the first model.
    adapters: Vec<String>,
    terms: Terms,
    memory: Option<u64>,
    keep_alive: Duration,
}

/// A model for those who list models.
pub(crate) struct Listed {
    pub(crate) names: Vec<String>,
    /// Of an adapter, the model that it is for.
    pub(crate) parent: Option<String>,
    pub(crate) size: u64,
    pub(crate) served: Option<Arc<Served>>,
    pub(crate) used: Instant,
}

impl App {
    pub(crate) fn new(settings: Settings, sources: Vec<Source>) -> Self {
        let terms = Terms {
            run: settings.run.clone(),
            parallel: settings.parallel,
            batch_tokens: settings.batch_tokens,
            queue: QueueLimits { requests: settings.max_queue, tokens: settings.max_queue_tokens },
            template: settings.template.clone(),
            pooling: settings.pooling,
            prompt_cache: settings.prompt_cache.clone(),
            guesses: settings.guesses,
            note: settings.note,
        };
        let slot = |source| Slot {
            source,
            loading: AsyncMutex::new(()),
            state: Mutex::new(State { served: None, used: Instant::now(), keep: None }),
        };
        let models = Models {
            adapters: terms.run.adapters.choices.iter().map(|choice| choice.name.clone()).collect(),
            slots: sources.into_iter().map(slot).collect(),
            terms,
            memory: settings.memory,
            keep_alive: settings.keep_alive,
        };
        Self { settings, models, stage: AtomicU8::new(0), start: Instant::now(), metrics: Metrics::new() }
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            0 => Stage::Loading,
            1 => Stage::Ready,
            2 => Stage::Leaving,
            _ => Stage::Draining,
        }
    }

    /// Goes on to a later stage.
    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::Relaxed);
    }

    /// Counts in the metrics that are shown: those of the first loaded model, or of none.
    pub(crate) fn count(&self, add: impl Fn(&Metrics)) {
        match self.models.list().into_iter().find_map(|listed| listed.served) {
            Some(served) => add(&served.worker.metrics),
            None => add(&self.metrics),
        }
    }

    /// Counts a request that was refused.
    pub(crate) fn refused(&self, status: u16) {
        self.count(|metrics| metrics.refused(status));
    }

    /// Refuses requests that need a model while there is none.
    ///
    /// # Errors
    /// While the server loads or drains.
    pub(crate) fn check_ready(&self) -> Result<(), Problem> {
        match self.stage() {
            Stage::Loading => Err(Problem::unavailable("Loading model")),
            Stage::Ready | Stage::Leaving => Ok(()),
            Stage::Draining => Err(Problem::unavailable("The server is stopping.")),
        }
    }
}

/// Runs what takes processor time on a thread of its own.
///
/// # Errors
/// Those of the work.
pub(crate) async fn blocking<T: Send + 'static>(
    served: &Arc<Served>,
    act: impl FnOnce(&Served) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let served = Arc::clone(served);
    let outcome = tokio::task::spawn_blocking(move || act(&served)).await;
    outcome.unwrap_or_else(|_| Err(Problem::fault("The request could not be prepared.")))
}

impl Slot {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(&self) -> bool {
        let state = self.state();
        state.served.as_ref().is_some_and(|served| {
            let gauges = served.worker.metrics.gauges();
            Arc::strong_count(served) == 1 && gauges.running + gauges.waiting == 0
        })
    }

    fn size(&self) -> u64 {
        let state = self.state();
        state.served.as_ref().map_or_else(|| file_size(&self.source.path), |served| served.size)
    }
}

/// The bytes of a file, or of the files of a folder.
fn file_size(path: &std::path::Path) -> u64 {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        return entries.filter_map(|entry| entry.metadata().ok()).map(|data| data.len()).sum();
    }
    std::fs::metadata(path).map_or(0, |data| data.len())
}

impl Models {
    /// The names of all models and adapters, as lists show them.
    pub(crate) fn names(&self) -> Vec<String> {
        let models = self.slots.iter().filter_map(|slot| slot.source.names.first());
        models.chain(&self.adapters).cloned().collect()
    }

    fn slot(&self, name: Option<&str>) -> Result<&Slot, Problem> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return self.slots.first().ok_or_else(|| Problem::unavailable("There is no model."));
        };
        let found = self.slots.iter().find(|slot| slot.source.names.iter().any(|known| is_name(name, known)));
        let is_adapter = self.adapters.iter().any(|known| is_name(name, known));
        let found = found.or(self.slots.first().filter(|_| is_adapter));
        found.ok_or_else(|| Problem::no_model(name, &self.names()))
    }

    /// The model of a name or of the adapter of that name, or the first; loaded if it was not.
    ///
    /// # Errors
    /// Where there is none of that name, or it does not load.
    pub(crate) async fn get(&self, name: Option<&str>) -> Result<Arc<Served>, Problem> {
        let slot = self.slot(name)?;
        let loaded = || {
            let mut state = slot.state();
            state.used = Instant::now();
            state.served.clone()
        };
        if let Some(served) = loaded() {
            return Ok(served);
        }
        let _only_one = slot.loading.lock().await;
        if let Some(served) = loaded() {
            return Ok(served);
        }
        self.make_room(slot)?;
        let terms = self.terms.clone();
        let (path, name) = (slot.source.path.clone(), slot.source.names.first().cloned().unwrap_or_default());
        let load = move || Served::start(&name, &path, &terms);
        let outcome = tokio::task::spawn_blocking(load).await;
        let outcome = outcome.unwrap_or_else(|_| Err("the model could not be loaded".to_owned()));
        let served = Arc::new(outcome.map_err(Problem::fault)?);
        slot.state().served = Some(Arc::clone(&served));
        Ok(served)
    }

    /// Unloads idle models until another fits.
    fn make_room(&self, wanted: &Slot) -> Result<(), Problem> {
        let Some(memory) = self.memory else { return Ok(()) };
        let needed = wanted.size();
        loop {
            let loaded: Vec<&Slot> = self.slots.iter().filter(|slot| slot.state().served.is_some()).collect();
            let used: u64 = loaded.iter().map(|slot| slot.size()).sum();
            if used + needed <= memory || loaded.is_empty() {
                return Ok(());
            }
            let idle = loaded.into_iter().filter(|slot| slot.is_idle()).min_by_key(|slot| slot.state().used);
            match idle {
                Some(slot) => slot.state().served = None,
                None => {
                    return Err(Problem::unavailable(
                        "All loaded models are busy, and memory is for no other.",
                    ));
                }
            }
        }
    }

    /// Sets for how long a model stays; zero unloads it once it is idle.
    ///
    /// # Errors
    /// Where there is no such model.
    pub(crate) fn keep(&self, name: Option<&str>, time: Option<Duration>) -> Result<(), Problem> {
        let slot = self.slot(name)?;
        slot.state().keep = time;
        if time == Some(Duration::ZERO) && slot.is_idle() {
            slot.state().served = None;
        }
        Ok(())
    }

    /// Unloads what was idle for too long. The first model stays, unless somebody said otherwise.
    pub(crate) fn unload_idle(&self) {
        for (number, slot) in self.slots.iter().enumerate() {
            let is_due = {
                let state = slot.state();
                let limit = state.keep.or_else(|| (number > 0).then_some(self.keep_alive));
                limit.is_some_and(|limit| state.used.elapsed() > limit)
            };
            if is_due && slot.is_idle() {
                slot.state().served = None;
            }
        }
    }

    /// All models.
    pub(crate) fn list(&self) -> Vec<Listed> {
        let listed = |slot: &Slot| {
            let (served, used) = {
                let state = slot.state();
                (state.served.clone(), state.used)
            };
            Listed { names: slot.source.names.clone(), parent: None, size: slot.size(), served, used }
        };
        self.slots.iter().map(listed).collect()
    }

    /// All models, and the adapters that a request may name in place of one.
    pub(crate) fn list_all(&self) -> Vec<Listed> {
        let mut all = self.list();
        for name in &self.adapters {
            let Some(model) = all.first() else { break };
            let (names, parent, served) =
                (vec![name.clone()], model.names.first().cloned(), model.served.clone());
            all.push(Listed { names, parent, size: model.size, served, used: model.used });
        }
        all
    }

    /// One of them.
    ///
    /// # Errors
    /// Where there is none of that name.
    pub(crate) fn listed(&self, name: &str) -> Result<Listed, Problem> {
        self.slot(Some(name))?;
        let found =
            self.list_all().into_iter().find(|listed| listed.names.iter().any(|known| is_name(name, known)));
        found.ok_or_else(|| Problem::no_model(name, &self.names()))
    }
}
