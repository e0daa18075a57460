//! `hoist boot`, `hoist node discovered` and `hoist node adopt`, with the real program against a
//! whole controller in this process.

use std::path::PathBuf;
use std::process::Output;

use hoist_model::Exit;
use hoist_server::controller::{Config, Controller};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Site {
    controller: Controller,
    data_dir: PathBuf,
    dir: tempfile::TempDir,
}

const SITE: &str = "\
api: hoist/v1
kind: Node
name: n1
spec:
  role: compute
  nid: 1
  interfaces: [{name: eth0, mac: '52:54:00:00:00:01', addresses: [10.1.0.1/16]}]
---
api: hoist/v1
kind: Node
name: n2
spec:
  role: login
  interfaces: [{name: eth0, mac: '52:54:00:00:00:02', addresses: [10.1.0.2/16]}]
---
api: hoist/v1
kind: BootConfig
name: base
spec: {selector: '*', kernel: 'http://k/base', params: quiet}
---
api: hoist/v1
kind: BootConfig
name: compute
spec: {selector: 'role:compute', kernel: 'http://k/compute', initrd: ['http://i'], params: console=ttyS0}
---
api: hoist/v1
kind: BootConfig
name: rescue
spec: {selector: 'label:none', kernel: 'http://k/rescue'}
---
api: hoist/v1
kind: BootConfig
name: installer
spec: {selector: 'role:login', kernel: 'http://k/installer', mode: install}
";

impl Site {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory for temporary files");
        let data_dir = dir.path().join("data");
        let mut config = Config::new(&data_dir);
        config.listen = Some("127.0.0.1:0".parse().expect("an address"));
        config.proxies = ["127.0.0.1/32".parse().expect("a network")].into_iter().collect();
        let controller = Controller::start(config).await.expect("the controller starts");
        let site = Self { controller, data_dir, dir };
        let file = site.file("site.yaml", SITE);
        site.does(&["apply", "-f", &file]).await;
        site
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs_err::write(&path, text).expect("a file can be written");
        path.display().to_string()
    }

    async fn run(&self, words: &[&str]) -> Output {
        tokio::process::Command::new(env!("CARGO_BIN_EXE_hoist"))
            .args(words)
            .env_clear()
            .env("HOIST_DATA_DIR", &self.data_dir)
            .output()
            .await
            .expect("the binary was built for this test")
    }

    /// Runs a command that must end with this code, and returns its standard output and error.
    async fn ends(&self, exit: Exit, words: &[&str]) -> (String, String) {
        let output = self.run(words).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(i32::from(exit.code())), "{words:?}: {text}{told}");
        (text, told)
    }

    async fn does(&self, words: &[&str]) -> String {
        self.ends(Exit::Done, words).await.0
    }

    /// As firmware asks: one plain request, from the node's address where the MAC is one of a node.
    async fn machine(&self, query: &str) -> String {
        let from = match query.get(.."mac=52:54:00:00:00:01".len()) {
            Some("mac=52:54:00:00:00:01") => "X-Forwarded-For: 10.1.0.1\r\n",
            Some("mac=52:54:00:00:00:02") => "X-Forwarded-For: 10.1.0.2\r\n",
            _ => "",
        };
        let addr = self.controller.plain_addr().expect("it listens");
        let mut stream = tokio::net::TcpStream::connect(addr).await.expect("it answers");
        let request = format!(
            "GET /boot/v1/bootscript?{query} HTTP/1.1\r\nHost: {addr}\r\nUser-Agent: iPXE/1.21\r\n\
             {from}Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("it listens");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("an answer");
        text
    }

    fn revision(&self) -> String {
        self.controller.registry().roster().revision().to_string()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_decision_is_explained_shown_and_recorded() {
    let site = Site::start().await;
    let text = site.does(&["boot", "explain", "n1"]).await;
    assert!(text.starts_with("n1 boots compute\n"), "{text}");
    for part in [
        "chosen: compute because `role:compute` names a role, at priority 0",
        "a role is more specific than everything",
        "kernel  http://k/compute",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for (word, from) in [
        ("console=ttyS0", "params"),
        ("BOOTIF=01-52-54-00-00-00-01", "asked"),
        ("ds=nocloud;s=http://", "cloud-init"),
    ] {
        let tells = |line: &str| line.starts_with(word) && line.trim_end().ends_with(from);
        assert!(text.lines().any(tells), "{word} {from}: {text}");
    }
    let json: Value =
        serde_json::from_str(&site.does(&["boot", "explain", "1", "-o", "json"]).await)
            .expect("JSON");
    assert_eq!((&json["node"], &json["doing"]), (&"n1".into(), &"boot".into()));
    assert!(
        site.does(&["boot", "explain", "n2"]).await.starts_with("n2 is installed by installer\n")
    );
    site.ends(Exit::Failed, &["boot", "explain", "n9"]).await;

    let list = site.does(&["boot", "list"]).await;
    assert!(list.contains("compute    role:compute  0         1      live"), "{list}");
    assert!(site.does(&["boot", "list", "-o", "wide"]).await.contains("http://k/compute"));
    assert!(site.does(&["boot", "show", "compute"]).await.contains("http://k/compute"));
    assert_eq!(
        site.does(&["get", "bootconfigs", "-o", "name"]).await,
        "BootConfig/base\nBootConfig/compute\nBootConfig/installer\nBootConfig/rescue\n"
    );
    let document = site.does(&["get", "bootconfig", "compute", "-o", "yaml"]).await;
    site.does(&["diff", "-f", &site.file("config.yaml", &document)]).await;

    let (_, told) = site.ends(Exit::Done, &["boot", "history", "n1"]).await;
    assert!(told.contains("n1 has not asked yet"), "{told}");
    assert!(site.machine("mac=52:54:00:00:00:01").await.contains("http://k/compute"));
    assert!(site.does(&["boot", "history", "n1"]).await.contains("bootscript"));

    let before = site.revision();
    let shown = site.does(&["boot", "script", "n1"]).await;
    assert!(shown.starts_with("#!ipxe\nkernel --name kernel http://k/compute "), "{shown}");
    let change = SITE.replace("http://k/compute", "http://k/newer");
    site.does(&["apply", "-f", &site.file("newer.yaml", &change)]).await;
    assert!(site.does(&["boot", "script", "n1"]).await.contains("http://k/newer"));
    assert_eq!(site.does(&["boot", "script", "n1", "--at", &before]).await, shown);
    let (_, told) = site.ends(Exit::Usage, &["boot", "script", "n1", "--at", "9999"]).await;
    assert!(told.contains("9999"), "{told}");
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_change_is_assessed_and_exits_like_diff() {
    let site = Site::start().await;
    let same = site.file("same.yaml", SITE);
    let (_, told) = site.ends(Exit::Done, &["boot", "diff", "-f", &same]).await;
    assert_eq!(told, "no node boots differently\n");
    let change = site.file("change.yaml", &SITE.replace("http://k/compute", "http://k/newer"));
    let (text, told) = site.ends(Exit::Failed, &["boot", "diff", "-f", &change]).await;
    assert_eq!(
        (text.as_str(), told.as_str()),
        ("~ n1: compute with another kernel or initrd\n", "1 boot another configuration\n")
    );
    let words = site.file("words.yaml", &SITE.replace("console=ttyS0", "console=tty0"));
    let (text, _) = site.ends(Exit::Failed, &["boot", "diff", "-f", &words]).await;
    assert_eq!(text, "~ n1: compute with another command line or script\n");
    let broken = site.file("broken.yaml", "api: hoist/v1\nkind: BootConfig\nname: x\nspec: {}\n");
    site.ends(Exit::Usage, &["boot", "diff", "-f", &broken]).await;
    let looping = "api: hoist/v1\nkind: BootConfig\nname: x\nspec:\n  selector: '*'\n  template: |\n    \
        #!ipxe\n    {% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}\n";
    let looping = site.file("looping.yaml", looping);
    let revision = site.revision();
    let (_, told) = site.ends(Exit::Usage, &["apply", "-f", &looping]).await;
    assert!(told.contains("BootConfig x: template: line 2") && told.contains("`n1`"), "{told}");
    assert_eq!(site.revision(), revision);
    assert!(site.machine("mac=52:54:00:00:00:01").await.contains("http://k/compute"));
    // No server is no difference.
    let gone = ["boot", "diff", "-f", &same, "--server", "http://127.0.0.1:1"];
    site.ends(Exit::Usage, &gone).await;
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_boot_decisions_are_set_by_commands() {
    let site = Site::start().await;
    let hold = ["boot", "set", "node:n1", "hold", "--reason", "new DIMM"];
    site.ends(Exit::WouldChange, &[&hold[..], &["--dry-run"]].concat()).await;
    assert!(site.machine("mac=52:54:00:00:00:01").await.contains("http://k/compute"));
    let (_, told) = site.ends(Exit::Done, &hold).await;
    assert_eq!(told, "1 of 1 nodes changed; 1 boot differently\n");
    assert!(site.machine("mac=52:54:00:00:00:01").await.contains("held: new DIMM"));
    let table = site.does(&["boot", "state"]).await;
    assert!(table.contains("n1    hold  compute  hold (new DIMM), since "), "{table}");
    let all = site.does(&["boot", "state", "*", "-o", "name"]).await;
    assert_eq!(all, "n1\nn2\n");

    // The node boots once as requested, and then waits again.
    site.does(&["boot", "once", "n1", "rescue"]).await;
    assert!(site.machine("mac=52:54:00:00:00:01").await.contains("http://k/rescue"));
    assert!(site.machine("mac=52:54:00:00:00:01&retry=1").await.contains("http://k/rescue"));
    assert!(site.machine("mac=52:54:00:00:00:01").await.contains("held: new DIMM"));
    site.does(&["boot", "once", "n1", "rescue"]).await;
    site.does(&["boot", "once", "n1", "--clear"]).await;
    assert!(site.machine("mac=52:54:00:00:00:01").await.contains("held: new DIMM"));
    site.does(&["boot", "set", "node:n1", "auto"]).await;
    assert!(site.machine("mac=52:54:00:00:00:01").await.contains("http://k/compute"));

    // Installed, it is not installed again by a slip of the hand.
    assert!(site.machine("mac=52:54:00:00:00:02").await.contains("http://k/installer"));
    site.does(&["boot", "set", "node:n2", "disk"]).await;
    assert!(site.machine("mac=52:54:00:00:00:02").await.contains("sanboot"));
    let (_, told) = site.ends(Exit::Refused, &["boot", "set", "node:n2", "install"]).await;
    assert!(told.contains("--reinstall"), "{told}");
    site.does(&["boot", "set", "node:n2", "auto"]).await;
    assert!(site.machine("mac=52:54:00:00:00:02").await.contains("sanboot"));
    site.does(&["boot", "set", "node:n2", "install", "--reinstall"]).await;
    assert!(site.machine("mac=52:54:00:00:00:02").await.contains("http://k/installer"));

    site.does(&["boot", "set", "-l", "node:n1", "hold"]).await;
    assert_eq!(site.does(&["boot", "state", "-l", "node:n1", "-o", "name"]).await, "n1\n");
    assert!(site.machine("mac=52:54:00:00:00:01").await.contains("held"));
    site.does(&["boot", "set", "auto", "-l", "node:n1"]).await;
    let (audit, _) = site.ends(Exit::Done, &["audit", "list"]).await;
    assert!(audit.contains("(mode, reason: new DIMM)"), "{audit}");

    // There is no profile, so a start is refused, for the same nodes with and without `-l`.
    let start = |nodes: &[&'static str]| [&["provision", "start"], nodes, &["--dry-run"]].concat();
    let (_, by_word) = site.ends(Exit::Refused, &start(&["node:n1"])).await;
    let (_, by_flag) = site.ends(Exit::Refused, &start(&["-l", "node:n1"])).await;
    assert_eq!(by_word, by_flag);
    assert!(by_flag.contains("n1") && !by_flag.contains("n2"), "{by_flag}");

    for (words, exit) in [
        (&["boot", "set", "node:n2", "hold", "-l", "node:n1"][..], Exit::Usage),
        (&["boot", "set", "-l", "node:n1"], Exit::Usage),
        (&["boot", "state", "node:n2", "-l", "node:n1"], Exit::Usage),
        (&["provision", "start", "node:n2", "-l", "node:n1"], Exit::Usage),
        (&["provision", "start"], Exit::Usage),
        (&["boot", "set", "node:n1"], Exit::Usage),
        (&["boot", "set", "node:n1", "reboot"], Exit::Usage),
        (&["boot", "set", "(", "hold"], Exit::Usage),
        (&["boot", "set", "node:n9", "hold"], Exit::Failed),
        (&["boot", "once", "n1", "ghost"], Exit::Usage),
        (&["boot", "set", "node:n1", "--profile", "ghost"], Exit::Usage),
    ] {
        site.ends(exit, words).await;
    }
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_machine_is_found_and_adopted_by_one_command() {
    let site = Site::start().await;
    assert!(site.machine("mac=52:54:00:00:00:09&arch=x86_64&wait=1").await.contains("sleep"));
    let table = site.does(&["node", "discovered", "-o", "wide"]).await;
    assert!(table.contains("52:54:00:00:00:09  x86_64  127.0.0.1"), "{table}");
    assert!(table.contains("iPXE/1.21"), "{table}");
    let adopt = ["node", "adopt", "52:54:00:00:00:09", "--name", "n9", "--role", "compute"];
    let text = site.ends(Exit::WouldChange, &[&adopt[..], &["--dry-run"]].concat()).await.0;
    assert_eq!(text, "would adopt 52:54:00:00:00:09 as node n9, without an address\n");
    site.does(&[&adopt[..], &["--label", "rack=7"]].concat()).await;
    assert_eq!(site.does(&["node", "list", "rack=7", "-o", "name"]).await, "n9\n");
    assert!(site.machine("mac=52:54:00:00:00:09").await.contains("http://k/compute"));
    assert_eq!(site.does(&["node", "discovered", "-o", "name"]).await, "");
    site.ends(Exit::Failed, &adopt).await;

    site.machine("mac=52:54:00:00:00:0a").await;
    site.does(&["node", "discovered", "--forget", "52:54:00:00:00:0a"]).await;
    assert_eq!(site.does(&["node", "discovered", "-o", "name"]).await, "");
    site.controller.stop().await;
}
