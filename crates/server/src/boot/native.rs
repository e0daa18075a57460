//! `/boot/v2`: boot configurations and their effect on a node.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::boot::{
    BootConfigObject, BootDiff, BootExplanation, ExplainedChoice, History, HistoryRow,
    KernelArgument, LostChoice,
};
use hoist_api::inventory::Listing;
use hoist_boot::answer::{JOIN_TOKEN, asked_by};
use hoist_boot::explain;
use hoist_boot::rule::selected;
use hoist_boot::{Answer, BootContext, Booter, Choice, RequestOrigin};
use hoist_model::{BootAction, BootConfig, Node};
use hoist_site::{Resource, Roster};
use http::{HeaderMap, header};
use serde::Deserialize;

use super::script::{NO_JOIN_TOKENS, TEXT, place};
use super::{Boot, BootLogRow, Endpoint, change};
use crate::authorisation::Access;
use crate::authorisation::Sight;
use crate::inventory::{MAX_APPLY_BYTES, bad_parameter};
use crate::node_lookup::find_node;
use hoist_chassis::extract::{Json, Path, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::{GatewayPrefix, Peer};
use hoist_chassis::principal::Principal;
use hoist_chassis::route::{AccessClass, Route};

pub(super) const READ: AccessClass =
    AccessClass::Admin { context: Context::Boot, verb: Verb::Read };
pub(super) const WRITE: AccessClass =
    AccessClass::Admin { context: Context::Boot, verb: Verb::Write };

pub(super) fn routes() -> Vec<Route<Boot>> {
    vec![
        Route::get("/boot/v2/configs", READ, list_configs)
            .summary("All boot configurations, with the number of nodes that each selects")
            .gives::<Listing<BootConfigObject>>(200)
            .selective(),
        Route::get("/boot/v2/configs/{name}", READ, get_config)
            .summary("One boot configuration")
            .gives::<BootConfigObject>(200)
            .selective(),
        Route::get("/boot/v2/explain/{node}", READ, explain)
            .summary("The boot decision for a node, with its reasons")
            .gives::<BootExplanation>(200)
            .selective(),
        Route::get("/boot/v2/script/{node}", READ, script)
            .summary("The boot script of a node, as text; not recorded in its history")
            .query("at", "at this revision of the site; by default now")
            .gives_media(200, "text/plain")
            .selective(),
        Route::get("/boot/v2/history/{node}", READ, history)
            .summary("The latest boot requests of a node, with their answers")
            .gives::<History>(200)
            .selective(),
        Route::post("/boot/v2/diff", READ, change::diff)
            .summary("Effect of documents (YAML, JSON or NDJSON) on booting; changes nothing")
            .query("set", "as if they were applied under this name")
            .flag("prune", "without what the set contained before and does not any more")
            .body_limit(MAX_APPLY_BYTES)
            .streaming()
            .gives::<BootDiff>(200),
    ]
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
        Failure::new(Code::NotFound, format!("boot configuration `{name}` not found"))
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
) -> Result<Json<BootExplanation>, Failure> {
    let roster = boot.registry.roster();
    let node = find_node(&roster, &sight(&principal, Verb::Read, &roster), &node)?;
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
            let node = find_node(&current, &sight, &node)?;
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
            let node = find_node(&roster, &sight, &node)?;
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
    let node = find_node(&roster, &sight(&principal, Verb::Read, &roster), &node)?;
    let row = |endpoint| Some(history_row(endpoint, boot.log.of(node.id, endpoint)?));
    let rows = Endpoint::ALL.into_iter().filter_map(row).collect();
    Ok(Json(History { node: node.name.clone(), rows }))
}

fn history_row(endpoint: Endpoint, seen: BootLogRow) -> HistoryRow {
    let BootLogRow { last, count, what, revision, from } = seen;
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
    fn explain(
        &self,
        roster: &Arc<Roster>,
        node: &Node,
        place: RequestOrigin<'_>,
    ) -> BootExplanation {
        let table = self.booter.table(roster);
        let state = self.pending_boots.state(roster, node.id);
        let standing = BootContext::new(state.as_deref());
        let mut found = explain::explain(&self.booter, roster, &table, node, standing, place);
        self.explain_join_token(&mut found);
        let lost = |lost: &explain::RejectedChoice| LostChoice {
            choice: explained(&lost.choice),
            why: lost.why.clone(),
        };
        let argument = |(argument, origin): (String, hoist_boot::command_line::Origin)| {
            KernelArgument { argument, origin: origin.as_str().to_owned() }
        };
        let images = found.images;
        let last = |endpoint| Some(history_row(endpoint, self.log.of(node.id, endpoint)?));
        BootExplanation {
            node: node.name.clone(),
            id: node.id,
            mac: roster.boot(node).map(|boot| boot.mac),
            doing: found.doing,
            problem: found.problem,
            discovery: found.discovery.iter().map(|key| format!("bss:{key}")).collect(),
            choice: found.choice.as_ref().map(explained),
            lost: found.lost.iter().map(lost).collect(),
            kernel: images.as_ref().map(|images| images.kernel.clone()),
            initrd: images.map(|images| images.initrd).unwrap_or_default(),
            plugins: found.plugins,
            arguments: found.arguments.into_iter().map(argument).collect(),
            state: standing.state.cloned(),
            enabled: node.spec.enabled,
            protected: node.is_protected(),
            last: last(Endpoint::Bootscript),
            last_error: last(Endpoint::BootscriptError),
            revision: roster.revision(),
            age_seconds: self.registry.contact().silent.as_secs(),
        }
    }

    /// A script with the place of a join token needs a server of tokens.
    fn explain_join_token(&self, found: &mut explain::Explanation) {
        let wants_token = found.arguments.iter().any(|(argument, _)| argument.contains(JOIN_TOKEN));
        if found.doing.boots() && wants_token && self.contacts.join_tokens.is_none() {
            found.doing = BootAction::Fail;
            found.problem = Some(NO_JOIN_TOKENS.to_owned());
        }
    }

    /// Renders the node's script without an entry in the boot log.
    fn script_of(
        &self,
        booter: &Booter,
        roster: &Arc<Roster>,
        node: &Node,
        place: RequestOrigin<'_>,
        current: bool,
    ) -> Result<String, Failure> {
        let asked = asked_by(roster, node);
        let now = self.chassis.clock.now();
        let state = |id| {
            if current {
                self.pending_boots.state(roster, id)
            } else {
                roster.boot_state(id).cloned()
            }
        };
        let mut answer = booter.answer(roster, &asked, place, now, state);
        // Made for the machine when it asks; here the place of the token is shown.
        if let Answer::NeedsToken(pending) = answer {
            answer = pending.finish(JOIN_TOKEN);
        }
        match answer {
            Answer::Script { text, .. } => Ok(text),
            Answer::NotFound { detail, .. } => Err(Failure::new(Code::NotFound, detail)),
            Answer::Parts { .. } | Answer::NeedsToken(_) => {
                unreachable!("a script was asked for, and its token was put in")
            }
        }
    }
}
