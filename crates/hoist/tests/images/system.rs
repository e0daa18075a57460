//! `hoist image`: with the real program that builds, against a real controller.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hoist_model::Exit;
use hoist_testkit::controller_process::Controller;
use hoist_testkit::machine::guest;
use serde_json::{Value, json};

/// A place where `hoist` is installed, alone or beside what builds images.
struct InstalledImage {
    dir: tempfile::TempDir,
}

impl InstalledImage {
    fn new(programs: &[&Path]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for program in programs {
            let to = dir.path().join(program.file_name().expect("a file"));
            // It is known by where it is, which a symbolic link would not change.
            if std::fs::hard_link(program, &to).is_err() {
                fs_err::copy(program, &to).expect("copied");
            }
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn hoist(&self, words: &[&str]) -> Output {
        let mut command = Command::new(self.path("hoist"));
        command.args(words).current_dir(self.dir.path()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOIST_DATA_DIR", self.path("data"));
        command.output().expect("the program starts")
    }

    /// Runs a command that must end with this code, and returns its standard output and error.
    fn ends(&self, exit: Exit, words: &[&str]) -> (String, String) {
        let Output { status, stdout, stderr } = self.hoist(words);
        let [out, err] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert_eq!(status.code(), Some(exit.code().into()), "{words:?}: {out}{err}");
        (out, err)
    }
}

fn hoist() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_hoist"))
}

/// A program of another package: built with the workspace, and not when only this one is tested.
fn builder() -> PathBuf {
    let builder = hoist().with_file_name("hoist-image");
    if builder.is_file() {
        return builder;
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--offline", "--locked", "-p", "hoist-image"]);
    let target = hoist().parent().and_then(Path::parent).expect("in the target directory");
    let built = cargo.arg("--target-dir").arg(target).status().expect("cargo starts");
    assert!(built.success(), "hoist-image was not built");
    builder
}

fn document() -> String {
    let spec = json!({
        "builder": {"tiny": {
            "kernel": {"file": guest::kernel().expect("set up")},
            "busybox": {"file": guest::packages().join("bin/busybox")},
        }},
        "outputs": {"live": {"format": "cpio"}},
    });
    json!({"api": "hoist/v1", "kind": "Image", "name": "small", "spec": spec}).to_string()
}

#[test]
fn missing_image_builder_is_named_with_its_package() {
    let installed = InstalledImage::new(&[hoist()]);
    fs_err::write(installed.path("image.yaml"), document()).expect("written");
    let (_, said) = installed.ends(Exit::Failed, &["image", "build", "-f", "image.yaml"]);
    assert!(said.contains("image builder") && said.contains("`hoist-image`"), "{said}");
}

#[test]
fn system_image_is_built_and_becomes_artifacts() {
    let installed = InstalledImage::new(&[hoist(), &builder()]);
    fs_err::write(installed.path("image.yaml"), document()).expect("written");
    let build = ["image", "build", "-f", "image.yaml"];
    let with = |more: &[&'static str]| [&build[..], more].concat();

    let (shown, _) = installed.ends(Exit::WouldChange, &with(&["--dry-run", "-o", "name"]));
    assert!(shown.starts_with("os-small-live\n"), "{shown}");
    assert!(!installed.path("small.image").exists());

    // No controller listens, which is detected before the build.
    installed.ends(Exit::Failed, &with(&["--add"]));
    assert!(!installed.path("small.image").exists());

    let (shown, told) = installed.ends(Exit::Done, &with(&["-o", "json"]));
    assert!(told.contains("making the live image"), "{told}");
    let index: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(index["files"][0]["artifact"], "os-small-live");

    let controller = Controller::start(&installed.path("data"), &[]);
    let (_, told) = installed.ends(Exit::Done, &with(&["--add"]));
    assert!(told.contains("`artifact:os-small-live`, `artifact:os-small-kernel`"), "{told}");
    let artifacts: Value =
        serde_json::from_str(&controller.does(&["artifact", "list", "-o", "json"])).expect("JSON");
    let mut known = artifacts.as_array().expect("a list").iter();
    let known = known.find(|known| known["name"] == "os-small-live").expect("added");
    assert_eq!(known["sha256"], index["files"][0]["sha256"]);
    // Existing artifacts are not added twice.
    installed.ends(Exit::Done, &["image", "add", "small.image"]);

    // A file was changed since the build.
    fs_err::write(installed.path("small.image/kernel"), "another").expect("written");
    let (_, said) = installed.ends(Exit::Refused, &["image", "add", "small.image", "--replace"]);
    assert!(said.contains("does not match its index"), "{said}");
}

#[test]
fn artifact_of_a_packed_image_has_the_unpacked_size_and_digest() {
    let installed = InstalledImage::new(&[hoist()]);
    let controller = Controller::start(&installed.path("data"), &[]);
    fs_err::create_dir(installed.path("made")).expect("created");
    let unpacked = json!({"size": 4096, "sha256": "ef".repeat(32)});
    let write = |content: &str, unpacked: &Value| {
        fs_err::write(installed.path("made/root.ext4.zst"), content).expect("written");
        let digest = Command::new("sha256sum").arg(installed.path("made/root.ext4.zst")).output();
        let digest = String::from_utf8(digest.expect("coreutils").stdout).expect("text");
        let mut file = json!({"file": "root.ext4.zst", "artifact": "os-made-root",
            "size": content.len(), "sha256": digest[..64]});
        if !unpacked.is_null() {
            file["unpacked"] = unpacked.clone();
        }
        let index = json!({"name": "made", "kernel_args": [], "made_from": [], "files": [file]});
        fs_err::write(installed.path("made/index.json"), index.to_string()).expect("written");
    };
    let shown = || {
        let listed = controller.does(&["artifact", "list", "-o", "json"]);
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        listed[0]["unpacked"].clone()
    };
    write("packed", &unpacked);
    installed.ends(Exit::Done, &["image", "add", "made"]);
    assert_eq!(shown(), unpacked);
    // The same content without its index keeps them, and another content does not.
    let name = ["--name", "os-made-root"];
    installed.ends(Exit::Done, &[&["artifact", "add", "made/root.ext4.zst"], &name[..]].concat());
    assert_eq!(shown(), unpacked);
    let exported = controller.does(&["get", "artifact", "os-made-root", "-o", "json"]);
    assert!(exported.contains("\"unpacked\""), "{exported}");
    write("other", &Value::Null);
    installed.ends(Exit::Done, &["image", "add", "made", "--replace"]);
    assert_eq!(shown(), Value::Null);
}

#[test]
fn image_of_others_is_unpacked_beside_its_file() {
    let installed = InstalledImage::new(&[hoist(), &builder()]);
    let bytes = [vec![7; 5000], vec![0; 3 << 20]].concat();
    fs_err::write(installed.path("disk.img"), &bytes).expect("written");
    let packed = Command::new("gzip").arg("disk.img").current_dir(installed.dir.path()).status();
    assert!(packed.expect("gzip starts").success());

    let (shown, _) = installed.ends(Exit::Done, &["image", "unpack", "disk.img.gz"]);
    assert!(shown.contains(&format!("{} bytes, sha256:", bytes.len())), "{shown}");
    assert!(fs_err::read(installed.path("disk.img")).expect("unpacked") == bytes);
    // An existing file is never replaced.
    installed.ends(Exit::Refused, &["image", "unpack", "disk.img.gz"]);
    let out = ["image", "unpack", "disk.img.gz", "--out", "other.img", "-o", "json"];
    let (shown, _) = installed.ends(Exit::Done, &out);
    let unpacked: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(unpacked["size"], bytes.len());
    assert!(fs_err::read(installed.path("other.img")).expect("unpacked") == bytes);
}

#[test]
fn document_errors_end_with_the_code_of_the_builder() {
    let installed = InstalledImage::new(&[hoist(), &builder()]);
    fs_err::write(installed.path("image.yaml"), document().replace("cpio", "iso"))
        .expect("written");
    let (_, said) = installed.ends(Exit::Usage, &["image", "build", "-f", "image.yaml"]);
    assert!(said.contains("image.yaml:1:"), "{said}");
    let (_, said) = installed.ends(Exit::Failed, &["image", "add", "nowhere"]);
    assert!(said.contains("nowhere/index.json"), "{said}");
    fs_err::create_dir(installed.path("bad")).expect("created");
    for (text, why) in [
        ("{}", "missing field"),
        (
            r#"{"name":"x","kernel_args":[],"made_from":[],"files":[{"file":"../image.yaml",
            "artifact":"x","size":1,"sha256":"0000000000000000000000000000000000000000000000000000000000000000"}]}"#,
            "other directories",
        ),
    ] {
        fs_err::write(installed.path("bad/index.json"), text).expect("written");
        let (_, said) = installed.ends(Exit::Usage, &["image", "add", "bad"]);
        assert!(said.contains(why), "{said}");
    }
}
