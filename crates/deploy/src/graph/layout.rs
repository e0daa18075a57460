//! Where the vertices of a picture go: columns by the longest way to them, rows by role, and within
//! a row in the order that crosses the fewest edges.

use super::{Drawing, Shape};

/// Number of ordering sweeps from either side.
const SWEEPS: usize = 12;

/// Places of everything, in columns and rows.
#[derive(Debug)]
pub(super) struct Layout {
    /// The column of each vertex.
    pub(super) columns: Vec<usize>,
    /// Its place in its column and lane, from above.
    pub(super) rows: Vec<usize>,
    pub(super) lanes: Vec<Lane>,
    pub(super) lane_of: Vec<usize>,
    pub(super) width: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lane {
    /// `None` for a vertex without a role.
    pub(super) cluster: Option<usize>,
    pub(super) height: usize,
}

/// Each vertex after those before it. Among tasks there may be circles that are none among their
/// instances: those of a circle go by when the first of their instances can be done.
pub(super) fn order(drawing: &Drawing) -> Vec<usize> {
    let count = drawing.dots.len();
    let mut before = vec![Vec::new(); count];
    let mut after = vec![Vec::new(); count];
    for (a, b) in &drawing.edges {
        after[*a].push(*b);
        before[*b].push(*a);
    }
    // Strongly connected components: the first pass orders vertices so that roots come last.
    let mut is_seen = vec![false; count];
    let mut found = Vec::with_capacity(count);
    for at in 0..count {
        visit(at, &after, &mut is_seen, &mut found);
    }
    is_seen.fill(false);
    let mut order = Vec::with_capacity(count);
    for at in found.into_iter().rev() {
        let mut circle = Vec::new();
        visit(at, &before, &mut is_seen, &mut circle);
        circle.sort_unstable_by_key(|at| (drawing.dots[*at].level, *at));
        order.extend(circle);
    }
    order
}

/// Appends every new vertex reachable from `from` in post-order.
fn visit(from: usize, next: &[Vec<usize>], is_seen: &mut [bool], found: &mut Vec<usize>) {
    if std::mem::replace(&mut is_seen[from], true) {
        return;
    }
    let mut path = vec![(from, 0)];
    while let Some((at, done)) = path.last_mut() {
        if let Some(to) = next[*at].get(*done) {
            *done += 1;
            if !std::mem::replace(&mut is_seen[*to], true) {
                path.push((*to, 0));
            }
        } else {
            found.push(*at);
            path.pop();
        }
    }
}

pub(super) fn layout(drawing: &Drawing) -> Layout {
    let count = drawing.dots.len();
    let order = order(drawing);
    let mut rank = vec![0; count];
    for (at, dot) in order.iter().enumerate() {
        rank[*dot] = at;
    }
    let mut before = vec![Vec::new(); count];
    let mut after = vec![Vec::new(); count];
    for (a, b) in drawing.edges.iter().filter(|(a, b)| rank[*a] < rank[*b]) {
        after[*a].push(*b);
        before[*b].push(*a);
    }
    let mut columns = vec![0_usize; count];
    for at in &order {
        let column = before[*at].iter().map(|from| columns[*from] + 1).max();
        columns[*at] = column.unwrap_or(0);
    }
    // What nothing comes before goes as far to the right as it may, to what waits for it.
    for at in order.iter().rev().filter(|at| before[**at].is_empty()) {
        let column = after[*at].iter().map(|to| columns[*to]).min();
        columns[*at] = column.map_or(0, |column| column.saturating_sub(1));
    }
    let (lanes, lane_of) = lanes(drawing);
    let mut layout = Layout {
        width: columns.iter().max().map_or(0, |last| last + 1),
        rows: vec![0; count],
        columns,
        lanes,
        lane_of,
    };
    layout.arrange(&before, &after);
    layout
}

/// Barriers and joins above, then the roles, then tasks of no role.
fn lanes(drawing: &Drawing) -> (Vec<Lane>, Vec<usize>) {
    let key = |at: usize| match (drawing.dots[at].shape, drawing.dots[at].cluster) {
        (Shape::Barrier | Shape::Join, _) => (0, 0),
        (Shape::Task, Some(cluster)) => (1, cluster),
        (Shape::Task, None) => (2, 0),
    };
    let mut keys: Vec<(u8, usize)> = (0..drawing.dots.len()).map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    let lane_of = (0..drawing.dots.len())
        .map(|at| keys.binary_search(&key(at)).expect("every key is there"))
        .collect();
    let lanes = keys
        .iter()
        .map(|(kind, cluster)| Lane { cluster: (*kind == 1).then_some(*cluster), height: 0 })
        .collect();
    (lanes, lane_of)
}

impl Layout {
    fn arrange(&mut self, before: &[Vec<usize>], after: &[Vec<usize>]) {
        let mut cells: Vec<Vec<Vec<usize>>> = vec![vec![Vec::new(); self.lanes.len()]; self.width];
        for at in 0..self.columns.len() {
            cells[self.columns[at]][self.lane_of[at]].push(at);
        }
        self.number(&cells);
        for sweep in 0..SWEEPS {
            let forwards = sweep % 2 == 0;
            let neighbours = if forwards { before } else { after };
            for step in 0..self.width {
                let column = if forwards { step } else { self.width - 1 - step };
                for cell in &mut cells[column] {
                    let mut keyed: Vec<(f64, usize, usize)> = cell
                        .iter()
                        .enumerate()
                        .map(|(row, at)| (self.middle(*at, &neighbours[*at]), row, *at))
                        .collect();
                    keyed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                    for (row, (_, _, at)) in keyed.iter().enumerate() {
                        cell[row] = *at;
                        self.rows[*at] = row;
                    }
                }
            }
        }
        for column in &cells {
            for (lane, cell) in column.iter().enumerate() {
                self.lanes[lane].height = self.lanes[lane].height.max(cell.len());
            }
        }
    }

    fn number(&mut self, cells: &[Vec<Vec<usize>>]) {
        for cell in cells.iter().flatten() {
            for (row, at) in cell.iter().enumerate() {
                self.rows[*at] = row;
            }
        }
    }

    /// The middle of its neighbours, from above; without any it stays where it is.
    #[expect(clippy::cast_precision_loss, reason = "rows are few")]
    fn middle(&self, at: usize, neighbours: &[usize]) -> f64 {
        /// More rows than a lane has.
        const LANE: f64 = 10_000.0;
        let place = |at: usize| self.lane_of[at] as f64 * LANE + self.rows[at] as f64;
        if neighbours.is_empty() {
            return place(at);
        }
        neighbours.iter().map(|at| place(*at)).sum::<f64>() / neighbours.len() as f64
    }
}
