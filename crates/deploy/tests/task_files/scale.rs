use std::fmt::Write as _;

use hoist_deploy::compile::Options;

use crate::{compiled, site};

/// So many layers of so many tasks, each after all of the layer before it, on each of these nodes.
fn layers(layers: usize, width: usize, nodes: usize) -> (String, Vec<String>) {
    let mut text = "hoist: 1\ntasks:\n".to_owned();
    for layer in 0..layers {
        for at in 0..width {
            let needs = if layer == 0 { String::new() } else { format!("/l{}-.*/", layer - 1) };
            writeln!(text, "  l{layer}-{at}: {{on: '*', run: none, needs: ['{needs}']}}")
                .expect("writing to memory");
        }
    }
    let text = text.replace(", needs: ['']", "");
    (text, (0..nodes).map(|at| format!("n{at:04}")).collect())
}

fn edges(layer_count: usize, width: usize, nodes: usize) -> (usize, usize) {
    let (text, names) = layers(layer_count, width, nodes);
    let names: Vec<(&str, &[&str])> =
        names.iter().map(|name| (name.as_str(), &[] as &[&str])).collect();
    let compiled = compiled(&text, &site(&names), &Options::default()).expect("it is a plan");
    let after = compiled.draft.vertices.iter().map(|one| one.after.len()).sum();
    (compiled.draft.vertices.len(), after)
}

#[test]
fn layer_merge_is_linear_in_the_number_of_tasks() {
    let (vertices, after) = edges(100, 10, 1);
    assert_eq!(vertices, 1_000 + 99, "a join between any two layers");
    assert_eq!(after, 99 * (10 + 10));
    let (_, twice) = edges(200, 10, 1);
    assert_eq!(twice, 199 * (10 + 10));
    let (_, narrow) = edges(1_000, 2, 1);
    assert_eq!(narrow, 999 * 4);
    let (_, many_nodes) = edges(10, 4, 50);
    assert_eq!(many_nodes, 9 * (200 + 200));
}
