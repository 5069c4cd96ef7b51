//! The server: a socket, connections, and an orderly end.
//!
//! In: settings and models. Out: nothing until the server ends.
//! One thread does all of HTTP; engines have threads of their own. SIGTERM lets balancers notice, then refuses what is
//! new, then waits for streams and writes prefix caches to disk; another signal ends the waiting.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::app::{App, Source, Stage};
use crate::http::stall::Stall;
use crate::http::tls::Tls;
use crate::metrics::Metrics;
use crate::routes::respond;
use crate::settings::Settings;

/// The most time for the headers of a request.
const HEADER_TIME: Duration = Duration::from_secs(30);
/// The most bytes of headers.
const HEADER_BYTES: usize = 64 << 10;
/// The most headers.
const HEADERS: usize = 100;
/// How often idle models are looked for.
const IDLE_CHECK: Duration = Duration::from_secs(5);

/// Serves until a signal. `listening` is called with the address once the socket is open.
///
/// # Errors
/// Where the socket cannot be opened, or the first model does not load.
pub fn serve(
    settings: Settings,
    sources: Vec<Source>,
    listening: impl FnOnce(SocketAddr) + Send,
) -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the server: {error}"))?;
    let served = runtime.block_on(run(settings, sources, listening));
    // What still runs on other threads is of no use to anybody.
    runtime.shutdown_background();
    served
}

async fn run(
    settings: Settings,
    sources: Vec<Source>,
    listening: impl FnOnce(SocketAddr) + Send,
) -> Result<(), String> {
    let address = SocketAddr::new(settings.host, settings.port);
    let fault = |error| format!("cannot listen on {address}: {error}");
    let listener = TcpListener::bind(address).await.map_err(fault)?;
    let tls = settings.tls.as_ref().map(|(certificate, key)| Tls::open(certificate, key)).transpose()?;
    let mut signals = Signals::new()?;
    listening(listener.local_addr().map_err(fault)?);
    let app = Arc::new(App::new(settings, sources));
    let (stop, stopped) = watch::channel(false);
    let open_connections = Arc::new(AtomicUsize::new(0));
    let open_now = Arc::clone(&open_connections);
    let accepting = tokio::spawn(accept((listener, tls), Arc::clone(&app), stopped, open_now));
    let loaded = tokio::select! {
        loaded = app.models.get(None) => loaded,
        _ = signals.next() => return Ok(()),
    };
    loaded.map_err(|problem| problem.message)?;
    app.set_stage(Stage::Ready);
    let is_hurried = loop {
        tokio::select! {
            is_hurried = signals.next() => break is_hurried,
            () = sleep(IDLE_CHECK) => app.models.unload_idle(),
        }
    };
    tokio::select! {
        () = drain(&app, &stop, &open_connections, is_hurried) => {}
        _ = signals.next() => {}
    }
    accepting.abort();
    for listed in app.models.list() {
        if let Some(served) = listed.served {
            served.worker.save().await;
        }
    }
    Ok(())
}

/// The end in order.
async fn drain(app: &App, stop: &watch::Sender<bool>, open: &AtomicUsize, is_hurried: bool) {
    app.set_stage(Stage::Leaving);
    if !is_hurried {
        sleep(app.settings.drain_delay).await;
    }
    app.set_stage(Stage::Draining);
    // Connections end after the request that they are in.
    let _ = stop.send(true);
    let all_closed = async {
        while open.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    // What is not done by then ends with the process.
    let _ = timeout(app.settings.drain, all_closed).await;
}

/// SIGTERM, and Ctrl-C.
struct Signals {
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(unix)]
    interrupt: Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> Result<Self, String> {
        let fault = |error| format!("cannot listen for signals: {error}");
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(fault)?,
            interrupt: signal(SignalKind::interrupt()).map_err(fault)?,
        })
    }

    #[cfg(not(unix))]
    fn new() -> Result<Self, String> {
        Ok(Self {})
    }

    /// Waits for a signal; true where a person is waiting.
    #[cfg(unix)]
    async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => false,
            _ = self.interrupt.recv() => true,
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) -> bool {
        // Without a handler the signal ends the process.
        let _ = tokio::signal::ctrl_c().await;
        true
    }
}

/// Counts a connection as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn accept(
    (listener, tls): (TcpListener, Option<Tls>),
    app: Arc<App>,
    stopped: watch::Receiver<bool>,
    open: Arc<AtomicUsize>,
) {
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            // Too many open files: some will close.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let counted = Counted::new(&open);
        let (app, stopped, tls) = (Arc::clone(&app), stopped.clone(), tls.clone());
        tokio::spawn(async move {
            begin(socket, tls, app, stopped).await;
            drop(counted);
        });
    }
}

/// Shakes hands where that is wanted, and serves the connection.
async fn begin(socket: TcpStream, tls: Option<Tls>, app: Arc<App>, stopped: watch::Receiver<bool>) {
    // Small events should not wait for others.
    let _ = socket.set_nodelay(true);
    let slow = Arc::clone(&app);
    let stall = Stall::new(socket, move || slow.count(Metrics::slow_reader));
    match tls {
        None => connection(stall, app, stopped).await,
        Some(tls) => {
            if let Ok(Some(stream)) = timeout(HEADER_TIME, tls.accept(stall)).await {
                connection(stream, app, stopped).await;
            }
        }
    }
}

async fn connection<S>(stream: S, app: Arc<App>, mut stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let app = Arc::clone(&app);
        async move { Ok::<_, Infallible>(respond(app, request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(HEADER_BYTES)
        .max_headers(HEADERS);
    let mut serving = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut is_stopping = false;
    loop {
        tokio::select! {
            // A connection that breaks is the client's affair.
            _ = serving.as_mut() => return,
            changed = stopped.changed(), if !is_stopping => {
                is_stopping = true;
                if changed.is_ok() {
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }
}
