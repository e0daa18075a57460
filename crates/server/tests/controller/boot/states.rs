//! Boot states of nodes; no node is installed twice by accident.

use serde_json::json;

use crate::boot::{behind_a_proxy, config, explain, node, script, set};
use crate::site::{Answer, NODES, Site, document, id, ip, mac, node_document};

/// As cloud-init of the `n`th node does it.
async fn phone_home(site: &Site, n: u32) -> Answer {
    let ask = site.ask_as_nobody("POST", "/phone-home").header("x-forwarded-for", &ip(n));
    ask.json(&json!({"hostname": format!("n{n}")})).send().await
}

#[tokio::test]
async fn a_node_is_held_and_sent_to_its_disk_and_back() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[node_document(1), config("base", &json!({}))]).await;
    let changed =
        set(&site, "n1", &json!({"mode": "hold", "reason": "new DIMM"})).await.expect(200);
    assert_eq!(changed.json()["changed"], json!(["n1"]));
    let text = script(&site, 1).await;
    assert!(text.contains("echo hoist: this node is held: new DIMM\n"), "{text}");
    assert!(text.contains("chain ") && !text.contains("kernel"), "{text}");
    // Saying it again changes nothing.
    let revision = site.revision();
    let again = set(&site, "n1", &json!({"mode": "hold", "reason": "new DIMM"})).await;
    assert_eq!(again.json()["changed"], json!([]));
    assert_eq!(site.revision(), revision);

    set(&site, "n1", &json!({"mode": "disk"})).await.expect(200);
    assert_eq!(
        script(&site, 1).await,
        "#!ipxe\niseq ${platform} efi && exit || sanboot --no-describe --drive 0x80 || exit\n"
    );
    let state = site.get("/boot/v2/state/n1").await.json();
    assert_eq!((&state["doing"], &state["state"]["mode"]), (&json!("disk"), &json!("disk")));
    assert!(state["state"].get("reason").is_none(), "the reason was that of the hold");
    set(&site, "n1", &json!({"mode": "none"})).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/base"));
    let states = site.restart().await;
    assert!(script(&states, 1).await.contains("http://k/base"));
    states.stop().await;
}

#[tokio::test]
async fn a_dry_run_and_a_wrong_word_change_nothing() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[node_document(1), config("base", &json!({}))]).await;
    let before = site.records().await;
    let dry = site.put("/boot/v2/state/n1?dry_run=1", &json!({"mode": "hold"})).await.expect(200);
    assert_eq!(dry.json()["changed"], json!(["n1"]));
    assert_eq!(dry.json()["affected"], 1);
    for (request, code) in [
        (json!({"mode": "reboot"}), "invalid-body"),
        (json!({"once": "ghost"}), "bad-parameter"),
        (json!({"profile": "ghost"}), "bad-parameter"),
        (json!({"reason": "two\nlines"}), "bad-parameter"),
        (json!({"reason": "x".repeat(513)}), "bad-parameter"),
        (json!({"mdoe": "live"}), "invalid-body"),
    ] {
        let answer = set(&site, "n1", &request).await;
        answer.problem(400, code);
    }
    set(&site, "n9", &json!({"mode": "hold"})).await.problem(404, "not-found");
    let nobody = site.put("/boot/v2/states?selector=role:ghost", &json!({"mode": "hold"})).await;
    nobody.problem(404, "not-found");
    assert_eq!(site.records().await, before);
    set(&site, "n1", &json!({"mode": "hold", "reason": "x".repeat(512)})).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn many_nodes_change_at_once_and_are_counted() {
    let site = Site::start_with(behind_a_proxy).await;
    let mut documents: Vec<_> = (1..=60).map(|n| node(n, &json!({"role": "compute"}))).collect();
    documents.push(config("base", &json!({})));
    site.apply(&documents).await;
    let path = "/boot/v2/states?selector=role:compute";
    let hold = json!({"mode": "hold"});
    let plan = site.put(&format!("{path}&dry_run=1"), &hold).await.expect(200).json();
    assert_eq!((&plan["affected"], &plan["needs_affects"]), (&json!(60), &json!(true)));
    site.put(path, &hold).await.problem(409, "affects-too-many");
    site.put(&format!("{path}&affects=59"), &hold).await.problem(409, "affects-too-many");
    let revision = site.revision();
    let done = site.put(&format!("{path}&affects=60"), &hold).await.expect(200).json();
    assert_eq!((done["named"].clone(), site.revision()), (json!(60), revision + 1));
    let states = site.get("/boot/v2/states").await.expect(200).json();
    assert_eq!(states["items"].as_array().unwrap().len(), 60);
    let entry = site.audit().await.pop().expect("an entry");
    assert_eq!((entry.method.as_str(), entry.who.as_str()), ("PUT", "admin"));
    site.stop().await;
}

#[tokio::test]
async fn profiles_open_further_configurations() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[
        node_document(1),
        config("base", &json!({"selector": "node:n1", "priority": 9})),
        config("debug", &json!({"profile": "debug"})),
    ])
    .await;
    assert!(script(&site, 1).await.contains("http://k/base"));
    set(&site, "n1", &json!({"profile": "debug"})).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/debug"));
    set(&site, "n1", &json!({"profile": null})).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/base"));
    assert_eq!(site.get("/boot/v2/states").await.json()["items"], json!([]));
    site.stop().await;
}

/// Installed once, a node goes to its disk, whatever is written for it later.
#[tokio::test]
async fn reported_installation_prevents_accidental_reinstall() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[
        node_document(1),
        node_document(2),
        config("installer", &json!({"mode": "install"})),
    ])
    .await;
    assert!(script(&site, 1).await.contains("http://k/installer"));
    assert_eq!(explain(&site, "n1").await["doing"], "install");

    let agent =
        |selector: &str| json!([{"verbs": ["write"], "contexts": ["agent"], "selector": selector}]);
    let token = site.token(agent("node:n1")).await;
    let report = async |token: &str, node: &str| {
        site.ask_as(token, "POST", &format!("/boot/v2/installed/{node}")).send().await
    };
    report(&token, "n2").await.problem(404, "not-found");
    let reader = site.token(json!([{"verbs": ["read"], "contexts": ["boot"]}])).await;
    report(&reader, "n1").await.problem(403, "forbidden");
    let state = report(&token, "n1").await.expect(200).json();
    assert_eq!((&state["doing"], &state["state"]["mode"]), (&json!("disk"), &json!("disk")));
    assert!(script(&site, 1).await.contains("sanboot"));
    assert!(script(&site, 2).await.contains("http://k/installer"), "others go on");
    let installing = |answer: &Answer| answer.json()["state"]["installing"] == "installer";
    site.eventually("/boot/v2/state/n2", installing).await;
    // Repeated reports change nothing.
    let revision = site.revision();
    assert_eq!(report(&token, &mac(1)).await.expect(200).json(), state);
    assert_eq!(site.revision(), revision);

    // Neither a slip of the hand, nor leaving it to the configuration, nor another configuration.
    let refused = set(&site, "n1", &json!({"mode": "install"})).await;
    let problem = refused.problem(409, "protected");
    assert!(problem.errors[0].hint.as_deref().unwrap().contains("--reinstall"), "{problem:?}");
    set(&site, "n1", &json!({"once": "installer"})).await.problem(409, "protected");
    set(&site, "n1", &json!({"mode": "hold"})).await.expect(200);
    set(&site, "n1", &json!({"mode": "none"})).await.expect(200);
    assert!(script(&site, 1).await.contains("sanboot"));
    site.apply(&[config("newer", &json!({"mode": "install", "selector": "node:n1"}))]).await;
    assert!(script(&site, 1).await.contains("sanboot"));
    let site = site.restart().await;
    assert!(script(&site, 1).await.contains("sanboot"));

    set(&site, "n1", &json!({"mode": "install", "reinstall": true})).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/newer"));
    site.ask_as(&token, "POST", "/boot/v2/installed/n1").send().await.expect(200);
    assert!(script(&site, 1).await.contains("sanboot"));
    site.stop().await;
}

#[tokio::test]
async fn a_protected_node_is_never_installed() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[
        node_document(1),
        config("base", &json!({})),
        config("installer", &json!({"mode": "install", "selector": "label:none"})),
    ])
    .await;
    let path = format!(
        "{NODES}/{}/protection",
        id(&site.get(&format!("{NODES}/by/name/n1")).await.json())
    );
    site.put(&path, &json!({})).await.expect(200);
    for request in [
        json!({"mode": "install", "reinstall": true}),
        json!({"once": "installer", "reinstall": true}),
    ] {
        set(&site, "n1", &request).await.problem(409, "protected");
    }
    site.apply(&[document(
        "BootConfig",
        "base",
        &json!({"selector": "*", "kernel": "http://k/base", "mode": "install"}),
    )])
    .await;
    assert!(script(&site, 1).await.contains("sanboot"));
    assert_eq!(explain(&site, "n1").await["protected"], true);
    site.delete(&path).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/base"));
    site.stop().await;
}

#[tokio::test]
async fn report_does_not_override_later_decisions_of_operators() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[node_document(1), config("installer", &json!({"mode": "install"}))]).await;
    set(&site, "n1", &json!({"mode": "hold"})).await.expect(200);
    let state = site.post("/boot/v2/installed/n1", &json!({})).await.expect(200).json();
    assert_eq!(state["doing"], "hold");
    assert!(state["state"]["installed"].is_string());
    set(&site, "n1", &json!({"mode": "none"})).await.expect(200);
    assert_eq!(explain(&site, "n1").await["doing"], "disk");
    site.stop().await;
}

#[tokio::test]
async fn one_time_installer_ends_on_disk_and_changes_reinstall_none() {
    let site = Site::start_with(behind_a_proxy).await;
    let inst = |params: &str| {
        let spec = json!({"mode": "install", "once": true});
        config("inst", &crate::site::with(spec, &json!({"params": params})))
    };
    site.apply(&[node_document(1), node_document(2), config("base", &json!({})), inst("v1")]).await;
    for n in [1, 2] {
        assert!(script(&site, n).await.contains("http://k/inst"));
    }
    phone_home(&site, 1).await.expect(200);
    assert!(script(&site, 1).await.contains("sanboot"));
    assert_eq!(explain(&site, "n1").await["doing"], "disk");
    // The other one came back from it without a word. It may have something on its disk as well.
    site.apply(&[inst("v2")]).await;
    assert!(script(&site, 1).await.contains("sanboot"));
    assert!(script(&site, 2).await.contains("http://k/base"));
    phone_home(&site, 2).await.expect(404);
    // A reinstall needs an explicit request.
    for n in [1, 2] {
        let request = json!({"mode": "install", "reinstall": true});
        set(&site, &format!("n{n}"), &request).await.expect(200);
        let text = script(&site, n).await;
        assert!(text.contains("http://k/inst") && text.contains(" v2 "), "{text}");
    }
    site.stop().await;
}

#[tokio::test]
async fn node_installed_in_one_boot_reports_and_boots_its_disk() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[
        node_document(1),
        config("base", &json!({})),
        config("installer", &json!({"mode": "install", "selector": "label:none"})),
    ])
    .await;
    set(&site, "n1", &json!({"once": "installer"})).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/installer"));
    let installing = |answer: &Answer| answer.json()["state"]["installing"] == "installer";
    site.eventually("/boot/v2/state/n1", installing).await;
    let site = site.restart().await;
    phone_home(&site, 1).await.expect(200);
    let state = site.get("/boot/v2/state/n1").await.json();
    assert!(state["state"]["installed"].is_string() && state["state"]["installing"].is_null());
    assert!(script(&site, 1).await.contains("sanboot"));
    site.stop().await;
}

/// An installation that was given up must not make a live system look like an installed one.
#[tokio::test]
async fn node_that_booted_differently_does_not_count_as_installed() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[node_document(1), config("base", &json!({"mode": "install"}))]).await;
    assert!(script(&site, 1).await.contains("http://k/base"));
    site.apply(&[config("base", &json!({}))]).await;
    assert!(script(&site, 1).await.contains("http://k/base"));
    phone_home(&site, 1).await.expect(404);
    assert!(script(&site, 1).await.contains("http://k/base"));
    site.stop().await;
}

#[tokio::test]
async fn configuration_turned_installer_spares_installed_nodes() {
    let site = Site::start_with(behind_a_proxy).await;
    let compute = |members| config("compute", &members);
    site.apply(&[node_document(1), compute(json!({"selector": "label:none"}))]).await;
    set(&site, "n1", &json!({"mode": "disk"})).await.expect(200);
    set(&site, "n1", &json!({"once": "compute"})).await.expect(200);
    assert_eq!(explain(&site, "n1").await["doing"], "boot");
    site.apply(&[compute(json!({"selector": "label:none", "mode": "install"}))]).await;
    assert_eq!(explain(&site, "n1").await["doing"], "disk");
    assert!(script(&site, 1).await.contains("sanboot"));
    // Held, it is held.
    set(&site, "n1", &json!({"mode": "hold", "once": "compute"})).await.problem(409, "protected");
    set(&site, "n1", &json!({"once": "compute", "reinstall": true})).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/compute"));
    assert!(script(&site, 1).await.contains("sanboot"));
    site.stop().await;
}

#[tokio::test]
async fn removed_and_restored_node_is_not_installed_again() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[node_document(1), config("installer", &json!({"mode": "install"}))]).await;
    assert!(script(&site, 1).await.contains("http://k/installer"));
    site.post("/boot/v2/installed/n1", &json!({})).await.expect(200);
    let gone = json!({"targets": ["Node/n1"]});
    site.post("/inventory/v1/delete", &gone).await.expect(200);
    assert_eq!(site.get("/boot/v2/states").await.json()["items"], json!([]));
    let site = site.restart().await;
    site.apply(&[node_document(1)]).await;
    assert!(script(&site, 1).await.contains("sanboot"));
    assert_eq!(explain(&site, "n1").await["doing"], "disk");
    set(&site, "n1", &json!({"mode": "install"})).await.problem(409, "protected");
    set(&site, "n1", &json!({"mode": "install", "reinstall": true})).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/installer"));
    site.stop().await;
}
