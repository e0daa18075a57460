//! Documents, and images built from them with the real program.

use std::path::PathBuf;
use std::process::{Command, Output};

use hoist_machine::guest;
use hoist_model::{Exit, ImageIndex};
use hoist_provision::manifest::{ChunkKind, Manifest};
use serde_json::{Value, json};

/// A directory with a document in it.
pub(crate) struct Bench {
    dir: tempfile::TempDir,
    /// The `umask` of the build.
    pub(crate) mask: String,
    /// Where it is run.
    pub(crate) from: PathBuf,
    /// A directory of programs that are found before others.
    pub(crate) programs: Option<PathBuf>,
}

impl Bench {
    pub(crate) fn new(document: &Value) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let bench = Self { dir, mask: "022".to_owned(), from: PathBuf::from("/"), programs: None };
        fs_err::write(bench.path("image.yaml"), document.to_string()).expect("written");
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, words: &[&str]) -> Output {
        // The build inherits only its umask and its directory.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "umask \"$0\"; exec \"$@\"", &self.mask]).current_dir(&self.from);
        command.arg(env!("CARGO_BIN_EXE_hoist-image"));
        command.args(["build", "-o", "json", "-f"]).arg(self.path("image.yaml"));
        command.arg("--out").arg(self.path("out")).args(words);
        if let Some(programs) = &self.programs {
            let path = std::env::var("PATH").unwrap_or_default();
            command.env("PATH", format!("{}:{path}", programs.display()));
        }
        command.env_remove("SOURCE_DATE_EPOCH").output().expect("the binary was built")
    }

    pub(crate) fn ends(&self, exit: Exit, words: &[&str]) -> String {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(exit.code().into()), "{said}");
        said
    }

    pub(crate) fn built(&self) -> ImageIndex {
        self.built_with(&[])
    }

    pub(crate) fn built_with(&self, words: &[&str]) -> ImageIndex {
        self.ends(Exit::Done, words);
        let text = fs_err::read(self.path("out/index.json")).expect("an index");
        serde_json::from_slice(&text).expect("an index")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path("out").join(name)
    }

    /// The file system as it is written to a partition.
    pub(crate) fn root(&self) -> PathBuf {
        self.unpacked("root.ext4", "root.manifest.json")
    }

    /// The whole disk.
    pub(crate) fn disk(&self) -> PathBuf {
        self.unpacked("disk.img", "disk.manifest.json")
    }

    fn unpacked(&self, name: &str, list: &str) -> PathBuf {
        let packed = self.file(&format!("{name}.zst"));
        let list = self.file(list);
        let packed = fs_err::read(packed).expect("packed");
        let list = Manifest::parse(&fs_err::read(list).expect("a list"), None).expect("a list");
        let mut image = Vec::new();
        for chunk in &list.chunks {
            let end = image.len() + chunk.length as usize;
            if let ChunkKind::Data { at, stored, .. } = &chunk.kind {
                let start = usize::try_from(*at).expect("small");
                let frame = &packed[start..start + *stored as usize];
                image.extend(zstd::decode_all(frame).expect("a frame"));
                assert!(chunk.is(&image[image.len() - chunk.length as usize..]));
            }
            image.resize(end, 0);
        }
        let path = self.path(name);
        fs_err::write(&path, image).expect("written");
        path
    }
}

/// The packages that setup has unpacked.
pub(crate) fn tiny(outputs: &Value, kernel_args: &[&str]) -> Value {
    let modules = guest::packages().join("lib/modules");
    let modules = fs_err::read_dir(modules).expect("set up").next().expect("a kernel");
    let modules = modules.expect("readable").path();
    json!({
        "api": "hoist/v1", "kind": "Image", "name": "tiny",
        "spec": {
            "builder": {"tiny": {
                "kernel": {"file": guest::kernel().expect("set up"), "modules": modules},
                "busybox": {"file": guest::packages().join("bin/busybox")},
                "modules": ["vfat", "nls_cp437", "nls_ascii", "ext4"],
            }},
            "files": [{"path": "/etc/motd", "text": "hello\n", "mode": "0600"}],
            "kernel_args": kernel_args,
            "outputs": outputs,
        }
    })
}
