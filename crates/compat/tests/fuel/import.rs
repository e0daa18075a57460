//! The import of Fuel's real tasks, and its diagnostics.

use std::collections::BTreeSet;

use hoist_compat::fuel::read::normalised;
use hoist_compat::fuel::task::Corpus;
use hoist_compat::fuel::{Import, ImportError, Options, TaskDiagnostic, import};
use serde_json::json;

pub(crate) fn corpus() -> Corpus {
    let text = include_str!("../../fixtures/fuel-tasks.json");
    normalised("fuel-tasks.json", text).expect("the fixture")
}

/// The virtual router's address is on the controllers.
pub(crate) fn options() -> Options {
    let router = json!({"ipaddr": "192.0.2.1", "node_roles": ["controller", "primary-controller"]});
    let settings = json!({"network_metadata": {"vips": {"vrouter": router}}});
    Options { settings, ..Options::default() }
}

pub(crate) fn imported(graph: &str) -> Import {
    import(&corpus(), graph, &options()).expect("the graph")
}

fn count(diagnostics: &[TaskDiagnostic], code: &str, word: &str) -> usize {
    let is_it = |diagnostic: &&TaskDiagnostic| {
        diagnostic.code == code && diagnostic.diagnostic.message.starts_with(&format!("`{word}"))
    };
    diagnostics.iter().filter(is_it).count()
}

#[test]
fn references_that_never_bind_are_reported() {
    let diagnostics = imported("default").diagnostics;
    let never = |word: &str| count(&diagnostics, "W-NEVER", word);
    assert_eq!(never("requires:"), 34);
    assert_eq!(never("required_for:"), 11);
    assert_eq!(never("cross-depended-by:"), 13);
    assert_eq!(never("cross-depends:"), 6);
    assert_eq!(diagnostics.iter().filter(|diagnostic| diagnostic.code == "W-NEVER").count(), 64);
}

#[test]
fn unknown_task_names_are_reported_with_a_suggestion() {
    let undefined = |graph: &str| -> Vec<String> {
        let diagnostics = imported(graph).diagnostics;
        let undefined = diagnostics.into_iter().filter(|diagnostic| diagnostic.code == "W-REF");
        undefined.map(|diagnostic| diagnostic.to_string()).collect()
    };
    assert!(undefined("default").is_empty());
    assert_eq!(
        undefined("provision"),
        ["W-REF graphs/provision/tasks.yaml: node_reboot: `required_for: \
             set_status_provisioned`: task not found"]
    );
    assert_eq!(
        undefined("net-verification"),
        ["W-REF graphs/net-verification/tasks.yaml: v_upload_cluster_configuration: \
             `required_for: copy_cluster_configuration`: task not found; did you mean \
             `v_copy_cluster_configuration`?"]
    );
}

#[test]
fn strict_import_refuses_unknown_task_names() {
    let strict = Options { is_strict: true, ..options() };
    let error = import(&corpus(), "provision", &strict).expect_err("a name is undefined");
    assert!(matches!(&error, ImportError::Strict { found } if found.len() == 1), "{error}");
    assert!(import(&corpus(), "deletion", &strict).is_ok());
}

#[test]
fn unknown_graph_is_an_error_with_a_suggestion() {
    let error = import(&corpus(), "provisoin", &options()).expect_err("no such graph");
    assert_eq!(error.to_string(), "graph `provisoin` not found; did you mean `provision`?");
}

#[test]
fn dependencies_between_groups_are_reported_as_ineffective() {
    let diagnostics = imported("default").diagnostics;
    assert_eq!(diagnostics.iter().filter(|diagnostic| diagnostic.code == "W-GROUP").count(), 29);
}

#[test]
fn tests_without_a_script_are_left_out_and_listed() {
    let import = imported("default");
    let tests: Vec<&TaskDiagnostic> =
        import.diagnostics.iter().filter(|diagnostic| diagnostic.code == "W-TEST").collect();
    assert_eq!(tests.len(), 38 + 51);
    let scripts: BTreeSet<&str> = tests
        .iter()
        .filter_map(|diagnostic| {
            diagnostic.diagnostic.message.split('`').nth(1)?.split_once(": ").map(|x| x.1)
        })
        .collect();
    assert_eq!(scripts.len(), 63);
    assert!(!import.text.contains("\n    check:"));
}

#[test]
fn patterns_that_match_too_much_are_reported() {
    let diagnostics = imported("default").diagnostics;
    let open: Vec<&str> = diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.code == "W-REGEX")
        .map(|diagnostic| diagnostic.diagnostic.message.as_str())
        .collect();
    assert_eq!(open.len(), 6, "{open:#?}");
    assert!(open.iter().any(|message| message.ends_with("glance, glance-db, glance-keystone")));
}

#[test]
fn almost_all_conditions_are_translated() {
    let diagnostics = imported("default").diagnostics;
    let left: Vec<&str> = diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.code == "W-CONDITION")
        .map(|diagnostic| diagnostic.task.as_str())
        .collect();
    assert_eq!(left, ["copy_haproxy_keys", "restart-haproxy", "cluster"]);
}
