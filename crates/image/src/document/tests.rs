use proptest::prelude::*;
use serde_json::json;

use super::*;

fn tiny() -> Value {
    json!({
        "builder": {"tiny": {"kernel": {"file": "vmlinuz"}, "busybox": {"file": "busybox"}}},
        "outputs": {"disk": {"size": "64 MiB"}},
    })
}

/// The problems of a spec, in one text.
fn found(spec: &Value) -> String {
    let document = json!({"api": API, "kind": "Image", "name": "x", "spec": spec});
    match read("image.yaml", document.to_string().as_bytes(), "x") {
        Ok(_) => String::new(),
        Err(DocumentError::Invalid(found)) => {
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        }
        Err(error) => error.to_string(),
    }
}

fn with(pointer: &str, value: Value) -> Value {
    let mut spec = tiny();
    let (above, name) = pointer.rsplit_once('/').unwrap();
    let above = spec.pointer_mut(above).unwrap();
    above[name] = value;
    spec
}

#[test]
fn a_document_and_a_spec_by_itself_are_the_same_image() {
    let document = json!({"api": API, "kind": "Image", "name": "tiny", "spec": tiny()});
    let whole = read("a", document.to_string().as_bytes(), "other").unwrap();
    let bare = read("tiny.yaml", tiny().to_string().as_bytes(), "tiny").unwrap();
    assert_eq!(whole, bare);
    assert_eq!(whole.name.as_str(), "tiny");
}

#[test]
fn the_examples_are_images() {
    for name in ["tiny", "debian"] {
        let path = format!("{}/../../examples/image/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = fs_err::read(&path).unwrap();
        let image = read(&path, &text, "other").unwrap_or_else(|found| panic!("{found:#?}"));
        assert_eq!(image.name.as_str(), name);
    }
}

#[test]
fn the_examples_of_the_page_are_images() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/provision/images.md");
    let page = fs_err::read_to_string(path).unwrap();
    let examples: Vec<&str> =
        page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() >= 3, "{}", examples.len());
    for example in examples {
        let read = read("images.md", example.as_bytes(), "page");
        read.unwrap_or_else(|found| panic!("{found:#?}\n{example}"));
    }
}

#[test]
fn the_published_schema_is_the_one_of_the_types() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/provision/image.schema.json");
    let schema = serde_json::to_string_pretty(&Image::schema()).unwrap() + "\n";
    if std::env::var_os("HOIST_UPDATE_DOCS").is_some() {
        fs_err::write(path, &schema).unwrap();
    }
    let published = fs_err::read_to_string(path).unwrap_or_default();
    assert!(published == schema, "run this test with HOIST_UPDATE_DOCS=1");
}

#[test]
fn document_errors_are_named_with_place_and_remedy() {
    assert_eq!(found(&tiny()), "");
    for (spec, place, what) in [
        (with("/files", json!([{"path": "etc/x", "text": ""}])), "files[0].path", "from the root"),
        (with("/files", json!([{"path": "/a/../b", "text": ""}])), "files[0].path", "`..`"),
        (with("/files", json!([{"path": "/a"}])), "files[0]", "`text`, or `file`"),
        (with("/files", json!([{"path": "/a", "text": "", "file": "x"}])), "files[0]", "or `file`"),
        (
            with("/files", json!([{"path": "/a", "text": "", "mode": "9"}])),
            "files[0].mode",
            "octal",
        ),
        (with("/kernel_args", json!(["a b"])), "kernel_args[0]", "not one word"),
        (with("/outputs", json!({})), "outputs", "write `disk`, `live` or both"),
        (with("/outputs/disk/fs", json!("xfs")), "outputs.disk.fs", "as `xfs`; write `ext4`"),
        (
            with("/outputs/disk/label", json!("a label of 17 b")),
            "outputs.disk.label",
            "not a label",
        ),
        (
            with("/outputs", json!({"whole_disk": {"size": "1 GiB"}})),
            "outputs.whole_disk",
            "write `disk`, too",
        ),
        (
            with(
                "/outputs",
                json!({
                    "disk": {"size": "64 MiB", "loaders": ["systemd_boot"]},
                    "whole_disk": {"size": "1 GiB"},
                }),
            ),
            "outputs.whole_disk",
            "needs the loader `grub`; name it",
        ),
        (
            with("/outputs/whole_disk", json!({"size": "1 MiB"})),
            "outputs.whole_disk.size",
            "write a size of",
        ),
        (with("/builder/tiny/kernel", json!({})), "builder.tiny.kernel", "neither a package nor"),
        (
            with("/builder/tiny/kernel", json!({"package": "a", "file": "b"})),
            "builder.tiny.kernel",
            "neither a package nor",
        ),
        (
            with("/builder/tiny/kernel", json!({"package": "-o=x"})),
            "builder.tiny.kernel.package",
            "not a Debian name",
        ),
        (
            with("/builder/tiny/modules", json!(["../x"])),
            "builder.tiny.modules[0]",
            "not a module name",
        ),
        (with("/builder/tiny/init", json!("echo")), "builder.tiny.init", "not a script"),
        (
            with("/builder", json!({"debian": {"suite": "a b"}})),
            "builder.debian.suite",
            "not a Debian name",
        ),
        (
            with("/builder", json!({"debian": {"suite": "trixie", "mirror": "deb.debian.org"}})),
            "builder.debian.mirror",
            "not a mirror URL",
        ),
        (
            with("/builder", json!({"debian": {"suite": "trixie", "packages": ["a,b"]}})),
            "builder.debian.packages[0]",
            "write one name",
        ),
        (
            with("/builder", json!({"debian": {"suite": "trixie", "run": [["true"], []]}})),
            "builder.debian.run[1]",
            "no program",
        ),
        (
            with("/builder", json!({"plugin": {"name": "../x"}})),
            "builder.plugin.name",
            "`hoist-action-`",
        ),
    ] {
        let found = found(&spec);
        assert!(found.starts_with(&format!("{place}: ")) && found.contains(what), "{found}");
    }
}

#[test]
fn unreadable_document_is_reported_with_line_and_column() {
    let text = "builder:\n  tiny:\n    kernel: {file: x}\n    busybocks: 1\n";
    let Err(DocumentError::Invalid(found)) = read("image.yaml", text.as_bytes(), "x") else {
        panic!("it cannot be read")
    };
    let found = found[0].to_string();
    assert!(found.starts_with("image.yaml:4:5"), "{found}");
    for (spec, what) in [
        (with("/builder", json!({"rpm": {}})), "rpm"),
        (with("/outputs/iso", json!({})), "iso"),
        (with("/outputs/disk/fs", json!("zfs")), "zfs"),
        (with("/outputs/live", json!({"format": "iso"})), "iso"),
    ] {
        assert!(self::found(&spec).contains(what), "{what}");
    }
}

#[test]
fn another_kind_or_version_is_refused() {
    let document = json!({"api": "hoist/v9", "kind": "Disk", "name": "x", "spec": tiny()});
    let Err(DocumentError::Invalid(found)) = read("a", document.to_string().as_bytes(), "x") else {
        panic!("nobody knows it")
    };
    let places: Vec<&str> = found.iter().map(|diagnostic| diagnostic.at.as_str()).collect();
    assert_eq!(places, ["api", "kind"]);
}

#[test]
fn limits_are_exact() {
    let words = |count: usize| vec!["a"; count];
    let file = |n: usize| json!({"path": format!("/{n}"), "text": ""});
    let files = |count: usize| (0..count).map(file).collect::<Vec<_>>();
    let debian = |field: &str, value: Value| {
        let mut debian = json!({"suite": "trixie"});
        debian[field] = value;
        with("/builder", json!({"debian": debian}))
    };
    let sized = |bytes: u64| with("/outputs/disk/size", json!(format!("{bytes} B")));
    for (at, over) in [
        (with("/files", json!(files(MAX_FILES))), with("/files", json!(files(MAX_FILES + 1)))),
        (
            with("/kernel_args", json!(words(MAX_KERNEL_ARGS))),
            with("/kernel_args", json!(words(MAX_KERNEL_ARGS + 1))),
        ),
        (
            with("/kernel_args", json!(["x".repeat(MAX_COMMAND_LINE - 1)])),
            with("/kernel_args", json!(["x".repeat(MAX_COMMAND_LINE)])),
        ),
        (
            with("/builder/tiny/modules", json!(words(MAX_MODULES))),
            with("/builder/tiny/modules", json!(words(MAX_MODULES + 1))),
        ),
        (
            debian("packages", json!(words(MAX_PACKAGES))),
            debian("packages", json!(words(MAX_PACKAGES + 1))),
        ),
        (
            debian("run", json!(vec![["true"]; MAX_RUN])),
            debian("run", json!(vec![["true"]; MAX_RUN + 1])),
        ),
        (debian("run", json!([words(MAX_WORDS)])), debian("run", json!([words(MAX_WORDS + 1)]))),
        (
            debian("run", json!([["x".repeat(MAX_WORD)]])),
            debian("run", json!([["x".repeat(MAX_WORD + 1)]])),
        ),
        (sized(MIN_SIZE), sized(MIN_SIZE - 4096)),
        (sized(MAX_SIZE), sized(MAX_SIZE + 4096)),
        (sized(MIN_SIZE), sized(MIN_SIZE + 512)),
        (
            with("/outputs/disk/label", json!("l".repeat(MAX_LABEL))),
            with("/outputs/disk/label", json!("l".repeat(MAX_LABEL + 1))),
        ),
    ] {
        assert_eq!(found(&at), "");
        assert_ne!(found(&over), "", "{over}");
    }
    let named = |length: usize| read("a", tiny().to_string().as_bytes(), &"n".repeat(length));
    assert!(named(MAX_NAME).is_ok() && named(MAX_NAME + 1).is_err());
    let spaces = |count: usize| read("a", " ".repeat(count).as_bytes(), "x");
    assert!(matches!(spaces(MAX_BYTES), Err(DocumentError::Invalid(_))));
    assert!(matches!(spaces(MAX_BYTES + 1), Err(DocumentError::TooLarge { .. })));
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,200}") {
        let _ = read("image.yaml", text.as_bytes(), "x");
    }

    #[test]
    fn a_path_never_leads_upwards(path in "[/.a]{0,12}") {
        if let Some(parts) = parts(&path) {
            prop_assert!(parts.iter().all(|part| !part.is_empty() && *part != ".."));
        }
    }
}
