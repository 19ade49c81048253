//! Bodies of requests whose progress can be seen.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use aws_sdk_s3::primitives::{ByteStream, SdkBody};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::fault::Fault;

/// Bytes that are handed over at a time.
const PIECE: usize = 64 * 1024;
/// As much may lie in buffers of the system, on its way, when the last piece was handed over.
const BUFFERED: u64 = 4 * 1024 * 1024;
/// The slowest connection that is waited for, bytes a second.
const SLOWEST: u64 = 128 * 1024;

/// A body that gives `bytes`, and how far it has come.
///
/// Where nothing else protects them on their way (`signed`, for plain HTTP), the SDK gets them as
/// they are, so that their digest is part of the signature: some servers don't check the SHA-256
/// of a part. Then there is nothing to see of its progress.
pub(super) fn observed(bytes: &Bytes, signed: bool) -> (ByteStream, Progress) {
    let progress = Progress(Arc::new(Mutex::new(State {
        moved: Instant::now(),
        left: if signed { 0 } else { bytes.len() },
        size: bytes.len() as u64,
    })));
    if signed {
        return (ByteStream::from(bytes.clone()), progress);
    }
    let body = Observed {
        bytes: bytes.clone(),
        progress: progress.clone(),
    };
    (ByteStream::new(SdkBody::from_body_1_x(body)), progress)
}

/// How far a body has come.
#[derive(Debug, Clone)]
pub(super) struct Progress(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// When the last piece was handed over.
    moved: Instant,
    left: usize,
    size: u64,
}

struct Observed {
    bytes: Bytes,
    progress: Progress,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `request`, which sends the body, unless nothing moves for `timeout`.
    pub(super) async fn watch<T>(
        &self,
        timeout: Duration,
        mut request: impl Future<Output = T> + Unpin,
    ) -> Result<T, Fault> {
        loop {
            let (moved, silence) = self.patience(timeout);
            tokio::select! {
                done = &mut request => return Ok(done),
                () = tokio::time::sleep_until(moved + silence) => {
                    if self.patience(timeout).0 == moved {
                        return Err(Fault::silent(silence));
                    }
                }
            }
        }
    }

    /// When something moved last, and how long nothing may move since then.
    fn patience(&self, timeout: Duration) -> (Instant, Duration) {
        let state = self.lock();
        let drain = match state.left {
            0 => state.size.min(BUFFERED) / SLOWEST,
            _ => 0,
        };
        (state.moved, timeout + Duration::from_secs(drain))
    }
}

impl Body for Observed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.bytes.is_empty() {
            return Poll::Ready(None);
        }
        let size = self.bytes.len().min(PIECE);
        let piece = self.bytes.split_to(size);
        let mut state = self.progress.lock();
        state.moved = Instant::now();
        state.left = self.bytes.len();
        drop(state);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}
