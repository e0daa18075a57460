//! From a boot script to a disk that boots, and the failures in between.

use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::postgres::PostgresServer;
use serde_json::json;

use crate::provision::agent::{Agent, Words, done, failed};
use crate::provision::undo::noise;
use crate::provision::{DIGEST, profile, run, script, site, spec, start, states, until};
use crate::site::{Site, document};

#[tokio::test]
async fn a_node_boots_the_agent_is_provisioned_and_boots_its_disk() {
    let site = site(|_| {}).await;
    assert!(script(&site, 1).await.contains("http://k/live"));
    let revision = site.revision();
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    assert_eq!(states(&run(&site, &id).await), [("n1".to_owned(), "pending".to_owned())]);

    // It boots the agent, and nothing else does.
    let text = script(&site, 1).await;
    let words = Words::of(&text);
    assert!(text.contains(&format!("/artifacts/{DIGEST}/agent-x86_64-kernel ")), "{text}");
    assert!(text.contains(&format!("/artifacts/{DIGEST}/agent-x86_64-initrd ")), "{text}");
    assert!(
        words.has("ip=${netX/ip}::${netX/gateway}:${netX/netmask}:::none:${netX/dns}"),
        "{text}"
    );
    assert!(words.has("BOOTIF=01-${netX/mac:hexhyp}"), "{text}");
    assert!(script(&site, 2).await.contains("http://k/live"));
    until(&site, &id, "n1", "booting").await;
    let explained = site.get("/boot/v2/explain/n1").await.expect(200).json();
    assert_eq!(explained["doing"], "provision");
    assert_eq!(explained["state"]["provisioning"]["run"], id.as_str());
    let told = explained.to_string();
    assert!(told.contains("hoist.token=(token)") && !told.contains(words.get("hoist.token")));

    let agent = Agent::boot(&site, 1, 1).await;
    let session = agent.job(&site).await;
    let job = &session.job;
    assert_eq!((&job["run"], &job["node"]), (&json!(id), &json!("n1")));
    let sections = &job["document"]["sections"];
    assert_eq!(sections["node"]["id"], job["id"]);
    let url = sections["images"]["root"]["sources"][0].as_str().expect("a URL");
    let plain = site.controller.plain_addr().expect("HTTP");
    assert_eq!(url, format!("http://{plain}/artifacts/{DIGEST}/os-root"));
    assert_eq!(sections["images"]["root"]["digest"], format!("sha256:{DIGEST}"));

    assert_eq!(session.says(&site, 1, 1024).await, "continue");
    let node = until(&site, &id, "n1", "working").await;
    assert_eq!(node["progress"]["step"], "image root");
    assert_eq!((&node["progress"]["done"], &node["progress"]["rate"]), (&json!(1024), &json!(512)));
    // In between only messages to this controller are new.
    assert_eq!(session.says(&site, 2, 2048).await, "continue");
    let shown = run(&site, &id).await;
    assert_eq!(shown["nodes"][0]["progress"]["done"], 2048);
    assert_eq!(shown["state"], "running");

    assert_eq!(session.reports(&site, &done()).await, "reboot");
    // An acknowledged report is durable: the node boots its disk now, here and after a restart.
    assert!(script(&site, 1).await.contains("sanboot"));
    let shown = until(&site, &id, "n1", "done").await;
    assert_eq!((&shown["plan"], &shown["changed"]), (&json!("3f9c"), &json!(true)));
    site.eventually(&format!("/provision/v1/runs/{id}"), |a| a.json()["state"] == "done").await;
    assert!(
        site.get("/provision/v1/enrollments").await.expect(200).json()["items"]
            .as_array()
            .is_some_and(Vec::is_empty)
    );
    // An answer that was lost is given again, and changes nothing.
    let settled = site.revision();
    assert!(settled > revision);
    assert_eq!(session.reports(&site, &done()).await, "reboot");
    assert_eq!(site.revision(), settled);
    agent.ask(&site).await.problem(403, "forbidden");

    // Its hardware is known without a change of the site.
    let facts = site.get("/provision/v1/nodes/n1/facts").await.expect(200).json();
    assert_eq!(facts["facts"]["disks"][0]["serial"], "A1");
    site.get("/provision/v1/nodes/n2/facts").await.problem(404, "not-found");
    let entries = site.audit().await;
    assert!(entries.iter().any(|entry| entry.object == "node/n1: job"), "{entries:?}");
    site.stop().await;
}

#[tokio::test]
async fn a_restart_in_the_middle_loses_nothing() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let before = Words::of(&script(&site, 1).await).get("hoist.token").to_owned();
    let site = site.restart().await;
    assert_eq!(Words::of(&script(&site, 1).await).get("hoist.token"), before);
    let agent = Agent::boot(&site, 1, 1).await;
    let session = agent.job(&site).await;
    session.says(&site, 1, 1024).await;
    let site = site.restart().await;
    let node = until(&site, &id, "n1", "working").await;
    assert_eq!(node["progress"]["done"], 1024);
    // The same key gets the same job again, so that it can go on where it was.
    let again = agent.job(&site).await;
    for member in ["run", "session", "id"] {
        assert_eq!(again.job[member], session.job[member]);
    }
    assert_eq!(again.job["document"]["txn"], session.job["document"]["txn"]);
    assert_eq!(session.says(&site, 2, 2048).await, "continue");
    let site = site.restart().await;
    assert_eq!(session.reports(&site, &done()).await, "reboot");
    let site = site.restart().await;
    assert!(script(&site, 1).await.contains("sanboot"));
    assert_eq!(states(&run(&site, &id).await), [("n1".to_owned(), "done".to_owned())]);
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_continues_at_another_controller_of_the_store() {
    for url in [EtcdServer::shared().url("provision"), PostgresServer::shared().url("provision")] {
        Box::pin(goes_on_elsewhere(url)).await;
    }
}

async fn goes_on_elsewhere(url: String) {
    let first = site(|config| config.store = url).await;
    let id = start(&first, &json!({"selector": "node:n1"})).await;
    // The same site has the same key, and the same CA.
    let second = first
        .start_beside(|config| {
            config.tls_listen = Some(([127, 0, 0, 1], 0).into());
            config.proxies = ["127.0.0.1/32".parse().expect("a network")].into_iter().collect();
        })
        .await;
    let token = |text: &str| Words::of(text).get("hoist.token").to_owned();
    let here = token(&script(&first, 1).await);
    assert_eq!(token(&script(&second, 1).await), here);
    let session = Agent::boot(&second, 1, 1).await.job(&second).await;
    assert_eq!(session.says(&first, 1, 1024).await, "continue");
    // A backup is split over several values, and the controller that restores it finds them.
    session.send(&second, "backup", &noise("os")).await.expect(200);
    assert_eq!(session.reports(&second, &done()).await, "reboot");
    until(&first, &id, "n1", "done").await;
    first.post(&format!("/provision/v1/runs/{id}/undo"), &json!({})).await.expect(200);
    let agent = Agent::boot(&first, 1, 2).await;
    let session = agent.job(&first).await;
    assert_eq!(session.job["undo"], json!([noise("os")]));
    assert_eq!(session.reports(&first, &done()).await, "reboot");
    until(&second, &id, "n1", "undone").await;
    second.stop().await;
    first.stop().await;
}

#[tokio::test]
async fn job_and_messages_need_the_token_of_the_node() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1,node:n2"})).await;
    let agent = Agent::boot(&site, 1, 1).await;
    let body = agent.request(&json!({}));
    let plain = site.ask_as_nobody("POST", "/provision/v1/agent/job");
    let plain = plain.header("x-forwarded-for", "10.0.0.1").json(&body).send().await;
    plain.problem(403, "plain-secret");
    let session = agent.job(&site).await;

    // A second key is quarantined, and people see it.
    Agent::boot(&site, 1, 2).await.ask(&site).await.problem(403, "forbidden");
    let noted = until(&site, &id, "n1", "working").await;
    assert!(noted["note"].as_str().is_some_and(|note| note.contains("another key")), "{noted}");

    let other = Agent::boot(&site, 2, 3).await.job(&site).await;
    let others = other.job["session"].as_str().expect("a session").to_owned();
    let own = session.job["session"].as_str().expect("a session").to_owned();
    // The session of another node is valid, but for that node only.
    session.send_as(&site, Some(&others), "events").await.expect(200);
    let forged = own.replacen(
        own.split('.').next().expect("a node"),
        others.split('.').next().expect("a node"),
        1,
    );
    for wrong in [None, Some(""), Some("x"), Some(forged.as_str()), Some(&own[..own.len() - 1])] {
        session.send_as(&site, wrong, "events").await.problem(403, "forbidden");
        session.send_as(&site, wrong, "report").await.problem(403, "forbidden");
    }
    let path = "/provision/v1/agent/runs/nothere/events";
    let elsewhere = site.ask_as_nobody("POST", path).json(&json!({"events": []})).send().await;
    elsewhere.problem(403, "plain-secret");
    site.stop().await;
}

#[tokio::test]
async fn node_without_a_job_or_an_agent_waits() {
    let site = site(|_| {}).await;
    let enrolled =
        site.ask("POST", "/provision/v1/nodes/n3/enrollment").send().await.expect(200).json();
    assert!(
        script(&site, 3).await.contains("http://k/live"),
        "enrolled by hand, it boots as before"
    );
    let problem = Agent::with(&enrolled, "10.0.0.3").ask(&site).await.problem(409, "conflict");
    assert!(problem.detail.contains("no provisioning job for node `n3`"), "{problem:?}");

    let mut arm = spec(4);
    arm["arch"] = json!("aarch64");
    site.apply(&[document("Node", "n4", &arm)]).await;
    start(&site, &json!({"selector": "node:n4"})).await;
    let text = script(&site, 4).await;
    assert!(text.contains("artifact agent-aarch64-kernel does not exist"), "{text}");
    assert!(text.contains("chain --replace") && !text.contains("hoist.token"), "{text}");
    site.stop().await;
}

#[tokio::test]
async fn refused_node_is_held_with_evidence_until_a_retry() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    assert_eq!(session.reports(&site, &failed("refused")).await, "stay");
    let node = until(&site, &id, "n1", "failed").await;
    assert_eq!(node["problems"][0]["code"], "foreign-data");
    assert_eq!(node["problems"][0]["evidence"], json!(["uuid 1234"]));
    let held = script(&site, 1).await;
    assert!(held.contains("this node is held") && held.contains(&id), "{held}");
    assert_eq!(session.says(&site, 5, 0).await, "abort");

    // Begun once more it has another token; the session of before is good for nothing.
    let retried = site.post(&format!("/provision/v1/runs/{id}/retry"), &json!({})).await;
    assert_eq!(retried.expect(200).json()["nodes"], json!(["n1"]));
    session.send(&site, "events", &json!({"events": []})).await.problem(403, "attempt-over");
    let again = Agent::boot(&site, 1, 2).await.job(&site).await;
    assert_eq!(again.job["document"]["txn"], session.job["document"]["txn"]);
    assert_eq!(again.reports(&site, &done()).await, "reboot");
    until(&site, &id, "n1", "done").await;
    site.stop().await;
}

#[tokio::test]
async fn waiting_agent_continues_on_a_retry() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let agent = Agent::boot(&site, 1, 1).await;
    let other = Agent::boot(&site, 1, 2).await;
    agent.job(&site).await.reports(&site, &failed("failed")).await;
    // Its screen shows its state; no other client learns that.
    let problem = agent.ask(&site).await.problem(403, "forbidden");
    assert!(problem.detail.contains(&format!("`n1` has failed in run {id}")), "{problem:?}");
    assert!(problem.remedy.is_some_and(|remedy| remedy.contains("hoist provision retry n1")));
    let problem = other.ask(&site).await.problem(403, "forbidden");
    assert!(!problem.detail.contains("failed"), "{problem:?}");
    site.post(&format!("/provision/v1/runs/{id}/retry"), &json!({})).await.expect(200);
    other.ask(&site).await.problem(403, "forbidden");
    let session = agent.job(&site).await;
    assert_eq!(session.reports(&site, &done()).await, "reboot");
    until(&site, &id, "n1", "done").await;
    agent.ask(&site).await.problem(403, "forbidden");
    site.stop().await;
}

#[tokio::test]
async fn failed_node_is_retried_as_the_profile_says() {
    let site = site(|_| {}).await;
    profile(&site, "again", "node:n1", json!({"document": {"flow": {"on_failure": "retry"}}}))
        .await;
    profile(&site, "reboot", "node:n2", json!({"document": {"flow": {"on_failure": "reboot"}}}))
        .await;
    let id = start(&site, &json!({"selector": "node:n1,node:n2"})).await;
    let agent = Agent::boot(&site, 1, 1).await;
    for expected in ["retry", "retry", "stay"] {
        let session = agent.job(&site).await;
        assert_eq!(session.reports(&site, &failed("failed")).await, expected);
    }
    assert_eq!(until(&site, &id, "n1", "failed").await["attempt"], 3);
    // Started anew, the machine comes with another key, and has another token for it.
    for (seed, expected) in [(11, "reboot"), (12, "reboot"), (13, "stay")] {
        let session = Agent::boot(&site, 2, seed).await.job(&site).await;
        assert_eq!(session.reports(&site, &failed("failed")).await, expected);
    }
    until(&site, &id, "n2", "failed").await;
    site.stop().await;
}

#[tokio::test]
async fn config_drive_follows_layers_and_job_carries_secrets() {
    let site = site(|_| {}).await;
    fs_err::create_dir_all(site.data_dir().join("secrets")).expect("a directory");
    for name in ["root", "disk"] {
        let path = site.data_dir().join("secrets").join(name);
        fs_err::write(path, format!("hunter2-{name}\n")).expect("a secret");
    }
    let layer = json!({"selector": "*", "hostname": "first",
        "user_data": {"password": {"secret": {"file": "root"}}}});
    site.apply(&[document("MetadataLayer", "all", &layer)]).await;
    let more = json!({"document": {
        "config_drive": {},
        "files": [{"on": "root-fs", "path": "/etc/key", "content": {"secret": "secret://disk"}}],
    }});
    profile(&site, "drive", "node:n1,node:n2", more).await;
    let id = start(&site, &json!({"selector": "node:n1,node:n2"})).await;
    let job = Agent::boot(&site, 1, 1).await.job(&site).await.job;
    let files = &job["document"]["sections"]["config_drive"]["files"];
    let text = |name: &str| files[format!("openstack/latest/{name}")]["text"].as_str();
    assert!(
        text("meta_data.json").is_some_and(|text| text.contains("\"name\": \"first\"")),
        "{files}"
    );
    assert!(text("user_data").is_some_and(|text| text.contains("hunter2-root")), "{files}");
    assert_eq!(job["secrets"], json!({"disk": "hunter2-disk"}));
    let entries = serde_json::to_string(&site.audit().await).expect("plain");
    assert!(!entries.contains("hunter2"));

    // Without a secret the node fails, and its agent must wait for people.
    fs_err::remove_file(site.data_dir().join("secrets/disk")).expect("it was there");
    let problem = Agent::boot(&site, 2, 2).await.ask(&site).await.problem(409, "conflict");
    assert!(problem.detail.contains("the secret `disk` cannot be read"), "{problem:?}");
    let node = until(&site, &id, "n2", "failed").await;
    assert_eq!(node["problems"][0]["class"], "input");
    assert!(script(&site, 2).await.contains("this node is held"));
    site.stop().await;
}

#[tokio::test]
async fn system_must_report_up_before_the_deadline() {
    let site = site(|_| {}).await;
    profile(&site, "up", "node:n1", json!({"phone_home_within_s": 600})).await;
    profile(&site, "late", "node:n2", json!({"phone_home_within_s": 1})).await;
    let id = start(&site, &json!({"selector": "node:n1,node:n2"})).await;
    for n in [1, 2] {
        let number = u8::try_from(n).expect("small");
        let session = Agent::boot(&site, n, number).await.job(&site).await;
        assert_eq!(session.reports(&site, &done()).await, "reboot");
        assert!(script(&site, n).await.contains("sanboot"));
    }
    until(&site, &id, "n1", "starting").await;
    let late = until(&site, &id, "n2", "failed").await;
    assert_eq!(late["problems"][0]["code"], "not-up");
    phone_home(&site, 1).await;
    until(&site, &id, "n1", "done").await;
    site.stop().await;
}

#[tokio::test]
async fn late_system_counts_as_up_without_a_newer_decision() {
    let site = site(|_| {}).await;
    profile(&site, "base", "*", json!({"phone_home_within_s": 1})).await;
    let id = start(&site, &json!({"selector": "*"})).await;
    for n in 1..=3 {
        let number = u8::try_from(n).expect("small");
        Agent::boot(&site, n, number).await.job(&site).await.reports(&site, &done()).await;
    }
    for name in ["n1", "n2", "n3"] {
        until(&site, &id, name, "failed").await;
    }
    let path = format!("/provision/v1/runs/{id}");
    site.eventually(&path, |answer| answer.json()["state"] == "failed").await;
    site.put("/boot/v2/state/n2", &json!({"mode": "hold"})).await.expect(200);
    site.post(&format!("{path}/retry"), &json!({"nodes": ["n3"]})).await.expect(200);
    for n in 1..=3 {
        phone_home(&site, n).await;
    }
    let up = until(&site, &id, "n1", "done").await;
    assert_eq!(up["problems"], json!(null));
    assert!(up["note"].as_str().is_some_and(|note| note.contains("late")), "{up}");
    let shown = run(&site, &id).await;
    let words: Vec<_> = states(&shown).into_iter().map(|(_, state)| state).collect();
    assert_eq!(words[..2], ["done", "failed"]);
    assert!(["pending", "booting"].contains(&words[2].as_str()), "{words:?}");
    // It is installed, as if it had been in time.
    let next = start(&site, &json!({"selector": "node:n1", "reinstall": true})).await;
    assert_eq!(run(&site, &next).await["nodes"][0]["previous"]["run"], id.as_str());
    site.stop().await;
}

#[tokio::test]
async fn late_system_updates_the_counts_of_an_ended_run() {
    let site = site(|_| {}).await;
    profile(&site, "base", "*", json!({"phone_home_within_s": 1})).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    Agent::boot(&site, 1, 1).await.job(&site).await.reports(&site, &done()).await;
    let path = format!("/provision/v1/runs/{id}");
    site.eventually(&path, |answer| answer.json()["state"] == "failed").await;
    phone_home(&site, 1).await;
    site.eventually(&path, |answer| answer.json()["state"] == "done").await;
    let listed = site.get("/provision/v1/runs").await.expect(200).json();
    assert_eq!(listed["items"][0]["counts"]["done"], 1);
    site.stop().await;
}

#[tokio::test]
async fn a_part_of_a_system_does_not_make_a_node_installed() {
    let site = site(|_| {}).await;
    profile(&site, "base", "*", json!({"phone_home_within_s": 600})).await;
    let part = json!({"selector": "node:n1", "how": {"only": ["disks"]}});
    let id = start(&site, &part).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    assert_eq!(session.reports(&site, &done()).await, "reboot");
    let node = until(&site, &id, "n1", "done").await;
    assert!(node["note"].as_str().is_some_and(|note| note.contains("boots as before")), "{node}");
    assert!(script(&site, 1).await.contains("http://k/live"), "as before");
    let state = site.get("/boot/v2/state/n1").await.expect(200).json();
    assert_eq!(state["state"]["installed"], json!(null), "{state}");

    // The whole makes it so, and then a part leaves it so.
    profile(&site, "base", "*", json!({})).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    Agent::boot(&site, 1, 2).await.job(&site).await.reports(&site, &done()).await;
    until(&site, &id, "n1", "done").await;
    let mut again = part.clone();
    again["reinstall"] = json!(true);
    let id = start(&site, &again).await;
    Agent::boot(&site, 1, 3).await.job(&site).await.reports(&site, &done()).await;
    until(&site, &id, "n1", "done").await;
    assert!(script(&site, 1).await.contains("sanboot"));
    site.stop().await;
}

/// Every run that changes the system of a node makes the inputs of its tasks new, so that
/// deployments do not skip work that is gone.
#[tokio::test]
async fn each_installation_changes_the_fingerprints_of_tasks() {
    let site = site(|_| {}).await;
    let fingerprint = async || {
        let text = "hoist: 1\ntasks:\n  a: {on: 'node:n1', inputs: [settings.x], \
                    run: {shell: 'true'}}\nsettings: {x: 1}\n";
        let body = json!({"files": [{"name": "a.yaml", "text": text}]});
        let answer = site.post("/deploy/v1/plans", &body).await.expect(200).json();
        let fingerprint = &answer["listing"]["instances"][0]["fingerprint"];
        fingerprint.as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    let mut seen = vec![fingerprint().await];
    assert_eq!(fingerprint().await, seen[0], "nothing changed");
    let jobs = [
        json!({"selector": "node:n1"}),
        json!({"selector": "node:n1", "reinstall": true}),
        json!({"selector": "node:n1", "reinstall": true, "how": {"only": ["disks"]}}),
    ];
    for (boot, job) in (1..).zip(&jobs) {
        let id = start(&site, job).await;
        Agent::boot(&site, 1, boot).await.job(&site).await.reports(&site, &done()).await;
        until(&site, &id, "n1", "done").await;
        let now = fingerprint().await;
        assert!(!seen.contains(&now), "{job}");
        seen.push(now);
    }
    site.stop().await;
}

/// As the installed system does it, with the token of its seed.
async fn phone_home(site: &Site, n: u32) {
    let node = site.get(&format!("/inventory/v1/nodes/by/name/n{n}")).await.expect(200).json();
    let id: hoist_model::NodeId = node["id"].as_str().expect("an id").parse().expect("an id");
    let key = hoist_server::site_key::open(site.data_dir()).expect("the site's key");
    let path = format!("/meta/v1/phone-home/{id}/{}", key.seed(id, 0).as_str());
    let request =
        site.ask_as_nobody("POST", &path).header("x-forwarded-for", &format!("10.0.0.{n}"));
    request.json(&json!({"fqdn": "n"})).send().await.expect(200);
}
