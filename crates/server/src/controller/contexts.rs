//! All contexts of a controller, made in the order in which they depend on each other.

use std::path::PathBuf;
use std::sync::Arc;

use hoist_chassis::{Chassis, Route};
use hoist_discovery::{Network, Selection};
use hoist_site::SeedProvider;

use super::Config;
use crate::artifacts::{self, Artifacts};
use crate::backup;
use crate::boot::{self, Boot, Contacts};
use crate::cluster::{self, Cluster};
use crate::deploy::{self, Deploy};
use crate::enrollment::AgentsSent;
use crate::hsm::{self, Hsm};
use crate::http_client::HttpClientError;
use crate::inventory::{self, Inventory};
use crate::metadata::{self, Metadata, Providers};
use crate::provision::{self, Provision, Runs};
use crate::site::Site;
use crate::vault::Vault;

/// Services beside this controller that contexts ask. Nothing is connected yet.
pub(super) struct OtherServices {
    contacts: Contacts,
    providers: Arc<Providers>,
}

impl OtherServices {
    pub(super) fn open(config: &Config, site: &Site) -> Result<Self, HttpClientError> {
        let providers = Providers::new(&site.key, &config.metadata, &site.data_dir)?;
        let contacts = Contacts::new(&config.boot.helpers)?;
        Ok(Self { contacts, providers: Arc::new(providers) })
    }
}

/// All contexts.
pub(super) struct Contexts {
    chassis: Chassis,
    data_dir: PathBuf,
    inventory: Inventory,
    boot: Boot,
    metadata: Metadata,
    provision: Provision,
    hsm: Hsm,
    artifacts: Artifacts,
    deploy: Deploy,
    cluster: Cluster,
}

impl Contexts {
    pub(super) fn new(
        chassis: &Chassis,
        site: &Site,
        services: OtherServices,
        config: Config,
    ) -> Self {
        let OtherServices { contacts, providers } = services;
        let discovery = discovery(&config);
        let vault = Arc::new(Vault::new(&site.data_dir, config.metadata.variables));
        let advertise = config.boot.scripts.advertise.clone();
        let agents_sent = AgentsSent::default();
        let runs = Runs::new(chassis, site, agents_sent.clone(), config.agent_silence);

        let inventory = Inventory::new(
            chassis,
            inventory::Dependencies {
                site: site.clone(),
                import_authorities: config.import_authorities,
            },
        );
        let boot = Boot::new(
            chassis,
            boot::Dependencies {
                site: site.clone(),
                contacts,
                seeds: Arc::clone(&providers) as Arc<dyn SeedProvider>,
                agents_sent,
                unerased: Arc::new(runs.clone()),
                settings: config.boot,
            },
        );
        let metadata = Metadata::new(metadata::Dependencies {
            boot: boot.clone(),
            key: site.key.clone(),
            providers,
            unknown: config.metadata.unknown,
            vault: Arc::clone(&vault),
            node_up: Arc::new(runs.clone()),
        });
        let artifacts = Artifacts::new(
            chassis,
            artifacts::Dependencies {
                registry: site.registry.clone(),
                data_dir: site.data_dir.clone(),
                siblings: advertise.clone(),
                retained: Arc::new(runs.clone()),
            },
        );
        let systems = Arc::new(runs.clone());
        let provision = Provision::new(provision::Dependencies {
            metadata: metadata.clone(),
            runs,
            advertise,
            plain_port: Arc::clone(&site.ports.plain),
        });
        let hsm = Hsm::new(
            chassis,
            hsm::Dependencies { registry: site.registry.clone(), states: site.states.clone() },
        );
        let deploy = Deploy::new(
            chassis,
            deploy::Dependencies { site: site.clone(), vault, systems, settings: config.deploy },
        );
        let cluster = Cluster::new(chassis, site, discovery);
        Self {
            chassis: chassis.clone(),
            data_dir: site.data_dir.clone(),
            inventory,
            boot,
            metadata,
            provision,
            hsm,
            artifacts,
            deploy,
            cluster,
        }
    }

    pub(super) fn routes(&self) -> Vec<Route> {
        let mut routes = backup::route::routes(&self.chassis, self.data_dir.clone());
        routes.extend(inventory::routes(&self.inventory));
        routes.extend(boot::routes(&self.boot));
        routes.extend(metadata::routes(&self.metadata));
        routes.extend(provision::routes(&self.provision));
        routes.extend(hsm::routes(&self.hsm));
        routes.extend(artifacts::routes(&self.artifacts));
        routes.extend(deploy::routes(&self.deploy));
        routes.extend(cluster::routes(&self.cluster));
        routes
    }

    /// Starts the background tasks of the contexts.
    pub(super) fn start(&self) {
        self.boot.start();
        self.metadata.start();
        self.provision.start();
        self.artifacts.start();
        self.cluster.start();
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(super) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The context that the controller asks for the status of the site.
    pub(super) fn into_inventory(self) -> Inventory {
        self.inventory
    }
}

/// A controller that listens only on loopback is of no use to other machines: it does not answer
/// them, unless interfaces are named.
fn discovery(config: &Config) -> Option<Network> {
    let network = config.discovery.clone()?;
    let listen = config.tls_listen?;
    let is_named = matches!(network.interfaces, Selection::Named(_));
    (is_named || !listen.ip().is_loopback()).then_some(network)
}
