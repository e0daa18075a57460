//! Boot states of nodes: set by operators and by reports of nodes.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use hoist_api::admin::{Context, Verb};
use hoist_api::boot::{BootStateList, ModeWord, NodeBootState, StateRequest, StatesChanged};
use hoist_boot::answer::asked_by;
use hoist_boot::outcome;
use hoist_boot::{BootContext, Table};
use hoist_diagnostic::Diagnostic;
use hoist_model::selector::Bound;
use hoist_model::{
    BootConfig, BootMode, BootState, ConfigMode, Kind, Name, Node, NodeId, Provisioning,
};
use hoist_site::plan::{Draft, Plan, Reason, Refusal};
use hoist_site::registry::{Terms, WriteError};
use hoist_site::{Resource, ResourceKey, Roster};
use jiff::Timestamp;
use serde::Deserialize;

use super::Boot;
use super::native::{READ, WRITE, sees_config, sight};
use super::pending_boots::IncludedEntries;
use crate::audited_commit::AuditedCommit;
use crate::authorisation::ScopedCommit;
use crate::authorisation::Sight;
use crate::inventory::write_failure;
use crate::inventory::{bad_parameter, bind};
use crate::node_lookup::find_node;
use crate::node_lookup::{no_selected_node, no_such_node};
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Flag, Json, Path, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::{AccessClass, Route};

/// Nodes in one page.
const PAGE: usize = 5_000;
/// Longest reason.
const MAX_REASON: usize = 512;

pub(super) fn routes() -> Vec<Route<Boot>> {
    vec![
        Route::get("/boot/v2/states", READ, list)
            .summary("Boot states, page by page: of a selector, or all that are set")
            .query("selector", "which nodes, whether or not something was decided about them")
            .query("after", "the node that the last page named as `next`")
            .gives::<BootStateList>(200)
            .selective(),
        Route::put("/boot/v2/states", WRITE, put_many)
            .summary("Change the boot state of the nodes of a selector, in one transaction")
            .query("selector", "which nodes")
            .flag("dry_run", "change nothing, say what would change")
            .query("affects", "how many nodes the change may affect")
            .takes::<StateRequest>()
            .gives::<StatesChanged>(200)
            .selective(),
        Route::get("/boot/v2/state/{node}", READ, get)
            .summary("The boot state of a node")
            .gives::<NodeBootState>(200)
            .selective(),
        Route::put("/boot/v2/state/{node}", WRITE, put)
            .summary("Change the boot state of a node; absent fields stay as they are")
            .flag("dry_run", "change nothing, say what would change")
            .takes::<StateRequest>()
            .gives::<StatesChanged>(200)
            .selective(),
        Route::post("/boot/v2/installed/{node}", AccessClass::Agent, installed)
            .summary("Report that a node is installed; it boots its disk from now on")
            .gives::<NodeBootState>(200),
    ]
}

#[derive(Debug, Deserialize)]
struct ListQuery {
    selector: Option<String>,
    after: Option<NodeId>,
}

async fn list(
    State(boot): State<Boot>,
    principal: Principal,
    Query(query): Query<ListQuery>,
) -> Result<Json<BootStateList>, Failure> {
    let roster = boot.registry.roster();
    let sight = sight(&principal, Verb::Read, &roster);
    let bound = query.selector.as_deref().map(|text| bind(&roster, text)).transpose()?;
    let wanted = |node: &&Arc<Node>| {
        let selected = match &bound {
            Some(bound) => bound.matches(&roster.subject(node)),
            None => roster.boot_state(node.id).is_some(),
        };
        selected && sight.reaches(&roster, node)
    };
    let table = boot.booter.table(&roster);
    let mut nodes = roster.nodes_after(query.after).filter(wanted);
    let page: Vec<_> = nodes.by_ref().take(PAGE).collect();
    let next = nodes.next().and(page.last()).map(|node| node.id);
    let items = page.into_iter().map(|node| object(&roster, &table, node)).collect();
    Ok(Json(BootStateList { revision: roster.revision(), items, next }))
}

async fn get(
    State(boot): State<Boot>,
    principal: Principal,
    Path(node): Path<String>,
) -> Result<Json<NodeBootState>, Failure> {
    let roster = boot.registry.roster();
    let node = find_node(&roster, &sight(&principal, Verb::Read, &roster), &node)?;
    Ok(Json(object(&roster, &boot.booter.table(&roster), node)))
}

fn object(roster: &Roster, table: &Table, node: &Node) -> NodeBootState {
    let state = roster.boot_state(node.id).map(Arc::as_ref);
    let standing = BootContext::new(state);
    let asked = asked_by(roster, node).who.key();
    let choice = table.best(roster, node, asked.as_ref(), standing);
    NodeBootState {
        node: node.name.clone(),
        id: node.id,
        doing: outcome::doing(node, standing, choice.as_ref()),
        choice: choice.map(|choice| choice.name()),
        state: state.cloned(),
    }
}

#[derive(Debug, Deserialize)]
struct PutQuery {
    #[serde(default)]
    dry_run: Flag,
}

async fn put(
    State(boot): State<Boot>,
    principal: Principal,
    audit: AuditContext,
    Path(node): Path<String>,
    Query(query): Query<PutQuery>,
    Json(request): Json<StateRequest>,
) -> Result<Json<StatesChanged>, Failure> {
    let roster = boot.registry.roster();
    let id = find_node(&roster, &sight(&principal, Verb::Write, &roster), &node)?.id;
    let terms = Terms { dry_run: query.dry_run.0, ..Terms::default() };
    let decision = Decision { boot, principal, audit, request };
    decision.write(terms, |_| vec![id]).await
}

#[derive(Debug, Deserialize)]
struct PutManyQuery {
    selector: String,
    #[serde(default)]
    dry_run: Flag,
    affects: Option<usize>,
}

async fn put_many(
    State(boot): State<Boot>,
    principal: Principal,
    audit: AuditContext,
    Query(query): Query<PutManyQuery>,
    Json(request): Json<StateRequest>,
) -> Result<Json<StatesChanged>, Failure> {
    let roster = boot.registry.roster();
    bind(&roster, &query.selector)?;
    if named(&roster, &principal, &query.selector).is_empty() {
        return Err(no_selected_node(&query.selector));
    }
    let terms = Terms { dry_run: query.dry_run.0, affects: query.affects, ..Terms::default() };
    let selector = query.selector;
    let who = principal.clone();
    let decision = Decision { boot, principal, audit, request };
    decision.write(terms, |roster| named(roster, &who, &selector)).await
}

/// The nodes of a selector that the principal reaches: others are not there, as far as it can tell.
/// Bound anew each time: a write that lost a race is planned on another roster.
fn named(roster: &Roster, principal: &Principal, selector: &str) -> Vec<NodeId> {
    let bound: Option<Bound> = bind(roster, selector).ok();
    let nodes = bound.map(|bound| roster.select_bound(&bound)).unwrap_or_default();
    let sight = sight(principal, Verb::Write, roster);
    let reached = nodes.into_iter().filter(|node| sight.reaches(roster, node));
    reached.map(|node| node.id).collect()
}

/// An operator's request to set boot states.
struct Decision {
    boot: Boot,
    principal: Principal,
    audit: AuditContext,
    request: StateRequest,
}

impl Decision {
    async fn write(
        self,
        terms: Terms,
        nodes: impl Fn(&Roster) -> Vec<NodeId> + Send + Sync,
    ) -> Result<Json<StatesChanged>, Failure> {
        self.check()?;
        let Self { boot, principal, audit, request } = self;
        let by = principal.who().to_string();
        let now = boot.chassis.clock.now();
        // Only requests that let a node boot need the list of unerased nodes.
        let unerased =
            if releases(&request) { boot.unerased.unerased().await? } else { HashMap::new() };
        let commit = ScopedCommit::new(&boot.chassis.audit, principal, &audit);
        let mut count = 0;
        let mut settled = IncludedEntries::new();
        let written = boot
            .registry
            .write(terms, &commit, |draft| {
                let ids = nodes(draft.roster());
                count = ids.len();
                let refusals = ids.iter().filter_map(|id| {
                    refused(draft, *id, &request).or_else(|| not_erased(draft, *id, &unerased))
                });
                let refusals: Vec<_> = refusals.collect();
                if !refusals.is_empty() {
                    return Err(WriteError::Refused(refusals));
                }
                settled.clear();
                for id in ids {
                    settled.extend(boot.pending_boots.settle(draft, id));
                    amend(draft, id, &by, now, &request);
                }
                Ok(())
            })
            .await
            .map_err(write_failure)?;
        if !terms.dry_run {
            boot.pending_boots.written(&settled);
        }
        let roster = boot.registry.roster();
        let changed: Vec<_> = touched(&written.plan)
            .filter_map(|id| roster.by_id(id).map(|node| node.name.clone()))
            .collect();
        if !terms.dry_run && !changed.is_empty() {
            let told = serde_json::json!({"nodes": changed.len(), "by": by, "mode": request.mode});
            boot.chassis.events.publish("boot.state", "site", told);
        }
        Ok(Json(StatesChanged {
            revision: written.revision,
            dry_run: terms.dry_run,
            named: count,
            changed,
            affected: written.plan.affected.len(),
            needs_affects: written.needs_affects,
        }))
    }

    fn check(&self) -> Result<(), Failure> {
        let request = &self.request;
        if let Some(reason) = &request.reason
            && (reason.len() > MAX_REASON || reason.contains(char::is_control))
        {
            let message = format!("it is longer than {MAX_REASON} bytes, or not one line");
            return Err(bad_parameter("reason", &message, "say it shortly"));
        }
        let roster = self.boot.registry.roster();
        let is_seen = |config: &Arc<BootConfig>| sees_config(&roster, &self.principal, config);
        if let Some(Some(once)) = &request.once
            && !roster.boot_config(once).is_some_and(is_seen)
        {
            let message = format!("boot configuration `{once}` not found");
            return Err(bad_parameter("once", &message, "`hoist boot list` shows all of them"));
        }
        if let Some(Some(profile)) = &request.profile
            && !roster
                .boot_configs()
                .filter(|config| config.spec.profile.as_ref() == Some(profile))
                .any(is_seen)
        {
            let message = format!("no boot configuration is for profile `{profile}`");
            return Err(bad_parameter("profile", &message, "apply one first"));
        }
        Ok(())
    }
}

/// Whether a node that was held may boot something afterwards.
fn releases(request: &StateRequest) -> bool {
    let is_held = |word: ModeWord| word.mode() == Some(BootMode::Hold);
    request.mode.is_some_and(|word| !is_held(word)) || matches!(request.once, Some(Some(_)))
}

/// A retired machine must not leave with readable data.
fn not_erased(
    draft: &Draft<'_>,
    id: NodeId,
    unerased: &HashMap<NodeId, String>,
) -> Option<Refusal> {
    let node = draft.node(id)?;
    let run = unerased.get(&id)?;
    let name = &node.name;
    let what = format!("the erasure of its disks in run {run} is not finished");
    let hint = format!("`hoist provision retry {name}` erases them; then the node is retired");
    let diagnostic = Diagnostic::new("", what).hint(hint);
    Some(Refusal::of(Reason::Protected, Kind::Node, name, diagnostic))
}

/// A node that holds something is not wiped by a slip of the hand.
fn refused(draft: &Draft<'_>, id: NodeId, request: &StateRequest) -> Option<Refusal> {
    let node = draft.node(id)?;
    let run = draft.boot_state(id).and_then(|state| state.provisioning.as_ref());
    if let Some(Provisioning { run, .. }) = run {
        let name = &node.name;
        let what = format!("provisioning run {run} controls its boot state");
        let diagnostic =
            Diagnostic::new("", what).hint(format!("`hoist provision abort {name}` first"));
        return Some(Refusal::of(Reason::InUse, Kind::Node, name, diagnostic));
    }
    let once = request.once.as_ref().and_then(Option::as_ref);
    let by_name = once.is_some_and(|name| installs(draft.roster(), name));
    let by_mode = request.mode.is_some_and(|word| word.mode() == Some(BootMode::Install));
    if !by_name && !by_mode {
        return None;
    }
    if node.is_protected() {
        let diagnostic = Diagnostic::new("", "it is protected and cannot be installed")
            .hint(format!("`hoist node protect --off {}` first", node.name));
        return Some(Refusal::of(Reason::Protected, Kind::Node, &node.name, diagnostic));
    }
    let state = draft.boot_state(id);
    let since = state.and_then(|state| state.installed).filter(|_| !request.reinstall)?;
    let diagnostic = Diagnostic::new("", format!("it is installed since {since}"))
        .hint("`--reinstall` (`\"reinstall\": true`) installs it again; its disk may be wiped");
    Some(Refusal::of(Reason::Protected, Kind::Node, &node.name, diagnostic))
}

fn amend(draft: &mut Draft<'_>, id: NodeId, by: &str, now: Timestamp, request: &StateRequest) {
    let roster = draft.roster();
    draft.amend_boot_state(id, by, |state| {
        if request.mode.is_some() || request.once.is_some() {
            state.decide(now, |state| decide(roster, state, now, request));
        }
        if request.mode.is_some() || request.reason.is_some() {
            state.reason.clone_from(&request.reason);
        }
        if let Some(profile) = &request.profile {
            state.profile.clone_from(profile);
        }
    });
}

/// The last command wins: a mode cancels a one-time boot.
fn decide(roster: &Roster, state: &mut BootState, now: Timestamp, request: &StateRequest) {
    if let Some(word) = request.mode {
        state.mode = word.mode();
        match state.mode {
            // The operator states that a system is installed.
            Some(BootMode::Disk) => {
                state.installed.get_or_insert(now);
                state.installing = None;
            }
            Some(BootMode::Install) => {
                state.installed = None;
                state.spent.retain(|name, _| !installs(roster, name));
            }
            _ => {}
        }
    }
    state.once = request.once.clone().flatten();
    state.reinstall = state.once.is_some() && request.reinstall;
}

fn installs(roster: &Roster, name: &Name) -> bool {
    roster.boot_config(name).is_some_and(|config| config.spec.mode == ConfigMode::Install)
}

fn touched(plan: &Plan) -> impl Iterator<Item = NodeId> {
    let puts = plan.puts.iter().map(Resource::key);
    puts.chain(plan.deletes.iter().cloned()).filter_map(|key| match key {
        ResourceKey::BootState(id) => Some(id),
        _ => None,
    })
}

impl Boot {
    /// A node has installed itself: it boots its disk from now on.
    pub(super) fn has_installed(
        &self,
        draft: &mut Draft<'_>,
        node: NodeId,
        by: &str,
        now: Timestamp,
    ) -> IncludedEntries {
        let settled = self.pending_boots.settle(draft, node).into_iter().collect();
        draft.amend_boot_state(node, by, |state| state.report_installed(now));
        settled
    }
}

async fn installed(
    State(boot): State<Boot>,
    principal: Principal,
    audit: AuditContext,
    Path(node): Path<String>,
) -> Result<Json<NodeBootState>, Failure> {
    let roster = boot.registry.roster();
    let sight = Sight::within(&principal, Verb::Write, Context::Agent, &roster);
    let (id, name) = {
        let node = find_node(&roster, &sight, &node)?;
        (node.id, node.name.clone())
    };
    let by = principal.who().to_string();
    let now = boot.chassis.clock.now();
    let committer = AuditedCommit::new(&boot.chassis.audit, audit.draft());
    let terms = Terms { skip_change_guard: true, ..Terms::default() };
    let mut settled = IncludedEntries::new();
    let written = boot
        .registry
        .write(terms, &committer, |draft| {
            settled = boot.has_installed(draft, id, &by, now);
            Ok(())
        })
        .await
        .map_err(write_failure)?;
    boot.pending_boots.written(&settled);
    if !written.plan.is_empty() {
        let told = serde_json::json!({"by": by});
        boot.chassis.events.publish("boot.installed", &format!("node/{name}"), told);
    }
    let roster = boot.registry.roster();
    let node = roster.by_id(id).ok_or_else(|| no_such_node(format!("`{name}`")))?;
    Ok(Json(object(&roster, &boot.booter.table(&roster), node)))
}
