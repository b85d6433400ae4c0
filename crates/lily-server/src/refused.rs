//! What a client is told whose request the scheduler does not take.

use crate::app::App;
use crate::model::ServedModel;
use lily_api::error::{ApiError, ErrorKind};
use lily_engine::sampler::ParamsError;
use lily_engine::scheduler::Refused;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest time that a client is told to wait, in seconds; openai-python heeds up to two minutes.
const WAIT_SECONDS_MAX: f64 = 60.0;
/// Share of the newest job in the mean of their durations.
const NEWEST: f64 = 0.2;

/// How long jobs take: a mean in which older ones count less and less.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Bits of an `f64`, in seconds; zero before the first job.
    mean: AtomicU64,
}

impl Pace {
    /// Takes note of a job. Called by one thread, the scheduler's.
    pub(crate) fn job_took(&self, time: Duration) {
        let before = f64::from_bits(self.mean.load(Ordering::Relaxed));
        let seconds = time.as_secs_f64();
        let mean = if before == 0.0 { seconds } else { before + NEWEST * (seconds - before) };
        self.mean.store(mean.to_bits(), Ordering::Relaxed);
    }

    /// Seconds until one of `waiting` jobs has its turn, of which `together` are computed at a time; whole, at least one.
    pub(crate) fn wait_seconds(&self, waiting: usize, together: usize) -> u64 {
        let mean = f64::from_bits(self.mean.load(Ordering::Relaxed));
        (mean * waiting as f64 / together.max(1) as f64).clamp(1.0, WAIT_SECONDS_MAX).ceil() as u64
    }
}

/// Refuses a request that would have no place in the queue, before any work goes into it. The body has come by then:
/// a connection with an unread one would have to be closed, and its client might not see why.
///
/// # Errors
/// The queue is full.
pub(crate) fn if_full(app: &App, model: &ServedModel) -> Result<(), ApiError> {
    let status = model.scheduler.status();
    if status.waiting < status.queue_limit {
        return Ok(());
    }
    Err(submit(app, model, &Refused::QueueFull { waiting: status.waiting, limit: status.queue_limit }))
}

/// The error for a refusal, which is counted.
pub(crate) fn submit(app: &App, model: &ServedModel, refused: &Refused) -> ApiError {
    let (error, reason) = told(app, model, refused);
    app.metrics.refused(reason);
    error
}

/// The error for a refusal, and the word for it in the figures.
fn told(app: &App, model: &ServedModel, refused: &Refused) -> (ApiError, &'static str) {
    let message = || format!("The request cannot be computed: {refused}.");
    match refused {
        Refused::QueueFull { waiting, limit } => {
            let seconds = app.pace.wait_seconds(*waiting, model.scheduler.status().sessions);
            (ApiError::busy(*waiting, *limit, seconds), "queue_full")
        }
        Refused::TooLong { tokens, context_tokens } => (ApiError::too_long(*tokens, *context_tokens), "too_long"),
        Refused::Empty => (ApiError::field("prompt", message()), "invalid"),
        Refused::Token { .. } => (ApiError::field("prompt", message()), "invalid"),
        Refused::Params(error) => {
            let field = match error {
                ParamsError::OutOfRange { name, .. } => name,
                ParamsError::BiasToken { .. } => "logit_bias",
                ParamsError::EmptyVocabulary => "model",
            };
            (ApiError::field(field, format!("{error}.")), "invalid")
        }
        Refused::Draining => {
            let error = ApiError::new(ErrorKind::Unavailable, message());
            (ApiError { code: Some("draining"), retry_after: Some(5), ..error }, "draining")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_follows_the_pace() {
        let pace = Pace::default();
        assert_eq!(pace.wait_seconds(8, 2), 1, "nothing is known yet");
        pace.job_took(Duration::from_secs(3));
        assert_eq!(pace.wait_seconds(8, 2), 12);
        assert_eq!(pace.wait_seconds(1000, 1), 60);
        for _ in 0..50 {
            pace.job_took(Duration::from_millis(100));
        }
        assert_eq!(pace.wait_seconds(8, 2), 1);
    }
}
