//! The roster's promises, checked by exhausting every order of events (the "Correctness Proof").
//!
//! Two controllers, one store, one source of nodes. The checker tries every interleaving of writes,
//! races, lost answers, watch deliveries, foldings, outages, compactions, crashes and restarts within
//! the budgets of a [`Scene`], and looks at the promises in every state it reaches:
//!
//! * a failure never takes a node away, from no roster and not from the store;
//! * a controller's revision never goes back while it runs, also not when it started from the
//!   last-good copy and the store returns;
//! * a roster shows exactly the site of its revision, never half a change;
//! * an acknowledged write is in the store for ever, and on its controller from then on;
//! * no two writes have the same revision, and no two nodes the same MAC.
//!
//! # How the model maps onto the code
//!
//! The rosters in here are real: [`Roster::build`], [`Roster::apply`], [`Roster::folded`] and
//! [`Roster::rebased`] make them, [`Draft`] validates every write, and [`reconcile`] plans every
//! import. Only the waiting parts (sockets, locks, timers) are simulated:
//!
//! | here | there |
//! | --- | --- |
//! | [`Store`] | any `hoist_store::Store`: commits in one order, with compare; `up` and `floor` are `Unavailable` and `Compacted` |
//! | [`Controller`] | `Registry`: `roster` behind the atomic pointer, [`Position`] behind its lock, `pending` while a write holds that lock |
//! | `Plan`, `Commit`, `CatchUp` | `Registry::write`, cut at the only places where others can come between |
//! | `Follow`, `Deliver` | `Registry::follow`: reload if need be, watch, take in one batch |
//! | `StartFold`, `EndFold` | `Registry::fold` |
//! | `Keep`, `Crash`, `Restart` | `last_good::keep`, SIGKILL, `Controller::start` |
//! | `Newer` | a controller of a later version writes a kind of record that we cannot read |
//!
//! After a crash *and* with the store away, a controller shows the last-good copy, which may be older
//! than its last acknowledged write: the promise is "visible as long as it runs, and again once it has read
//! the store". A restored store has another incarnation and is outside of this model.
//!
//! Each [`Mutant`] is a mistake that would be easy to make. The last test shows that the model
//! notices every one of them.
//!
//! [`Roster::build`]: hoist_site::Roster::build
//! [`Roster::apply`]: hoist_site::Roster::apply
//! [`Roster::folded`]: hoist_site::Roster::folded
//! [`Roster::rebased`]: hoist_site::Roster::rebased
//! [`Draft`]: hoist_site::plan::Draft
//! [`reconcile`]: hoist_site::reconcile::reconcile
//! [`Store`]: store::Store
//! [`Controller`]: controller::Controller
//! [`Position`]: controller::Position

mod controller;
mod model_roster;
mod site;
mod store;
mod wish;

use stateright::{Checker, HasDiscoveries, Model};

use site::{Budget, Mutant, Scene};

/// Every budget set to zero: nothing happens unless a scene says so.
const NOTHING: Budget = Budget {
    writes: 0,
    imports: 0,
    outages: 0,
    crashes: 0,
    compactions: 0,
    folds: 0,
    copies: 0,
    newer: 0,
};

/// Small enough to be exhausted, and together they have every pair of troubles.
const RACES: Budget = Budget { writes: 3, ..NOTHING };
const FOLDING: Budget = Budget { writes: 2, compactions: 1, folds: 1, ..NOTHING };
const OUTAGE: Budget = Budget { writes: 2, outages: 1, crashes: 1, copies: 1, ..NOTHING };
const SOURCE: Budget = Budget { imports: 3, writes: 1, outages: 1, ..NOTHING };
const UPGRADE: Budget = Budget { writes: 2, newer: 1, crashes: 1, ..NOTHING };

fn check(budget: Budget, reached: &[&'static str]) {
    let checker = Scene { budget, mutant: None }.checker().threads(2).spawn_bfs().join();
    for property in Scene::PROMISES {
        if let Some(path) = checker.discovery(property) {
            panic!("{property}:\n{path}");
        }
    }
    for example in reached {
        assert!(checker.discovery(example).is_some(), "this never happened: {example}");
    }
    eprintln!("{budget:?}: {} states", checker.unique_state_count());
}

#[test]
fn model_holds_with_racing_writers() {
    check(RACES, &[site::SHARED, site::LOST_BUT_LANDED, site::REFUSED_AFTER_RACE]);
}

#[test]
fn model_holds_while_folding() {
    check(FOLDING, &[site::SHARED, site::FOLDED_LATE]);
}

#[test]
fn model_holds_through_outages_and_restarts() {
    check(OUTAGE, &[site::SHARED, site::BACK_FROM_COPY]);
}

#[test]
fn model_holds_with_partial_sources() {
    check(SOURCE, &[site::PRUNED]);
}

#[test]
fn model_survives_records_of_a_newer_controller() {
    check(UPGRADE, &[site::SHARED]);
}

#[test]
fn model_catches_every_mutant() {
    for (mutant, budget) in [
        (Mutant::EmptyWhenLoadFails, OUTAGE),
        (Mutant::PublishBeforeCommit, RACES),
        (Mutant::TakeInStaleBatch, RACES),
        (Mutant::CommitWithoutCompare, RACES),
        (Mutant::RetryWithoutReplanning, RACES),
        (Mutant::MoveBeforeReading, UPGRADE),
        (Mutant::FoldOverwrites, FOLDING),
        (Mutant::PartIsWhole, SOURCE),
    ] {
        let checker = Scene { budget, mutant: Some(mutant) }
            .checker()
            .threads(2)
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        let broken = Scene::PROMISES.iter().find(|name| checker.discovery(name).is_some());
        eprintln!("{mutant:?}: {broken:?} after {} states", checker.unique_state_count());
        assert!(broken.is_some(), "nobody noticed {mutant:?}");
    }
}
