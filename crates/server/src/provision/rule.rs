//! The provisioning context's say about a change before it is made: what a profile says can be read
//! as a provisioning document.

use hoist_api::provision::How;
use hoist_inventory::plan::{Patience, Plan, Reason, Refusal, Rule};
use hoist_inventory::{Resource, Roster};
use hoist_model::{Fault, Kind, ProvisionProfile};
use hoist_provision::diagnostic::Diagnostic;
use uuid::Uuid;

use super::document::{self, Case};

/// Findings told of one profile.
const MAX_TOLD: usize = 20;

#[derive(Debug, Clone, Copy)]
pub(super) struct ProfileRule;

impl Rule for ProfileRule {
    fn judge(&self, before: &Roster, plan: &mut Plan, _: &Patience) -> Vec<Refusal> {
        let written: Vec<_> = written(plan).collect();
        if written.is_empty() {
            return Vec::new();
        }
        let after = plan.outcome(before);
        written.iter().flat_map(|profile| judged(&after, profile)).collect()
    }

    fn holds(&self, _: (&Roster, &Plan), (_, plan): (&Roster, &Plan)) -> bool {
        written(plan).next().is_none()
    }
}

fn written(plan: &Plan) -> impl Iterator<Item = &ProvisionProfile> {
    plan.puts.iter().filter_map(|put| match put {
        Resource::ProvisionProfile(profile) => Some(profile.as_ref()),
        _ => None,
    })
}

/// For a node that is made up: nothing of it depends on which one it is.
fn judged(roster: &Roster, profile: &ProvisionProfile) -> Vec<Refusal> {
    let (node, how) = (hoist_template::sample(), How::default());
    let (txn, base) = (Uuid::nil(), "http://controller");
    let case = Case { roster, node: &node, how: &how, txn, base, drive: None };
    let found = document::check(&document::make(&profile.spec, &case));
    found.into_iter().take(MAX_TOLD).map(|found| refusal(profile, found)).collect()
}

fn refusal(profile: &ProvisionProfile, found: Diagnostic) -> Refusal {
    let Diagnostic { place, what, hint, .. } = found;
    let at = if place.starts_with("document.") { place } else { format!("document.{place}") };
    let fault = Fault { hint, ..Fault::new(at, what) };
    Refusal::new(Reason::Invalid, format!("{} {}", Kind::ProvisionProfile, profile.name), fault)
}
