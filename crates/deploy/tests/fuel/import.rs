//! What the import makes of Fuel's real tasks, and what it says about them.

use std::collections::BTreeSet;

use hoist_deploy::fuel::read::normalised;
use hoist_deploy::fuel::task::Corpus;
use hoist_deploy::fuel::{Finding, Import, ImportError, Options, import};
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

fn count(findings: &[Finding], code: &str, word: &str) -> usize {
    let is_it = |finding: &&Finding| {
        finding.code == code && finding.message.starts_with(&format!("`{word}"))
    };
    findings.iter().filter(is_it).count()
}

#[test]
fn all_references_that_never_bind_are_told() {
    let findings = imported("default").findings;
    let never = |word: &str| count(&findings, "W-NEVER", word);
    assert_eq!(never("requires:"), 34);
    assert_eq!(never("required_for:"), 11);
    assert_eq!(never("cross-depended-by:"), 13);
    assert_eq!(never("cross-depends:"), 6);
    assert_eq!(findings.iter().filter(|finding| finding.code == "W-NEVER").count(), 64);
}

#[test]
fn names_of_no_task_are_told_with_what_may_have_been_meant() {
    let undefined = |graph: &str| -> Vec<String> {
        let findings = imported(graph).findings;
        let undefined = findings.into_iter().filter(|finding| finding.code == "W-REF");
        undefined.map(|finding| finding.to_string()).collect()
    };
    assert!(undefined("default").is_empty());
    assert_eq!(
        undefined("provision"),
        ["W-REF graphs/provision/tasks.yaml: node_reboot: `required_for: \
             set_status_provisioned`, but there is no such task"]
    );
    assert_eq!(
        undefined("net-verification"),
        ["W-REF graphs/net-verification/tasks.yaml: v_upload_cluster_configuration: \
             `required_for: copy_cluster_configuration`, but there is no such task; did you mean \
             `v_copy_cluster_configuration`?"]
    );
}

#[test]
fn a_strict_import_refuses_names_of_no_task() {
    let strict = Options { is_strict: true, ..options() };
    let error = import(&corpus(), "provision", &strict).expect_err("a name is undefined");
    assert!(matches!(&error, ImportError::Strict { found } if found.len() == 1), "{error}");
    assert!(import(&corpus(), "deletion", &strict).is_ok());
}

#[test]
fn an_unknown_graph_is_an_error_with_a_suggestion() {
    let error = import(&corpus(), "provisoin", &options()).expect_err("no such graph");
    assert_eq!(error.to_string(), "there is no graph `provisoin`; did you mean `provision`?");
}

#[test]
fn what_groups_say_of_each_other_is_told_to_do_nothing() {
    let findings = imported("default").findings;
    assert_eq!(findings.iter().filter(|finding| finding.code == "W-GROUP").count(), 29);
}

#[test]
fn tests_without_a_script_are_left_out_and_listed() {
    let import = imported("default");
    let tests: Vec<&Finding> =
        import.findings.iter().filter(|finding| finding.code == "W-TEST").collect();
    assert_eq!(tests.len(), 38 + 51);
    let scripts: BTreeSet<&str> = tests
        .iter()
        .filter_map(|finding| finding.message.split('`').nth(1)?.split_once(": ").map(|x| x.1))
        .collect();
    assert_eq!(scripts.len(), 63);
    assert!(!import.text.contains("\n    check:"));
}

#[test]
fn patterns_that_take_more_than_they_seem_to_are_told() {
    let findings = imported("default").findings;
    let open: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.code == "W-REGEX")
        .map(|finding| finding.message.as_str())
        .collect();
    assert_eq!(open.len(), 6, "{open:#?}");
    assert!(open.iter().any(|message| message.ends_with("glance, glance-db, glance-keystone")));
}

#[test]
fn almost_all_conditions_are_said_in_our_words() {
    let findings = imported("default").findings;
    let left: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.code == "W-CONDITION")
        .map(|finding| finding.task.as_str())
        .collect();
    assert_eq!(left, ["copy_haproxy_keys", "restart-haproxy", "cluster"]);
}
