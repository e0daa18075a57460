//! A whole site applied as one stream to a real controller: how much memory it takes at most.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::stream;

use crate::sample::{self, SITE};
use crate::verdict::{Limit, Row, multiple};
use crate::{inside, resident};

const LIMIT: Limit = Limit::AtMost(3.0);
/// The change comes back through the watch, the overlay is folded and the last-good copy is written
/// after this: that is part of the price.
const AFTERMATH: Duration = Duration::from_secs(12);

pub(crate) fn measure() -> Result<Vec<Row>> {
    let roster = inside::ask(&["roster", &SITE.to_string()])?;
    let dir = tempfile::tempdir()?;
    let controller = inside::ControllerProcess::start(dir.path())?;
    let token = fs_err::read_to_string(dir.path().join("admin.token"))?;
    let process = controller.process();
    let runtime = tokio::runtime::Runtime::new()?;
    let surroundings: Vec<String> =
        sample::surroundings(SITE).iter().map(|document| format!("{document}\n")).collect();
    runtime.block_on(apply(&controller.address, token.trim(), surroundings))?;
    let before = resident::now(&process)?;
    resident::reset_peak(&process)?;
    let started = std::time::Instant::now();
    let batches = (0..SITE).step_by(100);
    let batches = batches.map(|from| (from..from + 100).map(sample::line).collect::<String>());
    runtime.block_on(apply(&controller.address, token.trim(), batches))?;
    let took = started.elapsed();
    let during = resident::peak(&process)?;
    std::thread::sleep(AFTERMATH);
    let afterwards = resident::peak(&process)?;
    let settled = resident::now(&process)?;
    let row = |what: &str, peak: u64, limit| Row {
        what: what.to_owned(),
        measured: multiple(peak.saturating_sub(before), roster),
        unit: "x roster",
        limit,
        detail: format!(
            "{} MiB above {} MiB, roster {} MiB, answer after {:.1} s",
            mib(peak - before),
            mib(before),
            mib(roster),
            took.as_secs_f64()
        ),
    };
    Ok(vec![
        row("bulk apply of 100,000 nodes over HTTP, peak until the answer", during, Some(LIMIT)),
        row("the same, with watch, folding and last-good copy", afterwards, Some(LIMIT)),
        row("controller after the bulk apply of 100,000 nodes", settled.max(before), None),
    ])
}

fn mib(bytes: u64) -> u64 {
    bytes / (1024 * 1024)
}

pub(crate) async fn apply(
    address: &str,
    token: &str,
    chunks: impl IntoIterator<Item = String, IntoIter: Send + 'static>,
) -> Result<()> {
    let chunks = chunks.into_iter().map(|chunk| Ok::<_, std::io::Error>(bytes::Bytes::from(chunk)));
    let body = reqwest::Body::wrap_stream(stream::iter(chunks));
    let response = client()?
        .post(format!("http://{address}/inventory/v1/apply"))
        .bearer_auth(token)
        .header("content-type", "application/x-ndjson")
        .body(body)
        .send()
        .await?;
    let status = response.status();
    let text = response.text().await?;
    let head: String = text.chars().take(500).collect();
    ensure!(status.is_success(), "{status}: {head}");
    Ok(())
}

/// Plain HTTP; reqwest wants a TLS configuration all the same.
pub(crate) fn client() -> Result<reqwest::Client> {
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("the provider has TLS 1.2 and 1.3")?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Ok(reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build()?)
}
