//! A plan: an immutable, validated graph of steps. The same draft always gives the same bytes, hash
//! and order.
//!
//! A vertex waits for the vertices before it. Where many vertices wait for many others, a join
//! stands between them, so that the number of edges grows with the number of vertices and not with
//! the number of pairs.
//!
//! The state of an execution belongs to [`crate::run`].

mod window;

pub use window::time_of_week;

use std::cmp::Reverse;
use std::fmt::{self, Write as _};
use std::io;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Largest number of vertices of a plan. A large site with a long deployment has a million steps.
pub const MAX_VERTICES: usize = 4_000_000;

/// The index of a vertex in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepId(pub u32);

impl StepId {
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A plan before validation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    pub vertices: Vec<Vertex>,
    /// The targets of steps by name, usually machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failure_domains: Vec<FailureDomain>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<ConcurrencyLimit>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Window>,
    /// The run pauses when this many subjects fail in the same step for the same reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<u32>,
    #[serde(default)]
    pub on_crash: OnCrash,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vertex {
    pub name: String,
    /// The vertices that must end first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<StepId>,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Step(Box<Step>),
    /// Waits for the vertices before it; has no effect.
    Join(Rule),
}

/// When a join is passed. Subjects that are left out do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// All vertices before it succeeded.
    All,
    /// At least this many succeeded.
    AtLeast(u32),
    /// More than half succeeded.
    Most,
    /// At least this percentage succeeded.
    Percent(u8),
    /// All ended, in whichever way.
    AnyEnd,
}

/// One change, with its preconditions and postconditions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub call: Call,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<Call>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Call>,
    /// Index in [`Draft::subjects`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<u32>,
    /// Index in [`Draft::failure_domains`]; failures in one domain are counted together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_domain: Option<u32>,
    /// Indices in [`Draft::limits`]. A step gets a slot of each limit at once, or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<u32>,
    #[serde(default)]
    pub repeat: Repeat,
    #[serde(default)]
    pub retries: u32,
    /// Additional attempts after a failed precondition.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries_precheck: u32,
    /// Delay before the next attempt.
    #[serde(default)]
    pub delay_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Resource limits for the programs of one attempt; most steps have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_use: Option<Box<MayUse>>,
    #[serde(default)]
    pub on_failure: OnFailure,
    /// The reason to skip the step, if it is skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip: Option<String>,
    /// The call that undoes the step, where the action has no undo of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<Call>,
    #[serde(default)]
    pub reversibility: Reversibility,
    /// Checks the postconditions first; if all hold, the step is not applied.
    #[serde(default)]
    pub skip_when_done: bool,
    /// Index in [`Draft::windows`]: when the step may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Steps of the same number do the same on other subjects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kin: Option<u32>,
    /// Expected duration in milliseconds, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ms: Option<u64>,
    /// Fingerprint of all inputs of the step. A step with the same fingerprint that succeeded in an
    /// older run need not be repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Whether the fingerprint covers every input, so that repeating an earlier step does not make
    /// this one stale.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_inputs: bool,
    /// Indices in [`Draft::failure_domains`]. If a step of such a domain fails, all of its steps on
    /// the same subject are undone when the run has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undone_with: Vec<u32>,
    /// Secrets that must not appear in the output, in addition to those that the calls name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hides: Vec<String>,
}

impl Step {
    /// The secrets that the calls of the step name, and those of [`Step::hides`].
    pub fn secret_references(&self) -> impl Iterator<Item = &str> {
        let Self { call, before, after, undo, hides, .. } = self;
        let calls = std::iter::once(call).chain(before).chain(after).chain(undo);
        calls.flat_map(|call| references(&call.input)).chain(hides.iter().map(String::as_str))
    }
}

/// The secrets that an input names as `secrets: {NAME: reference}`, also within nested values.
fn references(input: &Value) -> Vec<&str> {
    match input {
        Value::Array(items) => items.iter().flat_map(references).collect(),
        Value::Object(fields) => {
            let named = fields.get("secrets").and_then(Value::as_object).into_iter().flatten();
            let named = named.filter_map(|(_, reference)| reference.as_str());
            named.chain(fields.values().flat_map(references)).collect()
        }
        _ => Vec::new(),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// An action and its input.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    pub action: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// If set, the call undoes these attempts, in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<Vec<AppliedAttempt>>,
}

/// An attempt that may have changed something, whether or not it succeeded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppliedAttempt {
    /// The id of the attempt, [`crate::record::attempt_id`]. Traces on a machine carry it.
    pub attempt: String,
    /// The receipt of the action; null unless the attempt succeeded.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub receipt: Value,
    /// Undo the attempt even if its result was changed since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over_changes: bool,
}

/// Resource limits for programs on their machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MayUse {
    /// Bytes, of all processes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Number of processes at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Per process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u32>,
    /// Bytes of each file that the programs write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_size: Option<u64>,
}

/// Whether a change can be undone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reversibility {
    #[default]
    Reversible,
    /// Another action can compensate for the change.
    Compensable,
    /// The change cannot be undone, and neither can the steps before it.
    CommitPoint,
}

/// How a run continues after its controller died.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnCrash {
    #[default]
    Resume,
    Undo,
    Ask,
}

/// The parts of each week in which steps may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    pub name: String,
    /// Start and end, in minutes since Monday 00:00 UTC. A span that ends before it starts goes
    /// across the end of the week.
    pub spans: Vec<(u32, u32)>,
}

/// How to treat an attempt whose outcome is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeat {
    /// Attempt the step again.
    Safe,
    /// Check the postconditions, and attempt the step again if they do not hold.
    Check,
    /// The step has failed.
    Fail,
    /// A person decides.
    #[default]
    Never,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// No new step starts, unless the failure domain tolerates the failure of the subject.
    #[default]
    Stop,
    /// Steps after this one do not run; all others do.
    Continue,
    /// Steps after this one run as if it had succeeded.
    Ignore,
}

/// A group of subjects, some of which may fail.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailureDomain {
    pub name: String,
    #[serde(default)]
    pub tolerate: u32,
    /// The run fails if any subject fails, even if the failure is tolerated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_strict: bool,
    /// If too many subjects fail, no more steps of this domain start, and other domains continue.
    /// Otherwise no new step starts at all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trips_alone: bool,
}

/// A limit on the number of holders at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConcurrencyLimit {
    pub name: String,
    pub slots: u32,
    #[serde(default)]
    pub held_by: Holder,
}

/// The holder of a slot, and how long the slot is held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// Each step, while it runs.
    #[default]
    Step,
    /// A subject, from its first step in the limit until all its steps in the limit have ended.
    Subject,
    /// As `Subject`, but a subject whose step failed keeps its slot.
    Healthy,
}

/// Why a draft is not a valid plan. Nothing has run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    #[error("the plan has {count} vertices; at most {MAX_VERTICES} fit")]
    TooLarge { count: usize },
    #[error("`{vertex}` names {what} {at}, which the plan does not have")]
    Unknown { vertex: String, what: &'static str, at: u32 },
    #[error("the limit `{limit}` has no slots, so `{vertex}` could never start")]
    NoSlot { vertex: String, limit: String },
    #[error("the window `{window}` never opens, or is not within a week")]
    NeverOpens { window: String },
    #[error("`{vertex}` has `repeat: check` but no postcondition")]
    NoCheck { vertex: String },
    #[error("vertices wait for each other: {}", .path.join(" -> "))]
    Cycle { path: Vec<String> },
}

/// SHA-256 of the JSON of a draft, which is never in memory as a whole.
fn hash(draft: &Draft) -> String {
    struct Hasher(Sha256);
    impl io::Write for Hasher {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut out = io::BufWriter::new(Hasher(Sha256::new()));
    serde_json::to_writer(&mut out, draft).expect("a plain value");
    let hasher = out.into_inner().unwrap_or_else(|_| unreachable!("a hasher takes all bytes"));
    let mut hash = String::new();
    for byte in hasher.0.finalize() {
        write!(hash, "{byte:02x}").expect("writing to memory");
    }
    hash
}

/// A validated draft, with its order.
#[derive(Debug)]
pub struct Plan {
    draft: Draft,
    /// The successors of all vertices, in one list.
    successors: Vec<StepId>,
    /// Index of the first successor of each vertex, and one end index.
    starts: Vec<u32>,
    /// The priority of each vertex among those that could start at the same time.
    ranks: Vec<u32>,
    by_rank: Vec<StepId>,
    /// Topological order.
    order: Vec<StepId>,
    hash: String,
}

impl Plan {
    pub fn new(draft: Draft) -> Result<Self, PlanError> {
        check(&draft)?;
        let (successors, starts) = successors(&draft);
        let order = topological(&draft, &successors, &starts)?;
        let ranks = ranks(&draft, &successors, &starts, &order);
        let mut by_rank = vec![StepId(0); ranks.len()];
        for (at, rank) in ranks.iter().enumerate() {
            by_rank[*rank as usize] = id(at);
        }
        let hash = hash(&draft);
        Ok(Self { draft, successors, starts, ranks, by_rank, order, hash })
    }

    /// SHA-256 of the whole draft.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub fn draft(&self) -> &Draft {
        &self.draft
    }

    pub fn into_draft(self) -> Draft {
        self.draft
    }

    pub fn len(&self) -> usize {
        self.draft.vertices.len()
    }

    pub fn is_empty(&self) -> bool {
        self.draft.vertices.is_empty()
    }

    pub fn ids(&self) -> impl Iterator<Item = StepId> + use<> {
        (0..self.len()).map(id)
    }

    pub fn vertex(&self, id: StepId) -> &Vertex {
        &self.draft.vertices[id.at()]
    }

    pub fn step(&self, id: StepId) -> Option<&Step> {
        match &self.vertex(id).kind {
            Kind::Step(step) => Some(step),
            Kind::Join(_) => None,
        }
    }

    /// The subject of a step; empty if the step has none.
    pub fn subject(&self, id: StepId) -> &str {
        let subject = self.step(id).and_then(|step| step.subject);
        subject.map_or("", |at| self.draft.subjects[at as usize].as_str())
    }

    pub fn successors(&self, id: StepId) -> &[StepId] {
        &self.successors[self.starts[id.at()] as usize..self.starts[id.at() + 1] as usize]
    }

    /// Topological order: each vertex comes after its predecessors.
    pub fn order(&self) -> &[StepId] {
        &self.order
    }

    /// The priority of a vertex: among vertices that could start, the smallest rank starts first.
    pub(crate) fn rank(&self, id: StepId) -> u32 {
        self.ranks[id.at()]
    }

    pub(crate) fn ranked(&self, rank: u32) -> StepId {
        self.by_rank[rank as usize]
    }
}

fn id(at: usize) -> StepId {
    StepId(u32::try_from(at).expect("plans are bounded"))
}

fn check(draft: &Draft) -> Result<(), PlanError> {
    let count = draft.vertices.len();
    if count > MAX_VERTICES {
        return Err(PlanError::TooLarge { count });
    }
    if let Some(window) = draft.windows.iter().find(|window| !window.is_sound()) {
        return Err(PlanError::NeverOpens { window: window.name.clone() });
    }
    for vertex in &draft.vertices {
        let unknown = |what, at| Err(PlanError::Unknown { vertex: vertex.name.clone(), what, at });
        if let Some(missing) = vertex.after.iter().find(|before| before.at() >= count) {
            return unknown("vertex", missing.0);
        }
        let Kind::Step(step) = &vertex.kind else { continue };
        if let Some(at) = step.subject.filter(|at| *at as usize >= draft.subjects.len()) {
            return unknown("subject", at);
        }
        let failure_domains = step.failure_domain.iter().chain(&step.undone_with);
        if let Some(at) =
            failure_domains.copied().find(|at| *at as usize >= draft.failure_domains.len())
        {
            return unknown("failure domain", at);
        }
        if let Some(at) = step.window.filter(|at| *at as usize >= draft.windows.len()) {
            return unknown("window", at);
        }
        for at in &step.limits {
            let Some(limit) = draft.limits.get(*at as usize) else { return unknown("limit", *at) };
            if limit.slots == 0 {
                let vertex = vertex.name.clone();
                let limit = limit.name.clone();
                return Err(PlanError::NoSlot { vertex, limit });
            }
        }
        if step.repeat == Repeat::Check && step.after.is_empty() {
            return Err(PlanError::NoCheck { vertex: vertex.name.clone() });
        }
    }
    Ok(())
}

fn successors(draft: &Draft) -> (Vec<StepId>, Vec<u32>) {
    let mut starts = vec![0_u32; draft.vertices.len() + 1];
    for before in draft.vertices.iter().flat_map(|vertex| &vertex.after) {
        starts[before.at() + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut next = starts.clone();
    let mut successors = vec![StepId(0); *starts.last().unwrap_or(&0) as usize];
    for (at, vertex) in draft.vertices.iter().enumerate() {
        for before in &vertex.after {
            let place = &mut next[before.at()];
            successors[*place as usize] = id(at);
            *place += 1;
        }
    }
    (successors, starts)
}

fn topological(
    draft: &Draft,
    successors: &[StepId],
    starts: &[u32],
) -> Result<Vec<StepId>, PlanError> {
    let mut open: Vec<usize> = draft.vertices.iter().map(|vertex| vertex.after.len()).collect();
    let mut order: Vec<StepId> =
        open.iter().enumerate().filter(|(_, open)| **open == 0).map(|(at, _)| id(at)).collect();
    let mut done = 0;
    while let Some(next) = order.get(done).copied() {
        done += 1;
        for after in &successors[starts[next.at()] as usize..starts[next.at() + 1] as usize] {
            open[after.at()] -= 1;
            if open[after.at()] == 0 {
                order.push(*after);
            }
        }
    }
    if order.len() < open.len() {
        return Err(PlanError::Cycle { path: cycle(draft, &open) });
    }
    Ok(order)
}

/// The names along one of the shortest cycles among the open vertices; the first name is repeated
/// at the end.
fn cycle(draft: &Draft, open: &[usize]) -> Vec<String> {
    let left = |at: usize| open[at] > 0;
    // Every predecessor on a cycle is open itself, so the backward search stays among open
    // vertices.
    let mut shortest: Option<Vec<usize>> = None;
    for start in (0..open.len()).filter(|at| left(*at)).take(CYCLE_STARTS) {
        let mut came_from = vec![usize::MAX; open.len()];
        let mut queue = std::collections::VecDeque::from([start]);
        'search: while let Some(at) = queue.pop_front() {
            for before in draft.vertices[at].after.iter().map(|before| before.at()) {
                if before == start {
                    let mut path = vec![start];
                    let mut back = at;
                    while back != start {
                        path.push(back);
                        back = came_from[back];
                    }
                    path.push(start);
                    if shortest.as_ref().is_none_or(|shortest| path.len() < shortest.len()) {
                        shortest = Some(path);
                    }
                    break 'search;
                }
                if left(before) && came_from[before] == usize::MAX {
                    came_from[before] = at;
                    queue.push_back(before);
                }
            }
        }
    }
    let path = shortest.unwrap_or_default();
    path.into_iter().map(|at| draft.vertices[at].name.clone()).collect()
}

/// Number of vertices from which a cycle is searched; each search may visit the whole graph.
const CYCLE_STARTS: usize = 256;

/// Assumed duration of a step without an expected one.
const USUAL_MS: u64 = 1000;

/// Ranks by the longest path to the end, then by the order of the draft.
fn ranks(draft: &Draft, successors: &[StepId], starts: &[u32], order: &[StepId]) -> Vec<u32> {
    let mut heights = vec![0_u64; draft.vertices.len()];
    for at in order.iter().rev().map(|id| id.at()) {
        let after = &successors[starts[at] as usize..starts[at + 1] as usize];
        let above = after.iter().map(|after| heights[after.at()]).max().unwrap_or(0);
        let own = match &draft.vertices[at].kind {
            Kind::Step(step) => step.expected_ms.unwrap_or(USUAL_MS),
            Kind::Join(_) => 0,
        };
        heights[at] = above.saturating_add(own);
    }
    let mut ids: Vec<StepId> = (0..heights.len()).map(id).collect();
    ids.sort_by_key(|id| (Reverse(heights[id.at()]), *id));
    let mut ranks = vec![0; heights.len()];
    for (rank, id) in ids.into_iter().enumerate() {
        ranks[id.at()] = u32::try_from(rank).expect("plans are bounded");
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, after: &[u32], expected_ms: Option<u64>) -> Vertex {
        Vertex {
            name: name.to_owned(),
            after: after.iter().copied().map(StepId).collect(),
            kind: Kind::Step(Box::new(Step { expected_ms, ..Step::default() })),
        }
    }

    #[test]
    fn longest_path_to_the_end_has_first_rank() {
        let vertices = vec![
            step("short, and two more", &[], Some(10)),
            step("second", &[0], Some(10)),
            step("third", &[1], Some(10)),
            step("long", &[], Some(5000)),
            step("unknown", &[], None),
        ];
        let plan = Plan::new(Draft { vertices, ..Draft::default() }).unwrap();
        let first: Vec<u32> = (0..5).map(|rank| plan.ranked(rank).0).collect();
        assert_eq!(first, [3, 4, 0, 1, 2]);
    }

    #[test]
    fn undo_call_survives_serialization() {
        let call = Call { undoes: Some(vec![AppliedAttempt::default()]), ..Call::default() };
        let text = serde_json::to_string(&call).unwrap();
        assert_eq!(serde_json::from_str::<Call>(&text).unwrap(), call, "{text}");
        let plain = serde_json::to_string(&Call::default()).unwrap();
        assert_eq!(serde_json::from_str::<Call>(&plain).unwrap().undoes, None);
    }

    #[test]
    fn closed_and_unknown_windows_are_refused() {
        let window = |spans| Window { name: "w".to_owned(), spans };
        let draft = |spans| Draft { windows: vec![window(spans)], ..Draft::default() };
        for spans in [vec![], vec![(5, 5)], vec![(0, 10_081)], vec![(10_080, 1)]] {
            let error = Plan::new(draft(spans)).unwrap_err();
            assert_eq!(error, PlanError::NeverOpens { window: "w".to_owned() });
        }
        let mut vertex = step("s", &[], None);
        if let Kind::Step(step) = &mut vertex.kind {
            step.window = Some(1);
        }
        let draft = Draft { vertices: vec![vertex], ..draft(vec![(0, 10_080)]) };
        let error = Plan::new(draft).unwrap_err();
        assert_eq!(error, PlanError::Unknown { vertex: "s".to_owned(), what: "window", at: 1 });
    }
}
