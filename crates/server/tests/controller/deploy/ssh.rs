//! Nodes that are reached by ssh: a real sshd.

use std::path::Path;

use hoist_engine::ssh::Login;
use hoist_server::controller::Config;
use hoist_testkit::eventually_async;
use hoist_testkit::sshd::SshServer;
use serde_json::{Value, json};

use crate::deploy::{RUNS, document, mac, plan, start, step, until};
use crate::site::Site;

fn settings(sshd: &SshServer, config: &mut Config) {
    let deploy = &mut config.deploy;
    deploy.ssh = Some("*".parse().expect("a selector"));
    *deploy.ssh_login = Login {
        key: Some(sshd.key()),
        port: Some(sshd.port()),
        known_hosts: Some(sshd.known_hosts()),
        ..Login::default()
    };
    let arguments = ["--ignored", "--exact", "deploy::ssh::work_over_ssh", "--nocapture"];
    deploy.ssh_arguments = arguments.map(str::to_owned).to_vec();
}

/// Not a test: what works on the nodes.
#[test]
#[ignore = "others start it"]
fn work_over_ssh() {
    let _ = hoist_engine::ssh::serve(|_| hoist_deploy::actions::catalog(), None);
}

/// Nodes `n1`, `n2` and `n3`, of which only the first has an address.
async fn far(sshd: &SshServer, change: impl FnOnce(&mut Config)) -> Site {
    let site = Site::start_with(|config| {
        settings(sshd, config);
        change(config);
    })
    .await;
    let node = |n: u32| {
        let addresses = if n == 1 { vec!["127.0.0.1/8"] } else { Vec::new() };
        let interface = json!({"name": "eth0", "mac": mac(n), "addresses": addresses});
        document("Node", &format!("n{n}"), &json!({ "interfaces": [interface] }))
    };
    site.apply(&[node(1), node(2), node(3)]).await;
    site
}

fn lines(sshd: &SshServer, name: &str) -> usize {
    fs_err::read_to_string(sshd.file(name)).unwrap_or_default().lines().count()
}

fn why(ended: &Value) -> &str {
    ended["failures"][0]["reason"].as_str().expect("a reason")
}

#[tokio::test(flavor = "multi_thread")]
async fn run_over_ssh_succeeds_and_keeps_its_output() {
    let sshd = SshServer::start();
    let site = far(&sshd, |_| {}).await;
    let vertices = [
        step("first@n1", 1, "echo x >> $HOME/first", &[]),
        step("last@n1", 1, "echo x >> $HOME/last; cat $HOME/first; echo the end", &[0]),
    ];
    let run = start(&site, &plan(&vertices)).await;
    let ended = until(&site, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    assert_eq!(["first", "last"].map(|name| lines(&sshd, name)), [1, 1]);
    let output = site.get(&format!("{RUNS}/{run}/output/last@n1/1")).await.expect(200);
    assert!(output.text().contains("x\nthe end"), "{}", output.text());
    predicts(&sshd, &site).await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_unreachable_over_ssh_is_named_with_the_reason() {
    let sshd = SshServer::start();
    let site = far(&sshd, |_| {}).await;
    let run = start(&site, &plan(&[step("a@n2", 2, "true", &[])])).await;
    let ended = until(&site, &run, "ended").await;
    assert_eq!(why(&ended), "internal: node `n2` has no address; give an interface one");
    site.stop().await;
    let another = SshServer::start();
    let site = far(&sshd, |config| {
        config.deploy.ssh_login.known_hosts = Some(another.known_hosts());
    })
    .await;
    let run = start(&site, &plan(&[step("a@n1", 1, "touch $HOME/there", &[])])).await;
    let ended = until(&site, &run, "ended").await;
    assert!(why(&ended).contains("Host key verification failed"), "{ended:#}");
    assert!(!sshd.file("there").exists());
    site.stop().await;
}

/// A dry run reports changes and makes none.
async fn predicts(sshd: &SshServer, site: &Site) {
    let home = sshd.file("");
    let path = |name: &str| home.join(name).display().to_string();
    fs_err::write(home.join("page"), "old\n").expect("a file");
    fs_err::write(home.join("same"), "same\n").expect("a file");
    let file = |name: &str, text: &str, mode: &str| {
        let input = json!({"path": path(name), "text": text, "mode": mode});
        let step = json!({"call": {"action": "file", "input": input}, "subject": 0});
        json!({"name": format!("{name}@n1"), "kind": {"step": step}})
    };
    let vertices = [
        file("page", "new\n", "0644"),
        file("same", "same\n", "0644"),
        file("fresh", "fresh\n", "0644"),
        file("hidden", "hidden\n", "0600"),
        step("run@n1", 1, "touch $HOME/there", &[]),
        step("lost@n2", 2, "true", &[]),
    ];
    let body = json!({"title": "test", "plan": plan(&vertices)});
    let answer = site.post(&format!("{RUNS}?dry_run=1&predict=1"), &body).await.expect(200).json();
    let found = &answer["predictions"];
    let diff = |at: usize| found[at]["diff"].as_str().unwrap_or_default();
    assert!(diff(0).ends_with("@@ -1,1 +1,1 @@\n-old\n+new\n"), "{found:#}");
    assert_eq!(found[1]["change"], "none", "{found:#}");
    assert!(diff(2).ends_with("+fresh\n"), "{found:#}");
    assert!(diff(3).contains("does not exist\n(not shown"), "{found:#}");
    assert!(!diff(3).contains("hidden\n"), "{found:#}");
    assert_eq!(found[4]["reason"], "`shell` cannot tell before it is done");
    assert_eq!(found[5]["reason"], "node `n2` has no address; give an interface one");
    for name in ["fresh", "hidden", "there"] {
        assert!(!sshd.file(name).exists(), "{name}");
    }
    assert_eq!(fs_err::read_to_string(sshd.file("page")).expect("a file"), "old\n");
    let runs = || fs_err::read_dir(home.join(".hoist/runs")).expect("a directory").count();
    eventually_async("nothing is left of it", async || runs() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_a_node_says_how_it_is_reached() {
    let sshd = SshServer::start();
    let site = far(&sshd, |config| {
        config.deploy.ssh_keys = sshd.key().parent().map(Path::to_owned);
        config.deploy.ssh_login.key = None;
        config.deploy.ssh_login.port = None;
    })
    .await;
    let ssh = json!({"address": "127.0.0.1", "port": sshd.port(), "key": "user"});
    site.apply(&[document("Node", "n3", &json!({"data": {"ssh": ssh}}))]).await;
    let run = start(&site, &plan(&[step("a@n3", 3, "touch $HOME/there", &[])])).await;
    let ended = until(&site, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    assert!(sshd.file("there").exists());
    site.stop().await;
}
