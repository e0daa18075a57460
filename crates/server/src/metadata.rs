//! What nodes are told about themselves, over HTTP: the seeds of cloud-init (`/meta/v1`), and the
//! same as `OpenCHAMI`'s service (`/cloud-init`) and EC2 (`/latest`) have it.
//!
//! Documents of hoist's own are answered from one roster, without waiting.

mod agent;
mod arming;
mod builtin;
mod copies;
mod ec2;
mod elsewhere;
mod kept;
pub mod key;
mod openchami;
mod phone_home;
mod providers;
pub mod provision;
mod proxy;
mod render;
pub mod secrets;
mod seed;
mod under_way;

use std::collections::BTreeMap;
use std::sync::Arc;

use hoist_api::admin::Context;
use hoist_metadata::{LayerRule, SiteKey};
use hoist_model::GroupKey;
use rustls_pki_types::CertificateDer;
use secrecy::SecretString;

use crate::boot::Boot;
use crate::provision::Runs;
use crate::route::{Plane, Route, with_state};
use crate::whole_site::Turns;

use agent::Unlock;
use secrets::Vault;

pub(crate) use agent::{
    EnrolledNode, NO_ADDRESS, NO_ADDRESS_REMEDY, SecretRelease, secret_layers_of,
};
pub(crate) use arming::shown as shown_key;
pub use hoist_metadata::mode::ParseModeError;
pub use hoist_metadata::{Mode, Unknown};
pub use providers::Providers;

/// What a site decides about its nodes' documents.
#[derive(Debug, Clone, Default)]
pub struct MetadataSettings {
    pub mode: Mode,
    /// For the nodes of these groups instead.
    pub groups: Vec<(GroupKey, Mode)>,
    pub unknown: Unknown,
    /// Trusted for the services that are asked, besides nothing else; empty means the machine's.
    pub authorities: Vec<CertificateDer<'static>>,
    /// Variables that layers may name, `HOIST_SECRET_…`, with what is in them.
    pub variables: BTreeMap<String, SecretString>,
}

/// What the handlers share.
#[derive(Debug, Clone)]
pub struct Metadata {
    pub(crate) boot: Boot,
    key: SiteKey,
    provider: Arc<Providers>,
    unknown: Unknown,
    counts: Arc<seed::Counts>,
    /// Of people who look at layers and previews.
    turns: Turns,
    /// Of meta-data that is taken apart.
    readings: Turns,
    unlock: Arc<Unlock>,
    /// Who wants to know that a node is up.
    runs: Runs,
}

/// Open to everybody, unless the site has locked it.
const OPEN: Plane = Plane::Lockable { context: Context::Metadata };

impl Metadata {
    pub fn new(
        boot: &Boot,
        key: SiteKey,
        provider: Arc<Providers>,
        unknown: Unknown,
        vault: Vault,
        runs: Runs,
    ) -> Self {
        boot.registry.add_rule(Arc::new(LayerRule));
        Self {
            unlock: Arc::new(Unlock::new(&boot.chassis, key.clone(), vault)),
            boot: boot.clone(),
            key,
            provider,
            unknown,
            counts: Arc::default(),
            turns: Turns::default(),
            readings: Turns::default(),
            runs,
        }
    }
}

/// All routes of the context.
pub fn routes(metadata: &Metadata) -> Vec<Route> {
    let all = [
        seed::routes(metadata),
        phone_home::routes(),
        render::routes(),
        openchami::routes(),
        ec2::routes(),
        arming::routes(),
        agent::routes(),
    ];
    with_state(all.into_iter().flatten().collect(), metadata)
}
