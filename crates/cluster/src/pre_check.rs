//! The checks before a join, on the node and on the controller, as functions of observed values.
//!
//! Both functions return every check, passed or not: the results are evidence in the journal.
//! Observing the values does not belong here.

use std::collections::BTreeSet;
use std::fmt;

use hoist_model::Name;
use jiff::SignedDuration;
use serde::Serialize;

use crate::membership::{MAX_MEMBERS, MAX_PENDING};

/// Room for the state of a node, its journal, and the previous contents of changed files.
pub const MIN_STATE_BYTES: u64 = 1 << 30;
pub const MIN_STATE_INODES: u64 = 10_000;
pub const MIN_MEMORY_BYTES: u64 = 512 << 20;
/// From here on signatures and tokens may seem expired, or not valid yet.
pub const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);
pub const TOLERATED_CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(30);

/// A check; its text form is stable, for scripts and for `--skip`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckId {
    StateDisk,
    StateInodes,
    StateWritable,
    Memory,
    Clock,
    Protocol,
    HostName,
    LeftoverState,
    OperationInProgress,
    Capacity,
    StoreWritable,
    Conflict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Passed,
    Warning,
    /// Stops the join, unless the check is skippable and the operator skips it.
    Refused,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckResult {
    pub id: CheckId,
    pub severity: Severity,
    /// The observed value and, where there is one, the limit.
    pub evidence: String,
    /// The next step of the operator; none for a passed check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
    pub skippable: bool,
}

/// The versions of the join protocol that a program speaks, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolRange {
    pub oldest: u16,
    pub newest: u16,
}

/// Observations on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    pub state_bytes_free: u64,
    /// None for a file system without a limit of inodes.
    pub state_inodes_free: Option<u64>,
    /// The error of a write and fsync in the state directory, if there was one.
    pub state_write_error: Option<String>,
    pub memory_bytes: u64,
    /// The clock of the node minus the signed time of the controller.
    pub clock_skew: SignedDuration,
    pub protocol: ProtocolRange,
    pub controller_protocol: ProtocolRange,
    pub host_name: String,
    /// Files of an earlier membership.
    pub leftovers: Vec<String>,
    /// The operation that holds the lock of the node.
    pub operation: Option<String>,
}

/// Observations on the controller, about one request to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerFacts {
    pub protocol: ProtocolRange,
    pub node_protocol: ProtocolRange,
    pub members: usize,
    pub pending: usize,
    pub store_write_error: Option<String>,
    /// The message of the refusal if the name, the key or the id is taken.
    pub conflict: Option<String>,
    /// The operation on the membership that is under way.
    pub operation: Option<String>,
}

/// The checks on the node.
pub fn check_node(facts: &NodeFacts) -> Vec<CheckResult> {
    vec![
        at_least(
            CheckId::StateDisk,
            "bytes free in the state directory",
            facts.state_bytes_free,
            MIN_STATE_BYTES,
            "free disk space, or move the state directory",
        ),
        match facts.state_inodes_free {
            None => passed(CheckId::StateInodes, "no limit of inodes".to_owned()),
            Some(free) => at_least(
                CheckId::StateInodes,
                "inodes free in the state directory",
                free,
                MIN_STATE_INODES,
                "delete files, or move the state directory",
            ),
        },
        writable(
            CheckId::StateWritable,
            "state directory",
            facts.state_write_error.as_deref(),
            "check the permissions and the mount of the state directory",
        ),
        CheckResult {
            skippable: true,
            ..at_least(
                CheckId::Memory,
                "bytes of memory",
                facts.memory_bytes,
                MIN_MEMORY_BYTES,
                "add memory, or skip the check",
            )
        },
        clock(facts.clock_skew),
        protocol(facts.protocol, facts.controller_protocol),
        host_name(&facts.host_name),
        leftovers(&facts.leftovers),
        operation(facts.operation.as_deref()),
    ]
}

/// The checks on the controller.
pub fn check_controller(facts: &ControllerFacts) -> Vec<CheckResult> {
    vec![
        protocol(facts.node_protocol, facts.protocol),
        capacity(facts.members, facts.pending),
        writable(
            CheckId::StoreWritable,
            "store",
            facts.store_write_error.as_deref(),
            "see `hoist cluster status` for the state of the store",
        ),
        match &facts.conflict {
            None => passed(CheckId::Conflict, "no conflict of name, key or id".to_owned()),
            Some(conflict) => refused(
                CheckId::Conflict,
                conflict.clone(),
                "rename the node, replace the old one, or reset the identity",
            ),
        },
        operation(facts.operation.as_deref()),
    ]
}

/// The results that stop the join. Only skippable checks can be skipped.
pub fn blocking<'a>(
    results: &'a [CheckResult],
    skipped: &BTreeSet<CheckId>,
) -> Vec<&'a CheckResult> {
    let is_skipped = |result: &CheckResult| result.skippable && skipped.contains(&result.id);
    let refused = results.iter().filter(|result| result.severity == Severity::Refused);
    refused.filter(|result| !is_skipped(result)).collect()
}

fn passed(id: CheckId, evidence: String) -> CheckResult {
    CheckResult { id, severity: Severity::Passed, evidence, remedy: None, skippable: false }
}

fn warning(id: CheckId, evidence: String, remedy: &'static str) -> CheckResult {
    let remedy = Some(remedy);
    CheckResult { id, severity: Severity::Warning, evidence, remedy, skippable: false }
}

fn refused(id: CheckId, evidence: String, remedy: &'static str) -> CheckResult {
    let remedy = Some(remedy);
    CheckResult { id, severity: Severity::Refused, evidence, remedy, skippable: false }
}

fn at_least(
    id: CheckId,
    quantity: &str,
    observed: u64,
    minimum: u64,
    remedy: &'static str,
) -> CheckResult {
    let evidence = format!("{observed} {quantity}, at least {minimum} are needed");
    if observed >= minimum { passed(id, evidence) } else { refused(id, evidence, remedy) }
}

fn writable(id: CheckId, subject: &str, error: Option<&str>, remedy: &'static str) -> CheckResult {
    match error {
        None => passed(id, format!("{subject} is writable")),
        Some(error) => refused(id, format!("{subject} is not writable: {error}"), remedy),
    }
}

fn clock(skew: SignedDuration) -> CheckResult {
    let direction = if skew.is_negative() { "behind" } else { "ahead of" };
    let size = skew.unsigned_abs();
    let evidence = format!("clock is {} s {direction} the controller", size.as_secs());
    let remedy = "set the clock, for instance with NTP";
    if size > MAX_CLOCK_SKEW.unsigned_abs() {
        refused(CheckId::Clock, evidence, remedy)
    } else if size > TOLERATED_CLOCK_SKEW.unsigned_abs() {
        warning(CheckId::Clock, evidence, remedy)
    } else {
        passed(CheckId::Clock, evidence)
    }
}

fn protocol(node: ProtocolRange, controller: ProtocolRange) -> CheckResult {
    let evidence = format!("node speaks protocol {node}, controller {controller}");
    let has_common = node.oldest <= controller.newest && controller.oldest <= node.newest;
    if has_common {
        passed(CheckId::Protocol, evidence)
    } else {
        let remedy = "update the older program";
        refused(CheckId::Protocol, evidence, remedy)
    }
}

fn host_name(name: &str) -> CheckResult {
    if let Ok(name) = name.parse::<Name>() {
        return passed(CheckId::HostName, format!("host name is `{name}`"));
    }
    // A hostile name must not reach terminals and logs as it is.
    let shown: String = name.escape_debug().take(80).collect();
    let evidence = format!("host name `{shown}` is not valid");
    let remedy = "set a host name of 1 to 63 letters, digits and dashes";
    refused(CheckId::HostName, evidence, remedy)
}

fn leftovers(files: &[String]) -> CheckResult {
    if files.is_empty() {
        return passed(CheckId::LeftoverState, "no state of an earlier membership".to_owned());
    }
    let evidence = format!("state of an earlier membership: {}", files.join(", "));
    let remedy = "resume the earlier join, or run `hoist identity reset`";
    refused(CheckId::LeftoverState, evidence, remedy)
}

fn operation(under_way: Option<&str>) -> CheckResult {
    match under_way {
        None => passed(CheckId::OperationInProgress, "no operation in progress".to_owned()),
        Some(operation) => refused(
            CheckId::OperationInProgress,
            format!("operation {operation} is in progress"),
            "wait for its end and try again",
        ),
    }
}

fn capacity(members: usize, pending: usize) -> CheckResult {
    let evidence =
        format!("{members} of {MAX_MEMBERS} members, {pending} of {MAX_PENDING} pending requests");
    if members < MAX_MEMBERS && pending < MAX_PENDING {
        passed(CheckId::Capacity, evidence)
    } else {
        let remedy = "accept or reject pending requests, or remove members";
        refused(CheckId::Capacity, evidence, remedy)
    }
}

impl fmt::Display for ProtocolRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.oldest, self.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeFacts {
        NodeFacts {
            state_bytes_free: MIN_STATE_BYTES,
            state_inodes_free: Some(MIN_STATE_INODES),
            state_write_error: None,
            memory_bytes: MIN_MEMORY_BYTES,
            clock_skew: SignedDuration::ZERO,
            protocol: ProtocolRange { oldest: 1, newest: 2 },
            controller_protocol: ProtocolRange { oldest: 2, newest: 3 },
            host_name: "web-1".into(),
            leftovers: Vec::new(),
            operation: None,
        }
    }

    fn controller() -> ControllerFacts {
        ControllerFacts {
            protocol: ProtocolRange { oldest: 2, newest: 3 },
            node_protocol: ProtocolRange { oldest: 1, newest: 2 },
            members: MAX_MEMBERS - 1,
            pending: MAX_PENDING - 1,
            store_write_error: None,
            conflict: None,
            operation: None,
        }
    }

    /// The checks that did not pass, with their evidence.
    fn failed(results: &[CheckResult]) -> Vec<(CheckId, Severity, &str)> {
        for result in results {
            assert_eq!(result.remedy.is_some(), result.severity != Severity::Passed, "{result:?}");
        }
        let failed = results.iter().filter(|result| result.severity != Severity::Passed);
        failed.map(|result| (result.id, result.severity, result.evidence.as_str())).collect()
    }

    #[test]
    fn facts_at_the_limits_pass() {
        assert_eq!(failed(&check_node(&node())), []);
        assert_eq!(failed(&check_node(&NodeFacts { state_inodes_free: None, ..node() })), []);
        assert_eq!(failed(&check_controller(&controller())), []);
    }

    #[test]
    fn each_fact_of_a_node_fails_its_own_check() {
        use CheckId::{
            Clock, HostName, LeftoverState, Memory, OperationInProgress, Protocol, StateDisk,
            StateInodes, StateWritable,
        };
        use Severity::{Refused, Warning};
        type Change = fn(&mut NodeFacts);
        let cases: [(Change, CheckId, Severity, &str); 12] = [
            (|n| n.state_bytes_free = 5, StateDisk, Refused, "5 bytes free"),
            (|n| n.state_inodes_free = Some(0), StateInodes, Refused, "0 inodes free"),
            (
                |n| n.state_write_error = Some("read-only".into()),
                StateWritable,
                Refused,
                "not writable: read-only",
            ),
            (|n| n.memory_bytes -= 1, Memory, Refused, "536870911 bytes of memory"),
            (|n| n.clock_skew = SignedDuration::from_secs(31), Clock, Warning, "31 s ahead of"),
            (|n| n.clock_skew = SignedDuration::from_secs(-300), Clock, Warning, "300 s behind"),
            (|n| n.clock_skew = SignedDuration::from_secs(-301), Clock, Refused, "301 s behind"),
            (|n| n.clock_skew = SignedDuration::MIN, Clock, Refused, "behind the controller"),
            (|n| n.protocol.newest = 1, Protocol, Refused, "node speaks protocol 1 to 1"),
            (|n| n.host_name = "a\n/b".into(), HostName, Refused, "`a\\n/b` is not valid"),
            (|n| n.leftovers = vec!["node.key".into()], LeftoverState, Refused, "node.key"),
            (|n| n.operation = Some("op-1".into()), OperationInProgress, Refused, "op-1"),
        ];
        for (change, id, severity, evidence) in cases {
            let mut facts = node();
            change(&mut facts);
            let results = check_node(&facts);
            let [(failed_id, failed_severity, text)] = failed(&results)[..] else {
                panic!("one check fails: {results:?}")
            };
            assert_eq!((failed_id, failed_severity), (id, severity));
            assert!(text.contains(evidence), "{text}");
        }
    }

    #[test]
    fn each_fact_of_a_controller_fails_its_own_check() {
        type Change = fn(&mut ControllerFacts);
        let cases: [(Change, CheckId, &str); 6] = [
            (|c| c.node_protocol.oldest = 4, CheckId::Protocol, "controller 2 to 3"),
            (|c| c.members += 1, CheckId::Capacity, "10000 of 10000 members"),
            (|c| c.pending += 1, CheckId::Capacity, "100 of 100 pending"),
            (|c| c.store_write_error = Some("full".into()), CheckId::StoreWritable, "full"),
            (|c| c.conflict = Some("name `a` is in use".into()), CheckId::Conflict, "name `a`"),
            (|c| c.operation = Some("drain".into()), CheckId::OperationInProgress, "drain"),
        ];
        for (change, id, evidence) in cases {
            let mut facts = controller();
            change(&mut facts);
            let results = check_controller(&facts);
            let [(failed_id, Severity::Refused, text)] = failed(&results)[..] else {
                panic!("one check fails: {results:?}")
            };
            assert_eq!(failed_id, id);
            assert!(text.contains(evidence), "{text}");
        }
    }

    #[test]
    fn only_skippable_checks_can_be_skipped() {
        let facts = NodeFacts { memory_bytes: 0, state_bytes_free: 0, ..node() };
        let results = check_node(&facts);
        let skipped = [CheckId::Memory, CheckId::StateDisk].into();
        let blocking = blocking(&results, &skipped);
        assert_eq!(
            blocking.iter().map(|result| result.id).collect::<Vec<_>>(),
            [CheckId::StateDisk]
        );
    }

    #[test]
    fn result_has_the_documented_json() {
        let results = check_node(&NodeFacts { memory_bytes: 0, ..node() });
        let json = serde_json::to_value(&results[3]).unwrap();
        assert_eq!((&json["id"], &json["severity"]), (&"memory".into(), &"refused".into()));
        assert_eq!(json["skippable"], true);
    }
}
