//! A plan: a frozen graph of steps, the same bytes and the same order each time it is made.
//!
//! Steps wait for the vertices before them. Where many wait for many, a join stands between them,
//! so that a plan has as many edges as things and not as many as pairs of things.

mod window;

pub use window::time_of_week;

use std::cmp::Reverse;
use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Vertices of one plan: a million instances are a large site with a long deployment.
pub const MAX_VERTICES: usize = 4_000_000;

/// A vertex by its place in the plan.
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

/// What is to be done, before it is looked at whether it can be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    pub vertices: Vec<Vertex>,
    /// What steps act on, by name: machines, mostly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cohorts: Vec<Cohort>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<Pool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Window>,
    /// So many subjects that fail in the same step for the same reason pause the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<u32>,
    #[serde(default)]
    pub on_crash: OnCrash,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vertex {
    pub name: String,
    /// What must have come to its end first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<StepId>,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Step(Box<Step>),
    /// Waits and does nothing.
    Join(Rule),
}

/// When a join is passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// All came to a good end, but for those of subjects that are left out.
    All,
    /// At least so many did.
    AtLeast(u32),
    /// More than half did, of those that are not left out.
    Most,
    /// At least this part did, of those that are not left out.
    Percent(u8),
    /// All came to an end, whatever it was.
    AnyEnd,
}

/// One change, with what is looked at before and after it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub call: Call,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<Call>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Call>,
    /// In [`Draft::subjects`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<u32>,
    /// Whose failures are counted together, in [`Draft::cohorts`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cohort: Option<u32>,
    /// In [`Draft::pools`]; all of them are taken at once, or none is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<u32>,
    #[serde(default)]
    pub repeat: Repeat,
    #[serde(default)]
    pub retries: u32,
    /// More attempts where what is looked at before it does not hold.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries_precheck: u32,
    /// Before another attempt.
    #[serde(default)]
    pub delay_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// What the programs of one attempt may use; most may use what there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_use: Option<Box<MayUse>>,
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Why it is not done at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip: Option<String>,
    /// What takes it back, where that is not the action's own business.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<Call>,
    #[serde(default)]
    pub reversibility: Reversibility,
    /// What is looked at after it is looked at first, and if all holds nothing is done.
    #[serde(default)]
    pub skip_when_done: bool,
    /// When it may start, in [`Draft::windows`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Steps of the same number do the same on other subjects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kin: Option<u32>,
    /// How long it will take, in milliseconds, as far as anybody can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ms: Option<u64>,
    /// Of everything that makes it what it is: one that was done in an older run, with the same
    /// fingerprint, need not be done again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The fingerprint covers all that it is made from, so what is done anew before it does not
    /// make it stale.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_inputs: bool,
    /// In [`Draft::cohorts`]: where one step of such a cohort fails, all of them on its subject are
    /// to be taken back when the run has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undone_with: Vec<u32>,
    /// Secrets that nothing of it prints, beside those that it names itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hides: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// An action and what it is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    pub action: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// With it the call takes back what these attempts did, in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<Vec<Made>>,
}

/// An attempt that may have changed something, however it ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// Its name, [`crate::execute::attempt_id`]: what it left on a machine is found by it.
    pub attempt: String,
    /// What it gave; nothing, unless it said that it was done.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub receipt: Value,
    /// It is taken back also where somebody changed since what it left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over_changes: bool,
}

/// What programs may use of their machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MayUse {
    /// Bytes, of all of them together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// So many at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// In each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u32>,
    /// Bytes of each file that they write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_size: Option<u64>,
}

/// Whether a change can be taken back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reversibility {
    #[default]
    Reversible,
    /// Something else can be done that makes up for it.
    Compensable,
    /// No way back from here on.
    CommitPoint,
}

/// What becomes of a run whose controller died.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnCrash {
    #[default]
    Resume,
    Undo,
    Ask,
}

/// The part of each week in which something may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    pub name: String,
    /// From and until, in minutes since Monday 00:00 UTC; one that ends before it begins goes over
    /// the end of the week.
    pub spans: Vec<(u32, u32)>,
}

/// What to do with an attempt of which nobody knows how it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeat {
    /// Do it again.
    Safe,
    /// See whether it is done, and do it again if not.
    Check,
    /// It has failed.
    Fail,
    /// A person decides.
    #[default]
    Never,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Nothing new starts, unless the cohort can do without the subject.
    #[default]
    Stop,
    /// What comes after it is not done; everything else is.
    Continue,
    /// As if it had come to a good end.
    Ignore,
}

/// Subjects that fail together or not: how many may.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cohort {
    pub name: String,
    #[serde(default)]
    pub tolerate: u32,
    /// The run has failed if any subject did, though the others go on without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_strict: bool,
    /// When more subjects failed than may, nothing more of it starts, and the others go on; else
    /// nothing new starts at all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trips_alone: bool,
}

/// So many at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    pub name: String,
    pub places: u32,
    #[serde(default)]
    pub held_by: Holder,
}

/// Who has a place in a pool, and until when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// Each step, while it runs.
    #[default]
    Step,
    /// A subject, from its first step in the pool until all of them have ended.
    Subject,
    /// As `Subject`; one whose step failed keeps its place.
    Healthy,
}

/// Why a draft is no plan. Nothing has run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    #[error("there are {count} vertices; at most {MAX_VERTICES} fit")]
    TooLarge { count: usize },
    #[error("`{vertex}` names {what} {at}, which the plan does not have")]
    Unknown { vertex: String, what: &'static str, at: u32 },
    #[error("the pool `{pool}` has no place, so `{vertex}` could never start")]
    NoPlace { vertex: String, pool: String },
    #[error("the window `{window}` never opens, or is not within a week")]
    NeverOpens { window: String },
    #[error("`{vertex}` says that it is checked when nobody knows how it ended, but has no check")]
    NoCheck { vertex: String },
    #[error("they wait for each other: {}", .path.join(" -> "))]
    Cycle { path: Vec<String> },
}

/// A draft that can be run.
#[derive(Debug)]
pub struct Plan {
    draft: Draft,
    /// The vertices after each one, all in one list.
    successors: Vec<StepId>,
    /// Where those of a vertex begin; one more than there are vertices.
    starts: Vec<u32>,
    /// The place of each vertex among those that could start together.
    ranks: Vec<u32>,
    by_rank: Vec<StepId>,
    /// Each vertex after those that it waits for.
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
        let bytes = serde_json::to_vec(&draft).expect("a plain value");
        let mut hash = String::new();
        for byte in Sha256::digest(bytes) {
            write!(hash, "{byte:02x}").expect("writing to memory");
        }
        Ok(Self { draft, successors, starts, ranks, by_rank, order, hash })
    }

    /// Of everything in it.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub fn draft(&self) -> &Draft {
        &self.draft
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

    pub fn successors(&self, id: StepId) -> &[StepId] {
        &self.successors[self.starts[id.at()] as usize..self.starts[id.at() + 1] as usize]
    }

    /// Each vertex after those that it waits for.
    pub fn order(&self) -> &[StepId] {
        &self.order
    }

    /// Among vertices that could start, the one with the least goes first.
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
        let cohorts = step.cohort.iter().chain(&step.undone_with);
        if let Some(at) = cohorts.copied().find(|at| *at as usize >= draft.cohorts.len()) {
            return unknown("cohort", at);
        }
        if let Some(at) = step.window.filter(|at| *at as usize >= draft.windows.len()) {
            return unknown("window", at);
        }
        for at in &step.pools {
            let Some(pool) = draft.pools.get(*at as usize) else { return unknown("pool", *at) };
            if pool.places == 0 {
                let (vertex, pool) = (vertex.name.clone(), pool.name.clone());
                return Err(PlanError::NoPlace { vertex, pool });
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

/// The names along one of the shortest cycles among what is left, the first one again at the end.
fn cycle(draft: &Draft, open: &[usize]) -> Vec<String> {
    let left = |at: usize| open[at] > 0;
    // Going backwards from a vertex that is left never leaves what is left.
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

/// Vertices that a cycle is looked for from; each look costs as much as the whole graph.
const CYCLE_STARTS: usize = 256;

/// What a step takes of which nobody knows how long it takes.
const USUAL_MS: u64 = 1000;

/// The longest way to the end goes first, then the order of the draft.
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
    fn the_longest_way_to_the_end_goes_first() {
        let vertices = vec![
            step("short, and two more", &[], Some(10)),
            step("second", &[0], Some(10)),
            step("third", &[1], Some(10)),
            step("long", &[], Some(5000)),
            step("nobody knows", &[], None),
        ];
        let plan = Plan::new(Draft { vertices, ..Draft::default() }).unwrap();
        let first: Vec<u32> = (0..5).map(|rank| plan.ranked(rank).0).collect();
        assert_eq!(first, [3, 4, 0, 1, 2]);
    }

    #[test]
    fn a_call_that_takes_back_still_does_after_it_was_kept() {
        let call = Call { undoes: Some(vec![Made::default()]), ..Call::default() };
        let text = serde_json::to_string(&call).unwrap();
        assert_eq!(serde_json::from_str::<Call>(&text).unwrap(), call, "{text}");
        let plain = serde_json::to_string(&Call::default()).unwrap();
        assert_eq!(serde_json::from_str::<Call>(&plain).unwrap().undoes, None);
    }

    #[test]
    fn windows_that_never_open_and_unknown_ones_are_refused() {
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
