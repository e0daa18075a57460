//! What machines boot by stays when everything behind the controller goes: the store, SMD, both, and
//! the controller itself in that state. With real processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hoist_site::last_good;
use hoist_testkit::controller_process::{Answer, Controller, share_key};
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::eventually;
use hoist_testkit::smd::{Mode, Smd, SmdSet};
use hoist_testkit::stores::fresh_name;

const NODES: u32 = 40;

/// The node with a BSS record of its own.
const RECORDED: u32 = 1;

const SCRIPT: &str = "/boot/v1/bootscript";
const PARAMETERS: &str = "/boot/v1/bootparameters";
const HISTORY: &str = "/boot/v1/endpoint-history?endpoint=bootscript";

/// What fails during a test.
#[derive(Debug, Clone, Copy)]
struct Outage {
    store: Option<Store>,
    smd_hangs: bool,
}

#[derive(Debug, Clone, Copy)]
enum Store {
    /// No process listens.
    Stopped,
    /// Connections stay open without answers.
    Hanging,
}

/// A controller that imports its nodes from SMD and keeps them in etcd.
struct Site {
    dir: tempfile::TempDir,
    etcd: EtcdServer,
    store: String,
    runtime: tokio::runtime::Runtime,
    smd: Smd,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        // A write that hears nothing from the store ends with the request, which is soon.
        let config = "[import]\nevery = '1s'\n[limits]\nrequest_seconds = 3\n";
        std::fs::write(dir.path().join("hoist.toml"), config).expect("a file");
        let etcd = EtcdServer::start();
        let store = etcd.url(&fresh_name());
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let smd = runtime.block_on(Smd::start(SmdSet::synthetic(NODES)));
        Self { dir, etcd, store, runtime, smd }
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn start(&self) -> Controller {
        let config = self.dir.path().join("hoist.toml").display().to_string();
        let more = ["--store", &self.store, "--inventory", &self.smd.url(), "--config", &config];
        Controller::start(&self.data_dir(), &more)
    }

    fn begin(&self, outage: Outage) {
        if outage.smd_hangs {
            self.smd.set_mode(Mode::Hang);
            let before = self.smd.requests();
            eventually("importer hangs", || self.smd.requests() > before);
        }
        match outage.store {
            Some(Store::Stopped) => self.etcd.stop(),
            Some(Store::Hanging) => self.etcd.freeze(),
            None => {}
        }
    }

    fn end(&self, outage: Outage) {
        self.smd.set_mode(Mode::Normal);
        match outage.store {
            Some(Store::Stopped) => self.etcd.resume(),
            Some(Store::Hanging) => self.etcd.thaw(),
            None => {}
        }
    }

    /// Waits until a restart without the store would find everything.
    fn copy_is_current(&self, revision: u64) {
        let copy = self.data_dir().join("roster.snapshot");
        eventually("last-good copy is current", || {
            last_good::read(&copy).is_ok_and(|(roster, _)| roster.revision() >= revision)
        });
    }

    fn finish(self) {
        self.runtime.block_on(self.smd.stop());
    }
}

/// What every machine gets, and how long the slowest waited.
#[derive(Debug)]
struct Scripts {
    texts: BTreeMap<String, String>,
    slowest: Duration,
}

fn scripts(controller: &Controller) -> Scripts {
    let mut scripts = Scripts { texts: BTreeMap::new(), slowest: Duration::ZERO };
    for n in 0..NODES {
        for who in [format!("mac={}", SmdSet::mac(n, 0)), format!("name={}", SmdSet::xname(n))] {
            let answer = controller.get(&format!("{SCRIPT}?{who}"));
            assert_eq!(answer.status, 200, "{who}: {answer:?}");
            scripts.slowest = scripts.slowest.max(answer.took);
            // The port is another one after a restart.
            let text = answer.body.replace(&controller.port().to_string(), "PORT");
            scripts.texts.insert(who, text);
        }
    }
    // In BSS an unknown machine makes every client wait for the inventory.
    let machine = controller.get(&format!("{SCRIPT}?mac=52:54:00:ff:ff:ff"));
    assert!(machine.status == 200 && machine.body.contains("sleep "), "{machine:?}");
    scripts.slowest = scripts.slowest.max(machine.took);
    scripts
}

fn fill(controller: &Controller, dir: &Path) {
    eventually("nodes are imported", || controller.nodes().len() == NODES as usize);
    let config = "api: hoist/v1\nkind: BootConfig\nname: all\nspec: \
        {selector: '*', kernel: 'http://images/vmlinuz', initrd: ['http://images/initrd'], \
        params: quiet}\n";
    let file = dir.join("config.yaml");
    std::fs::write(&file, config).expect("a file to apply");
    let affects = NODES.to_string();
    controller.does(&["apply", "-f", &file.display().to_string(), "--affects", &affects]);
    let answer = put(controller, &SmdSet::xname(RECORDED), "http://images/of-its-own");
    assert_eq!(answer.status, 200, "{answer:?}");
}

fn put(controller: &Controller, host: &str, kernel: &str) -> Answer {
    let body = format!(r#"{{"hosts":["{host}"],"kernel":"{kernel}"}}"#);
    controller.ask("PUT", PARAMETERS, Some(&controller.admin_token()), &body)
}

fn revision(controller: &Controller) -> u64 {
    let status = controller.hoist(&["status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    status["revision"].as_u64().expect("a number")
}

fn storage_says(controller: &Controller) -> (u16, bool) {
    let answer = controller.get("/boot/v1/service/storage/status");
    (answer.status, answer.body.contains(r#""status":"connected""#))
}

/// Everything that has to hold in the middle of outage.
fn goes_on(controller: &Controller, outage: Outage, healthy: &Scripts) {
    let now = std::thread::scope(|scope| {
        if outage.smd_hangs {
            // In BSS this makes every client wait too.
            scope.spawn(|| controller.ask("POST", "/boot/v1/hosts", None, ""));
        }
        scripts(controller)
    });
    assert_eq!(now.texts, healthy.texts, "{outage:?}");
    // A request that waits for the store or for SMD takes seconds.
    let allowed = healthy.slowest * 10 + Duration::from_millis(500);
    assert!(now.slowest < allowed, "{outage:?}: {:?} after {:?}", now.slowest, healthy.slowest);
    assert_eq!(controller.nodes().len(), NODES as usize, "{outage:?}");

    if outage.store.is_none() {
        assert_eq!(storage_says(controller), (200, true));
        let written = put(controller, "A-role-nobody-has", "http://images/other");
        assert_eq!(written.status, 200, "{written:?}");
        return;
    }
    let refused = put(controller, &SmdSet::xname(RECORDED), "http://images/never-written");
    assert_eq!(refused.status, 503, "{outage:?}: {refused:?}");
    eventually("storage is reported as away", || storage_says(controller) == (500, false));
    assert_eq!(scripts(controller).texts, healthy.texts, "a refused write changed something");
}

fn survive(outage: Outage) {
    let site = Site::new();
    let controller = site.start();
    fill(&controller, site.dir.path());
    let healthy = scripts(&controller);
    let recorded = SmdSet::xname(RECORDED);
    let of_its_own = &healthy.texts[&format!("name={recorded}")];
    assert!(of_its_own.contains("http://images/of-its-own"), "{of_its_own}");
    site.copy_is_current(revision(&controller));

    site.begin(outage);
    goes_on(&controller, outage, &healthy);
    controller.kill();
    let controller = site.start();
    goes_on(&controller, outage, &healthy);

    site.end(outage);
    eventually("write succeeds again", || {
        put(&controller, &recorded, "http://images/after").status == 200
    });
    eventually("storage is reported as back", || storage_says(&controller) == (200, true));
    let mut after = scripts(&controller).texts;
    let mut before = healthy.texts;
    for who in [format!("name={recorded}"), format!("mac={}", SmdSet::mac(RECORDED, 0))] {
        let changed = after.remove(&who).expect("it was asked for");
        assert!(changed.contains("http://images/after"), "{changed}");
        before.remove(&who);
    }
    assert_eq!(after, before);
    assert_eq!(controller.nodes().len(), NODES as usize);
    drop(controller);
    site.finish();
}

#[test]
fn boots_go_on_while_the_store_is_stopped() {
    survive(Outage { store: Some(Store::Stopped), smd_hangs: false });
}

#[test]
fn boots_go_on_while_smd_hangs() {
    survive(Outage { store: None, smd_hangs: true });
}

#[test]
fn boots_go_on_while_the_store_and_smd_hang() {
    survive(Outage { store: Some(Store::Hanging), smd_hangs: true });
}

/// When each node last asked, in seconds.
fn history(controller: &Controller) -> BTreeMap<String, i64> {
    let answer = controller.get(HISTORY);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&answer.body).expect("a list");
    let row = |row: &serde_json::Value| {
        Some((row["name"].as_str()?.to_owned(), row["last_epoch"].as_i64()?))
    };
    rows.iter().map(|one| row(one).expect("a row")).collect()
}

#[test]
fn killed_controller_loses_only_the_last_of_its_history() {
    /// The promised flush interval, with a margin for a busy machine.
    const FLUSHED_WITHIN: Duration = Duration::from_secs(5 + 15);
    let site = Site::new();
    let one = site.start();
    let dir = site.dir.path().join("two");
    share_key(&site.data_dir(), &dir);
    let two = Controller::start(&dir, &["--store", &site.store]);
    fill(&one, site.dir.path());
    let before = scripts(&one).texts;
    let asked = Instant::now();
    let all = history(&one);
    assert_eq!(all.len(), NODES as usize, "one row for each node, however it asks");

    eventually("second controller reads the flushed history", || history(&two) == all);
    assert!(asked.elapsed() < FLUSHED_WITHIN, "{:?}", asked.elapsed());
    scripts(&one);
    let newest = history(&one);
    one.kill();

    let one = site.start();
    eventually("flushed history is there", || history(&one).len() == NODES as usize);
    for (name, last) in history(&one) {
        assert!(last >= all[&name] && last <= newest[&name], "{name}: {last}");
    }
    assert_eq!(scripts(&one).texts, before);
    assert_eq!(one.nodes().len(), NODES as usize);
    drop((one, two));
    site.finish();
}
