//! `POST /provision/v1/runs`: which nodes are provisioned by which profile, and why others are not.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use hoist_api::admin::Verb;
use hoist_api::provision::{
    Installation, LeftOutNode, ProvisionOptions, SelectedNode, StartRequest, StartResult,
};
use hoist_api::{Code, Problem};
use hoist_boot::agent;
use hoist_diagnostic::Diagnostic;
use hoist_model::provision_profile::{OWN_ACTIONS, agent_artifacts};
use hoist_model::{Node, NodeId, ProvisionProfile, ProvisionProfileSpec};
use hoist_provision::diagnostic::{self, ProvisionDiagnostic};
use hoist_provision::facts::SignatureKind;
use hoist_site::Roster;
use uuid::Uuid;

use super::document::{self, Case, Past};
use super::image_tools::missing_tools;
use super::runs::{ChosenNode, Runs, check_free};
use super::view::sees_profile;
use super::{Provision, WRITE, decide, sight};
use crate::boot::UnerasedNodes;
use crate::inventory::write_failure;
use crate::inventory::{bad_parameter, bind};
use crate::metadata::NO_ADDRESS_REMEDY;
use crate::node_lookup::no_selected_node;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::Json;
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::Route;

/// Actions and kinds that can be named.
const MAX_WORDS: usize = 64;
/// Why a node is left out that has none.
const NO_PROFILE: &str = "no ProvisionProfile is for it";
/// Nodes named when one of them cannot be provisioned.
const MAX_TOLD: usize = 20;

pub(super) fn routes() -> Vec<Route<Provision>> {
    vec![
        Route::post("/provision/v1/runs", WRITE, start)
            .summary("Provision the nodes of a selector; may destroy the data on their disks")
            .takes::<StartRequest>()
            .gives::<StartResult>(200)
            .selective(),
    ]
}

async fn start(
    State(provision): State<Provision>,
    principal: Principal,
    audit: AuditContext,
    Json(request): Json<StartRequest>,
) -> Result<Json<StartResult>, Failure> {
    check(&request.how)?;
    let runs = &provision.runs;
    let roster = runs.registry().latest().await.map_err(write_failure)?;
    let bound = bind(&roster, &request.selector)?;
    let sight = sight(&principal, Verb::Write, &roster);
    let selected = roster.select_bound(&bound).into_iter();
    // Nodes out of reach are not there, as far as the caller can tell.
    let reached = selected.filter(|node| sight.reaches(&roster, node));
    let mut nodes: Vec<Arc<Node>> = reached.cloned().collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    if nodes.is_empty() {
        return Err(no_selected_node(&request.selector));
    }
    if request.previous && (request.profile.is_some() || request.how.retire) {
        let message = "what a node had before is not by a profile of now";
        return Err(bad_parameter("previous", message, "leave `--profile` out"));
    }
    let before = if request.previous {
        Some((runs.all_installed().await?, runs.last_states(&nodes).await?))
    } else {
        None
    };
    let back = |node: NodeId| {
        let (all, last) = before.as_ref()?;
        Some(all.previous(node, last.get(&node).copied()))
    };
    let named = named_profile(&roster, &principal, &request)?;
    let unerased = if request.how.retire { HashMap::new() } else { runs.unerased().await? };
    let Choice { chosen, left_out } = choose(&roster, named, nodes, &request, &unerased, back)?;
    validate_documents(&roster, &chosen, &request.how)?;
    check_addresses(runs, &roster, &chosen, &request.how).await?;
    let lasts = runs.lasts().await?;
    chosen.iter().try_for_each(|picked| check_free(&picked.node, lasts.get(&picked.node.id)))?;
    let needs_affects = runs.registry().needs_confirmation(&roster, chosen.len());
    let started = |run| {
        let nodes = chosen.iter().map(|picked| SelectedNode {
            node: picked.node.name.clone(),
            profile: picked.profile.clone(),
        });
        let nodes = nodes.collect();
        let left_out = left_out.clone();
        StartResult { run, dry_run: request.dry_run, nodes, left_out, needs_affects }
    };
    if request.dry_run {
        audit.nothing_written();
        return Ok(Json(started(None)));
    }
    let count = chosen.len();
    let said = request.affects.is_some_and(|said| said != count);
    if said || needs_affects && request.affects.is_none() {
        return Err(Failure::new(Code::AffectsTooMany, format!("this affects {count} nodes"))
            .with_remedy(format!("if that is what you want, say `--affects {count}`")));
    }
    let by = principal.who().to_string();
    let run = runs.create(&request, &by, &chosen, audit.draft()).await?;
    runs.advance(&run).await?;
    Ok(Json(started(Some(run))))
}

/// Secrets go only to proven nodes. If a token is the only proof, the operator must agree.
async fn check_addresses(
    runs: &Runs,
    roster: &Roster,
    chosen: &[ChosenNode],
    how: &ProvisionOptions,
) -> Result<(), Failure> {
    if how.secrets_without_address {
        return Ok(());
    }
    let mut diagnostics = Vec::new();
    let mut count = 0;
    for ChosenNode { node, profile, given } in chosen {
        if roster.has_own_address(node) {
            continue;
        }
        let names = match given {
            Some(digest) => match runs.given(digest).await? {
                Some(given) => document::secret_names(roster, node, &given.spec, how),
                None => Vec::new(),
            },
            None => match roster.provision_profile(profile) {
                Some(profile) => document::secret_names(roster, node, &profile.spec, how),
                None => Vec::new(),
            },
        };
        if names.is_empty() {
            continue;
        }
        count += 1;
        if diagnostics.len() < MAX_TOLD {
            let message = format!(
                "the node has no address, and its layers have secrets: {}",
                names.join(", ")
            );
            let hint = format!("`hoist node set {} --ip …`", node.name);
            diagnostics.push(Diagnostic {
                at: format!("Node {}", node.name),
                message,
                hint: Some(hint),
            });
        }
    }
    if diagnostics.is_empty() {
        return Ok(());
    }
    let detail = format!(
        "{count} nodes without an address would get secrets, which any host could then request"
    );
    let mut problem = Problem::new(Code::NoAddress, detail);
    problem.remedy = Some(NO_ADDRESS_REMEDY.to_owned());
    problem.errors = diagnostics;
    Err(problem.into())
}

/// Validates the options of a run.
fn check(how: &ProvisionOptions) -> Result<(), Failure> {
    if how.only.len() > MAX_WORDS || how.wipe.len() > MAX_WORDS {
        let message = format!("there are more than {MAX_WORDS} words");
        return Err(bad_parameter("how", &message, "name fewer"));
    }
    for kind in how.wipe.iter().filter(|kind| *kind != "any") {
        if serde_json::from_value::<SignatureKind>(kind.as_str().into()).is_err() {
            let message = format!("`{kind}` is nothing that can be found on a disk");
            let remedy =
                "write `gpt`, `ext`, `lvm`, …, or `any`; docs/provision/document.md has all";
            return Err(bad_parameter("wipe", &message, remedy));
        }
    }
    let counted = [
        ("at_once", how.at_once),
        ("max_unavailable", how.max_unavailable),
        ("canary", how.canary),
    ];
    if let Some((name, _)) = counted.into_iter().find(|(_, count)| *count == Some(0)) {
        return Err(bad_parameter(name, "with none nothing is ever begun", "name 1 or more"));
    }
    Ok(())
}

#[derive(Debug)]
struct Choice {
    chosen: Vec<ChosenNode>,
    left_out: Vec<LeftOutNode>,
}

/// Nodes that hold something are not wiped by a slip of the hand: the whole is refused.
fn choose<'i>(
    roster: &Roster,
    named: Option<&ProvisionProfile>,
    nodes: Vec<Arc<Node>>,
    request: &StartRequest,
    unerased: &HashMap<NodeId, String>,
    back: impl Fn(NodeId) -> Option<Option<&'i Installation>>,
) -> Result<Choice, Failure> {
    let mut chosen = Vec::new();
    let mut left_out = Vec::new();
    let mut refused = Vec::new();
    for node in nodes {
        if let Some(why) = decide::obstacle(&node) {
            left_out.push(LeftOutNode { node: node.name.clone(), why });
            continue;
        }
        let is_unerased = unerased.get(&node.id).map(|run| not_erased(&node, run));
        if let Some(diagnostic) = is_unerased.or_else(|| refusal(roster, &node, request)) {
            refused.push(diagnostic);
            continue;
        }
        if let Some(back) = back(node.id) {
            if let Some(Installation { profile, document, .. }) = back {
                let profile = profile.clone();
                let given = Some(document.clone());
                chosen.push(ChosenNode { node, profile, given });
            } else {
                let why = "no earlier installation of the node is recorded".to_owned();
                left_out.push(LeftOutNode { node: node.name.clone(), why });
            }
        } else if let Some(profile) = named.or_else(|| decide::profile_of(roster, &node)) {
            chosen.push(ChosenNode { node, profile: profile.name.clone(), given: None });
        } else {
            let why = NO_PROFILE.to_owned();
            left_out.push(LeftOutNode { node: node.name.clone(), why });
        }
    }
    if !refused.is_empty() {
        let detail = format!("{} of the nodes must not be provisioned", refused.len());
        let mut problem = Problem::new(Code::Protected, detail);
        problem.errors = refused.into_iter().take(MAX_TOLD).collect();
        return Err(problem.into());
    }
    if chosen.is_empty() {
        let why = left_out.first().map(|left| format!(": node `{}`: {}", left.node, left.why));
        let detail = format!("no selected node can be provisioned{}", why.unwrap_or_default());
        let failure = Failure::new(Code::Conflict, detail);
        let lacks_profile = left_out.iter().any(|left| left.why == NO_PROFILE);
        return Err(if lacks_profile {
            failure.with_remedy("apply a ProvisionProfile for them, or name one with `--profile`")
        } else {
            failure
        });
    }
    Ok(Choice { chosen, left_out })
}

/// A profile carries secrets: a principal names only those that it may see.
fn named_profile<'r>(
    roster: &'r Roster,
    principal: &Principal,
    request: &StartRequest,
) -> Result<Option<&'r ProvisionProfile>, Failure> {
    let Some(name) = &request.profile else { return Ok(None) };
    let is_seen = |profile: &&Arc<ProvisionProfile>| sees_profile(roster, principal, profile);
    let found = roster.provision_profile(name).filter(is_seen).map(AsRef::as_ref);
    found.map(Some).ok_or_else(|| {
        let message = format!("ProvisionProfile `{name}` not found");
        bad_parameter("profile", &message, "`hoist get provisionprofiles` shows all of them")
    })
}

fn refusal(roster: &Roster, node: &Node, request: &StartRequest) -> Option<Diagnostic> {
    let at = format!("Node {}", node.name);
    let diagnostic =
        |message: String, hint: String| Diagnostic { at: at.clone(), message, hint: Some(hint) };
    if node.is_protected() {
        let hint = format!("`hoist node protect --off {}` first", node.name);
        return Some(diagnostic("the node is protected".to_owned(), hint));
    }
    let state = roster.boot_state(node.id)?;
    let since = state
        .installed
        .filter(|_| !request.reinstall && !request.previous && !request.how.retire)?;
    let hint = "`--reinstall` overwrites its disks".to_owned();
    Some(diagnostic(format!("the node is installed since {since}"), hint))
}

/// A retired machine must not leave with readable data.
fn not_erased(node: &Node, run: &str) -> Diagnostic {
    let message = format!("the erasure of its disks in run {run} is not finished");
    let hint = format!("`hoist provision retry {}` erases them", node.name);
    Diagnostic { at: format!("Node {}", node.name), message, hint: Some(hint) }
}

/// The missing plug-in that would keep a machine from booting the agent.
fn no_plugin(
    roster: &Roster,
    node: &Node,
    spec: &ProvisionProfileSpec,
) -> Option<ProvisionDiagnostic> {
    let (place, needed) = agent::archives(roster, spec, agent::arch(node, None)).err()?;
    let what = format!("no artifact contains the plug-in for `{needed}`");
    let found = ProvisionDiagnostic::new(diagnostic::Code::NoSuchThing, place, what);
    Some(found.hint("`hoist plugin pack DIR --out FILE --add` brings it"))
}

/// A word that is no action would be told only by a machine that was started for it.
fn no_action(
    roster: &Roster,
    node: &Node,
    spec: &ProvisionProfileSpec,
    only: &[String],
) -> Option<ProvisionDiagnostic> {
    let [_, initrd] = agent_artifacts(agent::arch(node, None));
    let is_known = |word: &str| {
        let in_agent = || roster.artifact(&initrd).is_some_and(|image| image.spec.has(word));
        let in_archives = || {
            let archives = agent::archives(roster, spec, agent::arch(node, None));
            let archives = archives.into_iter().flatten();
            archives.filter_map(|it| roster.artifact(it.name)).any(|it| it.spec.has(word))
        };
        OWN_ACTIONS.contains(&word) || in_agent() || in_archives()
    };
    let word = only.iter().find(|word| !is_known(word))?;
    let what = format!("`{word}` is no action that this profile's agent has");
    let found = ProvisionDiagnostic::new(diagnostic::Code::NoSuchThing, "only", what);
    let hint = format!("hoist's own are {}; others are in plug-ins", OWN_ACTIONS.join(", "));
    Some(found.hint(hint))
}

/// Validates each profile with one of its nodes.
fn validate_documents(
    roster: &Roster,
    chosen: &[ChosenNode],
    how: &ProvisionOptions,
) -> Result<(), Failure> {
    let mut seen = std::collections::BTreeSet::new();
    // Inputs of an earlier installation were validated then.
    let anew = chosen.iter().filter(|picked| picked.given.is_none());
    for ChosenNode { node, profile: name, .. } in anew.filter(|picked| seen.insert(&picked.profile))
    {
        let Some(profile) = roster.provision_profile(name) else { continue };
        let txn = Uuid::nil();
        let base = "http://controller";
        let past = Past::default();
        let case = Case { roster, node, how, txn, base, were: None, drive: None, past };
        let made = document::make(&profile.spec, &case);
        let mut found = document::check(&profile.spec, &case, &made);
        found.extend(no_plugin(roster, node, &profile.spec));
        found.extend(no_action(roster, node, &profile.spec, &how.only));
        found.extend(missing_tools(roster, node, &made));
        if found.is_empty() {
            continue;
        }
        let detail = format!("the ProvisionProfile `{name}` is wrong for this");
        let mut problem = Problem::new(Code::InvalidBody, detail);
        problem.errors = found.into_iter().take(MAX_TOLD).map(|found| found.diagnostic).collect();
        return Err(problem.into());
    }
    Ok(())
}
