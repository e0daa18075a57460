//! Importing on demand.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::inventory::ImportRequest;
use hoist_inventory::import::{ImportError, Importer};
use hoist_inventory::reconcile::Options;
use hoist_inventory::registry::Commit;
use hoist_inventory::source::file::FileSource;
use hoist_inventory::source::smd::{SmdOptions, SmdSource};
use hoist_inventory::source::store::StoreSource;
use hoist_inventory::source::{InventorySource, Location, SourceError};
use hoist_model::Name;

use super::Inventory;
use super::status::import_report;
use crate::audit::Draft;
use crate::auth::AuditContext;
use crate::authorisation::Scoped;
use crate::extract::Json;
use crate::failure::Failure;
use crate::principal::{Principal, Reach};
use crate::server::Chassis;

/// How a source is read.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    pub location: Location,
    pub name: Name,
    pub smd: SmdOptions,
    pub reconcile: Options,
    pub every: Duration,
}

impl SourceConfig {
    /// `None` for the store itself, which is no import.
    pub fn new(location: Location) -> Option<Self> {
        let name = match &location {
            Location::Store => return None,
            Location::Smd(_) => "smd",
            Location::File(_) => "file",
            Location::Shared(_) => "store",
        };
        Some(Self {
            location,
            name: name.parse().expect("a plain word"),
            smd: SmdOptions::default(),
            reconcile: Options::default(),
            every: Duration::from_mins(5),
        })
    }

    pub async fn open(&self) -> Result<Box<dyn InventorySource>, SourceError> {
        Ok(match &self.location {
            Location::Smd(url) => {
                Box::new(SmdSource::new(self.name.clone(), url.clone(), self.smd.clone())?)
            }
            Location::File(path) => Box::new(FileSource::new(self.name.clone(), path.clone())),
            Location::Shared(address) => {
                let store = address.open().await.map_err(|error| SourceError::Setup {
                    what: address.to_string(),
                    source: error.into(),
                })?;
                Box::new(StoreSource::new(self.name.clone(), address.to_string(), store))
            }
            Location::Store => unreachable!("the store is not imported"),
        })
    }

    /// Where it is, for people.
    pub fn url(&self) -> String {
        match &self.location {
            Location::Store => "store".to_owned(),
            Location::Smd(url) => format!("smd+{url}"),
            Location::File(path) => format!("file:{}", path.display()),
            Location::Shared(address) => format!("store+{address}"),
        }
    }
}

/// Commits what the controller imports by itself, under its own name in the audit log.
pub fn committer(chassis: &Chassis, source: &str) -> Arc<dyn Commit> {
    let draft = Draft {
        who: "controller".to_owned(),
        method: "import".to_owned(),
        route: source.to_owned(),
        ..Draft::default()
    };
    Arc::new(chassis.audit.committer(draft))
}

pub(super) async fn refresh(
    State(inventory): State<Inventory>,
    principal: Principal,
    audit: AuditContext,
) -> Result<Response, Failure> {
    let source = inventory.background.source.as_ref().ok_or_else(|| {
        Failure::new(Code::Conflict, "this site imports from nowhere")
            .with_remedy("start the server with `--inventory`, or name a source")
    })?;
    let committer = inventory.chassis.audit.committer(audit.draft());
    let report = source.importer.cycle(&Scoped { principal, committer }).await?;
    Ok(Json(import_report(&source.url, report)).into_response())
}

pub(super) async fn import(
    State(inventory): State<Inventory>,
    principal: Principal,
    audit: AuditContext,
    Json(body): Json<ImportRequest>,
) -> Result<Response, Failure> {
    let location: Location =
        body.url.parse().map_err(|error| Failure::new(Code::BadParameter, format!("{error}")))?;
    let mut config = SourceConfig::new(location).ok_or_else(|| {
        Failure::new(Code::BadParameter, "the store is the inventory already")
            .with_remedy("name an SMD or a file")
    })?;
    // Otherwise whoever may write nodes could read the controller's files: by having one sent as a
    // token to a source of their own, or by looking at what is wrong with it as an inventory.
    let reads_files = body.token_file.is_some()
        || matches!(config.location, Location::File(_) | Location::Shared(_));
    if reads_files && principal.reach(Verb::Write, Context::Admin) != Reach::All {
        let detail = "files of the controller are read for administrators only";
        return Err(Failure::new(Code::Forbidden, detail)
            .with_remedy("use a token with `write` in `admin`, or `hoist apply` the nodes"));
    }
    if let Some(name) = body.source {
        config.name = name;
    }
    config.smd.token_file = body.token_file;
    config.reconcile.adopt = body.adopt;
    let source = config.open().await.map_err(ImportError::Source)?;
    let (registry, states) = (inventory.registry.clone(), inventory.states.clone());
    let importer = Importer::new(registry, states, source, config.reconcile.clone(), config.every);
    let committer = inventory.chassis.audit.committer(audit.draft());
    let done = importer.cycle(&Scoped { principal, committer }).await;
    importer.release().await;
    Ok(Json(import_report(&config.url(), done?)).into_response())
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        let detail = crate::chain(&error);
        match error {
            ImportError::Source(_) => Self::new(Code::SourceFailed, detail)
                .with_remedy("nothing was changed; what was imported before stays"),
            ImportError::Elsewhere => Self::new(Code::Busy, detail).with_remedy("try again"),
            ImportError::Write(error) => error.into(),
            ImportError::Store(error) => error.into(),
            _ => Self::new(Code::Internal, detail),
        }
    }
}
