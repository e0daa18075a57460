use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::diagnostic::{Code, ProvisionDiagnostic};

/// A document with these sections, in JSON.
fn with(sections: &Value) -> String {
    let mut all = json!({"node": {"id": "n1"}, "disks": {"os": {"match": {"wwn": "0x5000"}}}});
    for (name, section) in sections.as_object().expect("an object") {
        all[name] = section.clone();
    }
    json!({"api": "hoist/v1", "txn": "00000000-0000-0000-0000-000000000001", "sections": all})
        .to_string()
}

fn found(sections: &Value) -> Vec<ProvisionDiagnostic> {
    read("doc", with(sections).as_bytes()).expect_err(&sections.to_string())
}

/// The only thing wrong with it.
fn one(sections: &Value) -> ProvisionDiagnostic {
    let mut found = found(sections);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

fn is(sections: &Value, code: Code, place: &str) {
    let found = one(sections);
    assert_eq!((found.code, found.diagnostic.at.as_str()), (code, place), "{found}");
}

fn part(id: &str, size: &str) -> Value {
    json!({"part": {"id": id, "on": "os", "size": size}})
}

#[test]
fn yaml_and_json_are_equivalent() {
    let yaml = "\
api: hoist/v1
txn: 00000000-0000-0000-0000-000000000001
sections:
  node: {id: n1}
  disks:
    os: {match: {wwn: '0x5000'}, wipe: [gpt, ext]}
  storage:
    - part: {id: root, on: os, size: 20 GiB, role: root}
    - fs: {id: root-fs, on: root, kind: ext4, mount: /}
";
    let document = read("a", yaml.as_bytes()).expect("a document");
    let json = serde_json::to_vec(&document).expect("plain values");
    assert_eq!(read("b", &json).expect("the same"), document);
    assert_eq!(document.sections.storage[0].id().as_str(), "root");
}

#[test]
fn numbers_that_are_names_need_no_quotes() {
    let yaml = "\
api: hoist/v1
txn: 00000000-0000-0000-0000-000000000001
sections:
  node: {id: 0012}
  disks:
    1: {match: {serial: 0012, wwn: 0x5000c500aaaa0001, eui: 1e5}}
";
    let document = read("a", yaml.as_bytes()).expect("a document");
    let (id, disk) = document.sections.disks.iter().next().expect("a disk");
    let text = |text: &Option<String>| text.clone().expect("a text");
    assert_eq!((id.as_str(), document.node_id()), ("1", "0012"));
    let DiskMatch { serial, wwn, eui, .. } = &disk.matches;
    assert_eq!((text(serial).as_str(), text(wwn).as_str()), ("0012", "0x5000c500aaaa0001"));
    assert_eq!(text(eui), "1e5");
}

#[test]
fn unknown_field_is_reported_with_place_and_hint() {
    let yaml = "\
api: hoist/v1
txn: 00000000-0000-0000-0000-000000000001
sections:
  storage:
    - part: {id: root, on: os, siz: 20 GiB}
";
    let found = read("doc.yaml", yaml.as_bytes()).expect_err("unknown");
    assert_eq!(
        found[0].to_string(),
        "doc.yaml:5:32: storage.root.part.siz: unknown field `siz` [unreadable]; did you mean `size`?"
    );
    let found = one(&json!({"storag": []}));
    assert_eq!(found.diagnostic.hint.as_deref(), Some("did you mean `storage`?"));
}

#[test]
fn all_type_errors_are_reported_with_their_paths() {
    let yaml = "\
api: hoist/v1
txn: 1
sections:
  node: {id: 0012, generation: many}
  disks:
    os: {match: {serial: 0012}, wipe: [ext5]}
  storage:
    - part: {id: root, on: os, siz: 20 GiB}
    - part: {id: data, on: os, size: 10 quarks, number: 4}
    - luks: {id: l, on: data, key: 4711}
  images:
    i: {sources: ['file:///x'], target: root, grow: perhaps}
  flow: {end: never}
  fils: []
";
    let found = read("doc.yaml", yaml.as_bytes()).expect_err("it has errors");
    assert!(found.iter().all(|found| found.code == Code::Unreadable), "{found:#?}");
    let text: Vec<String> = found.iter().map(ToString::to_string).collect();
    // The first one has its line, too.
    assert!(text[0].starts_with("doc.yaml:2:"), "{text:#?}");
    for part in [
        "txn: ",
        "node.generation: ",
        "disks.os.wipe",
        "storage.root.part.siz: unknown field `siz`",
        "storage.data.part.size: ",
        "storage.data.part.number: unknown field `number`",
        "storage.l.luks.key: ",
        "images.i.grow: ",
        "flow.end: unknown variant `never`",
        "fils: unknown field `fils`",
    ] {
        assert_eq!(text.iter().filter(|text| text.contains(part)).count(), 1, "{part}: {text:#?}");
    }
    assert_eq!(text.len(), 10, "{text:#?}");
    assert!(!text.concat().contains("4711"), "it may be the secret: {text:#?}");
    // JSON has types of its own.
    let json = r#"{"api": "hoist/v1", "txn": "x", "sections": {"disks": {"os": {"match": 5}}}}"#;
    assert_eq!(read("doc.json", json.as_bytes()).expect_err("it has errors").len(), 2);
}

#[test]
fn all_problems_are_reported_at_once() {
    let found = found(&json!({
        "disks": {"os": {"match": {}}},
        "storage": [part("a", "1 GiB"), part("a", "1 GiB"), {"pv": {"id": "p", "on": "b"}}],
        "images": {"i": {"sources": ["ftp://x"], "target": "nowhere"}},
    }));
    let codes: Vec<_> = found.iter().map(|found| found.code).collect();
    let expected =
        [Code::Missing, Code::Twice, Code::NoSuchThing, Code::BadValue, Code::NoSuchThing];
    assert_eq!(codes, expected, "{found:#?}");
}

#[test]
fn third_party_sections_are_kept_with_vendor_names() {
    let raid = json!({"level": 1, "anything": [null, {"a": 2}]});
    let text = with(&json!({"vendor.example/raid@1": raid}));
    let document = read("doc", text.as_bytes()).expect("a document");
    assert_eq!(document.sections.third_party["vendor.example/raid@1"], raid);
    for name in ["vendor/raid@1", "vendor.example/raid", "vendor.example/raid@0", "v.e/Raid@1"] {
        let found = one(&json!({name: {}}));
        assert!(found.diagnostic.message.contains("vendor.example/raid@1"), "{found}");
    }
}

#[test]
fn duplicate_key_is_refused() {
    let text = r#"{"api":"hoist/v1","txn":"00000000-0000-0000-0000-000000000001",
        "sections":{"disks":{"a":{"match":{"wwn":"1"}},"a":{"match":{"wwn":"2"}}}}}"#;
    let found = read("doc", text.as_bytes()).expect_err("twice");
    assert!(found[0].diagnostic.message.contains("`a` is there twice"), "{}", found[0]);
    let text = r#"{"api":"hoist/v1","txn":"00000000-0000-0000-0000-000000000001",
        "sections":{"storage":[],"storage":[]}}"#;
    let found = read("doc", text.as_bytes()).expect_err("twice");
    assert!(
        found[0].diagnostic.message.contains("section `storage` is there twice"),
        "{}",
        found[0]
    );
}

#[test]
fn another_version_is_refused() {
    let text = with(&json!({})).replace("hoist/v1", "hoist/v2");
    let found = read("doc", text.as_bytes()).expect_err("another version");
    assert_eq!(found[0].diagnostic.hint.as_deref(), Some("write `api: hoist/v1`"));
}

#[test]
fn rest_may_be_followed_by_other_members() {
    let fine = json!({"storage": [part("a", "1 GiB"), part("b", "rest"), part("c", "2 GiB")]});
    read("doc", with(&fine).as_bytes()).expect("members after the rest");
    let two = json!({"storage": [part("a", "rest"), part("b", "rest")]});
    is(&two, Code::Twice, "storage.b.size");
    let shares = json!({"storage": [part("a", "60%"), part("b", "40.01%")]});
    is(&shares, Code::Contradiction, "storage.os");
}

#[test]
fn wiping_is_a_list_of_kinds_or_the_word_any() {
    let wipe = |wipe: Value| json!({"disks": {"os": {"match": {"wwn": "1"}, "wipe": wipe}}});
    for fine in [json!("any"), json!([]), json!(["lvm", "md"])] {
        read("doc", with(&wipe(fine)).as_bytes()).expect("a way to write it");
    }
    for bad in [json!("all"), json!(["any"]), json!(true), json!(["ext5"])] {
        assert_eq!(one(&wipe(bad)).code, Code::Unreadable);
    }
}

#[test]
fn literal_secret_is_refused_and_not_repeated() {
    let storage = json!({"storage": [part("a", "1 GiB"), {"luks": {"id": "l", "on": "a", "key": "hunter2"}}]});
    let found = one(&storage).to_string();
    assert!(found.contains("secret://NAME") && !found.contains("hunter2"), "{found}");
    let url = json!({
        "storage": [part("a", "1 GiB")],
        "images": {"i": {"sources": ["https://me:hunter2@host/i"], "target": "a"}},
    });
    let found = one(&url).to_string();
    assert!(found.contains("password") && !found.contains("hunter2"), "{found}");
}

#[test]
fn nodes_lie_on_suitable_nodes() {
    let storage = |node: Value| json!({"storage": [part("a", "1 GiB"), part("b", "1 GiB"), node]});
    for (node, place) in [
        (json!({"part": {"id": "x", "on": "a", "size": "1 GiB"}}), "storage.x"),
        (json!({"fs": {"id": "x", "on": "os", "kind": "ext4"}}), "storage.x"),
        (json!({"vg": {"id": "x", "on": ["a"]}}), "storage.x"),
        (json!({"lv": {"id": "x", "on": "a", "size": "1 GiB"}}), "storage.x"),
        (json!({"fs": {"id": "x", "on": "c", "kind": "ext4"}}), "storage.x"),
    ] {
        is(&storage(node), Code::NoSuchThing, place);
    }
    let twice = json!({"md": {"id": "x", "on": ["a", "a"], "level": "raid1"}});
    is(&storage(twice), Code::Twice, "storage.x");
    let few = json!({"md": {"id": "x", "on": ["a", "b"], "level": "raid5"}});
    is(&storage(few), Code::BadValue, "storage.x");
    let none = json!({"vg": {"id": "x", "on": []}});
    is(&storage(none), Code::Missing, "storage.x");
}

#[test]
fn storage_nodes_neither_share_a_device_nor_form_a_cycle() {
    let shared = json!({"storage": [
        part("a", "1 GiB"),
        {"fs": {"id": "x", "on": "a", "kind": "ext4"}},
        {"pv": {"id": "y", "on": "a"}},
    ]});
    is(&shared, Code::Twice, "storage.y");
    let circle = json!({"storage": [
        {"pv": {"id": "p", "on": "l"}},
        {"vg": {"id": "v", "on": ["p"]}},
        {"lv": {"id": "l", "on": "v", "size": "1 GiB"}},
    ]});
    is(&circle, Code::Contradiction, "storage");
}

#[test]
fn fat_labels_are_portable() {
    let labelled = |label: &str| {
        json!({"storage": [part("a", "1 GiB"),
            {"fs": {"id": "x", "on": "a", "kind": "vfat", "label": label}}]})
    };
    for label in ["HOIST-ESP", "esp_2", "two words"] {
        read("doc", with(&labelled(label)).as_bytes()).expect("a label");
    }
    for label in ["a*b.c", "a/b", "ü", " x", "\"x\""] {
        is(&labelled(label), Code::BadValue, "storage.x");
    }
}

#[test]
fn file_systems_have_labels_and_mounts_that_fit() {
    let fs = |more: Value| {
        let mut fs = json!({"id": "x", "on": "a", "kind": "xfs"});
        for (key, value) in more.as_object().expect("an object") {
            fs[key] = value.clone();
        }
        json!({"storage": [part("a", "1 GiB"), {"fs": fs}]})
    };
    read("doc", with(&fs(json!({"label": "twelve-bytes"}))).as_bytes()).expect("at the limit");
    is(&fs(json!({"label": "thirteen-byte"})), Code::BadValue, "storage.x");
    for mount in ["var", "/var/", "/a/../b", "/a b", "//"] {
        is(&fs(json!({"mount": mount})), Code::BadValue, "storage.x");
    }
    is(&fs(json!({"kind": "swap", "mount": "/swap"})), Code::Contradiction, "storage.x");
    is(&fs(json!({"options": ["ro,noatime"]})), Code::BadValue, "storage.x");
}

#[test]
fn image_on_retained_target_is_refused() {
    let kept = json!({"part": {"id": "a", "on": "os", "size": "1 GiB",
        "retain": {"partuuid": "00000000-0000-0000-0000-000000000002"}}});
    let fs = json!({"fs": {"id": "x", "on": "a", "kind": "ext4", "retain": {"label": "data"}}});
    for target in ["a", "x"] {
        let image = json!({"i": {"sources": ["https://h/i"], "target": target}});
        let sections = json!({"storage": [kept.clone(), fs.clone()], "images": image});
        is(&sections, Code::Contradiction, "images.i.target");
    }
    let whole = json!({"i": {"sources": ["https://h/i"], "target": "os"}});
    let sections = json!({"storage": [kept, fs], "images": whole});
    let codes: Vec<_> = found(&sections).into_iter().map(|found| found.code).collect();
    assert_eq!(codes, [Code::Contradiction, Code::Contradiction]);
}

#[test]
fn kept_parts_lie_on_kept_parts_and_carry_nothing_new() {
    let kept = json!({"part": {"id": "a", "on": "os", "size": "1 GiB",
        "retain": {"partuuid": "00000000-0000-0000-0000-000000000002"}}});
    let fs = |retain: bool| {
        let mut fs = json!({"id": "x", "on": "a", "kind": "ext4"});
        if retain {
            fs["retain"] = json!({});
        }
        json!({"fs": fs})
    };
    let fine = json!({"storage": [kept.clone(), fs(true)]});
    read("doc", with(&fine).as_bytes()).expect("both stay");
    is(&json!({"storage": [kept, fs(false)]}), Code::Contradiction, "storage.x");
    is(&json!({"storage": [part("a", "1 GiB"), fs(true)]}), Code::Contradiction, "storage.x");
    let adopted = json!({
        "storage": [part("a", "1 GiB"), fs(true)], "policy": {"tables": "adopt"},
    });
    read("doc", with(&adopted).as_bytes()).expect("the table stays as it is");
}

#[test]
fn retained_partition_needs_an_identity() {
    for retain in [json!({}), json!({"name": "data"})] {
        let kept = json!({"part": {"id": "a", "on": "os", "size": "1 GiB", "retain": retain}});
        is(&json!({"storage": [kept]}), Code::Missing, "storage.a.retain");
    }
}

#[test]
fn erase_of_a_disk_with_adopted_table_is_refused() {
    let with_flow = |flow: Value, tables: &str| {
        json!({
            "storage": [part("a", "1 GiB"), {"fs": {"id": "x", "on": "a", "kind": "ext4"}}],
            "policy": {"tables": tables},
            "erase": {"disks": ["os"]},
            "flow": {"actions": flow},
        })
    };
    let code = Code::Contradiction;
    is(&with_flow(json!(["erase", "disks"]), "adopt"), code, "erase.disks");
    is(&with_flow(json!(["erase", "images"]), "make"), code, "erase.disks");
    for good in [json!([]), json!(["erase"]), json!(["erase", "report", "reboot"])] {
        read("doc", with(&with_flow(good, "make")).as_bytes()).expect("it is erased");
    }
}

#[test]
fn file_paths_stay_inside_their_volume() {
    let file = |path: &str| {
        json!({
            "storage": [part("a", "1 GiB"), {"fs": {"id": "x", "on": "a", "kind": "ext4"}}],
            "files": [{"on": "x", "path": path, "content": {"text": "a"}}],
        })
    };
    read("doc", with(&file("/etc/hostname")).as_bytes()).expect("a path");
    for path in ["etc/hostname", "/etc/../../x", "/", "/a//b", "/a\n"] {
        is(&file(path), Code::BadValue, "files[0].path");
    }
    let secret = json!({"config_drive": {"files": {"a": {"secret": "secret://x"}}}});
    is(&secret, Code::Contradiction, "config_drive.files.a");
}

#[test]
fn limits_hold_at_their_edge() {
    let disks = |count: usize| {
        let disk = |at: usize| (format!("d{at}"), json!({"match": {"serial": at.to_string()}}));
        json!({"disks": (0..count).map(disk).collect::<serde_json::Map<_, _>>()})
    };
    read("doc", with(&disks(MAX_DISKS)).as_bytes()).expect("at the limit");
    is(&disks(MAX_DISKS + 1), Code::TooLarge, "disks");
    let parts = |count: usize| {
        let parts: Vec<_> = (0..count).map(|at| part(&format!("p{at}"), "1 MiB")).collect();
        json!({"storage": parts})
    };
    read("doc", with(&parts(128)).as_bytes()).expect("at the limit");
    is(&parts(129), Code::TooLarge, "disks.os");
    is(&parts(MAX_STORAGE + 1), Code::TooLarge, "storage");
    let sources = |count: usize| {
        let sources = vec!["https://h/i"; count];
        json!({"images": {"i": {"sources": sources, "target": "os"}}})
    };
    read("doc", with(&sources(MAX_LIST)).as_bytes()).expect("at the limit");
    is(&sources(MAX_LIST + 1), Code::TooLarge, "images.i.sources");
    let id = "i".repeat(MAX_ID);
    assert!(id.parse::<Id>().is_ok());
    assert!(format!("{id}i").parse::<Id>().is_err());
    let space = " ".repeat(MAX_BYTES);
    assert_eq!(read("doc", space.as_bytes()).expect_err("empty")[0].code, Code::Unreadable);
    let found = read("doc", format!("{space} ").as_bytes()).expect_err("too large");
    assert_eq!(found[0].code, Code::TooLarge);
}

#[test]
fn published_schema_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/provision/document.schema.json");
    let schema = serde_json::to_string_pretty(&Document::schema()).expect("plain values") + "\n";
    if std::env::var_os("HOIST_UPDATE_DOCS").is_some() {
        std::fs::write(path, &schema).expect("write the schema");
    }
    let published = std::fs::read_to_string(path).unwrap_or_default();
    assert!(published == schema, "run this test with HOIST_UPDATE_DOCS=1");
}

#[test]
fn examples_of_the_page_are_valid_documents() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/provision/document.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let examples: Vec<&str> =
        page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 6);
    for example in examples {
        let document = read("document.md", example.as_bytes());
        let document = document.unwrap_or_else(|found| panic!("{found:#?}\n{example}"));
        let facts = machine_of(&document);
        let resolved = crate::claim::resolve(&document, &crate::claim::BuiltinClaim::ALL, &facts);
        let planned = resolved.and_then(|document| crate::layout::plan(&document, &facts));
        // Nothing is on the disks of this machine that could stay.
        if !example.contains("retain:") {
            planned.unwrap_or_else(|found| panic!("{found:#?}\n{example}"));
        }
    }
}

/// A machine with empty disks as a document describes them.
fn machine_of(document: &Document) -> crate::facts::Facts {
    let disk = |(id, disk): (&Id, &Disk)| {
        let known = disk.matches.clone();
        crate::facts::DiskFacts {
            kernel_name: id.to_string(),
            size: known.size.and_then(|range| range.min).map_or(1 << 40, |bytes| bytes.0),
            logical_sector: 512,
            wwn: known.wwn,
            eui: known.eui,
            serial: known.serial,
            by_path: known.by_path,
            bus: known.bus,
            ..crate::facts::DiskFacts::default()
        }
    };
    let firmware = crate::facts::Firmware::Uefi;
    let disks = document.sections.disks.iter().map(disk).collect();
    crate::facts::Facts { firmware, disks, ..crate::facts::Facts::default() }
}

#[test]
fn document_page_has_every_field() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/provision/document.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let kinds = crate::facts::SignatureKind::ALL.map(crate::facts::SignatureKind::as_str);
    let codes = Code::ALL.iter().map(|code| code.as_str());
    let mut words: Vec<String> =
        CORE_SECTIONS.into_iter().chain(kinds).chain(codes).map(str::to_owned).collect();
    words_of(&Document::schema(), &mut words);
    let missing: Vec<_> = words.into_iter().filter(|word| !has_word(&page, word)).collect();
    assert!(missing.is_empty(), "the page does not speak of {missing:?}");
}

/// Names of fields, and words that stand for something, anywhere in a schema.
fn words_of(schema: &Value, words: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value) {
                    ("properties", Value::Object(fields)) => words.extend(fields.keys().cloned()),
                    ("enum", Value::Array(list)) => {
                        words.extend(list.iter().filter_map(Value::as_str).map(str::to_owned));
                    }
                    ("const", Value::String(word)) => words.push(word.clone()),
                    _ => {}
                }
                words_of(value, words);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| words_of(value, words)),
        _ => {}
    }
}

/// Between backticks, or as a key of an example.
fn has_word(page: &str, word: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    page.match_indices(word).any(|(at, _)| {
        is_edge(page[..at].chars().next_back()) && is_edge(page[at + word.len()..].chars().next())
    })
}

#[test]
fn schema_names_every_section_and_no_other() {
    let schema = Document::schema();
    let sections = &schema["$defs"]["Sections"];
    let mut names: Vec<_> = sections["properties"]
        .as_object()
        .expect("properties")
        .keys()
        .map(String::as_str)
        .collect();
    names.sort_unstable();
    let mut core = CORE_SECTIONS;
    core.sort_unstable();
    assert_eq!(names, core);
    assert_eq!(sections["additionalProperties"], false);
    assert!(sections["patternProperties"].get(THIRD_PARTY_PATTERN).is_some());
}

/// Each of these would take minutes, if everything in it were compared with everything else.
#[test]
fn oversized_document_is_refused_quickly() {
    let many = |count: usize| (0..count).map(|at| format!("p{at}")).collect::<Vec<_>>();
    let arrays = json!([{"md": {"id": "m", "on": many(400_000), "level": "raid1"}}]);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let laughing = (1..40).map(|at| format!("  v.e/s{at}@1: &a{at} [*a{0}, *a{0}]\n", at - 1));
    let laughing: String = laughing.collect();
    let text = |sections: Value| with(&sections);
    let started = std::time::Instant::now();
    for (text, code) in [
        (text(json!({"storage": arrays})), Code::TooLarge),
        (text(json!({"erase": {"disks": vec!["os"; 500_000]}})), Code::TooLarge),
        (text(json!({"boot": {"kernel_args": vec![""; 500_000]}})), Code::TooLarge),
        (text(json!({"flow": {"actions": vec!["x"; 500_000]}})), Code::TooLarge),
        (deep, Code::Unreadable),
        (
            format!("api: hoist/v1\ntxn: x\nsections:\n  v.e/s0@1: &a0 x\n{laughing}"),
            Code::Unreadable,
        ),
    ] {
        let found = read("doc", text.as_bytes()).expect_err("it is refused");
        assert!(found.iter().any(|found| found.code == code), "{:?}", found[0].code);
        assert!(found.len() < 10, "{}", found.len());
    }
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

proptest! {
    #[test]
    fn type_errors_in_any_place_are_read_without_panic(
        path in proptest::sample::select(vec![
            "/api", "/txn", "/sections", "/sections/disks", "/sections/disks/os",
            "/sections/disks/os/match", "/sections/storage", "/sections/storage/0",
            "/sections/storage/0/part", "/sections/storage/0/part/size", "/sections/images/i",
        ]),
        junk in proptest::sample::select(vec![
            json!(null), json!(true), json!(-1), json!("x"), json!([[]]), json!({"a": {"b": 1}}),
        ]),
    ) {
        let mut document = json!({
            "api": "hoist/v1", "txn": "5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e41",
            "sections": {
                "disks": {"os": {"match": {"serial": "A1"}}},
                "storage": [{"part": {"id": "a", "on": "os", "size": "1 GiB"}}],
                "images": {"i": {"sources": ["file:///x"], "target": "a"}},
            },
        });
        *document.pointer_mut(path).expect("it is there") = junk;
        if let Err(found) = read("doc", document.to_string().as_bytes()) {
            prop_assert!(!found.is_empty());
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = read("x", &bytes);
    }

    #[test]
    fn nearly_valid_document_never_panics_the_reader(
        cut in 0..600_usize, at in 0..600_usize, text in "[\\x20-\\x7e]{0,6}"
    ) {
        let mut document = with(&json!({
            "storage": [
                part("a", "rest"),
                {"fs": {"id": "x", "on": "a", "kind": "ext4", "mount": "/", "retain": {}}},
                {"luks": {"id": "l", "on": "a", "key": "secret://k"}},
            ],
            "images": {"i": {"sources": ["https://h/i"], "target": "x", "size": "1 GiB"}},
        }));
        document.insert_str(at.min(document.len()), &text);
        let _ = read("x", document.as_bytes());
        document.truncate(cut.min(document.len()));
        let _ = read("x", document.as_bytes());
    }
}
