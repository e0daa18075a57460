use proptest::prelude::*;

use super::*;

fn errors(text: &str) -> Vec<String> {
    let errors = read("site.yaml", text.as_bytes()).expect_err(text);
    errors.into_iter().map(|error| error.to_string()).collect()
}

#[test]
fn yaml_and_json_say_the_same() {
    let yaml = "# a site\napi: hoist/v1\nkind: Node\nname: login1\nspec:\n  nid: 7\n  groups: [b, a]\n---\napi: hoist/v1\nkind: Group\nname: p1/gpu\n";
    let list = r#"[{"api":"hoist/v1","kind":"Node","name":"login1","spec":{"nid":7,"groups":["a","b"]}},
        {"api":"hoist/v1","kind":"Group","name":"p1/gpu"}]"#;
    let from_yaml = read("a", yaml.as_bytes()).unwrap();
    assert_eq!(from_yaml, read("b", list.as_bytes()).unwrap());
    let lines: Vec<String> =
        from_yaml.iter().map(|document| serde_json::to_string(document).unwrap()).collect();
    assert_eq!(from_yaml, read("c", lines.join("\n").as_bytes()).unwrap());
    assert_eq!(from_yaml[0].name().to_string(), "login1");
    assert_eq!(from_yaml[1].kind(), Kind::Group);
}

#[test]
fn a_missing_spec_is_an_empty_one_with_its_defaults() {
    let document = &read("a", b"api: hoist/v1\nkind: Node\nname: n").unwrap()[0];
    let Document::Node(_, spec) = &document else { panic!("a node") };
    assert!(spec.enabled);
    assert_eq!(spec.partition.as_str(), "default");
}

#[test]
fn foreign_value_is_read_with_places_and_suggestions() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Other {
        size: u32,
    }
    let read = |text: &str| read_one::<Other>("other", text.as_bytes());
    assert_eq!(read("# one\n---\nsize: 3\n"), Ok(Other { size: 3 }));
    assert_eq!(read("{\"size\": 3}"), Ok(Other { size: 3 }));
    let found = |text: &str| read(text).expect_err(text)[0].to_string();
    let typo = "other:2:1: unknown field `siz`; did you mean `size`?";
    assert_eq!(found("# one\nsiz: 3\n"), typo);
    assert_eq!(found("size: 1\n---\nsize: 2\n"), "other: contains 2 documents; write exactly one");
    assert_eq!(found(" \n"), "other: contains 0 documents; write exactly one");
}

#[test]
fn every_fault_of_a_file_is_told_with_its_place() {
    let text = "\
api: hoist/v1
kind: Node
name: a
spec:
  nidd: 4
---
api: hoist/v1
kind: Nod
name: b
---
api: hoist/v1
kind: Node
name: c
spec: {nid: many}
---
kind: Node
name: d
";
    let errors = errors(text);
    assert_eq!(errors.len(), 4, "{errors:#?}");
    assert_eq!(errors[0], "site.yaml:5:3: Node a: unknown field `nidd`; did you mean `nid`?");
    assert_eq!(errors[1], "site.yaml:7:1: Nod b: unknown kind `Nod`; did you mean `Node`?");
    assert!(errors[2].starts_with("site.yaml:14:13: Node c: "), "{}", errors[2]);
    assert_eq!(errors[3], "site.yaml:16:1: Node d: `api` is missing; write `api: hoist/v1`");
}

#[test]
fn bad_texts_get_a_clear_answer() {
    assert!(errors("api: hoist/v1\nkind: Node\nkind: Node\nname: a\n")[0].contains(":3:"));
    assert!(read("x", b"api: \xff").unwrap_err()[0].message.contains("UTF-8"));
    assert!(
        errors(r#"{"api": "hoist/v1", "kind": "Node", "name": "a", "spec": {"nid": "#)[0]
            .contains("EOF")
    );
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(read("x", deep.as_bytes()).unwrap_err().len(), 1);
    let deep = format!("api: hoist/v1\nkind: Node\nname: a\nspec:\n  data: {{a: {deep}}}\n");
    assert_eq!(read("x", deep.as_bytes()).unwrap_err().len(), 1);
    let bomb = "api: hoist/v1\nkind: Node\nname: a\nspec:\n  data:\n    a: &a [1,1,1,1,1,1,1,1,1,1]\n    b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n    c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n    d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n    e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n    f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n";
    assert_eq!(read("x", bomb.as_bytes()).unwrap_err().len(), 1);
    let clash = "api: hoist/v1\nkind: Node\nname: a\nspec:\n  interfaces:\n  - {name: eth0, mac: ff:ff:ff:ff:ff:ff}\n";
    assert!(errors(clash)[0].contains("interfaces[0].mac"));
}

#[test]
fn documents_survive_being_written_and_read() {
    let text = "api: hoist/v1\nkind: Node\nname: a\nspec:\n  labels: {a: 'no', b: '0755', c: ''}\n  interfaces:\n  - name: eth0\n    mac: 02-00-00-00-00-01\n    addresses: [10.0.0.1/24, 'fd00::1/64']\n";
    let documents = read("a", text.as_bytes()).unwrap();
    let yaml = documents[0].to_yaml();
    assert_eq!(read("b", yaml.as_bytes()).unwrap(), documents, "{yaml}");
}

#[test]
fn layer_values_that_cloud_init_reads_differently_are_refused() {
    let layer = |value: &str| {
        format!(
            "api: hoist/v1\nkind: MetadataLayer\nname: a\nspec:\n  selector: '*'\n  user_data:\n    x: {value}\n"
        )
    };
    for (value, remedy) in [
        ("0644", "put it in quotes, or write `420`"),
        ("no", "put it in quotes, or write `false`"),
        ("On", "put it in quotes, or write `true`"),
        ("1:30", "put it in quotes"),
        ("12345678901234567890123", "put it in quotes"),
        ("1e5", "put it in quotes"),
    ] {
        let expected = format!(
            "site.yaml:7:8: MetadataLayer a: `{value}` without quotes is not the same for all \
             readers of YAML; {remedy}"
        );
        assert_eq!(errors(&layer(value)), [expected]);
        let alone = cloud_config("site.yaml", &format!("#cloud-config\nx: {value}\n")).unwrap_err();
        assert!(alone[0].to_string().starts_with("site.yaml:2:4: `"), "{alone:?}");
        let node = format!("api: hoist/v1\nkind: Node\nname: n\nspec: {{data: {{x: {value}}}}}\n");
        assert!(read("a", node.as_bytes()).is_ok(), "nobody else reads it");
    }
    let document = |x: serde_json::Value| {
        let spec = serde_json::json!({ "selector": "*", "user_data": { "x": x } });
        let layer =
            serde_json::json!({ "api": API, "kind": "MetadataLayer", "name": "a", "spec": spec });
        read("a", layer.to_string().as_bytes()).unwrap().remove(0)
    };
    for (value, is) in [
        ("'0644'", serde_json::json!("0644")),
        ("\"no\"", serde_json::json!("no")),
        ("420", serde_json::json!(420)),
        ("+7", serde_json::json!(7)),
        ("0x1F", serde_json::json!(31)),
        ("18446744073709551615", serde_json::json!(u64::MAX)),
        ("-9223372036854775808", serde_json::json!(i64::MIN)),
        ("1.5", serde_json::json!(1.5)),
        (".5", serde_json::json!(0.5)),
        ("1.", serde_json::json!(1.0)),
        ("1.0e+20", serde_json::json!(1e20)),
        ("False", serde_json::json!(false)),
        ("Null", serde_json::Value::Null),
        ("~", serde_json::Value::Null),
        ("10.0.0.1", serde_json::json!("10.0.0.1")),
        ("02:00:00:00:00:01", serde_json::json!("02:00:00:00:00:01")),
    ] {
        assert_eq!(read("a", layer(value).as_bytes()).unwrap(), [document(is)], "{value}");
    }
    // What hoist writes it reads again.
    for text in [
        "0644",
        "no",
        "y",
        "1:30",
        "1e5",
        "2026-11-15",
        ".inf",
        "0x1F",
        "1_000",
        "12345678901234567890123",
    ] {
        for x in [serde_json::json!(text), serde_json::json!({ text: 1 })] {
            let written = document(x);
            let yaml = written.to_yaml();
            assert_eq!(read("a", yaml.as_bytes()), Ok(vec![written]), "{yaml}");
        }
    }
    for number in [1e20, 1e-7, 0.1 + 0.2, 1.0, f64::MAX, f64::MIN_POSITIVE] {
        let written = document(number.into());
        let yaml = written.to_yaml();
        assert_eq!(read("a", yaml.as_bytes()), Ok(vec![written]), "{yaml}");
    }
}

#[test]
fn every_kind_has_a_schema_that_knows_its_fields() {
    for kind in Kind::ALL {
        let schema = kind.schema();
        assert_eq!(schema["properties"]["kind"]["const"], kind.as_str());
        assert_eq!(Kind::from_word(&format!("{}s", kind.as_str().to_lowercase())), Some(kind));
    }
    assert!(Kind::Node.schema()["properties"]["spec"]["properties"]["interfaces"].is_object());
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in r#"(---|api: hoist/v1|kind: Node|name: a|spec:|[ \n:{}\[\]"',&*!|>#-]|[a-z0-9]|é){0,40}"#) {
        let _ = read("x", text.as_bytes());
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes: Vec<u8>) {
        let _ = read("x", &bytes);
    }
}
