use std::process::Command;

/// Crates that only a controller needs, or that would make the image of a node large for nothing.
const NOT_ON_NODES: [&str; 8] =
    ["axum", "hoist-server", "hoist-store", "hyper", "redb", "tokio", "tokio-postgres", "tonic"];

#[test]
fn nodes_carry_nothing_that_only_a_controller_needs() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "-p", "hoist-agent", "-e", "normal", "--prefix", "none"]);
    let output = cargo.args(["--offline", "--locked"]).output().expect("cargo starts");
    let tree = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && tree.starts_with("hoist-agent "), "{output:?}");
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    let wrong: Vec<_> = names.filter(|name| NOT_ON_NODES.contains(name)).collect();
    assert_eq!(wrong, [""; 0]);
}
