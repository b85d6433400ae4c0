//! Bodies of requests: read whole, within their limits of size and time, and of what all of them may hold together.

use crate::app::{App, unavailable};
use crate::options::Limits;
use crate::reply::{api_of, refusal};
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt;
use lily_api::error::{ApiError, ErrorKind};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that a body is given room for before any of it has come.
const FIRST_BYTES: usize = 64 * 1024;

/// What the bodies of all requests may hold together: only bytes that have come count, so that nobody gets room by
/// announcing much.
#[derive(Debug)]
pub(crate) struct Budget {
    held: AtomicUsize,
    limit: usize,
}

impl Budget {
    /// A budget of so many bytes, all of them free.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { held: AtomicUsize::new(0), limit })
    }
}

/// A body that has come, in the budget for as long as it is there.
#[derive(Debug)]
pub(crate) struct Received {
    bytes: Vec<u8>,
    budget: Arc<Budget>,
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes.len(), Relaxed);
    }
}

impl Received {
    fn push(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        let limit = self.budget.limit;
        let more = |held: usize| held.checked_add(piece.len()).filter(|&held| held <= limit);
        let held = self.budget.held.fetch_update(Relaxed, Relaxed, more);
        held.map_err(|held| {
            let what = format!("The bodies under way hold {held} of the {limit} bytes that they may hold together");
            unavailable(&what, "bodies_full")
        })?;
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

/// Reads a body.
///
/// # Errors
/// Too long, too slow, cut short, or more than there is room for beside others.
pub(crate) async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<Received, ApiError> {
    let limits = &app.options.limits;
    let told = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<usize>().ok());
    if let Some(bytes) = told.filter(|&bytes| bytes > limits.body_bytes) {
        return Err(too_large(&format!("{bytes} bytes"), limits));
    }
    match tokio::time::timeout(limits.body_time, collect(app, told, body)).await {
        Ok(read) => read,
        Err(_) => {
            let message = format!("The body did not arrive within {} s.", limits.body_time.as_secs_f64());
            Err(ApiError::new(ErrorKind::Timeout, message))
        }
    }
}

async fn collect(app: &App, told: Option<usize>, body: Body) -> Result<Received, ApiError> {
    let limits = &app.options.limits;
    let room = Vec::with_capacity(told.unwrap_or(0).min(FIRST_BYTES));
    let mut received = Received { bytes: room, budget: Arc::clone(&app.bodies) };
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|e| ApiError::new(ErrorKind::Invalid, format!("The body was cut short: {e}.")))?;
        if received.len() + piece.len() > limits.body_bytes {
            return Err(too_large("more", limits));
        }
        received.push(&piece)?;
    }
    Ok(received)
}

fn too_large(found: &str, limits: &Limits) -> ApiError {
    let message = format!("A body may have {} bytes; this one has {found}.", limits.body_bytes);
    ApiError { code: Some("request_too_large"), ..ApiError::new(ErrorKind::TooLarge, message) }
}

/// Refuses compressed bodies: a small one can hold more than the limit.
pub(crate) async fn refuse_encodings(request: Request, next: Next) -> Response {
    match request.headers().get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => {
            let message = format!("The body is encoded ({encoding:?}); send it plain.");
            let error = ApiError { status: 415, ..ApiError::new(ErrorKind::Invalid, message) };
            refusal(&error, api_of(request.uri().path()))
        }
        _ => next.run(request).await,
    }
}
