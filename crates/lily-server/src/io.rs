//! A connection whose reader must keep up.
//!
//! A client that stops reading would hold its answer, and everything made for it, for ever: [`Punctual`] lets a write wait for
//! a limited time only. Reading needs no such wrapper: heads and bodies of requests have their own limits.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A byte stream that fails with `TimedOut` when a write makes no progress for too long.
#[derive(Debug)]
pub(crate) struct Punctual<S> {
    stream: S,
    limit: Duration,
    /// Ends the write that is waiting; meaningless while none is.
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
}

impl<S> Punctual<S> {
    /// Wraps a stream.
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, deadline: Box::pin(tokio::time::sleep(limit)), waiting: false }
    }

    /// Passes an answer of the stream on; fails instead of waiting beyond the limit.
    fn bound<T>(&mut self, cx: &mut Context<'_>, answer: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if answer.is_ready() {
            self.waiting = false;
            return answer;
        }
        if !self.waiting {
            self.waiting = true;
            self.deadline.as_mut().reset(Instant::now() + self.limit);
        }
        match self.deadline.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Punctual<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Punctual<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let answer = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.bound(cx, answer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let answer = Pin::new(&mut self.stream).poll_flush(cx);
        self.bound(cx, answer)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let answer = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.bound(cx, answer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let answer = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.bound(cx, answer)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_write_nobody_reads_ends_in_time() {
        let (near, _far) = tokio::io::duplex(16);
        let mut near = Punctual::new(near, Duration::from_millis(50));
        let start = Instant::now();
        let error = near.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() >= Duration::from_millis(50));
    }

    #[tokio::test]
    async fn a_slow_reader_has_the_limit_for_every_write() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut near = Punctual::new(near, Duration::from_secs(2));
        let reader = tokio::spawn(async move {
            let mut read = [0; 16];
            for _ in 0..8 {
                tokio::time::sleep(Duration::from_millis(300)).await; // 2.4 s together
                far.read_exact(&mut read).await.unwrap();
            }
        });
        near.write_all(&[0; 128]).await.unwrap();
        reader.await.unwrap();
    }
}
