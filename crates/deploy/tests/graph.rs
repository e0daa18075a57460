//! Pictures of plans.

use std::collections::BTreeSet;

use hoist_deploy::graph::{DrawError, Drawing, MAX_DRAWN, Shape, View};
use hoist_engine::plan::{Call, Draft, FailureDomain, Kind, Rule, Step, StepId, Vertex};
use hoist_engine::record::FailureKind;
use hoist_engine::run::{State, StepEnd};

fn step(draft: &mut Draft, task: &str, node: u32, after: &[u32]) -> u32 {
    let name = format!("{task}@{}", draft.subjects[node as usize]);
    let call = Call { action: "shell".to_owned(), ..Call::default() };
    let step = Step { call, subject: Some(node), failure_domain: Some(0), ..Step::default() };
    push(draft, name, after, Kind::Step(Box::new(step)))
}

fn push(draft: &mut Draft, name: String, after: &[u32], kind: Kind) -> u32 {
    let after = after.iter().copied().map(StepId).collect();
    draft.vertices.push(Vertex { name, after, kind });
    u32::try_from(draft.vertices.len() - 1).expect("few")
}

/// `install` then `start` on each node, and `check` on the first after `start` on all of them.
fn plan(nodes: u32) -> Draft {
    let mut draft = Draft {
        subjects: (0..nodes).map(|at| format!("n{at}")).collect(),
        failure_domains: vec![FailureDomain {
            name: "web".to_owned(),
            tolerate: 0,
            ..FailureDomain::default()
        }],
        ..Draft::default()
    };
    let barrier = push(&mut draft, "deployed".to_owned(), &[], Kind::Join(Rule::AnyEnd));
    let mut starts = Vec::new();
    for node in 0..nodes {
        let install = step(&mut draft, "install", node, &[]);
        starts.push(step(&mut draft, "start", node, &[install]));
    }
    let join = push(&mut draft, "all of start".to_owned(), &starts, Kind::Join(Rule::All));
    let check = step(&mut draft, "check", 0, &[join, starts[0]]);
    draft.vertices[barrier as usize].after = vec![StepId(check)];
    draft
}

fn names(drawing: &Drawing) -> Vec<&str> {
    drawing.dots.iter().map(|dot| dot.name.as_str()).collect()
}

fn edges(drawing: &Drawing) -> BTreeSet<(&str, &str)> {
    let name = |at: usize| drawing.dots[at].name.as_str();
    drawing.edges.iter().map(|(a, b)| (name(*a), name(*b))).collect()
}

#[test]
fn task_is_one_vertex_in_the_cluster_of_its_role() {
    let drawing = Drawing::of(&plan(50), None, &View::default()).expect("a picture");
    assert_eq!(names(&drawing), ["deployed", "install", "start", "check"]);
    let wanted = [("install", "start"), ("start", "check"), ("check", "deployed")];
    assert_eq!(edges(&drawing), BTreeSet::from(wanted));
    assert_eq!(drawing.clusters, ["web"]);
    assert!(drawing.dots.iter().all(|dot| (dot.shape == Shape::Task) == dot.cluster.is_some()));
}

#[test]
fn join_of_several_tasks_is_drawn() {
    let mut draft = plan(2);
    let join = draft.vertices.iter().position(|vertex| vertex.name == "all of start");
    let install = StepId(1);
    draft.vertices[join.expect("a join")].after.push(install);
    let view = View { all_edges: true, ..View::default() };
    let drawing = Drawing::of(&draft, None, &view).expect("a picture");
    assert!(edges(&drawing).contains(&("all of start", "check")));
    assert!(edges(&drawing).contains(&("install", "all of start")));
}

#[test]
fn edges_that_follow_from_others_are_left_out_and_counted() {
    let mut draft = plan(1);
    let check = draft.vertices.len() - 1;
    draft.vertices[check].after.push(StepId(1));
    let short = Drawing::of(&draft, None, &View::default()).expect("a picture");
    assert_eq!((short.edges.len(), short.implied), (3, 1));
    let all = View { all_edges: true, ..View::default() };
    let all = Drawing::of(&draft, None, &all).expect("a picture");
    assert_eq!((all.edges.len(), all.implied), (4, 0));
}

#[test]
fn instances_of_one_node_are_a_small_drawing() {
    let on = Some(BTreeSet::from(["n1".to_owned()]));
    let view = View { instances: true, on, ..View::default() };
    let drawing = Drawing::of(&plan(50), None, &view).expect("a picture");
    assert_eq!(names(&drawing), ["install@n1", "start@n1"]);
}

#[test]
fn neighbourhood_of_a_task_is_a_small_drawing() {
    let near = |depth: usize| {
        let view = View { around: Some("install".to_owned()), depth, ..View::default() };
        Drawing::of(&plan(5), None, &view).map(|drawing| drawing.dots.len())
    };
    assert_eq!(near(0), Ok(1));
    assert_eq!(near(1), Ok(2));
    assert_eq!(near(2), Ok(3));
}

#[test]
fn unknown_task_is_reported_with_a_suggestion() {
    let view = View { around: Some("instal".to_owned()), ..View::default() };
    let error = Drawing::of(&plan(1), None, &view).expect_err("no such task");
    assert_eq!(
        error.to_string(),
        "nothing in the plan is called `instal`; did you mean `install`?"
    );
}

#[test]
fn oversized_drawing_is_refused_with_a_remedy() {
    let half = u32::try_from(MAX_DRAWN / 2).expect("few");
    let view = View { instances: true, ..View::default() };
    // Two steps a node, one more on the first, the barrier and the join.
    assert!(Drawing::of(&plan(half - 2), None, &view).is_ok());
    let error = Drawing::of(&plan(half), None, &view).expect_err("too many");
    assert!(matches!(error, DrawError::TooMany { count } if count == MAX_DRAWN + 3));
    assert!(error.to_string().contains("--around"), "{error}");
    let forced = View { force: true, ..view };
    assert!(Drawing::of(&plan(half), None, &forced).is_ok());
    assert!(Drawing::of(&plan(half), None, &View::default()).is_ok());
}

#[test]
fn empty_drawing_is_an_error() {
    let view = View { on: Some(BTreeSet::from(["n9".to_owned()])), ..View::default() };
    assert_eq!(Drawing::of(&plan(3), None, &view), Err(DrawError::Nothing));
}

#[test]
fn run_is_drawn_with_its_failures_first() {
    let draft = plan(4);
    let state = |id: StepId| match draft.vertices[id.0 as usize].name.as_str() {
        "start@n2" => State::Ended(StepEnd::Failed(FailureKind::Exit)),
        "check@n0" | "deployed" | "all of start" => State::Ended(StepEnd::Blocked),
        _ => State::Ended(StepEnd::Ok),
    };
    let drawing = Drawing::of(&draft, Some(&state), &View::default()).expect("a picture");
    let svg = drawing.svg();
    assert!(svg.contains("shell · 1 failed · 3 done"), "{svg}");
    assert_eq!(drawing.json()["vertices"][2]["state"], "failed");
    assert!(drawing.mermaid().contains(":::blocked"));
    assert!(drawing.dot().contains("#fbd5d5"));
}

#[test]
fn task_cycle_without_an_instance_cycle_is_drawn() {
    let mut draft = plan(2);
    let install = StepId(1);
    let start = 4;
    // `install` on the second node waits for `start` on the first.
    draft.vertices[3].after.push(StepId(2));
    assert_eq!(draft.vertices[start].after, [StepId(3)]);
    assert_eq!(draft.vertices[2].after, [install]);
    let drawing = Drawing::of(&draft, None, &View::default()).expect("a picture");
    assert!(edges(&drawing).contains(&("start", "install")));
    assert!(drawing.svg().ends_with("</svg>\n"));
}

/// Names that mean something to a language of pictures.
const HOSTILE: &str = "<script>\"x\"</script> & ]]> \\\" \n --> end; `#quot;` ]]\u{7}\u{1b}";

#[test]
fn names_cannot_break_out_of_a_drawing() {
    let mut draft = plan(1);
    draft.subjects[0] = HOSTILE.to_owned();
    draft.failure_domains[0].name = HOSTILE.to_owned();
    for at in [1, 2] {
        draft.vertices[at].name = format!("{HOSTILE}{at}@{HOSTILE}");
    }
    let drawing = Drawing::of(&draft, None, &View::default()).expect("a picture");

    let svg = drawing.svg();
    assert!(!svg.contains("<script"));
    assert!(!svg.contains(|c: char| c.is_control() && c != '\n'));
    well_formed(&svg);

    let dot = drawing.dot();
    // Outside of strings there is nothing but our own words.
    assert!(!outside_of_strings(&dot).contains("script"), "{dot}");

    let mermaid = drawing.mermaid();
    assert!(!mermaid.contains("<script"));
    for line in mermaid.lines().filter(|line| line.contains("script")) {
        assert_eq!(line.matches('"').count(), 2, "{line}");
        assert!(!line.contains(['\\', '`', '&']), "{line}");
    }
    assert_eq!(drawing.json()["roles"][0], HOSTILE);
}

/// Tags are closed in the order in which they were opened, and text has no bare marks.
fn well_formed(svg: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = svg;
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        assert!(!text.contains('>'), "{text}");
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().expect("a name"));
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

fn outside_of_strings(text: &str) -> String {
    let mut outside = String::new();
    let mut characters = text.chars();
    let mut is_inside = false;
    while let Some(c) = characters.next() {
        match c {
            '\\' if is_inside => drop(characters.next()),
            '"' => is_inside = !is_inside,
            c if !is_inside => outside.push(c),
            _ => {}
        }
    }
    outside
}
