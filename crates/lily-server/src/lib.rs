//! The HTTP server: OpenAI's and Anthropic's APIs over one model.
//!
//! A [`Server`] is an axum application with its connections. What bodies mean and how answers are spelled is `lily-api`'s
//! work, what is computed the scheduler's in `lily-engine`; this crate carries requests from one to the other: it
//! authenticates, limits, prepares prompts and constraints, streams, measures, and ends in order.
#![forbid(unsafe_code)]

mod app;
mod body;
mod constraint;
mod explain;
mod guard;
mod io;
mod listen;
mod memory;
mod metrics;
mod model;
mod options;
mod prepare;
mod refused;
mod reply;
mod routes;
mod stream;
mod time;
mod turn;

pub use model::{ServedModel, StartError};
pub use options::{ApiKey, Limits, ServerOptions};

use app::App;
use axum::Router;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Time between two moments at which samples go into their buckets.
const UPKEEP: Duration = Duration::from_secs(5);
/// Time that answers have to reach their readers once their generations have ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// From now on panics of this process are logged by their place, with a backtrace if `RUST_BACKTRACE` asks for one, and without
/// their words: those may quote what a client said.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => tracing::error!(target: "lily", place, "a bug of lily\n{backtrace}"),
            _ => tracing::error!(target: "lily", place, "a bug of lily"),
        }
    }));
}

/// A server, before, while and after it has a model.
#[derive(Clone)]
pub struct Server {
    app: Arc<App>,
}

impl Server {
    /// A server without a model: it says that it is loading.
    pub fn new(options: ServerOptions) -> Self {
        Self { app: Arc::new(App::new(options)) }
    }

    /// Takes the model; from now on requests are answered.
    ///
    /// # Panics
    /// If it has one already.
    pub fn serve_model(&self, model: ServedModel) {
        self.app.serve_model(model);
    }

    /// The application, for tests and for other servers to embed.
    pub fn router(&self) -> Router {
        app::router(Arc::clone(&self.app))
    }

    /// Serves on `listener` until `end`; then takes nothing new and gives what is under way the time that the limits say.
    /// True if all of it came to its end.
    pub async fn run(&self, listener: TcpListener, end: impl Future<Output = ()>) -> bool {
        let app = Arc::clone(&self.app);
        let upkeep = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(UPKEEP);
            loop {
                ticks.tick().await;
                app.metrics.upkeep();
            }
        });
        let app = Arc::clone(&self.app);
        let drain = async move {
            app.drain();
            let work = tokio::task::spawn_blocking(move || match app.model() {
                Ok(model) => model.drain(app.options.limits.drain_time),
                Err(_) => true,
            });
            work.await.unwrap_or(false)
        };
        let limits = self.app.options.limits;
        let all = listen::serve(listener, self.router(), limits, end, drain, LAST_WORDS).await;
        upkeep.abort();
        all
    }
}
