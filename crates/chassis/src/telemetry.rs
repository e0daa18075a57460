//! Logs and metrics of the process. Both are global by nature: set up once, by the composition
//! root.

use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For a terminal.
    Human { color: bool },
    /// One JSON object per line.
    Json,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    #[error("`{filter}` is not a log filter; write `info` or `hoist_server=debug,info`")]
    Filter { filter: String, source: ParseError },
    #[error("logging is set up already")]
    Twice(#[source] TryInitError),
}

/// Upper bounds in seconds: answers from memory are far below a millisecond, store writes are not.
const SECONDS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Starts logging to standard error. Lines inside a request carry its id.
pub fn init_logging(format: LogFormat, filter: &str) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|source| LogError::Filter { filter: filter.to_owned(), source })?;
    let base = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Human { color } => base.with_ansi(color).finish().try_init(),
        LogFormat::Json => base.json().flatten_event(true).finish().try_init(),
    };
    started.map_err(LogError::Twice)
}

/// The process's metrics; the first call installs the recorder.
///
/// A recorder that was installed before wins: then the text stays empty.
pub(crate) fn metrics() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)
            .expect("the list of buckets is not empty")
            .build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is installed");
        }
        describe();
        handle
    })
}

fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!("hoist_http_requests_total", "Requests by method, route and status");
    describe_histogram!("hoist_http_request_seconds", "Time to the first byte of the answer");
    describe_gauge!("hoist_connections", "Open connections by listener");
    describe_counter!("hoist_connections_total", "Accepted connections by listener");
    describe_gauge!("hoist_certificate_expires_seconds", "Unix time of the certificate's end");
    describe_counter!("hoist_auth_failures_total", "Refused credentials by reason");
    describe_counter!("hoist_jwks_failures_total", "Failed fetches of JWT keys");
    describe_counter!("hoist_events_total", "Events published");
    describe_counter!("hoist_events_lost_total", "Events that the store could not take in time");
    describe_gauge!("hoist_event_queue", "Events waiting for the store");
    describe_counter!("hoist_event_readers_cut_total", "Event streams closed for being slow");
    describe_counter!("hoist_artifact_bytes_total", "Bytes of artifacts sent");
    describe_counter!("hoist_artifact_pulls_total", "Fetches from other controllers by outcome");
    describe_gauge!("hoist_artifact_blobs", "Artifact contents on the disk");
    describe_gauge!("hoist_artifact_blob_bytes", "Bytes of artifact contents on the disk");
    describe_counter!("hoist_event_resets_total", "Event streams that lost continuity");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_filter_is_named() {
        let error = init_logging(LogFormat::Json, "hoist=kettle=1").unwrap_err();
        assert!(error.to_string().contains("hoist=kettle=1"), "{error}");
    }
}
