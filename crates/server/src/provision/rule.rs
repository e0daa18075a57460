//! Provisioning's rule for changes of the site: a profile must be a valid provisioning document.

use hoist_api::provision::ProvisionOptions;
use hoist_boot::agent::archives;
use hoist_diagnostic::Diagnostic;
use hoist_model::{Arch, Artifact, Kind, ProvisionProfile};
use hoist_provision::diagnostic::ProvisionDiagnostic;
use hoist_site::plan::{Plan, Reason, Refusal, Rule, ValidationDeadline};
use hoist_site::{Resource, Roster};
use uuid::Uuid;

use super::document::{self, Case, Past};
use super::image_tools::missing_tools;

/// The most diagnostics of one profile.
const MAX_TOLD: usize = 20;

#[derive(Debug, Clone, Copy)]
pub(super) struct ProfileRule;

impl Rule for ProfileRule {
    fn validate(&self, before: &Roster, plan: &mut Plan, _: &ValidationDeadline) -> Vec<Refusal> {
        let written: Vec<_> = written(plan).collect();
        if written.is_empty() && !touches_archives(before, plan) {
            return Vec::new();
        }
        let after = plan.outcome(before);
        let wrong = written.iter().flat_map(|profile| judged(&after, profile));
        // Who was fine before may be without its plug-ins now.
        let others = after.provision_profiles().map(AsRef::as_ref);
        let lacking = |profile: &ProvisionProfile| {
            let is_written = written.iter().any(|written| written.name == profile.name);
            let lacked = before.provision_profile(&profile.name).and_then(|b| lacking(before, b));
            lacking(&after, profile).filter(|_| is_written || lacked.is_none())
        };
        wrong.chain(others.filter_map(lacking)).collect()
    }

    fn still_holds(&self, _: (&Roster, &Plan), (before, plan): (&Roster, &Plan)) -> bool {
        written(plan).next().is_none() && !touches_archives(before, plan)
    }
}

fn written(plan: &Plan) -> impl Iterator<Item = &ProvisionProfile> {
    plan.puts.iter().filter_map(|put| match put {
        Resource::ProvisionProfile(profile) => Some(profile.as_ref()),
        _ => None,
    })
}

/// Whether an archive of plug-ins changes. One that a profile needs does not go.
fn touches_archives(before: &Roster, plan: &Plan) -> bool {
    let is_archive = |artifact: &Artifact| !artifact.spec.provides.is_empty();
    let was_archive = |name: &str| before.artifact(name).is_some_and(|was| is_archive(was));
    plan.puts.iter().any(|put| match put {
        Resource::Artifact(artifact) => is_archive(artifact) || was_archive(&artifact.name),
        _ => false,
    })
}

/// Plug-ins that a profile needs and no artifact provides for any architecture.
fn lacking(roster: &Roster, profile: &ProvisionProfile) -> Option<Refusal> {
    let (place, needed) = archives(roster, &profile.spec, Arch::Unknown).err()?;
    let diagnostic =
        Diagnostic::new(place, format!("no artifact contains the plug-in for `{needed}`")).hint(
            "`hoist plugin pack DIR --out FILE --add` brings it; `hoist artifact list` shows all",
        );
    let refusal = Refusal::of(Reason::Missing, Kind::ProvisionProfile, &profile.name, diagnostic);
    Some(refusal.with_value(&needed))
}

/// For a node that is made up: nothing of it depends on which one it is.
fn judged(roster: &Roster, profile: &ProvisionProfile) -> Vec<Refusal> {
    let node = hoist_template::sample();
    let how = ProvisionOptions::default();
    let txn = Uuid::nil();
    let base = "http://controller";
    let past = Past::default();
    let case = Case { roster, node: &node, how: &how, txn, base, were: None, drive: None, past };
    let made = document::make(&profile.spec, &case);
    let mut found = document::check(&profile.spec, &case, &made);
    found.extend(missing_tools(roster, &node, &made));
    found.into_iter().take(MAX_TOLD).map(|found| refusal(profile, found)).collect()
}

fn refusal(profile: &ProvisionProfile, found: ProvisionDiagnostic) -> Refusal {
    let mut diagnostic = found.diagnostic;
    if !diagnostic.at.starts_with("document.") {
        diagnostic.at.insert_str(0, "document.");
    }
    Refusal::of(Reason::Invalid, Kind::ProvisionProfile, &profile.name, diagnostic)
}
