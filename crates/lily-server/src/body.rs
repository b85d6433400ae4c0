//! Bodies of requests: read whole, within their limits of size and time.

use crate::options::Limits;
use crate::reply::{api_of, refusal};
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt;
use lily_api::error::{ApiError, ErrorKind};

/// Bytes that a body is given room for before any of it has come.
const FIRST_BYTES: usize = 64 * 1024;

/// Reads a body.
///
/// # Errors
/// Too long, too slow, or cut short.
pub(crate) async fn read(limits: &Limits, headers: &HeaderMap, body: Body) -> Result<Vec<u8>, ApiError> {
    let told = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<usize>().ok());
    if let Some(bytes) = told.filter(|&bytes| bytes > limits.body_bytes) {
        return Err(too_large(&format!("{bytes} bytes"), limits));
    }
    match tokio::time::timeout(limits.body_time, collect(limits, told, body)).await {
        Ok(read) => read,
        Err(_) => {
            let message = format!("The body did not arrive within {} s.", limits.body_time.as_secs_f64());
            Err(ApiError::new(ErrorKind::Timeout, message))
        }
    }
}

async fn collect(limits: &Limits, told: Option<usize>, body: Body) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::with_capacity(told.unwrap_or(0).min(FIRST_BYTES));
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|e| ApiError::new(ErrorKind::Invalid, format!("The body was cut short: {e}.")))?;
        if bytes.len() + piece.len() > limits.body_bytes {
            return Err(too_large("more", limits));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
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
