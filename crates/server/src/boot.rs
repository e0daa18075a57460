//! What machines boot, over HTTP: the boot script, BSS v1 (`/boot/v1`), and hoist's own view
//! (`/boot/v2`).
//!
//! Scripts are answered from one roster, without waiting. What was served is remembered in memory
//! and written behind.

mod once;
mod script;
mod sightings;

use std::str::FromStr;
use std::sync::Arc;

use hoist_api::admin::Context;
use hoist_boot::Booter;
use hoist_inventory::Registry;
use rustls_pki_types::CertificateDer;

use crate::route::{Plane, Route, with_state};
use crate::server::Chassis;

pub use hoist_boot::Settings as ScriptSettings;
pub use hoist_boot::presign::S3;
pub use once::OneBoots;
pub use sightings::{Endpoint, Seen, Sightings, Stranger};

/// What a site decides about booting.
#[derive(Debug, Clone, Default)]
pub struct BootSettings {
    pub scripts: ScriptSettings,
    pub auth: BssAuth,
    /// Refuse a PUT that would take a record's kernel away.
    pub keep_kernel: bool,
    pub helpers: Helpers,
}

/// Who may read and write boot parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BssAuth {
    /// As all of hoist's own routes: a token with the right scope.
    #[default]
    Token,
    /// As BSS with keys: whoever has a token that those signed.
    Jwks,
    /// As BSS without keys: everybody.
    Open,
}

/// Other services that booting involves.
#[derive(Debug, Clone, Default)]
pub struct Helpers {
    /// Gives the join tokens for `${SPIRE_JOIN_TOKEN}`.
    pub spire: Option<String>,
    /// Is told of every machine that asks for its script.
    pub notify: Option<String>,
    /// Trusted for both, besides nothing else; empty means the machine's.
    pub authorities: Vec<CertificateDer<'static>>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is one of `token`, `jwks` or `open`")]
pub struct ParseBssAuthError;

impl FromStr for BssAuth {
    type Err = ParseBssAuthError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "token" => Ok(Self::Token),
            "jwks" => Ok(Self::Jwks),
            "open" => Ok(Self::Open),
            _ => Err(ParseBssAuthError),
        }
    }
}

/// What the handlers share.
#[derive(Debug, Clone)]
pub struct Boot {
    pub(crate) chassis: Chassis,
    pub(crate) registry: Registry,
    pub(crate) booter: Arc<Booter>,
    pub(crate) sightings: Sightings,
    pub(crate) one_boots: OneBoots,
}

/// Open to everybody, unless the site has locked it.
pub(crate) const OPEN: Plane = Plane::Lockable { context: Context::Boot };

impl Boot {
    pub fn new(chassis: &Chassis, registry: Registry, settings: BootSettings) -> Self {
        let sightings = Sightings::new(Arc::clone(&chassis.store));
        let one_boots = OneBoots::new(chassis, registry.clone());
        let booter = Arc::new(Booter::new(settings.scripts));
        Self { chassis: chassis.clone(), registry, booter, sightings, one_boots }
    }

    /// Starts what runs beside the answers.
    pub fn start(&self) {
        let tasks = &self.chassis.tasks;
        let stop = tasks.stopping();
        tasks.spawn("sightings", self.sightings.clone().flush(stop.clone()));
        tasks.spawn("sightings of others", self.sightings.clone().follow(stop.clone()));
        tasks.spawn("one boot", self.one_boots.clone().write(stop.clone()));
    }
}

/// All routes of the context.
pub fn routes(boot: &Boot) -> Vec<Route> {
    let direct = boot.clone();
    let routes = vec![
        Route::get("/boot/v1/bootscript", OPEN, script::bootscript)
            .summary("What a machine boots: an iPXE script")
            .query("mac", "who is asking, in any spelling")
            .query("name", "its xname or name, if there is no MAC")
            .query("nid", "its nid, if there is neither")
            .query("arch", "iPXE's `${buildarch}`")
            .query("retry", "how often booting failed so far")
            .query("wait", "how often it was sent to ask again")
            .query("ts", "ignored")
            .query("json", "not 0: the parts of the script instead")
            .gives_media(200, "text/plain")
            .lenient()
            .legacy()
            .direct(move |head| script::direct(&direct, head)),
    ];
    with_state(routes, boot)
}
