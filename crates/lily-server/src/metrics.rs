//! Figures for Prometheus: every name, its meaning and its buckets.
//!
//! The recorder belongs to the server and is not the process's global one, so that servers in one process (tests) do not
//! share figures.

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

const METADATA: Metadata<'static> = Metadata::new("lily", Level::INFO, None);

/// Buckets of times to the first token, in seconds.
const FIRST_TOKEN_BUCKETS: [f64; 15] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// Buckets of times between tokens, in seconds.
const BETWEEN_TOKENS_BUCKETS: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0];
/// Buckets of whole requests, in seconds.
const REQUEST_BUCKETS: [f64; 12] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1200.0];

const HTTP_REQUESTS: &str = "lily_http_requests_total";
const FINISHED: &str = "lily_requests_finished_total";
const REFUSED: &str = "lily_requests_refused_total";

/// What happens to the figures that have labels.
const LABELLED: [(&str, &str); 3] = [
    (HTTP_REQUESTS, "HTTP requests answered, by route and status"),
    (FINISHED, "Generations that ended, by reason"),
    (REFUSED, "Generations that were refused, by reason"),
];

/// The server's figures.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    pub(crate) running: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) kv_usage: Gauge,
    pub(crate) cache_bytes: Gauge,
    pub(crate) cache_entries: Gauge,
    pub(crate) cache_queries: Counter,
    pub(crate) cache_hits: Counter,
    pub(crate) prompt_tokens: Counter,
    pub(crate) generation_tokens: Counter,
    pub(crate) first_token: Histogram,
    pub(crate) between_tokens: Histogram,
    pub(crate) request: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let buckets = [
            ("lily_time_to_first_token_seconds", &FIRST_TOKEN_BUCKETS[..]),
            ("lily_inter_token_latency_seconds", &BETWEEN_TOKENS_BUCKETS),
            ("lily_request_duration_seconds", &REQUEST_BUCKETS),
        ];
        let recorder = buckets
            .into_iter()
            .fold(PrometheusBuilder::new(), |builder, (name, values)| {
                builder.set_buckets_for_metric(Matcher::Full(name.into()), values).expect("there are buckets")
            })
            .build_recorder();
        for (name, text) in LABELLED {
            recorder.describe_counter(name.into(), None, text.into());
        }
        let maker = Maker(&recorder);
        Self {
            running: maker.gauge("lily_requests_running", "Generations under way"),
            waiting: maker.gauge("lily_requests_waiting", "Generations waiting for their turn"),
            kv_usage: maker.gauge("lily_kv_cache_usage_ratio", "Share of the places for tokens that is in use"),
            cache_bytes: maker.gauge("lily_prefix_cache_bytes", "Memory of the prefix cache"),
            cache_entries: maker.gauge("lily_prefix_cache_entries", "Entries of the prefix cache"),
            cache_queries: maker.counter("lily_prefix_cache_queries_total", "Prompt tokens looked for in the cache"),
            cache_hits: maker.counter("lily_prefix_cache_hits_total", "Prompt tokens found in the cache"),
            prompt_tokens: maker
                .counter("lily_prompt_tokens_total", "Prompt tokens of generations that were begun and ended"),
            generation_tokens: maker.counter("lily_generation_tokens_total", "Tokens generated"),
            first_token: maker
                .histogram("lily_time_to_first_token_seconds", "From the request's head to its first token"),
            between_tokens: maker.histogram("lily_inter_token_latency_seconds", "From one token to the next"),
            request: maker.histogram("lily_request_duration_seconds", "From the request's head to its last token"),
            handle: recorder.handle(),
            recorder,
        }
    }

    /// Counts an answered request.
    pub(crate) fn answered(&self, route: &str, status: u16) {
        let labels = vec![Label::new("route", route.to_owned()), Label::new("status", status.to_string())];
        self.labelled(HTTP_REQUESTS, labels).increment(1);
    }

    /// Counts a generation that ended.
    pub(crate) fn finished(&self, reason: &'static str) {
        self.labelled(FINISHED, vec![Label::from_static_parts("reason", reason)]).increment(1);
    }

    /// Counts a generation that was refused.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.labelled(REFUSED, vec![Label::from_static_parts("reason", reason)]).increment(1);
    }

    fn labelled(&self, name: &'static str, labels: Vec<Label>) -> Counter {
        self.recorder.register_counter(&Key::from_parts(name, labels), &METADATA)
    }

    /// All figures in Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        self.handle.render()
    }

    /// Puts samples into their buckets, which otherwise happens only when somebody reads them.
    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

/// Makes figures without labels.
struct Maker<'a>(&'a PrometheusRecorder);

impl Maker<'_> {
    fn gauge(&self, name: &'static str, text: &'static str) -> Gauge {
        self.0.describe_gauge(KeyName::from_const_str(name), None, SharedString::const_str(text));
        self.0.register_gauge(&Key::from_static_name(name), &METADATA)
    }

    fn counter(&self, name: &'static str, text: &'static str) -> Counter {
        self.0.describe_counter(KeyName::from_const_str(name), None, SharedString::const_str(text));
        self.0.register_counter(&Key::from_static_name(name), &METADATA)
    }

    fn histogram(&self, name: &'static str, text: &'static str) -> Histogram {
        self.0.describe_histogram(KeyName::from_const_str(name), Some(Unit::Seconds), SharedString::const_str(text));
        self.0.register_histogram(&Key::from_static_name(name), &METADATA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_told_with_their_buckets() {
        let metrics = Metrics::new();
        metrics.first_token.record(0.3);
        metrics.running.set(2.0);
        metrics.answered("/v1/models", 200);
        metrics.finished("stop");
        let text = metrics.render();
        for line in [
            "lily_requests_running 2",
            "lily_time_to_first_token_seconds_bucket{le=\"0.5\"} 1",
            "lily_time_to_first_token_seconds_bucket{le=\"0.25\"} 0",
            "lily_http_requests_total{route=\"/v1/models\",status=\"200\"} 1",
            "lily_requests_finished_total{reason=\"stop\"} 1",
            "# TYPE lily_time_to_first_token_seconds histogram",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
