//! An answer as server-sent events, with signs of life while there is nothing else to say.

use crate::reply::with_type;
use crate::turn::{Message, Turn};
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::stream;
use lily_api::encode::Encoder;
use lily_api::error::{ApiError, ErrorKind};
use lily_api::event::SseEvent;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Messages that are taken at once: those that came while the client was slow go out together.
const TOGETHER: usize = 64;
/// Tells proxies not to hold the stream back.
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The answer, as it comes.
pub(crate) fn response(turn: Turn, encoder: Box<dyn Encoder>, heartbeat: Duration) -> Response {
    let alive = Box::pin(tokio::time::sleep(heartbeat));
    let writer = Writer { turn, encoder, heartbeat, alive, begun: false, ended: false };
    let chunks = stream::unfold(writer, |mut writer| async move {
        let chunk = writer.next().await?;
        Some((Ok::<_, Infallible>(chunk), writer))
    });
    let mut response = with_type(StatusCode::OK, "text/event-stream", Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(NO_BUFFERING, HeaderValue::from_static("no"));
    response
}

struct Writer {
    turn: Turn,
    encoder: Box<dyn Encoder>,
    heartbeat: Duration,
    /// Ends the silence.
    alive: std::pin::Pin<Box<Sleep>>,
    begun: bool,
    ended: bool,
}

impl Writer {
    /// What to send next; `None` when all is said.
    async fn next(&mut self) -> Option<String> {
        let mut events = Vec::new();
        if !self.begun {
            self.begun = true;
            self.encoder.start(&mut events);
        }
        while events.is_empty() {
            if self.ended {
                return None;
            }
            self.wait(&mut events).await;
        }
        self.alive.as_mut().reset(Instant::now() + self.heartbeat);
        Some(events.iter().map(SseEvent::wire).collect())
    }

    /// Waits for messages, or for the silence to have lasted too long.
    async fn wait(&mut self, events: &mut Vec<SseEvent>) {
        let mut messages = Vec::new();
        tokio::select! {
            biased;
            _ = self.turn.messages.recv_many(&mut messages, TOGETHER) => {}
            () = &mut self.alive => return self.encoder.heartbeat(events),
        }
        if messages.is_empty() {
            let error = ApiError::new(ErrorKind::Internal, "The generation ended without a result.");
            messages.push(Message::End(Err(error)));
        }
        for message in messages {
            match message {
                Message::Pieces(pieces) => pieces.iter().for_each(|piece| self.encoder.delta(piece, events)),
                Message::End(end) => {
                    self.ended = true;
                    match end {
                        Ok(finish) => self.encoder.finish(&finish, events),
                        Err(error) => self.encoder.error(&error, events),
                    }
                }
            }
        }
    }
}
