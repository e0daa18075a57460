//! The published contract of the server: the `OpenAPI` document and the table of access classes,
//! both checked in so that a change of the contract is seen in review.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::site::Site;

/// Set it to write the files anew instead of comparing them.
const UPDATE: &str = "HOIST_UPDATE_DOCS";

fn check_in(name: &str, current: &str) {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "docs", name].iter().collect();
    if std::env::var_os(UPDATE).is_some() {
        fs_err::create_dir_all(path.parent().expect("it has one")).expect("docs can be made");
        fs_err::write(&path, current).expect("docs can be written");
    }
    let kept = fs_err::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(current.lines()).position(|(kept, now)| kept != now);
    assert!(
        kept == current,
        "docs/{name} is not what the server says (from line {}).\nIf the change is meant: \
         {UPDATE}=1 cargo test -p hoist-server --test controller contract, and look at the diff.",
        differs.unwrap_or(kept.lines().count().min(current.lines().count())) + 1
    );
}

#[tokio::test]
async fn the_access_classes_are_those_checked_in() {
    let site = Site::start().await;
    check_in("access-classes.txt", site.controller.access_classes());
    site.stop().await;
}

/// The page of `docs/security.md` around the table stays as it is.
#[tokio::test]
async fn open_routes_are_those_of_the_security_page() {
    const BEGIN: &str =
        "<!-- open routes: made from the route table, see the test that checks it -->\n";
    const END: &str = "<!-- end of open routes -->\n";
    let site = Site::start().await;
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "..", "docs", "security.md"].iter().collect();
    let page = fs_err::read_to_string(path).expect("docs/security.md is there");
    let (before, rest) = page.split_once(BEGIN).expect("the table begins with its mark");
    let (_, after) = rest.split_once(END).expect("the table ends with its mark");
    let table = site.controller.open_routes();
    check_in("security.md", &format!("{before}{BEGIN}\n{table}\n{END}{after}"));
    site.stop().await;
}

#[tokio::test]
async fn the_openapi_document_is_the_one_checked_in() {
    let site = Site::start().await;
    let document = site.ask_as_nobody("GET", "/openapi.json").send().await.expect(200).json();
    let text = serde_json::to_string_pretty(&document).expect("it was JSON") + "\n";
    check_in("openapi.json", &text);
    site.stop().await;
}

#[tokio::test]
async fn the_openapi_document_has_every_route_and_resolves() {
    let site = Site::start().await;
    let answer = site.ask_as_nobody("GET", "/openapi.json").send().await.expect(200);
    assert_eq!(answer.header("content-type"), "application/json");
    let document = answer.json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut described = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            described.insert(format!("{} {path}", method.to_uppercase()));
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "`{id}` is there twice");
            assert!(!operation["summary"].as_str().unwrap().is_empty());
            let answers = operation["responses"].as_object().unwrap();
            assert!(answers.len() > 1, "{method} {path} says nothing about its answers");
            let in_path = path.matches('{').count();
            let parameters = operation["parameters"].as_array().unwrap();
            let named = parameters.iter().filter(|p| p["in"] == "path").count();
            assert_eq!(in_path, named, "{method} {path}");
            let takes = matches!(method.as_str(), "put" | "post");
            // Some take nothing; the last ones take three formats, none of them one schema.
            let exempt = [
                "/refresh",
                "/verify",
                "/gc",
                "/installed/{node}",
                "/enrollment",
                "/boot/v1/hosts",
                "/diff",
                "/apply",
                "/cluster/v1/plan",
            ];
            let exempt = exempt.iter().any(|end| path.ends_with(end));
            assert_eq!(operation.get("requestBody").is_some(), takes && !exempt, "{method} {path}");
        }
    }
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        // The generator numbers a second type of the same name.
        assert!(!name.ends_with(|c: char| c.is_ascii_digit()), "two types share a name: `{name}`");
    }
    let access_classes = site.controller.access_classes();
    let served: BTreeSet<String> = access_classes
        .lines()
        .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(described, served);
    let mut references = 0;
    check_references(&document, &document, &mut references);
    assert!(references > 50, "{references}");
    site.stop().await;
}

fn check_references(document: &Value, part: &Value, count: &mut usize) {
    if let Some(Value::String(reference)) = part.get("$ref") {
        let pointer = reference.strip_prefix('#').expect("references stay inside");
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        *count += 1;
    }
    match part {
        Value::Object(map) => map.values().for_each(|v| check_references(document, v, count)),
        Value::Array(list) => list.iter().for_each(|v| check_references(document, v, count)),
        _ => {}
    }
}

/// Every flag of every route that is declared, as `METHOD path` and the name of the flag.
fn flags(document: &Value) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("an object") {
        for (method, operation) in methods.as_object().expect("an object") {
            for parameter in operation["parameters"].as_array().expect("a list") {
                if parameter["schema"]["enum"].is_array() || parameter["name"] == "dry_run" {
                    let name = parameter["name"].as_str().expect("a name");
                    found.push((method.to_uppercase(), path.clone(), name.to_owned()));
                }
            }
        }
    }
    found
}

#[tokio::test]
async fn flag_that_is_neither_on_nor_off_is_refused_by_every_route() {
    let site = Site::start().await;
    site.add(&json!({"name": "n1"})).await;
    let document = site.get("/openapi.json").await.expect(200).json();
    let flags = flags(&document);
    let dry_runs = flags.iter().filter(|(_, _, name)| name == "dry_run").count();
    assert!(dry_runs > 30, "{dry_runs}");
    let before = site.get("/inventory/v1/export").await.expect(200).text();
    for (method, path, name) in &flags {
        let path = path.replace("{node}", "n1").replace(['{', '}', '*'], "");
        for value in ["2", "yes", "TRUE", "01", "", "-1"] {
            let asked = site.ask(method, &format!("{path}?{name}={value}"));
            let asked = if method == "GET" { asked } else { asked.json(&json!({})) };
            let answer = asked.send().await;
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            assert_eq!(answer.status, 400, "{method} {path}?{name}={value}: {said}");
            assert!(said.contains(name.as_str()), "{method} {path}?{name}={value}: {said}");
        }
    }
    assert_eq!(site.get("/inventory/v1/export").await.expect(200).text(), before);
    assert_eq!(site.get("/deploy/v1/runs").await.expect(200).json()["items"], json!([]));
    site.stop().await;
}

#[tokio::test]
async fn flag_is_read_as_number_and_as_word() {
    let site = Site::start().await;
    let node = |name: &str| json!({"name": name});
    for (value, is_dry) in [("1", true), ("true", true), ("0", false), ("false", false)] {
        let path = format!("/inventory/v1/nodes?dry_run={value}");
        site.post(&path, &node(&format!("n-{value}"))).await.expect(201);
        let there = site.get(&format!("/inventory/v1/nodes/by/name/n-{value}")).await.status;
        assert_eq!(there, if is_dry { 404 } else { 200 }, "{value}");
    }
    site.stop().await;
}
