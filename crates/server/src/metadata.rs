//! Metadata routes: cloud-init seeds (`/meta/v1`), the API of `OpenCHAMI`'s service (`/cloud-init`)
//! and EC2's (`/latest`).
//!
//! hoist's own documents are answered from one roster, without waiting. Rendering itself belongs to
//! `hoist-metadata`.

mod agent;
mod builtin;
mod copies;
mod ec2;
mod elsewhere;
mod enrollments;
mod failing_nodes;
mod node_cache;
mod node_seed;
mod openchami;
mod phone_home;
mod providers;
mod proxy;
mod render;
mod seed;
mod under_way;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use hoist_api::admin::Context;
use hoist_metadata::LayerRule;
use hoist_model::{GroupKey, NodeId};
use hoist_site::{Roster, SiteKey};
use rustls_pki_types::CertificateDer;
use secrecy::SecretString;

use crate::ahead;
use crate::boot::Boot;
use crate::vault::Vault;
use hoist_chassis::failure::Failure;
use hoist_chassis::large_answer::AnswerPermits;
use hoist_chassis::route::{AccessClass, Route, with_state};

use agent::Unlock;

pub(crate) use agent::{
    EnrolledNode, NO_ADDRESS, NO_ADDRESS_REMEDY, SecretRelease, secret_layers_of,
};
pub use hoist_metadata::mode::ParseModeError;
pub use hoist_metadata::{Mode, Unknown};
pub use providers::Providers;

/// Site settings for documents.
#[derive(Debug, Clone, Default)]
pub struct MetadataSettings {
    pub mode: Mode,
    /// For the nodes of these groups instead.
    pub groups: Vec<(GroupKey, Mode)>,
    pub unknown: Unknown,
    /// Trusted for the services that are asked, besides nothing else; empty means the machine's.
    pub authorities: Vec<CertificateDer<'static>>,
    /// Variables that layers may name, `HOIST_SECRET_…`, with their values.
    pub variables: BTreeMap<String, SecretString>,
}

/// State shared by the handlers.
#[derive(Debug, Clone)]
pub struct Metadata {
    pub(crate) boot: Boot,
    key: SiteKey,
    provider: Arc<Providers>,
    unknown: Unknown,
    counts: Arc<seed::Counts>,
    /// Limits concurrent listings of layers and previews.
    permits: AnswerPermits,
    /// Of meta-data that is taken apart.
    readings: AnswerPermits,
    unlock: Arc<Unlock>,
    node_up: Arc<dyn NodeUpListener>,
}

/// Everything that metadata needs besides the chassis.
#[derive(Debug)]
pub struct Dependencies {
    pub boot: Boot,
    pub key: SiteKey,
    pub providers: Arc<Providers>,
    pub unknown: Unknown,
    pub vault: Arc<Vault>,
    pub node_up: Arc<dyn NodeUpListener>,
}

/// Provisioning, as metadata sees it.
#[async_trait]
pub trait NodeUpListener: fmt::Debug + Send + Sync {
    /// Called when the system of a node proved that it is up.
    async fn node_is_up(&self, node: NodeId) -> Result<(), Failure>;
}

/// Open unless the site locks it.
const OPEN: AccessClass = AccessClass::Lockable { context: Context::Metadata };

impl Metadata {
    pub fn new(dependencies: Dependencies) -> Self {
        let Dependencies { boot, key, providers, unknown, vault, node_up } = dependencies;
        boot.registry.add_rule(Arc::new(LayerRule));
        let failing = Arc::clone(providers.failing());
        failing_nodes::check(&boot.chassis.readiness, boot.registry.clone(), failing);
        Self {
            unlock: Arc::new(Unlock::new(&boot.chassis, key.clone(), vault)),
            boot,
            key,
            provider: providers,
            unknown,
            counts: Arc::default(),
            permits: AnswerPermits::default(),
            readings: AnswerPermits::default(),
            node_up,
        }
    }

    /// Starts the background tasks.
    pub(crate) fn start(&self) {
        let tasks = &self.boot.chassis.tasks;
        let stop = tasks.stopping();
        let (provider, stopped) = (Arc::clone(&self.provider), stop.clone());
        let prepare = move |roster: &Arc<Roster>| provider.prepare(roster, &stopped);
        let ahead = ahead::work(self.boot.registry.clone(), stop.clone(), prepare);
        tasks.spawn("documents ahead", ahead);
    }

    /// Sets the gauge of nodes whose documents lack layers.
    pub(crate) fn measure(&self) {
        self.provider.failing().measure(&self.boot.registry.roster());
    }
}

/// All routes of the context.
pub fn routes(metadata: &Metadata) -> Vec<Route> {
    let all = [
        seed::routes(metadata),
        phone_home::routes(),
        render::routes(),
        node_seed::routes(),
        openchami::routes(),
        ec2::routes(),
        enrollments::routes(),
        agent::routes(),
    ];
    with_state(all.into_iter().flatten().collect(), metadata)
}
