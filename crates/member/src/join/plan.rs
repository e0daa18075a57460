//! The plan of a join: its steps in their order.

use std::sync::Arc;

use hoist_engine::Plan;
use hoist_engine::plan::{Call, Draft, Kind, OnCrash, Repeat, Reversibility, Step, StepId, Vertex};
use serde_json::json;

use crate::state::JoinIntent;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepKind {
    Checks,
    Key,
    Registration,
    Bundle,
    Service,
    Confirmation,
}

impl StepKind {
    pub(super) const ALL: [Self; 6] = [
        Self::Checks,
        Self::Key,
        Self::Registration,
        Self::Bundle,
        Self::Service,
        Self::Confirmation,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Checks => "checks",
            Self::Key => "key",
            Self::Registration => "registration",
            Self::Bundle => "bundle",
            Self::Service => "service",
            Self::Confirmation => "confirmation",
        }
    }

    /// The progress line of the step.
    pub(super) fn progress(self) -> &'static str {
        match self {
            Self::Checks => "checking this machine and the controller",
            Self::Key => "preparing the key of this node",
            Self::Registration => "registering with the controller",
            Self::Bundle => "storing certificate and configuration",
            Self::Service => "installing the agent's service",
            Self::Confirmation => "confirming the membership",
        }
    }

    pub(super) fn id(self) -> StepId {
        StepId(self as u32)
    }

    fn reversibility(self) -> Reversibility {
        match self {
            Self::Checks | Self::Key | Self::Bundle | Self::Service => Reversibility::Reversible,
            Self::Registration => Reversibility::Compensable,
            Self::Confirmation => Reversibility::CommitPoint,
        }
    }
}

/// The plan of this join. Every step may be repeated: it first observes the present state.
pub(super) fn plan(intent: &JoinIntent) -> Arc<Plan> {
    let vertex = |kind: StepKind| {
        let step = Step {
            call: Call {
                action: kind.name().to_owned(),
                input: json!({ "operation": intent.operation }),
                undoes: None,
            },
            repeat: Repeat::Safe,
            reversibility: kind.reversibility(),
            skip: (kind == StepKind::Service && !intent.install_service)
                .then(|| "not asked for".to_owned()),
            ..Step::default()
        };
        let after = (kind as u32).checked_sub(1).map(StepId).into_iter().collect();
        Vertex { name: kind.name().to_owned(), after, kind: Kind::Step(Box::new(step)) }
    };
    let vertices = StepKind::ALL.into_iter().map(vertex).collect();
    let draft = Draft { vertices, on_crash: OnCrash::Resume, ..Draft::default() };
    Arc::new(Plan::new(draft).expect("a chain of steps is a plan"))
}
