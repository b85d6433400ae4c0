//! Connections: accepts them, limits what they may take of the server, and lets them end in order.
//!
//! Plain HTTP/1.1. What a request means is the router's work.

use crate::io::Punctual;
use crate::options::{HEAD_BYTES, HEAD_FIELDS, Limits};
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Pause after the system refused a connection, which it does when it is short of files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener` until `end`. Then accepts nothing more, does `drain`, which ends what is under way, and
/// returns when every connection has closed, at the latest `last_words` after that. True if everything came to its end.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    end: impl Future<Output = ()>,
    drain: impl Future<Output = bool>,
    last_words: Duration,
) -> bool {
    let places = Arc::new(Semaphore::new(limits.connections));
    let connections = GracefulShutdown::new();
    let service = TowerToHyperService::new(router);
    let http = builder(limits);
    tokio::pin!(end);
    loop {
        let (stream, place) = tokio::select! {
            () = &mut end => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let _ = stream.set_nodelay(true); // tokens are small and must not wait for each other
        let io = TokioIo::new(Punctual::new(stream, limits.write_time));
        let connection = connections.watch(http.serve_connection(io, service.clone()));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
            drop(place);
        });
    }
    drop(listener);
    // Idle connections close at once, others after their answer.
    let closed = connections.shutdown();
    tokio::pin!(closed, drain);
    let drained = tokio::select! {
        () = &mut closed => return drain.await,
        drained = &mut drain => drained,
    };
    tokio::time::timeout(last_words, closed).await.is_ok() && drained
}

fn builder(limits: Limits) -> hyper::server::conn::http1::Builder {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_headers(HEAD_FIELDS)
        .max_buf_size(HEAD_BYTES);
    http
}

/// The next connection, with its place among those that are allowed at a time.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
