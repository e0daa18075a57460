//! The command itself, from the outside, without a server.

use std::net::TcpListener;
use std::process::{Command, Output};

use hoist_model::Exit;

fn hoist(words: &[&str]) -> Output {
    let nowhere = tempfile::tempdir().expect("a directory for temporary files");
    Command::new(env!("CARGO_BIN_EXE_hoist"))
        .args(words)
        .env_clear()
        .env("HOIST_DATA_DIR", nowhere.path())
        .output()
        .expect("the binary was built for this test")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are UTF-8")
}

fn is(exit: Exit) -> i32 {
    exit.code().into()
}

#[test]
fn unreachable_server_is_an_error_with_a_hint() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{unused}");
    let output = hoist(&["--server", &url, "node", "list"]);
    assert_eq!(code(&output), is(Exit::Failed));
    let text = stderr(&output);
    assert!(
        text.starts_with(&format!("error: cannot connect to the server at {url}/: ")),
        "{text}"
    );
    assert!(text.contains("\nhint: start it with `hoist serve`"), "{text}");
    assert!(output.stdout.is_empty());
}

#[test]
fn diff_keeps_1_for_differences() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("n.yaml");
    fs_err::write(&file, "api: hoist/v1\nkind: Node\nname: n1\n").unwrap();
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{unused}");
    let output = hoist(&["diff", "--server", &url, "-f", file.to_str().unwrap()]);
    assert_eq!(code(&output), is(Exit::Usage));
}

#[test]
fn faults_are_found_before_any_request() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.yaml");
    fs_err::write(&file, "api: hoist/v1\nkind: Node\nname: n1\nspec:\n  rol: x\n").unwrap();
    let output = hoist(&["apply", "-f", file.to_str().unwrap()]);
    assert_eq!(code(&output), is(Exit::Usage));
    let text = stderr(&output);
    assert!(text.contains("bad.yaml:5:"), "{text}");

    let output = hoist(&["node", "list", "compute & (label:rack=7"]);
    assert_eq!(code(&output), is(Exit::Usage));
    assert!(stderr(&output).contains("  compute & (label:rack=7\n"), "{}", stderr(&output));
}

#[test]
fn token_is_not_sent_in_plain_to_another_machine() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs_err::write(&token, "hoist_x_kettle\n").unwrap();
    let token = token.to_str().unwrap();
    let output = hoist(&["status", "--server", "http://192.0.2.1", "--token-file", token]);
    assert_eq!(code(&output), is(Exit::Refused));
    assert!(!stderr(&output).contains("kettle"));
}

#[test]
fn help_and_usage_have_their_exit_codes() {
    assert_eq!(code(&hoist(&["--help"])), is(Exit::Done));
    assert_eq!(code(&hoist(&["--version"])), is(Exit::Done));
    assert_eq!(code(&hoist(&["version", "-o", "json"])), is(Exit::Done));
    assert_eq!(code(&hoist(&[])), is(Exit::Usage));
    assert_eq!(code(&hoist(&["nod", "list"])), is(Exit::Usage));
    assert_eq!(code(&hoist(&["schema", "kettle"])), is(Exit::Usage));
}

#[test]
fn schemas_completions_and_man_pages_need_no_server() {
    let schema = hoist(&["schema", "node"]);
    let schema: serde_json::Value = serde_json::from_slice(&schema.stdout).unwrap();
    assert_eq!(schema["title"], "hoist Node");
    let schema = hoist(&["schema", "provision-document"]);
    let schema: serde_json::Value = serde_json::from_slice(&schema.stdout).unwrap();
    assert!(schema["properties"]["sections"].is_object(), "{schema}");
    for shell in ["bash", "zsh", "fish"] {
        let output = hoist(&["completions", shell]);
        assert_eq!(code(&output), is(Exit::Done));
        assert!(String::from_utf8(output.stdout).unwrap().contains("maintenance"));
    }
    assert!(!hoist(&["man"]).stdout.is_empty());
}
