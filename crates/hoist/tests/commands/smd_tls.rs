//! An SMD behind TLS whose certificate the machine's own authorities vouch for: no `import.ca`.

use hoist_model::Exit;
use hoist_testkit::controller_process::Controller;
use hoist_testkit::smd::{Smd, SmdSet};
use hoist_testkit::{certificates, eventually};
use tempfile::TempDir;

const NODES: u32 = 4;

struct TlsSmd {
    dir: TempDir,
    smd: Smd,
    _runtime: tokio::runtime::Runtime,
}

impl TlsSmd {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        certificates::write(dir.path());
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let smd = runtime.block_on(Smd::start_tls(SmdSet::synthetic(NODES), dir.path()));
        Self { dir, smd, _runtime: runtime }
    }

    /// As BSS has it in its environment.
    fn url(&self) -> String {
        self.smd.url().replacen("smd+", "", 1)
    }

    /// A controller on a machine where the test's authority is installed.
    fn controller(&self, environment: &[(&str, &str)], more: &[&str]) -> Controller {
        let authority = self.dir.path().join("ca.pem");
        let authority = ("SSL_CERT_FILE", authority.to_str().expect("a path in UTF-8"));
        let more = [&["--listen", "127.0.0.1:0"], more].concat();
        let environment = [environment, &[authority]].concat();
        Controller::start_with(&self.dir.path().join("data"), &environment, &more)
    }
}

fn imports_all(controller: &Controller) {
    eventually("the nodes of SMD are imported", || {
        let nodes = controller.nodes();
        if nodes.len() == NODES as usize { Ok(()) } else { Err(nodes) }
    });
}

#[test]
fn inventory_behind_tls_is_imported_without_a_named_authority() {
    let smd = TlsSmd::start();
    imports_all(&smd.controller(&[], &["--inventory", &smd.smd.url()]));
}

#[test]
fn hsm_url_with_https_is_imported() {
    let smd = TlsSmd::start();
    imports_all(&smd.controller(&[("HSM_URL", &smd.url())], &[]));
}

#[test]
fn import_on_demand_reads_an_smd_behind_tls() {
    let smd = TlsSmd::start();
    let controller = smd.controller(&[], &[]);
    let told = controller.does(&["node", "import", "smd", "--url", &smd.url()]);
    assert!(told.contains(&format!("{NODES} added")), "{told}");
}

#[test]
fn refresh_reads_the_own_source_and_says_what_changed() {
    let smd = TlsSmd::start();
    let controller = smd.controller(&[], &["--inventory", &smd.smd.url()]);
    imports_all(&controller);
    smd.smd.edit(|set| set.component(0)["Role"] = "Application".into());
    let told = controller.does(&["refresh"]);
    assert!(told.contains("0 added, 1 changed, 3 unchanged"), "{told}");
    assert!(told.contains("  ~nid000001"), "{told}");
    // The same by its URL; another source must not have the same name.
    smd.smd.edit(|set| set.component(1)["Role"] = "Application".into());
    let told = controller.does(&["node", "import", "smd", "--url", &smd.url()]);
    assert!(told.contains("1 changed") && told.contains("  ~nid000002"), "{told}");
    let other = controller.hoist(&["node", "import", "smd", "--url", "http://127.0.0.1:1"]);
    let told = String::from_utf8_lossy(&other.stderr).into_owned();
    assert_eq!(other.status.code(), Some(Exit::Refused.code().into()), "{told}");
    assert!(told.contains("hoist refresh"), "{told}");
}

#[test]
fn alarm_of_the_own_source_is_reported_and_forced() {
    let smd = TlsSmd::start();
    let controller = smd.controller(&[], &["--inventory", &smd.smd.url()]);
    imports_all(&controller);
    smd.smd.edit(|set| (0..2).for_each(|n| set.remove(n)));
    controller.does(&["refresh"]);
    for words in [&["refresh"][..], &["status"]] {
        let alarmed = controller.hoist(words);
        let told = [alarmed.stdout, alarmed.stderr].concat();
        let told = String::from_utf8_lossy(&told).into_owned();
        assert_eq!(alarmed.status.code(), Some(Exit::Degraded.code().into()), "{words:?}: {told}");
        assert!(told.contains("2 of 4 nodes are gone"), "{words:?}: {told}");
        assert!(told.contains("run `hoist refresh --force`"), "{words:?}: {told}");
    }
    measures_alarm(&controller, "1");
    let told = controller.does(&["refresh", "--force"]);
    assert!(told.contains("2 removed"), "{told}");
    controller.does(&["status"]);
    measures_alarm(&controller, "0");
}

fn measures_alarm(controller: &Controller, value: &str) {
    let line = format!("hoist_import_alarm {value}");
    eventually("gauge of the import alarm", || {
        let token = controller.admin_token();
        let metrics = controller.ask("GET", "/metrics", Some(&token), "").body;
        if metrics.lines().any(|at| at == line) { Ok(()) } else { Err(metrics) }
    });
}
