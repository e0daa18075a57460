//! Kernels, initrds and images: kept by their digest, served to machines, shared by controllers.
//!
//! An artifact is a document (`Artifact`), which gives some content a name. Its content is a blob,
//! a file below `<data-dir>/artifacts`. Content comes first, its document after it.

mod blobs;
mod body;
mod care;
mod pull;
mod range;
mod serve;
mod upload;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::artifact::{ArtifactObject, Blob, CollectionResult};
use hoist_api::inventory::Listing;
use hoist_model::Digest;
use hoist_site::Registry;
use hoist_store::StoreError;
use tokio::sync::Mutex;

use blobs::Blobs;
use body::Buffers;
use hoist_chassis::Chassis;
use hoist_chassis::failure::Failure;
use hoist_chassis::log_limit::LogLimit;
use hoist_chassis::route::{AccessClass, Route, with_state};
use pull::Siblings;

pub use upload::MAX_BLOB_BYTES;

const NDJSON: &str = "application/x-ndjson";
const OCTETS: &str = "application/octet-stream";

const READ: AccessClass = AccessClass::Admin { context: Context::Boot, verb: Verb::Read };
const WRITE: AccessClass = AccessClass::Admin { context: Context::Boot, verb: Verb::Write };

/// Open to anonymous callers, unless the site locks it.
const OPEN: AccessClass = AccessClass::Lockable { context: Context::Boot };

/// State shared by the handlers.
#[derive(Debug, Clone)]
pub struct Artifacts {
    chassis: Chassis,
    registry: Registry,
    blobs: Blobs,
    buffers: Buffers,
    siblings: Siblings,
    collecting: Arc<Mutex<()>>,
    retained: Arc<dyn RetainedContents>,
}

/// Everything that artifacts need besides the chassis.
#[derive(Debug)]
pub struct Dependencies {
    pub registry: Registry,
    pub data_dir: PathBuf,
    /// URLs of controllers; the URL of this one may be among them.
    pub siblings: Vec<String>,
    pub retained: Arc<dyn RetainedContents>,
}

/// Provisioning, as artifacts see it.
#[async_trait]
pub trait RetainedContents: fmt::Debug + Send + Sync {
    /// The contents that nodes need to go back to their previous installation.
    async fn retained(&self) -> Result<HashSet<Digest>, StoreError>;
}

impl Artifacts {
    pub fn new(chassis: &Chassis, dependencies: Dependencies) -> Self {
        let Dependencies { registry, data_dir, siblings, retained } = dependencies;
        Self {
            chassis: chassis.clone(),
            registry,
            blobs: Blobs::new(&data_dir),
            buffers: Buffers::default(),
            siblings: Siblings::new(siblings, chassis),
            collecting: Arc::default(),
            retained,
        }
    }

    /// Starts what runs beside the answers.
    pub fn start(&self) {
        let artifacts = self.clone();
        self.chassis.tasks.spawn("artifact gauges", async move { artifacts.show_kept().await });
    }
}

const BY_DIGEST: &str = "The content whose digest the caller knows. Firmware and agents fetch \
    kernels and images without credentials; secrets do not belong in images";

/// All routes of the context.
pub fn routes(artifacts: &Artifacts) -> Vec<Route> {
    let served = |route: Route<Artifacts>| {
        route
            .streaming()
            .sends_files()
            .gives_media(200, OCTETS)
            .gives_media(206, OCTETS)
            .gives_nothing(304)
            .gives_nothing(416)
    };
    let limit = usize::try_from(MAX_BLOB_BYTES).unwrap_or(usize::MAX);
    let routes = vec![
        served(Route::get("/artifacts/{digest}", OPEN, serve::by_digest))
            .summary("Content by its SHA-256; takes one range")
            .reason(BY_DIGEST),
        served(Route::get("/artifacts/{digest}/{name}", OPEN, serve::by_digest_and_name))
            .summary("Content by its SHA-256, with a file name for the client")
            .reason(BY_DIGEST),
        served(Route::get("/artifacts/by-name/{name}", OPEN, serve::by_name))
            .summary("The current content of an artifact")
            .reason(
                "The content of the artifact that is named. The list of artifacts needs a token. \
                 Firmware has no credentials; secrets do not belong in images",
            ),
        Route::get("/boot/v2/blobs/{digest}", READ, upload::state)
            .summary("Received size of a blob")
            .gives::<Blob>(200),
        Route::patch("/boot/v2/blobs/{digest}", WRITE, upload::upload)
            .summary("Upload content, or the rest of it; verified when it is complete")
            .query("offset", "where the body begins: what is here already")
            .query("size", "of the whole content")
            .body_limit(limit)
            .streaming()
            .gives::<Blob>(200),
        Route::get("/boot/v2/artifacts", READ, care::list)
            .summary(
                "All artifacts, with the state of their content and the documents that name them",
            )
            .gives::<Listing<ArtifactObject>>(200),
        Route::post("/boot/v2/artifacts/verify", WRITE, care::verify)
            .summary("Verify all content and set damaged content aside; one line per blob")
            .streaming()
            .gives_media(200, NDJSON),
        Route::post("/boot/v2/artifacts/gc", WRITE, care::collect)
            .summary("Remove content that no artifact names")
            .flag("dry_run", "change nothing, say what would be removed")
            .flag("unused", "also artifacts that no boot configuration or BSS record names")
            .flag("unfinished", "also uploads that may still be gone on with")
            .flag("previous", "also what nodes need to go back to what they had before")
            .streaming()
            .gives::<CollectionResult>(200),
    ];
    with_state(routes, artifacts)
}

/// The reason goes to the log: it names paths.
fn disk_failed(error: &io::Error) -> Failure {
    static LINES: LogLimit = LogLimit::per_second();
    if let Some(left_out) = LINES.permit() {
        tracing::error!(%error, left_out, "artifacts cannot be read or written");
    }
    Failure::new(Code::Internal, "the disk with the artifacts failed; the log has the reason")
}
