//! Runs go on when their controller is killed: on nodes that are reached by ssh, and on another
//! controller of the same store. With real processes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hoist_model::Exit;
use hoist_testkit::controller_process::{Controller, share_key};
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::eventually;
use hoist_testkit::sshd::SshServer;
use hoist_testkit::stores::fresh_name;
use serde_json::Value;

const NODES: &str = "api: hoist/v1\nkind: Node\nname: far1\nspec: {interfaces: \
    [{name: eth0, mac: '02:00:00:00:00:01', addresses: [127.0.0.1/8]}]}\n";

/// How soon another controller has the runs of a killed one.
const TAKEOVER: Duration = Duration::from_secs(10);

/// The second waits for a file, and none may be done twice.
const TASKS: &str = "hoist: 1
tasks:
  first: {on: '*', repeat: never, run: {shell: 'echo x >> $HOME/first'}}
  slow:
    on: '*'
    requires: [first]
    repeat: never
    run: {shell: 'echo x >> $HOME/slow; until test -e $HOME/go; do sleep 0.1; done; echo the end; touch $HOME/over'}
  last: {on: '*', requires: [slow], repeat: never, run: {shell: 'echo x >> $HOME/last'}}
";

/// A site whose nodes are one sshd, on this machine.
struct Far {
    dir: tempfile::TempDir,
    sshd: SshServer,
}

impl Far {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let sshd = SshServer::start();
        let config = format!(
            "[deploy]\nssh = '*'\nssh_key = '{}'\nssh_port = {}\nssh_known_hosts = '{}'\n",
            sshd.key().display(),
            sshd.port(),
            sshd.known_hosts().display(),
        );
        // SSH logs in as the user of the test.
        let config = match std::env::var("USER") {
            Ok(user) => format!("{config}ssh_user = {user:?}\n"),
            Err(_) => config,
        };
        for (name, text) in [("hoist.toml", &*config), ("nodes.yaml", NODES), ("site.yaml", TASKS)]
        {
            fs_err::write(dir.path().join(name), text).expect("a file");
        }
        Self { dir, sshd }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn data_dir(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self, data_dir: &Path, store: Option<&str>) -> Controller {
        let config = self.path("hoist.toml");
        let mut more = vec!["--config", &config];
        more.extend(store.iter().flat_map(|store| ["--store", store]));
        Controller::start(data_dir, &more)
    }

    /// Starts the run and returns its id when its second task is running.
    fn begin(&self, controller: &Controller) -> String {
        controller.does(&["apply", "-f", &self.path("nodes.yaml"), "--yes"]);
        let run = controller.does(&["deploy", "run", &self.path("site.yaml"), "--detach"]);
        eventually("task has started", || self.sshd.file("slow").exists());
        run.trim().to_owned()
    }

    /// Waits for the end of the run; everything was done once.
    fn ends(&self, controller: &Controller, run: &str) {
        let watched = controller.hoist(&["deploy", "watch", run]);
        assert_eq!(watched.status.code(), Some(0), "{watched:?}");
        let shown = controller.does(&["deploy", "show", run, "-o", "json"]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        for one in shown["instances"].as_array().expect("a list") {
            assert_eq!((&one["state"], &one["attempt"]), (&"ok".into(), &1.into()), "{one}");
        }
        self.was_done_once();
    }

    fn was_done_once(&self) {
        for name in ["first", "slow", "last"] {
            let times = fs_err::read_to_string(self.sshd.file(name)).expect("it was done");
            assert_eq!(times, "x\n", "{name}");
        }
    }
}

#[test]
fn remote_task_survives_a_killed_controller() {
    let far = Far::new();
    let data_dir = far.data_dir("data");
    let controller = far.start(&data_dir, None);
    let run = far.begin(&controller);
    controller.kill();
    fs_err::write(far.sshd.file("go"), "").expect("a file");
    eventually("task ended without a controller", || far.sshd.file("over").exists());
    let controller = far.start(&data_dir, None);
    far.ends(&controller, &run);
    let printed = controller.does(&["deploy", "show", &run, "slow@far1"]);
    assert!(printed.contains("the end"), "{printed}");
}

#[test]
fn second_controller_takes_over_the_run_of_a_killed_one() {
    let far = Far::new();
    let store = EtcdServer::shared().url(&fresh_name());
    let dirs = ["one", "two"].map(|name| far.data_dir(name));
    let first = far.start(&dirs[0], Some(&store));
    share_key(&dirs[0], &dirs[1]);
    let second = far.start(&dirs[1], Some(&store));
    let run = far.begin(&first);
    let shown: Value =
        serde_json::from_str(&second.does(&["deploy", "show", "last", "-o", "json"]))
            .expect("JSON");
    assert_eq!(shown["id"], *run, "{shown}");
    first.kill();
    let killed = Instant::now();
    // Its lease ends, and the task goes on meanwhile.
    eventually("second controller has the run", || {
        let events = second.does(&["events", "-o", "json"]);
        events.lines().any(|event| event.contains("deploy.run.taken_over") && event.contains(&run))
    });
    let took = killed.elapsed();
    assert!(took < TAKEOVER, "{took:?}");
    let shown = second.does(&["deploy", "show", &run, "-o", "json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown["running"][0]["name"], "slow@far1", "{shown}");
    fs_err::write(far.sshd.file("go"), "").expect("a file");
    far.ends(&second, &run);
    // One that comes back finds that.
    let first = far.start(&dirs[0], Some(&store));
    eventually("first controller knows the end of the run", || {
        let listed = first.does(&["deploy", "list", "-o", "json"]);
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        listed[0]["id"] == *run && listed[0]["state"] == "ended"
    });
    far.was_done_once();
}

#[test]
fn run_is_watched_and_stopped_through_another_controller() {
    let far = Far::new();
    let store = EtcdServer::shared().url(&fresh_name());
    let dirs = ["one", "two"].map(|name| far.data_dir(name));
    let first = far.start(&dirs[0], Some(&store));
    share_key(&dirs[0], &dirs[1]);
    let second = far.start(&dirs[1], Some(&store));
    let run = far.begin(&first);
    let watched = std::thread::scope(|scope| {
        let watching = scope.spawn(|| second.hoist(&["deploy", "watch", &run]));
        second.does(&["deploy", "stop", &run]);
        fs_err::write(far.sshd.file("go"), "").expect("a file");
        watching.join().expect("it does not panic")
    });
    let shown = String::from_utf8_lossy(&watched.stdout);
    assert_eq!(watched.status.code(), Some(Exit::Stopped.code().into()), "{watched:?}");
    assert!(shown.contains("slow@far1") && shown.contains("stopped"), "{shown}");
    assert!(!far.sshd.file("last").exists(), "nothing new started");
    for controller in [&first, &second] {
        let stopped = controller.hoist(&["deploy", "watch", &run]);
        assert_eq!(stopped.status.code(), watched.status.code(), "{stopped:?}");
    }
}
