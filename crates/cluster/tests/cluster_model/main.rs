//! Founding, acceptance and plan generations, checked by exhausting every order of events.
//!
//! The decisions in here are real: [`hoist_cluster::detection::decide`], the operations of
//! [`hoist_cluster::membership::Membership`], [`hoist_cluster::cluster_plan::ClusterPlan::next`] and
//! [`hoist_cluster::cluster_plan::supersedes`]. Only the network, the store and the waiting are
//! simulated: an answer or a plan may arrive late, never, or after a newer one.
//!
//! Each model can be run with a rule switched off. The checker must then find the violation: this
//! shows that the model notices it.

mod founding;
mod joining;

use stateright::{Checker, HasDiscoveries, Model};

use founding::{Founding, FoundingRule};
use joining::{Joining, Mutant};

#[test]
fn founding_rule_permits_one_founder_at_most() {
    let model = Founding { rule: FoundingRule::OnlyWithConsent };
    let checker = model.checker().spawn_bfs().join();
    checker.assert_properties();
}

#[test]
fn founding_by_timeout_has_the_known_counterexample() {
    let model = Founding { rule: FoundingRule::AfterTimeout };
    let checker = model.checker().spawn_bfs().join();
    let path = checker.discovery(founding::ONE_FOUNDER).expect("two nodes found a cluster");
    assert_eq!(path.into_actions().len(), 4, "both start, and both wait in vain");
}

#[test]
fn joins_are_accepted_once_and_plans_never_go_back() {
    let checker = Joining { mutant: None }.checker().spawn_bfs().join();
    checker.assert_properties();
    eprintln!("{} states", checker.unique_state_count());
}

#[test]
fn model_of_joins_catches_every_mutant() {
    for (mutant, property) in [
        (Mutant::CommitWithoutCompare, joining::ONE_PLACE_EACH),
        (Mutant::PlanWithoutParent, joining::ONE_CHAIN),
        (Mutant::AgentTakesAnyPlan, joining::FORWARD_ONLY),
    ] {
        let checker = Joining { mutant: Some(mutant) }
            .checker()
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        assert!(checker.discovery(property).is_some(), "{mutant:?} was not noticed");
    }
}
