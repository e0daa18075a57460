//! Importing on demand.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::inventory::ImportRequest;
use hoist_model::Name;
use hoist_site::import::{ImportError, Importer};
use hoist_site::reconcile::Options;
use hoist_site::registry::Commit;
use hoist_site::source::file::FileSource;
use hoist_site::source::smd::{SmdOptions, SmdSource};
use hoist_site::source::store::StoreSource;
use hoist_site::source::{InventorySource, Location, SourceError};
use serde::Deserialize;

use super::Inventory;
use super::refusal::write_failure;
use super::status::import_report;
use crate::audited_commit::AuditedCommit;
use crate::authorisation::ScopedCommit;
use crate::site::Source;
use hoist_chassis::Chassis;
use hoist_chassis::audit::Draft;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Flag, Json, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::{Principal, Reach};

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

/// Commits imports of the controller itself, under its own name in the audit log.
pub fn committer(chassis: &Chassis, source: &str) -> Arc<dyn Commit> {
    let draft = Draft {
        who: "controller".to_owned(),
        method: "import".to_owned(),
        route: source.to_owned(),
        ..Draft::default()
    };
    Arc::new(AuditedCommit::new(&chassis.audit, draft))
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct RefreshQuery {
    #[serde(default)]
    force: Flag,
}

pub(super) async fn refresh(
    State(inventory): State<Inventory>,
    principal: Principal,
    audit: AuditContext,
    Query(query): Query<RefreshQuery>,
) -> Result<Response, Failure> {
    let source = inventory.source.as_ref().ok_or_else(|| {
        Failure::new(Code::Conflict, "this controller has no inventory source")
            .with_remedy("start it with `--inventory`, or use `hoist node import`")
    })?;
    cycle(&inventory, source, query.force.0, principal, &audit).await
}

/// One cycle of the controller's own source.
async fn cycle(
    inventory: &Inventory,
    source: &Source,
    force: bool,
    principal: Principal,
    audit: &AuditContext,
) -> Result<Response, Failure> {
    let commit = ScopedCommit::new(&inventory.chassis.audit, principal, audit);
    let importer = &source.importer;
    let report =
        if force { importer.force_cycle(&commit).await } else { importer.cycle(&commit).await };
    Ok(Json(import_report(&source.url, report.map_err(import_failure)?)).into_response())
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
    // Otherwise a principal that may write nodes could read the controller's files: as a token sent
    // to a source of their own, or from the diagnostics of a file read as an inventory.
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
    // Two importers of one name would remove each other's nodes.
    if let Some(own) = inventory.source.as_ref().filter(|own| *own.importer.name() == config.name) {
        if own.url == config.url() {
            return cycle(&inventory, own, body.force, principal, &audit).await;
        }
        let detail = format!("`{}` is the name of this controller's own source", config.name);
        let remedy = format!("use `hoist refresh` to read {}, or another --source", own.url);
        return Err(Failure::new(Code::Conflict, detail).with_remedy(remedy));
    }
    config.smd.token_file = body.token_file;
    config.smd.authorities.clone_from(&inventory.import_authorities);
    config.reconcile.adopt = body.adopt;
    let source = config.open().await.map_err(ImportError::Source).map_err(import_failure)?;
    let registry = inventory.registry.clone();
    let states = inventory.states.clone();
    let importer = Importer::new(registry, states, source, config.reconcile.clone(), config.every);
    let commit = ScopedCommit::new(&inventory.chassis.audit, principal, &audit);
    let done = if body.force {
        importer.force_cycle(&commit).await
    } else {
        importer.cycle(&commit).await
    };
    importer.release().await;
    Ok(Json(import_report(&config.url(), done.map_err(import_failure)?)).into_response())
}

fn import_failure(error: ImportError) -> Failure {
    let detail = hoist_diagnostic::chain(&error);
    match error {
        ImportError::Source(_) => Failure::new(Code::SourceFailed, detail)
            .with_remedy("nothing was changed; what was imported before stays"),
        ImportError::Elsewhere => Failure::new(Code::Busy, detail)
            .with_remedy("ask the controller that imports, or wait for `import.every`"),
        ImportError::Write(error) => write_failure(error),
        ImportError::Store(error) => error.into(),
        _ => Failure::new(Code::Internal, detail),
    }
}
