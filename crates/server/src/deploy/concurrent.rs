//! Conflicts of concurrent runs on the same nodes. The limits of a plan hold within one run: a
//! lock, or the number of nodes that may be down, does not cover the steps of another run. So two
//! runs share a node only if the request allows it.

use std::collections::BTreeSet;
use std::fmt;

use hoist_engine::run::State;
use hoist_engine::{Plan, Record, Run, StepId};

/// Nodes that are named; of the others it is said how many they are.
const NAMED: usize = 5;

/// Another run that has something left to do on nodes that are wanted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConcurrentRun {
    run: String,
    nodes: Vec<String>,
}

impl fmt::Display for ConcurrentRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<&str> = self.nodes.iter().take(NAMED).map(String::as_str).collect();
        write!(f, "run {} is under way on {}", self.run, named.join(", "))?;
        match self.nodes.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The active runs with unfinished steps on the given nodes.
pub(super) fn sharing<'r>(
    under_way: impl IntoIterator<Item = (&'r str, &'r Run)>,
    wanted: &BTreeSet<&str>,
) -> Vec<ConcurrentRun> {
    let share = |(id, run): (&str, &Run)| {
        let nodes: Vec<String> =
            open_nodes(run).intersection(wanted).map(|node| (*node).to_owned()).collect();
        (!nodes.is_empty()).then(|| ConcurrentRun { run: id.to_owned(), nodes })
    };
    under_way.into_iter().filter_map(share).collect()
}

/// The nodes on which a run has something left to do; none once it has ended.
pub(super) fn open_nodes(run: &Run) -> BTreeSet<&str> {
    let is_open = |id: StepId| run.outcome().is_none() && !matches!(run.state(id), State::Ended(_));
    nodes(run.plan(), is_open)
}

/// The nodes on which a plan does something that was not done before.
pub(super) fn planned_nodes<'p>(plan: &'p Plan, kept: &BTreeSet<StepId>) -> BTreeSet<&'p str> {
    nodes(plan, |id| !kept.contains(&id))
}

/// The nodes on which a run gets new work from these records.
pub(super) fn opened_nodes(run: &Run, said: &[Record], number: usize) -> BTreeSet<String> {
    let mut then = run.clone();
    for (number, record) in (number..).zip(said) {
        // The run rejects a record that does not fit, so it opens nothing.
        let _ = then.follow(number, record);
    }
    let opened = &open_nodes(&then) - &open_nodes(run);
    opened.into_iter().map(str::to_owned).collect()
}

fn nodes(plan: &Plan, is_meant: impl Fn(StepId) -> bool) -> BTreeSet<&str> {
    let subject =
        |id: StepId| plan.step(id).filter(|step| step.skip.is_none() && is_meant(id))?.subject;
    let subjects: BTreeSet<u32> = plan.ids().filter_map(subject).collect();
    subjects.into_iter().map(|at| plan.draft().subjects[at as usize].as_str()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hoist_engine::plan::{Draft, Kind, OnFailure, Step, Vertex};
    use hoist_engine::record::{End, FailureKind};

    use super::*;

    /// One step on each of these nodes; those with a reason are skipped.
    fn run(on: &[(u32, Option<&str>)]) -> Run {
        let vertex = |(subject, skip): &(u32, Option<&str>)| Vertex {
            name: format!("a@n{subject}"),
            after: Vec::new(),
            kind: Kind::Step(Box::new(Step {
                subject: Some(*subject),
                skip: skip.map(str::to_owned),
                on_failure: OnFailure::Continue,
                ..Step::default()
            })),
        };
        let subjects = (0..9).map(|at| format!("n{at}")).collect();
        let draft =
            Draft { vertices: on.iter().map(vertex).collect(), subjects, ..Draft::default() };
        Run::new(Arc::new(Plan::new(draft).expect("a plan")))
    }

    fn fail(run: &mut Run, step: StepId) {
        let end = End::Failed { kind: FailureKind::Exit, reason: "no".to_owned() };
        let records = [
            Record::Intent { step, attempt: 1, at: 1 },
            Record::Ran { step, attempt: 1, end, at: 2 },
        ];
        for (number, record) in (1..).zip(&records) {
            run.follow(number, record).expect("it fits");
        }
    }

    #[test]
    fn conflicting_run_is_named_with_its_unfinished_nodes() {
        let mut one = run(&[(1, None), (2, None), (3, Some("not selected")), (4, None)]);
        fail(&mut one, StepId(1));
        let other = run(&[(7, None)]);
        let under_way = || [("one", &one), ("other", &other)];
        assert_eq!(open_nodes(&one), BTreeSet::from(["n1", "n4"]), "n2 is done, n3 is left out");
        let shared = sharing(under_way(), &BTreeSet::from(["n0", "n1", "n2", "n3", "n4"]));
        assert_eq!(shared.len(), 1);
        assert_eq!(shared[0].to_string(), "run one is under way on n1, n4");
        assert!(sharing(under_way(), &BTreeSet::from(["n2", "n3", "n8"])).is_empty());
        assert_eq!(sharing(under_way(), &BTreeSet::from(["n1", "n7"])).len(), 2);
    }

    #[test]
    fn trying_again_opens_only_the_nodes_that_were_done_with() {
        let mut run = run(&[(1, None), (2, None)]);
        fail(&mut run, StepId(1));
        let retry = [Record::Retry { step: StepId(1), by: "me".to_owned(), at: 3 }];
        assert_eq!(opened_nodes(&run, &retry, 3), BTreeSet::from(["n2".to_owned()]));
        assert!(opened_nodes(&run, &[], 3).is_empty());
    }

    #[test]
    fn skipped_or_finished_steps_claim_no_node() {
        let run = run(&[(1, None), (2, Some("done")), (3, None)]);
        let kept = BTreeSet::from([StepId(2)]);
        assert_eq!(planned_nodes(run.plan(), &kept), BTreeSet::from(["n1"]));
    }

    #[test]
    fn so_many_nodes_are_named_and_the_others_counted() {
        let told = |count: u32| {
            let nodes = (1..=count).map(|at| format!("n{at}")).collect();
            ConcurrentRun { run: "one".to_owned(), nodes }.to_string()
        };
        assert_eq!(told(5), "run one is under way on n1, n2, n3, n4, n5");
        assert_eq!(told(7), "run one is under way on n1, n2, n3, n4, n5 and 2 more");
    }
}
