use std::path::PathBuf;

use async_trait::async_trait;
use hoist_site::source::file::FileSource;
use hoist_site::source::{FailureKind, InventorySource};
use tempfile::TempDir;

use crate::conformance::{self, Bench, complete};

struct FileBench {
    directory: TempDir,
    source: FileSource,
    format: Format,
}

#[derive(Clone, Copy)]
enum Format {
    Documents,
    Bss,
    Ochami,
}

impl Format {
    fn text(self, count: u8) -> String {
        match self {
            Self::Documents => {
                let node =
                    |n| format!("api: hoist/v1\nkind: Node\nname: n{n}\nspec: {{nid: {n}}}\n");
                (1..=count).map(node).collect::<Vec<_>>().join("---\n")
            }
            Self::Bss => {
                let nodes: Vec<_> = (1..=count)
                    .map(|n| {
                        serde_json::json!({
                            "ID": format!("x1c0s{n}b0n0"), "NID": n,
                            "MAC": [format!("02:00:00:00:00:{n:02x}")], "EndpointEnabled": true,
                        })
                    })
                    .collect();
                serde_json::json!({"Components": nodes, "IPAddresses": {}}).to_string()
            }
            Self::Ochami => {
                let node = |n| format!("- {{name: n{n}, nid: {n}, xname: x1c0s{n}b0n0}}");
                let nodes: Vec<_> = (1..=count).map(node).collect();
                format!("bmcs: []\nnodes:\n{}\n", nodes.join("\n"))
            }
        }
    }
}

impl FileBench {
    fn new(format: Format) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("inventory");
        let source = FileSource::new("file".parse().unwrap(), path);
        let bench = Self { directory, source, format };
        bench.write(&format.text(2));
        bench
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("inventory")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.path(), text).unwrap();
    }
}

#[async_trait]
impl Bench for FileBench {
    fn source(&self) -> &dyn InventorySource {
        &self.source
    }

    async fn add_node(&self) {
        self.write(&self.format.text(3));
    }

    async fn take_node(&self) {
        self.write(&self.format.text(2));
    }

    fn failures(&self) -> Vec<&'static str> {
        vec!["missing", "directory", "empty", "garbage", "no-nodes"]
    }

    async fn break_it(&self, failure: &'static str) {
        let _ = std::fs::remove_file(self.path());
        match failure {
            "missing" => {}
            "directory" => std::fs::create_dir(self.path()).unwrap(),
            "empty" => self.write(""),
            "garbage" => self.write("}{ \u{0} nonsense: ["),
            "no-nodes" => self.write(&self.format.text(0)),
            other => panic!("{other}"),
        }
    }

    async fn mend_it(&self) {
        let _ = std::fs::remove_dir(self.path());
        self.write(&self.format.text(2));
    }
}

#[tokio::test]
async fn files_of_every_format_are_sources() {
    for format in [Format::Documents, Format::Bss, Format::Ochami] {
        conformance::run(&FileBench::new(format)).await;
    }
}

#[tokio::test]
async fn file_change_with_same_size_and_dates_is_noticed() {
    let bench = FileBench::new(Format::Documents);
    complete(bench.source.fetch().await);
    let before = std::fs::metadata(bench.path()).unwrap().modified().unwrap();
    bench.write(&Format::Documents.text(2).replace("nid: 2", "nid: 9"));
    let file = std::fs::File::options().write(true).open(bench.path()).unwrap();
    file.set_modified(before).unwrap();
    let imported = complete(bench.source.fetch().await);
    assert_eq!(imported.nodes[1].spec.nid.map(hoist_model::Nid::get), Some(9));
}

#[tokio::test]
async fn missing_file_error_names_the_file() {
    let source = FileSource::new("file".parse().unwrap(), "/nowhere/inventory.yaml");
    let error = source.fetch().await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::Local);
    assert_eq!(error.to_string(), "cannot read `/nowhere/inventory.yaml`");
}
