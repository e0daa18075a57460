//! Things that wait for each other: whether there are any, and the shortest way round.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{End, Graph, VertexKind, number};
use crate::diagnostic::{Code, SourceDiagnostic};
use crate::layer::Book;
use crate::target::Targets;

/// Cycles that are reported at once.
const MAX_TOLD: usize = 10;
/// Nodes that have the same circle and are named.
const MAX_NAMED: usize = 5;
/// Vertices of a circle that the shortest way round is looked for from.
const MAX_STARTS: usize = 256;

/// Instances can wait for each other only if their tasks do. Tasks are checked first, because there
/// are fewer of them.
pub(super) fn find(
    book: &Book,
    targets: &Targets,
    graph: &Graph,
    found: &mut Vec<SourceDiagnostic>,
) {
    if !tasks_wait_for_each_other(book, graph) {
        return;
    }
    // A cycle that is the same on every node is reported once, as tasks.
    let mut alike: BTreeMap<Kind, Vec<Vec<u32>>> = BTreeMap::new();
    for component in components(&graph.after) {
        alike.entry(kind(graph, &component)).or_default().push(component);
    }
    let mut alike: Vec<Vec<Vec<u32>>> = alike.into_values().collect();
    alike.sort();
    for components in alike.iter().take(MAX_TOLD) {
        found.push(told(book, targets, graph, components));
    }
}

/// Who waits for whom, as tasks, and whether that is all on one node. Of two on one node each that
/// are equal in this, the circles are equal.
type Kind = (bool, BTreeSet<(Option<End>, Option<End>)>);

fn kind(graph: &Graph, component: &[u32]) -> Kind {
    let mut pairs = BTreeSet::new();
    for vertex in component {
        let inside = |before: &&u32| component.binary_search(before).is_ok();
        for before in graph.after[*vertex as usize].iter().filter(inside) {
            pairs.insert((graph.end(*vertex), graph.end(*before)));
        }
    }
    (only_node(graph, component).is_some(), pairs)
}

/// The node that all of them are on.
fn only_node(graph: &Graph, vertices: &[u32]) -> Option<u32> {
    let node = |vertex: &u32| match graph.is(*vertex) {
        VertexKind::Instance(instance) => Some(instance.node),
        VertexKind::Barrier(_) | VertexKind::Join(_) => None,
    };
    let first = node(vertices.first()?)?;
    vertices.iter().all(|vertex| node(vertex) == Some(first)).then_some(first)
}

fn tasks_wait_for_each_other(book: &Book, graph: &Graph) -> bool {
    let tasks = book.tasks.len();
    let at = |end: End| match end {
        End::Task(at) => at as usize,
        End::Barrier(at) => tasks + at as usize,
    };
    let mut after = vec![Vec::new(); tasks + book.barriers.len()];
    for link in &graph.links {
        after[at(link.after)].push(number(at(link.before)));
    }
    !components(&after).is_empty()
}

/// The strongly connected components that are circles (Tarjan), without recursion.
pub(crate) fn components(after: &[Vec<u32>]) -> Vec<Vec<u32>> {
    const NEW: u32 = u32::MAX;
    let mut index = vec![NEW; after.len()];
    let mut low = vec![0; after.len()];
    let mut is_open = vec![false; after.len()];
    let mut open = Vec::new();
    let mut next = 0;
    let mut circles = Vec::new();
    for root in 0..number(after.len()) {
        if index[root as usize] != NEW {
            continue;
        }
        let mut path: Vec<(u32, usize)> = vec![(root, 0)];
        while let Some((vertex, edge)) = path.last_mut() {
            let at = *vertex as usize;
            if *edge == 0 && index[at] == NEW {
                (index[at], low[at], is_open[at]) = (next, next, true);
                next += 1;
                open.push(*vertex);
            }
            if let Some(before) = after[at].get(*edge) {
                *edge += 1;
                let to = *before as usize;
                if index[to] == NEW {
                    path.push((*before, 0));
                } else if is_open[to] {
                    low[at] = low[at].min(index[to]);
                }
                continue;
            }
            let vertex = *vertex;
            path.pop();
            if let Some((parent, _)) = path.last() {
                low[*parent as usize] = low[*parent as usize].min(low[at]);
            }
            if low[at] == index[at] {
                let start = open.iter().rposition(|other| *other == vertex).unwrap_or(0);
                let mut component = open.split_off(start);
                for one in &component {
                    is_open[*one as usize] = false;
                }
                if component.len() > 1 || after[at].contains(&vertex) {
                    component.sort_unstable();
                    circles.push(component);
                }
            }
        }
    }
    circles.sort();
    circles
}

/// Along what each waits for, the first one again at the end; joins are left out.
fn shortest(graph: &Graph, component: &[u32]) -> Vec<u32> {
    let is_inside = |vertex: u32| component.binary_search(&vertex).is_ok();
    let joins = graph.instances().end;
    let mut best: Option<Vec<u32>> = None;
    for start in component.iter().copied().filter(|at| *at < joins).take(MAX_STARTS) {
        let mut came_from = std::collections::HashMap::from([(start, start)]);
        let mut queue = VecDeque::from([start]);
        'search: while let Some(at) = queue.pop_front() {
            for before in graph.after[at as usize].iter().copied().filter(|at| is_inside(*at)) {
                if before == start {
                    let mut path = vec![start];
                    let mut back = at;
                    while back != start {
                        path.push(back);
                        back = came_from[&back];
                    }
                    path.push(start);
                    path.reverse();
                    path.retain(|vertex| *vertex < joins);
                    if best.as_ref().is_none_or(|best| path.len() < best.len()) {
                        best = Some(path);
                    }
                    break 'search;
                }
                came_from.entry(before).or_insert_with(|| {
                    queue.push_back(before);
                    at
                });
            }
        }
    }
    best.unwrap_or_default()
}

/// The circle of tasks that components which are alike have, and where it is.
fn told(book: &Book, targets: &Targets, graph: &Graph, alike: &[Vec<u32>]) -> SourceDiagnostic {
    let path = shortest(graph, &alike[0]);
    let ends: Vec<End> = path.iter().filter_map(|vertex| graph.end(*vertex)).collect();
    let round = &ends[..=period(&ends)];
    let task = |end: &End| match end {
        End::Barrier(at) => book.barriers[*at as usize].id.value.as_str(),
        End::Task(at) => book.tasks[*at as usize].id.value.as_str(),
    };
    let tasks: Vec<&str> = round.iter().map(task).collect();
    let place = place(book, targets, graph, &path, alike);
    let message = format!("they wait for each other: {}{place}", tasks.join(" → "));
    let mut diagnostic = SourceDiagnostic::without_place(Code::Cycle, message);
    for (pair, ends) in path.windows(2).zip(round.windows(2)) {
        let Some(reason) = graph.reasons(pair[1], pair[0]).next() else { continue };
        diagnostic.place.get_or_insert(reason.place);
        let text =
            format!("{} → {} ({} {})", task(&ends[0]), task(&ends[1]), reason.word, reason.to);
        diagnostic = diagnostic.note(reason.place, text);
    }
    diagnostic.hint("take one of these declarations away")
}

/// After how many steps a closed way begins again: two instances of a task that wait for each other
/// are one task that waits for itself.
fn period(ends: &[End]) -> usize {
    let steps = ends.len().saturating_sub(1);
    let repeats = |length: &usize| {
        steps.is_multiple_of(*length) && (*length..=steps).all(|at| ends[at] == ends[at - length])
    };
    (1..=steps).find(repeats).unwrap_or(steps)
}

/// `, on n1, n2 and 3 more`, or the way over several nodes.
fn place(
    book: &Book,
    targets: &Targets,
    graph: &Graph,
    path: &[u32],
    alike: &[Vec<u32>],
) -> String {
    let nodes: Option<Vec<u32>> = alike.iter().map(|one| only_node(graph, one)).collect();
    let is_of_barriers =
        path.iter().all(|vertex| matches!(graph.is(*vertex), VertexKind::Barrier(_)));
    let more = |named: usize| match alike.len() - named {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match nodes {
        Some(nodes) => {
            let named = nodes.iter().take(MAX_NAMED);
            let named: Vec<&str> =
                named.map(|node| targets.nodes[*node as usize].name.as_str()).collect();
            format!(", on {}{}", named.join(", "), more(named.len()))
        }
        None if is_of_barriers => String::new(),
        None => {
            let way: Vec<String> =
                path.iter().map(|vertex| name(book, targets, graph, *vertex)).collect();
            format!(", as {}{}", way.join(" → "), more(1))
        }
    }
}

/// `db-join@node3`, or the barrier.
pub(crate) fn name(book: &Book, targets: &Targets, graph: &Graph, vertex: u32) -> String {
    match graph.is(vertex) {
        VertexKind::Barrier(at) => book.barriers[at as usize].id.value.clone(),
        VertexKind::Instance(instance) => format!(
            "{}@{}",
            book.tasks[instance.task as usize].id.value, targets.nodes[instance.node as usize].name
        ),
        VertexKind::Join(at) => {
            let tasks = graph.joins[at as usize].tasks.iter();
            let tasks: Vec<&str> =
                tasks.map(|task| book.tasks[*task as usize].id.value.as_str()).take(4).collect();
            format!("{} of {}", wish(graph.joins[at as usize].want), tasks.join(", "))
        }
    }
}

fn wish(want: crate::spec::Want) -> String {
    use crate::spec::Want;
    match want {
        Want::All => "all".to_owned(),
        Want::Any => "any".to_owned(),
        Want::Most => "most".to_owned(),
        Want::Count(count) => count.to_string(),
        Want::Percent(percent) => format!("{percent}%"),
    }
}
