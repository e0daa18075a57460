//! `/boot/v2`: boot configurations, and what they come to for a node.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::boot::{
    BootConfigObject, BootDiff, ExplainedChoice, Explanation, History, HistoryRow, LostChoice, Word,
};
use hoist_api::inventory::Listing;
use hoist_boot::answer::{JOIN_TOKEN, asked_by};
use hoist_boot::explain;
use hoist_boot::rule::selected;
use hoist_boot::{Answer, Booter, Choice, Place, Standing};
use hoist_inventory::{Resource, Roster};
use hoist_model::{BootConfig, Mac, Nid, Node, NodeId, Xname};
use http::{HeaderMap, header};
use serde::Deserialize;

use super::script::{TEXT, place};
use super::{Boot, Endpoint, Seen, change};
use crate::authorisation::Access;
use crate::extract::{Json, Path, Query};
use crate::failure::Failure;
use crate::inventory::{MAX_APPLY_BYTES, Sight, bad_parameter, no_such_node};
use crate::peer::{GatewayPrefix, Peer};
use crate::principal::Principal;
use crate::route::{Plane, Route};

pub(super) const READ: Plane = Plane::Admin { context: Context::Boot, verb: Verb::Read };
pub(super) const WRITE: Plane = Plane::Admin { context: Context::Boot, verb: Verb::Write };

pub(super) fn routes() -> Vec<Route<Boot>> {
    vec![
        Route::get("/boot/v2/configs", READ, list_configs)
            .summary("All boot configurations, with how many nodes each selects")
            .gives::<Listing<BootConfigObject>>(200)
            .selective(),
        Route::get("/boot/v2/configs/{name}", READ, get_config)
            .summary("One boot configuration")
            .gives::<BootConfigObject>(200)
            .selective(),
        Route::get("/boot/v2/explain/{node}", READ, explain)
            .summary("What a node boots, and why")
            .gives::<Explanation>(200)
            .selective(),
        Route::get("/boot/v2/script/{node}", READ, script)
            .summary("The script a node would get, as text; nothing is remembered of it")
            .query("at", "at this revision of the site; by default now")
            .gives_media(200, "text/plain")
            .selective(),
        Route::get("/boot/v2/history/{node}", READ, history)
            .summary("When a node last asked, and what it got")
            .gives::<History>(200)
            .selective(),
        Route::post("/boot/v2/diff", READ, change::diff)
            .summary(
                "What documents (YAML, JSON or NDJSON) would mean for booting; changes nothing",
            )
            .query("set", "as if they were applied under this name")
            .flag("prune", "without what the set contained before and does not any more")
            .body_limit(MAX_APPLY_BYTES)
            .streaming()
            .gives::<BootDiff>(200),
    ]
}

/// A node as people name it in a path: by name, xname, MAC, nid or id.
pub(crate) fn find<'r>(
    roster: &'r Roster,
    sight: &Sight,
    text: &str,
) -> Result<&'r Arc<Node>, Failure> {
    let by_xname = || text.parse::<Xname>().ok().and_then(|xname| roster.by_xname(xname));
    let by_mac = || text.parse::<Mac>().ok().and_then(|mac| roster.by_mac(mac));
    let by_nid = || text.parse::<Nid>().ok().and_then(|nid| roster.by_nid(nid));
    let by_id = || text.parse::<NodeId>().ok().and_then(|id| roster.by_id(id));
    let found = roster.by_name(text).or_else(by_xname).or_else(by_mac).or_else(by_nid);
    let found = found.or_else(by_id).filter(|node| sight.reaches(roster, node));
    found.ok_or_else(|| no_such_node(format!("`{text}`")))
}

pub(super) fn sight(principal: &Principal, verb: Verb, roster: &Roster) -> Sight {
    Sight::within(principal, verb, Context::Boot, roster)
}

/// A configuration as far as a principal may see it: one limited to some nodes sees those of its
/// nodes.
fn config_object(
    roster: &Roster,
    principal: &Principal,
    config: &Arc<BootConfig>,
) -> Option<BootConfigObject> {
    sees_config(roster, principal, config).then(|| {
        let sight = sight(principal, Verb::Read, roster);
        let nodes = selected(roster, config);
        let seen = nodes.iter().filter(|node| sight.reaches(roster, node)).count();
        BootConfigObject::from_stored(config, seen)
    })
}

pub(super) fn sees_config(
    roster: &Roster,
    principal: &Principal,
    config: &Arc<BootConfig>,
) -> bool {
    let access = Access::new(principal, Verb::Read, roster);
    access.covers(&Resource::BootConfig(Arc::clone(config)))
}

async fn list_configs(State(boot): State<Boot>, principal: Principal) -> Response {
    let roster = boot.registry.roster();
    let object = |config| config_object(&roster, &principal, config);
    let items = roster.boot_configs().filter_map(object);
    Json(Listing { revision: roster.revision(), items: items.collect() }).into_response()
}

async fn get_config(
    State(boot): State<Boot>,
    principal: Principal,
    Path(name): Path<String>,
) -> Result<Response, Failure> {
    let roster = boot.registry.roster();
    let object = |config| config_object(&roster, &principal, config);
    let found = roster.boot_config(&name).and_then(object).ok_or_else(|| {
        Failure::new(Code::NotFound, format!("there is no boot configuration `{name}`"))
            .with_remedy("`hoist boot list` shows all of them")
    })?;
    Ok(Json(found).into_response())
}

async fn explain(
    State(boot): State<Boot>,
    principal: Principal,
    Path(node): Path<String>,
    peer: Peer,
    headers: HeaderMap,
) -> Result<Json<Explanation>, Failure> {
    let roster = boot.registry.roster();
    let node = find(&roster, &sight(&principal, Verb::Read, &roster), &node)?;
    let place = place(&headers, &peer, GatewayPrefix::default());
    Ok(Json(boot.explain(&roster, node, place)))
}

#[derive(Debug, Deserialize)]
struct ScriptQuery {
    at: Option<u64>,
}

async fn script(
    State(boot): State<Boot>,
    principal: Principal,
    Path(node): Path<String>,
    Query(query): Query<ScriptQuery>,
    peer: Peer,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let current = boot.registry.roster();
    let place = place(&headers, &peer, GatewayPrefix::default());
    let text = match query.at.filter(|at| *at != current.revision()) {
        None => {
            let sight = sight(&principal, Verb::Read, &current);
            let node = find(&current, &sight, &node)?;
            boot.script_of(&boot.booter, &current, node, place, true)?
        }
        Some(at) => {
            let roster = boot.registry.roster_at(at).map_err(|oldest| {
                let message = format!("revision {at} is not known any more, or not yet");
                let newest = current.revision();
                bad_parameter("at", &message, &format!("ask for one of {oldest} to {newest}"))
            })?;
            let roster = Arc::new(roster);
            let sight = sight(&principal, Verb::Read, &roster);
            let node = find(&roster, &sight, &node)?;
            boot.script_of(&boot.booter.another(), &roster, node, place, false)?
        }
    };
    Ok(([(header::CONTENT_TYPE, TEXT)], text).into_response())
}

async fn history(
    State(boot): State<Boot>,
    principal: Principal,
    Path(node): Path<String>,
) -> Result<Json<History>, Failure> {
    let roster = boot.registry.roster();
    let node = find(&roster, &sight(&principal, Verb::Read, &roster), &node)?;
    let row = |endpoint| Some(history_row(endpoint, boot.sightings.of(node.id, endpoint)?));
    let rows = Endpoint::ALL.into_iter().filter_map(row).collect();
    Ok(Json(History { node: node.name.clone(), rows }))
}

fn history_row(endpoint: Endpoint, seen: Seen) -> HistoryRow {
    let Seen { last, count, what, revision, from } = seen;
    HistoryRow {
        endpoint: endpoint.as_str().to_owned(),
        last,
        count,
        what: what.into(),
        revision,
        from,
    }
}

fn explained(choice: &Choice) -> ExplainedChoice {
    ExplainedChoice {
        name: choice.name(),
        matched: choice.matched(),
        by: explain::word(choice.specificity.class).to_owned(),
        priority: choice.rank.priority,
        revision: choice.revision(),
    }
}

impl Boot {
    fn explain(&self, roster: &Arc<Roster>, node: &Node, place: Place<'_>) -> Explanation {
        let table = self.booter.table(roster);
        let state = self.one_boots.state(roster, node.id);
        let standing = Standing::new(state.as_deref());
        let found = explain::explain(&self.booter, roster, &table, node, standing, place);
        let lost = |lost: &explain::Lost| LostChoice {
            choice: explained(&lost.choice),
            why: lost.why.clone(),
        };
        let word = |(word, origin): (String, hoist_boot::command_line::Origin)| Word {
            word,
            origin: origin.as_str().to_owned(),
        };
        let images = found.images;
        let seen = self.sightings.of(node.id, Endpoint::Bootscript);
        Explanation {
            node: node.name.clone(),
            id: node.id,
            mac: roster.boot(node).map(|boot| boot.mac),
            doing: found.doing,
            choice: found.choice.as_ref().map(explained),
            lost: found.lost.iter().map(lost).collect(),
            kernel: images.as_ref().map(|images| images.kernel.clone()),
            initrd: images.map(|images| images.initrd).unwrap_or_default(),
            plugins: found.plugins,
            words: found.words.into_iter().map(word).collect(),
            state: standing.state.cloned(),
            enabled: node.spec.enabled,
            protected: node.is_protected(),
            last: seen.map(|seen| history_row(Endpoint::Bootscript, seen)),
            revision: roster.revision(),
            age_seconds: self.registry.contact().silent.as_secs(),
        }
    }

    /// What the node would be answered, without remembering that it was asked.
    fn script_of(
        &self,
        booter: &Booter,
        roster: &Arc<Roster>,
        node: &Node,
        place: Place<'_>,
        current: bool,
    ) -> Result<String, Failure> {
        let (asked, now) = (asked_by(roster, node), self.chassis.clock.now());
        let state = |id| {
            if current { self.one_boots.state(roster, id) } else { roster.boot_state(id).cloned() }
        };
        let mut answer = booter.answer(roster, &asked, place, now, state);
        // Made for the machine when it asks; here the place of the token is shown.
        if let Answer::NeedsToken(pending) = answer {
            answer = pending.finish(JOIN_TOKEN);
        }
        match answer {
            Answer::Script { text, .. } => Ok(text),
            Answer::NotFound { detail } => Err(Failure::new(Code::NotFound, detail)),
            Answer::Parts { .. } | Answer::NeedsToken(_) => {
                unreachable!("a script was asked for, and its token was put in")
            }
        }
    }
}
