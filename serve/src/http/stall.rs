//! A socket whose writes may not stall for ever.
//!
//! In: a socket. Out: the same socket; a write that makes no progress for half a minute is an error, which ends the
//! connection and so whatever was computed for it.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// How long a write may make no progress.
const LIMIT: Duration = Duration::from_secs(30);

/// The socket.
pub(crate) struct Stall<S, F> {
    socket: S,
    /// Runs from the first write that had to wait.
    timer: Pin<Box<Sleep>>,
    is_waiting: bool,
    /// Called when the limit is reached.
    told: F,
}

impl<S, F: Fn()> Stall<S, F> {
    pub(crate) fn new(socket: S, told: F) -> Self {
        Self { socket, timer: Box::pin(sleep(LIMIT)), is_waiting: false, told }
    }

    fn judge<T>(&mut self, context: &mut Context<'_>, outcome: Poll<Result<T>>) -> Poll<Result<T>> {
        if outcome.is_ready() {
            self.is_waiting = false;
            return outcome;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            self.timer.as_mut().reset(Instant::now() + LIMIT);
        }
        if self.timer.as_mut().poll(context).is_ready() {
            (self.told)();
            return Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "nobody reads")));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin, F: Unpin> AsyncRead for Stall<S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin, F: Fn() + Unpin> AsyncWrite for Stall<S, F> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.judge(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.judge(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_flush(context);
        self.judge(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
