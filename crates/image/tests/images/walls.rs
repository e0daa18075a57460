//! Who must never carry what building takes.

use std::process::Command;

#[test]
fn neither_hoist_nor_a_node_carries_what_builds_images() {
    for package in ["hoist", "hoist-agent", "hoist-provision"] {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "-p", package, "-e", "normal", "--prefix", "none"]);
        let output = cargo.args(["--offline", "--locked"]).output().expect("cargo starts");
        let tree = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && tree.starts_with(&format!("{package} ")), "{output:?}");
        assert!(!tree.lines().any(|line| line.starts_with("hoist-image ")), "{package}");
    }
}
