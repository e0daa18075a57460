//! Pictures of plans: which vertices and edges a person wants to see, and then DOT, Mermaid, JSON
//! or SVG of them, all written here.
//!
//! By default every task is one vertex, whatever number of nodes it runs on, and roles are
//! clusters. Edges that follow from others are left out of pictures, since most do.

mod layout;
mod svg;
mod write;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Write as _;

use hoist_engine::plan::{Draft, Kind, Rule, StepId};
use hoist_engine::run::{State, StepEnd};

/// Most vertices of a drawing; a larger one cannot be read.
pub const MAX_DRAWN: usize = 2_000;

/// The visible part of a graph.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Each instance is a vertex, and not each task.
    pub instances: bool,
    /// Instances of these nodes only.
    pub on: Option<BTreeSet<String>>,
    /// Only vertices at most `depth` edges away from this task.
    pub around: Option<String>,
    pub depth: usize,
    /// Also edges that follow from others.
    pub all_edges: bool,
    /// Even if there is too much of it.
    pub force: bool,
}

/// Why there is no picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DrawError {
    #[error(
        "{count} vertices are more than the {MAX_DRAWN} that can be drawn; leave `--instances` \
         out to see tasks, see one node with `--on NODE` or what is near a task with `--around \
         TASK --depth 2`, or say `--force`"
    )]
    TooMany { count: usize },
    #[error("nothing in the plan is called `{name}`{}", suggestion.as_ref().map_or_else(String::new, |close| format!("; did you mean `{close}`?")))]
    NoSuchTask { name: String, suggestion: Option<String> },
    #[error("nothing is to be done on the nodes that were asked for")]
    Nothing,
}

/// How things stand with a vertex, for its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mood {
    // A vertex with several states is drawn in the first of them.
    Failed,
    Unknown,
    Blocked,
    Running,
    Ready,
    Waiting,
    Stopped,
    Done,
    Skipped,
    /// Nothing has run.
    Planned,
}

impl Mood {
    pub fn of(state: State) -> Self {
        match state {
            State::Waiting | State::Delayed => Self::Waiting,
            State::Ready => Self::Ready,
            State::Checking | State::Running | State::Verifying | State::VerifyingLost => {
                Self::Running
            }
            State::Unknown => Self::Unknown,
            State::Ended(StepEnd::Ok | StepEnd::Unchanged | StepEnd::Ignored) => Self::Done,
            State::Ended(StepEnd::Skipped) => Self::Skipped,
            State::Ended(StepEnd::Failed(_) | StepEnd::Interrupted) => Self::Failed,
            State::Ended(StepEnd::Blocked | StepEnd::LeftOut) => Self::Blocked,
            State::Ended(StepEnd::Stopped | StepEnd::Undone) => Self::Stopped,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Unknown => "unknown",
            Self::Blocked => "blocked",
            Self::Running => "running",
            Self::Ready => "ready",
            Self::Waiting => "waiting",
            Self::Stopped => "stopped",
            Self::Done => "done",
            Self::Skipped => "skipped",
            Self::Planned => "planned",
        }
    }
}

/// The kind of a drawn vertex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shape {
    Task,
    Barrier,
    Join,
}

impl Shape {
    fn as_str(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Barrier => "barrier",
            Self::Join => "join",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dot {
    pub name: String,
    pub shape: Shape,
    /// In [`Drawing::clusters`].
    pub cluster: Option<usize>,
    /// The number of instances in each state.
    pub moods: BTreeMap<Mood, usize>,
    /// The action of a task.
    pub action: Option<String>,
    /// When it is passed, for the others.
    pub rule: Option<Rule>,
    /// The least number of vertices on the longest way to an instance of it.
    level: usize,
}

impl Dot {
    pub fn mood(&self) -> Mood {
        self.moods.keys().next().copied().unwrap_or(Mood::Planned)
    }

    fn count(&self) -> usize {
        self.moods.values().sum()
    }

    /// The line below its name.
    fn detail(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.action.clone());
        let has_states = self.moods.keys().any(|mood| *mood != Mood::Planned);
        match (self.shape, self.count()) {
            (Shape::Task, count) if count > 1 && !has_states => {
                parts.push(format!("{count} nodes"));
            }
            (Shape::Task, count) if count > 1 => {
                parts.extend(self.moods.iter().map(|(mood, n)| format!("{n} {}", mood.as_str())));
            }
            (Shape::Task, _) if has_states => parts.push(self.mood().as_str().to_owned()),
            _ => {}
        }
        parts.join(" · ")
    }
}

/// Vertices and edges of a picture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drawing {
    pub dots: Vec<Dot>,
    /// From predecessor to successor.
    pub edges: Vec<(usize, usize)>,
    pub clusters: Vec<String>,
    /// Edges that are not drawn because they follow from others.
    pub implied: usize,
}

impl Drawing {
    /// Of a plan, or of a run if there are states.
    pub fn of(
        draft: &Draft,
        states: Option<&dyn Fn(StepId) -> State>,
        view: &View,
    ) -> Result<Self, DrawError> {
        let mut drawing = Maker { draft, states, view }.make();
        if let Some(name) = &view.around {
            drawing = drawing.around(name, view.depth)?;
        }
        if drawing.dots.is_empty() {
            return Err(DrawError::Nothing);
        }
        if drawing.dots.len() > MAX_DRAWN && !view.force {
            return Err(DrawError::TooMany { count: drawing.dots.len() });
        }
        if !view.all_edges && drawing.dots.len() <= MAX_DRAWN {
            drawing.reduce();
        }
        Ok(drawing)
    }

    pub fn dot(&self) -> String {
        write::dot(self)
    }

    pub fn mermaid(&self) -> String {
        write::mermaid(self)
    }

    pub fn json(&self) -> serde_json::Value {
        write::json(self)
    }

    pub fn svg(&self) -> String {
        svg::draw(self)
    }

    fn neighbours(&self) -> Vec<Vec<usize>> {
        let mut neighbours = vec![Vec::new(); self.dots.len()];
        for (a, b) in &self.edges {
            neighbours[*a].push(*b);
            neighbours[*b].push(*a);
        }
        neighbours
    }

    /// The neighbourhood of a task; passing a join counts as no edge.
    fn around(&self, name: &str, depth: usize) -> Result<Self, DrawError> {
        let is_it = |dot: &Dot| {
            dot.name == name || dot.name.rsplit_once('@').is_some_and(|(task, _)| task == name)
        };
        let mut distance: HashMap<usize, usize> = HashMap::new();
        let mut queue: VecDeque<usize> =
            (0..self.dots.len()).filter(|at| is_it(&self.dots[*at])).collect();
        if queue.is_empty() {
            let names = self.dots.iter().map(|dot| dot.name.as_str());
            let suggestion = hoist_model::nearest(name, names).map(str::to_owned);
            return Err(DrawError::NoSuchTask { name: name.to_owned(), suggestion });
        }
        distance.extend(queue.iter().map(|at| (*at, 0)));
        let neighbours = self.neighbours();
        while let Some(at) = queue.pop_front() {
            let here = distance[&at];
            for next in &neighbours[at] {
                let is_join = self.dots[*next].shape == Shape::Join;
                let there = here + usize::from(!is_join);
                if there <= depth && distance.get(next).is_none_or(|known| *known > there) {
                    distance.insert(*next, there);
                    if is_join { queue.push_front(*next) } else { queue.push_back(*next) }
                }
            }
        }
        Ok(self.keep(|at| distance.contains_key(&at)))
    }

    fn keep(&self, is_kept: impl Fn(usize) -> bool) -> Self {
        let kept: Vec<usize> = (0..self.dots.len()).filter(|at| is_kept(*at)).collect();
        let place: HashMap<usize, usize> =
            kept.iter().enumerate().map(|(new, old)| (*old, new)).collect();
        let edges =
            self.edges.iter().filter_map(|(a, b)| Some((*place.get(a)?, *place.get(b)?))).collect();
        let mut kept = Self {
            dots: kept.into_iter().map(|at| self.dots[at].clone()).collect(),
            edges,
            clusters: Vec::new(),
            implied: 0,
        };
        for dot in &mut kept.dots {
            if let Some(name) = dot.cluster.map(|at| self.clusters[at].clone()) {
                dot.cluster = Some(place_of(&mut kept.clusters, name));
            }
        }
        kept
    }

    /// Leaves out edges that there is a longer way for.
    fn reduce(&mut self) {
        let order = layout::order(self);
        let mut rank = vec![0; order.len()];
        for (at, dot) in order.iter().enumerate() {
            rank[*dot] = at;
        }
        let mut after = vec![Vec::new(); self.dots.len()];
        // Edges against the order are part of a circle among tasks, and stay.
        let (forward, mut kept): (Vec<_>, Vec<_>) =
            self.edges.iter().partition(|(a, b)| rank[*a] < rank[*b]);
        for (a, b) in forward {
            after[a].push(b);
        }
        let words = self.dots.len().div_ceil(64);
        let mut reach = vec![vec![0_u64; words]; self.dots.len()];
        for from in order.into_iter().rev() {
            after[from].sort_unstable_by_key(|to| rank[*to]);
            let mut reached = vec![0_u64; words];
            for to in &after[from] {
                if reached[to / 64] & (1 << (to % 64)) != 0 {
                    self.implied += 1;
                    continue;
                }
                kept.push((from, *to));
                reached[to / 64] |= 1 << (to % 64);
                for (one, other) in reached.iter_mut().zip(&reach[*to]) {
                    *one |= other;
                }
            }
            reach[from] = reached;
        }
        kept.sort_unstable();
        self.edges = kept;
    }
}

fn place_of(clusters: &mut Vec<String>, name: String) -> usize {
    clusters.iter().position(|cluster| *cluster == name).unwrap_or_else(|| {
        clusters.push(name);
        clusters.len() - 1
    })
}

/// Vertices on the longest way to each one.
fn levels(draft: &Draft) -> Vec<usize> {
    let count = draft.vertices.len();
    let mut after = vec![Vec::new(); count];
    let mut open = vec![0; count];
    for (at, vertex) in draft.vertices.iter().enumerate() {
        open[at] = vertex.after.len();
        for before in &vertex.after {
            after[before.0 as usize].push(at);
        }
    }
    let mut levels = vec![0; count];
    let mut ready: Vec<usize> = (0..count).filter(|at| open[*at] == 0).collect();
    while let Some(at) = ready.pop() {
        for next in &after[at] {
            levels[*next] = levels[*next].max(levels[at] + 1);
            open[*next] -= 1;
            if open[*next] == 0 {
                ready.push(*next);
            }
        }
    }
    levels
}

struct Maker<'a> {
    draft: &'a Draft,
    states: Option<&'a dyn Fn(StepId) -> State>,
    view: &'a View,
}

/// Roles that are named in the name of a cluster of several.
const MAX_NAMED: usize = 3;

impl Maker<'_> {
    fn make(&self) -> Drawing {
        let Draft { vertices, .. } = self.draft;
        let first_step = vertices.iter().position(|vertex| matches!(vertex.kind, Kind::Step(_)));
        let first_step = first_step.unwrap_or(vertices.len());
        let mut drawing = Drawing::default();
        let mut by_task: HashMap<&str, usize> = HashMap::new();
        let mut roles: Vec<BTreeSet<u32>> = Vec::new();
        // Where each vertex of the plan is in the picture.
        let mut places: Vec<Option<usize>> = Vec::with_capacity(vertices.len());
        for (at, vertex) in vertices.iter().enumerate() {
            let Kind::Step(step) = &vertex.kind else {
                let shape = if at < first_step { Shape::Barrier } else { Shape::Join };
                drawing.dots.push(self.dot(at, vertex.name.clone(), shape));
                roles.push(BTreeSet::new());
                places.push(Some(drawing.dots.len() - 1));
                continue;
            };
            let node = step.subject.map(|subject| self.draft.subjects[subject as usize].as_str());
            if let (Some(on), Some(node)) = (&self.view.on, node)
                && !on.contains(node)
            {
                places.push(None);
                continue;
            }
            let task = node.and_then(|node| vertex.name.strip_suffix(node)?.strip_suffix('@'));
            let task = task.unwrap_or(&vertex.name);
            let place = if self.view.instances {
                drawing.dots.push(self.dot(at, vertex.name.clone(), Shape::Task));
                drawing.dots.len() - 1
            } else {
                let next = drawing.dots.len();
                let place = *by_task.entry(task).or_insert(next);
                if place == next {
                    let mut dot = self.dot(at, task.to_owned(), Shape::Task);
                    dot.moods.clear();
                    drawing.dots.push(dot);
                }
                *drawing.dots[place].moods.entry(self.mood(at)).or_default() += 1;
                place
            };
            roles.resize(drawing.dots.len(), BTreeSet::new());
            roles[place].extend(step.failure_domain);
            drawing.dots[place].action = Some(step.call.action.clone());
            places.push(Some(place));
        }
        roles.resize(drawing.dots.len(), BTreeSet::new());
        self.cluster(&mut drawing, &roles);
        for (level, place) in levels(self.draft).into_iter().zip(&places) {
            if let Some(place) = place {
                let dot = &mut drawing.dots[*place];
                dot.level = dot.level.min(level);
            }
        }
        let mut edges = HashSet::new();
        for (at, vertex) in vertices.iter().enumerate() {
            let Some(to) = places[at] else { continue };
            let before = vertex.after.iter().filter_map(|before| places[before.0 as usize]);
            edges.extend(before.filter(|from| *from != to).map(|from| (from, to)));
        }
        drawing.edges = edges.into_iter().collect();
        drawing.edges.sort_unstable();
        Self::tidy(drawing)
    }

    fn mood(&self, at: usize) -> Mood {
        let id = StepId(u32::try_from(at).expect("plans are bounded"));
        match (self.states, &self.draft.vertices[at].kind) {
            (Some(states), _) => Mood::of(states(id)),
            (None, Kind::Step(step)) if step.skip.is_some() => Mood::Skipped,
            (None, _) => Mood::Planned,
        }
    }

    fn dot(&self, at: usize, name: String, shape: Shape) -> Dot {
        let moods = BTreeMap::from([(self.mood(at), 1)]);
        let rule = match self.draft.vertices[at].kind {
            Kind::Join(rule) => Some(rule),
            Kind::Step(_) => None,
        };
        Dot { name, shape, cluster: None, moods, action: None, rule, level: usize::MAX }
    }

    fn cluster(&self, drawing: &mut Drawing, roles: &[BTreeSet<u32>]) {
        for (dot, roles) in drawing.dots.iter_mut().zip(roles) {
            let mut name = String::new();
            for (at, role) in roles.iter().take(MAX_NAMED).enumerate() {
                let separator = if at > 0 { ", " } else { "" };
                let role = &self.draft.failure_domains[*role as usize].name;
                let _ = write!(name, "{separator}{role}");
            }
            if roles.len() > MAX_NAMED {
                let _ = write!(name, " and {} more roles", roles.len() - MAX_NAMED);
            }
            if !name.is_empty() {
                dot.cluster = Some(place_of(&mut drawing.clusters, name));
            }
        }
    }

    /// A join of one task says no more than an edge does; a join of nothing that is seen says
    /// nothing, and neither does a barrier.
    fn tidy(drawing: Drawing) -> Drawing {
        let mut before = vec![Vec::new(); drawing.dots.len()];
        let mut after = vec![Vec::new(); drawing.dots.len()];
        for (a, b) in &drawing.edges {
            after[*a].push(*b);
            before[*b].push(*a);
        }
        let is_gone = |at: usize| {
            let dot = &drawing.dots[at];
            let is_plain_join =
                dot.rule == Some(Rule::All) && dot.shape == Shape::Join && before[at].len() <= 1;
            let is_alone =
                dot.shape != Shape::Task && before[at].is_empty() && after[at].is_empty();
            let is_unseen_join = dot.shape == Shape::Join && after[at].is_empty();
            is_plain_join || is_alone || is_unseen_join
        };
        let gone: Vec<bool> = (0..drawing.dots.len()).map(is_gone).collect();
        let mut edges: BTreeSet<(usize, usize)> = BTreeSet::new();
        for (a, b) in &drawing.edges {
            match (gone[*a], gone[*b]) {
                (false, false) => drop(edges.insert((*a, *b))),
                (true, false) => {
                    edges.extend(
                        before[*a].iter().filter(|from| *from != b).map(|from| (*from, *b)),
                    );
                }
                _ => {}
            }
        }
        let whole = Drawing { edges: edges.into_iter().collect(), ..drawing };
        whole.keep(|at| !gone[at])
    }
}
