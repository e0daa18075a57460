//! What machines boot, over HTTP: the boot script, BSS v1 (`/boot/v1`), and hoist's own view
//! (`/boot/v2`).
//!
//! Scripts are answered from one roster, without waiting. What was served is remembered in memory
//! and written behind.

mod once;
mod parameters;
mod script;
mod sightings;

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use hoist_api::admin::{Context, Verb};
use hoist_boot::Booter;
use hoist_inventory::Registry;
use hoist_model::BootParameters;
use http::{HeaderValue, header};
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
    /// A PUT of boot parameters without a kernel is refused where there is one.
    pub keep_kernel: bool,
    pub helpers: Helpers,
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

/// What the handlers share.
#[derive(Debug, Clone)]
pub struct Boot {
    pub(crate) chassis: Chassis,
    pub(crate) registry: Registry,
    pub(crate) booter: Arc<Booter>,
    pub(crate) sightings: Sightings,
    pub(crate) one_boots: OneBoots,
    keep_kernel: bool,
}

/// Open to everybody, unless the site has locked it.
pub(crate) const OPEN: Plane = Plane::Lockable { context: Context::Boot };

impl Boot {
    pub fn new(chassis: &Chassis, registry: Registry, settings: BootSettings) -> Self {
        let sightings = Sightings::new(Arc::clone(&chassis.store));
        let one_boots = OneBoots::new(chassis, registry.clone());
        let BootSettings { scripts, keep_kernel, .. } = settings;
        let booter = Arc::new(Booter::new(scripts));
        Self { chassis: chassis.clone(), registry, booter, sightings, one_boots, keep_kernel }
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
    let routes = [script_routes(boot), parameter_routes()].into_iter().flatten().collect();
    with_state(routes, boot)
}

fn script_routes(boot: &Boot) -> Vec<Route<Boot>> {
    let direct = boot.clone();
    vec![
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
    ]
}

fn parameter_routes() -> Vec<Route<Boot>> {
    const PATH: &str = "/boot/v1/bootparameters";
    const READ: Plane = Plane::Bss { verb: Verb::Read };
    const WRITE: Plane = Plane::Bss { verb: Verb::Write };
    let routes = vec![
        Route::get(PATH, READ, parameters::get)
            .summary("BSS: boot parameters, all or those of the nodes named")
            .query("name", "xnames, names or tags, joined by commas or repeated")
            .query("mac", "MACs")
            .query("nid", "nids")
            .gives::<Vec<BootParameters>>(200),
        Route::post(PATH, WRITE, parameters::post)
            .summary("BSS: create boot parameters")
            .takes::<BootParameters>()
            .gives_nothing(201),
        Route::put(PATH, WRITE, parameters::put)
            .summary("BSS: replace boot parameters")
            .takes::<BootParameters>()
            .gives::<BootParameters>(200),
        Route::patch(PATH, WRITE, parameters::patch)
            .summary("BSS: change some of the boot parameters")
            .gives_nothing(200),
        Route::delete(PATH, WRITE, parameters::delete)
            .summary("BSS: delete boot parameters")
            .gives_nothing(200),
    ];
    let as_bss = |route: Route<Boot>| route.body_limit(parameters::MAX_BODY).lenient().legacy();
    routes.into_iter().map(as_bss).collect()
}

/// JSON with the type that BSS gives it.
fn bss_json(value: &impl serde::Serialize) -> Response {
    const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=UTF-8");
    let body = serde_json::to_vec(value).expect("a plain value");
    ([(header::CONTENT_TYPE, JSON)], body).into_response()
}
