//! Refusals of the pure core as answers.

use hoist_api::{Code, Conflict, Problem};
use hoist_chassis::failure::Failure;
use hoist_cluster::cluster_plan::PlanRefusal;
use hoist_cluster::join_token::TokenRefusal;
use hoist_cluster::membership::MembershipRefusal;
use hoist_diagnostic::chain;

pub(super) fn of_membership(refusal: &MembershipRefusal) -> Failure {
    let code = match refusal {
        MembershipRefusal::Expelled { .. } | MembershipRefusal::Replaced { .. } => {
            Code::JoinRefused
        }
        MembershipRefusal::OtherKey { .. } => Code::ClonedIdentity,
        MembershipRefusal::NotPending(_) | MembershipRefusal::NotMember(_) => Code::NotFound,
        MembershipRefusal::PendingFull => Code::TooManyRequests,
        _ => Code::Conflict,
    };
    let mut problem = with_remedy(code, &refusal.to_string());
    if let MembershipRefusal::NameInUse { name, holder, .. } = refusal {
        problem = problem.with_conflict(Conflict {
            field: "name".to_owned(),
            value: name.to_string(),
            holder: format!("member/{holder}"),
        });
    }
    problem.into()
}

pub(super) fn of_token(refusal: &TokenRefusal) -> Failure {
    with_remedy(Code::JoinRefused, &refusal.to_string()).into()
}

pub(super) fn of_plan(refusal: &PlanRefusal) -> Failure {
    with_remedy(Code::Conflict, &chain(refusal)).into()
}

/// The messages of the core end with their remedy.
fn with_remedy(code: Code, message: &str) -> Problem {
    match message.split_once("; ") {
        Some((detail, remedy)) => Problem::new(code, detail).with_remedy(remedy),
        None => Problem::new(code, message),
    }
}

pub(super) fn no_cluster() -> Failure {
    Failure::new(Code::NotFound, "this site has no cluster")
        .with_remedy("found one with `hoist cluster found --name NAME`")
}
