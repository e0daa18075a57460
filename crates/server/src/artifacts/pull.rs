//! Content that is declared and not here is fetched from another controller, and sent on while it
//! arrives.
//!
//! One fetch per content, however many machines ask: they all read along. When the other controller
//! goes away, the next one is asked for the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hoist_api::Code;
use hoist_api::artifact::SIBLING_HEADER;
use hoist_diagnostic::chain;
use hoist_model::Digest;
use http::{StatusCode, header};
use reqwest::Response;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::time::{Instant, timeout};

use super::blobs::{Content, NoPart, Origin, Part, PartError, Progress, blocking};
use super::serve::not_here;
use super::upload::failed;
use super::{Artifacts, disk_failed};
use hoist_chassis::Chassis;
use hoist_chassis::failure::Failure;
use hoist_chassis::log_limit::LogLimit;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// One that sends nothing for so long is given up.
const STALL: Duration = Duration::from_secs(10);

/// So is one that sends less than this in that time, where there may be a quicker one.
const LEAST: u64 = 1024 * 1024;

/// Callers can request missing content without end.
static NOT_FROM_ONE: LogLimit = LogLimit::per_second();
static NOT_FROM_ANY: LogLimit = LogLimit::per_second();

/// The other controllers.
#[derive(Debug, Clone)]
pub(super) struct Siblings {
    /// Where they are reached; this one may be among them, and then says that it has nothing.
    urls: Vec<String>,
    client: reqwest::Client,
    /// Each fetch begins with the next one: one whose disk is bad must not spoil all of them.
    permit: Arc<AtomicUsize>,
}

#[derive(Debug, thiserror::Error)]
enum PullError {
    #[error("the controller does not have the content")]
    NotThere,
    #[error("the controller answered {0}")]
    Status(StatusCode),
    #[error("the controller returned another range than requested")]
    OtherBytes,
    #[error("the transfer ended before the content was complete")]
    Short,
    #[error("the transfer is too slow")]
    Slow,
    #[error("the controller sent more than the declared size")]
    TooLong,
    #[error("the controller is unreachable or stopped answering")]
    Http(#[from] reqwest::Error),
    #[error("cannot store the received content")]
    Part(#[from] PartError),
}

impl Siblings {
    pub(super) fn new(urls: Vec<String>, chassis: &Chassis) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        if let Ok(root) = CertificateDer::from_pem_slice(chassis.ca.root_pem().as_bytes()) {
            roots.add_parsable_certificates([root]);
        }
        let tls = rustls::ClientConfig::builder_with_provider(hoist_chassis::ca::provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = reqwest::Client::builder()
            .user_agent(concat!("hoist/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(STALL)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .no_gzip()
            .tls_backend_preconfigured(tls)
            .build()
            .expect("nothing but constants was set");
        Self { urls, client, permit: Arc::default() }
    }

    /// Fetches all missing bytes from the other controllers, and repeats while that makes progress.
    async fn fill(&self, part: &mut Part, digest: Digest) -> Result<(), PullError> {
        let mut worst = PullError::NotThere;
        let first = self.permit.fetch_add(1, Ordering::Relaxed) % self.urls.len().max(1);
        let (rest, begin) = self.urls.split_at(first);
        loop {
            let before = part.received();
            for url in begin.iter().chain(rest) {
                match self.fill_from(url, part, digest).await {
                    Ok(()) => return Ok(()),
                    Err(PullError::NotThere) => {}
                    // No other controller changes that.
                    Err(error @ PullError::Part(_)) => return Err(error),
                    Err(error) => {
                        if let Some(left_out) = NOT_FROM_ONE.permit() {
                            tracing::warn!(
                                %digest, url, received = part.received(), error = %chain(&error),
                                left_out, "content not fetched from this controller"
                            );
                        }
                        worst = error;
                    }
                }
            }
            if part.received() == before {
                return Err(worst);
            }
        }
    }

    async fn fill_from(&self, url: &str, part: &mut Part, digest: Digest) -> Result<(), PullError> {
        let from = part.received();
        let mut request =
            self.client.get(format!("{url}/artifacts/{digest}")).header(SIBLING_HEADER, "1");
        if from > 0 {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        let mut response = timeout(STALL, request.send()).await.map_err(|_| PullError::Slow)??;
        check(&response, from, part.size())?;
        part.begin();
        let taken = take(&mut response, part).await;
        // The next source continues from here.
        part.flush().await?;
        taken?;
        if part.is_complete() { Ok(()) } else { Err(PullError::Short) }
    }
}

/// Receives to the end, as long as the transfer is fast enough.
async fn take(response: &mut Response, part: &mut Part) -> Result<(), PullError> {
    let mut since = Instant::now();
    let mut before = part.received();
    while let Some(bytes) = response.chunk().await? {
        match part.append(bytes).await {
            Err(PartError::TooLong) => return Err(PullError::TooLong),
            appended => appended?,
        }
        if since.elapsed() >= STALL {
            if part.received() - before < LEAST {
                return Err(PullError::Slow);
            }
            (since, before) = (Instant::now(), part.received());
        }
    }
    Ok(())
}

/// Whether these are the bytes from `from` on.
fn check(response: &Response, from: u64, size: u64) -> Result<(), PullError> {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|v| v.to_str().ok());
    let right = match response.status() {
        StatusCode::OK => from == 0 && response.content_length() == Some(size),
        StatusCode::PARTIAL_CONTENT => {
            range == Some(&format!("bytes {from}-{}/{size}", size.saturating_sub(1)))
        }
        StatusCode::NOT_FOUND => return Err(PullError::NotThere),
        other => return Err(PullError::Status(other)),
    };
    if right { Ok(()) } else { Err(PullError::OtherBytes) }
}

impl Siblings {
    /// Whether another controller has it whole.
    async fn have(&self, digest: Digest, size: u64) -> bool {
        for url in &self.urls {
            let ask = self.client.head(format!("{url}/artifacts/{digest}"));
            let answer = timeout(STALL, ask.header(SIBLING_HEADER, "1").send()).await;
            // The body of such an answer is empty, and only its header tells the length.
            let length = |response: &Response| {
                response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
            };
            if let Ok(Ok(response)) = answer
                && response.status() == StatusCode::OK
                && length(&response) == Some(size)
            {
                return true;
            }
        }
        false
    }
}

impl Artifacts {
    /// Whether content that is not here could be fetched, without fetching it.
    pub(super) async fn can_be_fetched(&self, digest: Digest, size: u64) -> bool {
        self.blobs.follow(digest).is_some() || self.siblings.have(digest, size).await
    }

    /// Content that is not here, to be read while it arrives.
    pub(super) async fn fetch(&self, digest: Digest, size: u64) -> Result<Content, Failure> {
        if let Some(content) = self.blobs.follow(digest) {
            return begun(content, digest).await;
        }
        if self.siblings.urls.is_empty() {
            return Err(not_here(digest));
        }
        let blobs = self.blobs.clone();
        let started = blocking(move || {
            Ok(match blobs.start(digest, size, Origin::Sibling) {
                Err(NoPart::Whole) => Ok(blobs.open(digest)?),
                other => Err(other),
            })
        });
        let content = match started.await.map_err(|error| disk_failed(&error))? {
            Ok(Some(content)) => return Ok(content),
            // Removed a moment after it arrived.
            Ok(None) | Err(Err(NoPart::Whole)) => return Err(not_here(digest)),
            Err(Err(NoPart::Io(error))) => return Err(failed(&error.into())),
            // An upload, which is not shown before it is checked, is as good as nothing.
            Err(Err(NoPart::Busy(content))) => content.ok_or_else(|| not_here(digest))?,
            Err(Ok(part)) => {
                let content = part.content();
                let artifacts = self.clone();
                self.chassis.tasks.spawn("pull", artifacts.pull(part, digest));
                content
            }
        };
        begun(content, digest).await
    }

    async fn pull(self, mut part: Part, digest: Digest) {
        let filled = tokio::select! {
            () = self.chassis.tasks.stopping().cancelled() => {
                // The next start resumes from the received bytes.
                return part.tell(Progress::Broken);
            }
            filled = self.siblings.fill(&mut part, digest) => filled,
        };
        let ended = match filled {
            Ok(()) => part.finish().await.map_err(PullError::from),
            Err(error) => {
                let missing = matches!(error, PullError::NotThere);
                part.tell(if missing { Progress::NotThere } else { Progress::Broken });
                Err(error)
            }
        };
        let outcome = match &ended {
            Ok(()) => "whole",
            Err(PullError::NotThere) => "not_there",
            Err(_) => "broken",
        };
        metrics::counter!("hoist_artifact_pulls_total", "outcome" => outcome).increment(1);
        match ended {
            Ok(()) => {
                tracing::info!(%digest, "content fetched from another controller");
                self.show_kept().await;
            }
            Err(error) => {
                if let Some(left_out) = NOT_FROM_ANY.permit() {
                    tracing::warn!(
                        %digest, error = %chain(&error), left_out,
                        "content not fetched from other controllers"
                    );
                }
            }
        }
    }
}

/// Waits until a source is known to have the content.
async fn begun(mut content: Content, digest: Digest) -> Result<Content, Failure> {
    let Some(growth) = &mut content.growth else { return Ok(content) };
    let progress = growth.wait_for(|progress| *progress != Progress::Seeking).await;
    match progress.map_or(Progress::Broken, |progress| *progress) {
        Progress::NotThere => Err(not_here(digest)),
        Progress::Broken | Progress::Seeking => {
            let detail = "no controller that can be reached has this content";
            Err(Failure::new(Code::SourceFailed, detail).with_remedy("try again"))
        }
        Progress::Received(_) | Progress::Checked => Ok(content),
    }
}
