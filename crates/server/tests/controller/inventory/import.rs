//! Importing from an SMD, on its good and on its bad days.

use std::sync::LazyLock;
use std::time::Duration;

use hoist_server::inventory::SourceConfig;
use hoist_testkit::smd::{Collection, Mode, Smd, SmdSet};
use serde_json::{Value, json};

use crate::log::LOG;
use crate::site::{NODES, Site, mac, names, with};

const REFRESH: &str = "/inventory/v1/refresh";
const STATUS: &str = "/inventory/v1/status";

fn source(smd: &Smd) -> SourceConfig {
    let location = smd.url().parse().expect("an address");
    let mut source = SourceConfig::new(location).expect("a source");
    // The tests say when.
    source.every = Duration::from_hours(1);
    source.smd.read_timeout = Duration::from_millis(300);
    source.smd.overall_timeout = Duration::from_secs(2);
    source.smd.retry_pause = Duration::from_millis(10);
    source
}

/// A site that has imported 20 nodes.
async fn imported(smd: &Smd) -> Site {
    let site = Site::start_with(|config| config.source = Some(source(smd))).await;
    let first =
        |answer: &crate::site::Answer| answer.json()["source"]["last_report"]["added"] == 20;
    site.eventually(STATUS, first).await;
    site
}

async fn refresh(site: &Site) -> Value {
    site.ask("POST", REFRESH).send().await.expect(200).json()
}

#[tokio::test]
async fn the_first_cycle_imports_and_an_idle_one_writes_nothing() {
    let smd = Smd::start(SmdSet::synthetic(20)).await;
    let site = imported(&smd).await;
    assert_eq!(site.revision(), 1);
    let node = site.get(&format!("{NODES}/by/xname/{}", SmdSet::xname(1))).await.expect(200).json();
    assert_eq!((&node["nid"], &node["partition"]), (&json!(2), &json!("p1")));
    assert_eq!(node["groups"], json!(["compute", "rack-b"]));
    assert_eq!(node["provenance"]["source"], "smd");
    let entries = site.audit().await;
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].who.as_str(), entries[0].method.as_str()), ("controller", "import"));
    assert_eq!((entries[0].before, entries[0].after), (Some(0), Some(1)));

    let before = site.records().await;
    for _ in 0..3 {
        let report = refresh(&site).await;
        assert_eq!((&report["idle"], &report["revision"]), (&json!(true), &json!(1)));
        assert_eq!(
            (&report["added"], &report["changed"], &report["removed"]),
            (&json!(0), &json!(0), &json!(0))
        );
    }
    assert_eq!(site.records().await, before);
    assert_eq!(site.audit().await.len(), 1);

    // A new controller compares everything once, and finds nothing to do.
    let site = site.restart().await;
    let told =
        |answer: &crate::site::Answer| answer.json()["source"]["last_report"]["unchanged"] == 20;
    site.eventually(STATUS, told).await;
    assert_eq!(site.records().await, before);

    smd.edit(|set| {
        set.add(20);
        set.component(3)["Role"] = "Application".into();
    });
    let report = refresh(&site).await;
    assert_eq!(
        (&report["added"], &report["changed"], &report["removed"]),
        (&json!(1), &json!(1), &json!(0))
    );
    assert_eq!(site.revision(), 2);
    site.stop().await;
    smd.stop().await;
}

#[tokio::test]
async fn failing_source_changes_nothing() {
    let smd = Smd::start(SmdSet::synthetic(20)).await;
    let site = imported(&smd).await;
    let before = site.records().await;
    // There would be something to do.
    smd.edit(|set| set.component(3)["Role"] = "Application".into());
    for mode in [Mode::Hang, Mode::Fail, Mode::Half, Mode::HalfUnnoticed, Mode::Locked] {
        smd.set_mode(mode);
        let answer = site.ask("POST", REFRESH).send().await;
        let problem = answer.problem(502, "source-failed");
        assert!(problem.remedy.is_some());
        assert_eq!(site.records().await, before, "{mode:?}");
        let status = site.get(STATUS).await.json();
        assert!(status["source"]["error"].is_string(), "{mode:?}: {status}");
        assert!(status["source"]["last_success"].is_string());
    }
    for collection in [Collection::Components, Collection::Interfaces, Collection::Memberships] {
        for mode in [Mode::Fail, Mode::HalfUnnoticed] {
            smd.set_mode_of(collection, mode);
            let answer = site.ask("POST", REFRESH).send().await;
            answer.problem(502, "source-failed");
            assert_eq!(site.records().await, before, "{collection:?} {mode:?}");
        }
    }
    for _ in 0..3 {
        smd.set_mode(Mode::Empty);
        let answer = site.ask("POST", REFRESH).send().await;
        assert!(
            answer.status == 502 || answer.json()["alarm"].is_string(),
            "an empty list is an error: {}",
            answer.text()
        );
        assert_eq!(site.records().await, before);
    }
    smd.set_mode(Mode::Normal);
    assert_eq!(refresh(&site).await["changed"], 1);
    assert_eq!(site.get(STATUS).await.json()["source"].get("error"), None);
    smd.stop().await;
    site.ask("POST", REFRESH).send().await.problem(502, "source-failed");
    assert_eq!(site.controller.registry().roster().len(), 20);
    site.stop().await;
}

#[tokio::test]
async fn imports_on_demand_are_logged_once_with_counts() {
    // A number of nodes that no other test has.
    const COUNT: u32 = 37;
    LazyLock::force(&LOG);
    let smd = Smd::start(SmdSet::synthetic(COUNT)).await;
    let site = Site::start_with(|config| config.source = Some(source(&smd))).await;
    let first =
        |answer: &crate::site::Answer| answer.json()["source"]["last_report"]["added"] == COUNT;
    site.eventually(STATUS, first).await;
    let edit = |count: u32| {
        smd.edit(|set| {
            (0..count).for_each(|n| set.component(n)["Role"] = format!("R{count}").into());
        });
    };
    edit(1);
    refresh(&site).await;
    edit(2);
    site.ask("POST", &format!("{REFRESH}?force=1")).send().await.expect(200);
    edit(3);
    site.post("/inventory/v1/import", &json!({"url": smd.url()})).await.expect(200);
    let log = LOG.text();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("nodes imported")).collect();
    for counts in [
        "added=37 changed=0 unchanged=0",
        "added=0 changed=1 unchanged=36",
        "added=0 changed=2 unchanged=35",
        "added=0 changed=3 unchanged=34",
    ] {
        let count = lines.iter().filter(|line| line.contains(counts)).count();
        assert_eq!(count, 1, "{counts} in {lines:#?}");
    }
    site.stop().await;
    smd.stop().await;
}

#[tokio::test]
async fn nodes_go_only_when_missed_twice_and_never_many_at_once() {
    let smd = Smd::start(SmdSet::synthetic(20)).await;
    let site = imported(&smd).await;
    smd.edit(|set| set.remove(0));
    let report = refresh(&site).await;
    assert_eq!((&report["absent"], &report["removed"]), (&json!(1), &json!(0)));
    let site = site.restart().await;
    let told =
        |answer: &crate::site::Answer| answer.json()["source"]["last_report"]["removed"] == 1;
    site.eventually(STATUS, told).await;
    assert_eq!(site.controller.registry().roster().len(), 19);

    smd.edit(|set| (1..=10).for_each(|n| set.remove(n)));
    assert_eq!(refresh(&site).await["absent"], 10);
    for _ in 0..2 {
        let report = refresh(&site).await;
        assert!(report["alarm"].is_string(), "{report}");
        assert_eq!(report["removed"], 0);
    }
    assert_eq!(site.controller.registry().roster().len(), 19);
    let status = site.get(STATUS).await.json();
    assert!(status["source"]["last_report"]["alarm"].is_string());
    smd.edit(|set| (1..=10).for_each(|n| set.add(n)));
    assert_eq!(refresh(&site).await["absent"], 0);
    site.stop().await;
    smd.stop().await;
}

#[tokio::test]
async fn forced_refresh_removes_what_the_guard_withheld() {
    let smd = Smd::start(SmdSet::synthetic(20)).await;
    let site = imported(&smd).await;
    let force = async || {
        let answer = site.ask("POST", &format!("{REFRESH}?force=1")).send().await;
        answer.expect(200).json()
    };
    let by_url = async || {
        let body = json!({"url": smd.url(), "force": true});
        site.post("/inventory/v1/import", &body).await.expect(200).json()
    };
    smd.edit(|set| (1..=5).for_each(|n| set.remove(n)));
    let first = force().await;
    assert_eq!((&first["absent"], &first["removed"]), (&json!(5), &json!(0)), "after one absence");
    let alarmed = refresh(&site).await;
    assert!(alarmed["alarm"].is_string(), "{alarmed}");
    assert_eq!((&alarmed["withheld"], &alarmed["removed"]), (&json!(5), &json!(0)));
    let forced = force().await;
    assert_eq!((&forced["removed"], forced.get("alarm")), (&json!(5), None), "{forced}");
    let status = site.get(STATUS).await.json();
    assert_eq!(status["source"]["last_report"].get("alarm"), None, "{status}");

    smd.edit(|set| (6..=9).for_each(|n| set.remove(n)));
    refresh(&site).await;
    assert_eq!(refresh(&site).await["withheld"], 4);
    assert_eq!(by_url().await["removed"], 4, "the own source by its URL");
    assert_eq!(site.controller.registry().roster().len(), 11);
    site.stop().await;
    smd.stop().await;
}

#[tokio::test]
async fn declared_network_gets_the_spelling_of_smd() {
    let smd = Smd::start(SmdSet::synthetic(20)).await;
    let site = Site::start().await;
    let network = "/inventory/v1/networks/nmn";
    let spelled = async || site.get(network).await.expect(200).json()["smd_name"].clone();
    site.put(network, &json!({"vlan": 5})).await.expect(200);
    assert_eq!(spelled().await, Value::Null);
    let import = async || {
        let body = json!({"url": smd.url()});
        site.post("/inventory/v1/import", &body).await.expect(200).json()
    };
    import().await;
    assert_eq!(spelled().await, "NMN");
    assert_eq!(site.get(network).await.json()["vlan"], 5);
    // The document that does not speak of it keeps it, and an import has nothing to do then.
    site.put(network, &json!({"vlan": 6})).await.expect(200);
    assert_eq!(spelled().await, "NMN");
    assert_eq!(import().await["idle"], true);
    site.put(network, &json!({"vlan": 6, "smd_name": "Management"})).await.expect(200);
    assert_eq!(import().await["idle"], true);
    assert_eq!(spelled().await, "Management");
    site.stop().await;
    smd.stop().await;
}

#[tokio::test]
async fn imported_node_is_edited_only_after_release() {
    let smd = Smd::start(SmdSet::synthetic(20)).await;
    let site = imported(&smd).await;
    let by_xname = format!("{NODES}/by/xname/{}", SmdSet::xname(1));
    let node = site.get(&by_xname).await.json();
    let path = format!("{NODES}/{}", crate::site::id(&node));
    let name = node["name"].as_str().unwrap();
    let ours = with(node.clone(), &json!({"role": "Login"}));
    let problem = site.put(&path, &ours).await.problem(409, "managed");
    assert!(problem.errors[0].hint.as_deref().is_some_and(|hint| hint.contains("release")));
    let documents = [crate::site::document("Node", name, &json!({"role": "Login"}))];
    site.try_apply("", &documents).await.problem(409, "managed");
    // Other ways to the same fields are no ways around it.
    let members = json!({"members": [name]});
    let group = "/inventory/v1/groups/p1/mine";
    site.put(group, &members).await.problem(409, "managed");
    let swap = json!({"macs": [{"old": SmdSet::mac(1, 0), "new": mac(99)}]});
    site.post(&format!("{path}/swap"), &swap).await.problem(409, "managed");
    let labelled = with(node.clone(), &json!({"labels": {"rack": "7"}}));
    site.put(&path, &labelled).await.expect(200);

    let released = format!("{path}/released");
    site.put(&released, &json!({"fields": ["kettle"]})).await.problem(400, "bad-parameter");
    let before = site.records().await;
    let dry = site.put(&format!("{released}?dry_run=1"), &json!({"fields": ["role"]})).await;
    assert_eq!(dry.expect(200).json()["provenance"]["released"], json!(["role"]));
    assert_eq!(site.records().await, before, "a dry run");
    let shown = site.put(&released, &json!({"fields": ["role"]})).await.expect(200).json();
    assert_eq!(shown["provenance"]["released"], json!(["role"]));
    let ours = with(shown, &json!({"role": "Login"}));
    site.put(&path, &ours).await.expect(200);
    smd.edit(|set| {
        set.component(1)["Role"] = "Service".into();
        set.component(1)["Enabled"] = false.into();
    });
    assert_eq!(refresh(&site).await["changed"], 1);
    let kept = site.get(&path).await.json();
    assert_eq!((&kept["role"], &kept["enabled"]), (&json!("Login"), &json!(false)));
    assert_eq!(kept["labels"]["rack"], "7");
    // Given back, it is the source's again, even if the source has nothing new to say.
    site.put(&released, &json!({"fields": []})).await.expect(200);
    assert_eq!(refresh(&site).await["changed"], 1);
    assert_eq!(site.get(&path).await.json()["role"], "Service");
    site.stop().await;
    smd.stop().await;
}

#[tokio::test]
async fn removed_imported_node_comes_back() {
    let smd = Smd::start(SmdSet::synthetic(20)).await;
    let site = imported(&smd).await;
    let node = site.get(&format!("{NODES}/by/xname/{}", SmdSet::xname(1))).await.json();
    site.delete(&format!("{NODES}/{}", crate::site::id(&node))).await.expect(200);
    assert_eq!(refresh(&site).await["added"], 1, "whether or not the controller was restarted");
    assert_eq!(site.controller.registry().roster().len(), 20);
    site.stop().await;
    smd.stop().await;
}

#[tokio::test]
async fn one_cycle_can_be_run_from_any_source() {
    let smd = Smd::start(SmdSet::synthetic(5)).await;
    let site = Site::start().await;
    site.ask("POST", REFRESH).send().await.problem(409, "conflict");
    let import = async |body: &Value| site.post("/inventory/v1/import", body).await;
    let report = import(&json!({"url": smd.url()})).await.expect(200).json();
    assert_eq!((&report["added"], &report["revision"]), (&json!(5), &json!(1)));
    let entries = site.audit().await;
    assert_eq!((entries.len(), entries[0].before, entries[0].after), (1, Some(0), Some(1)));
    let again = import(&json!({"url": smd.url()})).await.expect(200).json();
    assert_eq!((&again["unchanged"], &again["revision"]), (&json!(5), &json!(1)));
    assert_eq!(site.audit().await.len(), 1);
    for url in ["store", "kettle", "smd+ftp://x", "file:"] {
        import(&json!({"url": url})).await.problem(400, "bad-parameter");
    }
    import(&json!({"url": "file:/does/not/exist"})).await.problem(502, "source-failed");
    import(&json!({"url": "smd+http://127.0.0.1:1"})).await.problem(502, "source-failed");
    let file = site.data_dir().join("nodes.json");
    let node = crate::site::node_document(77);
    fs_err::write(&file, node.to_string()).unwrap();
    let report = import(&json!({"url": format!("file:{}", file.display())})).await.expect(200);
    assert_eq!(report.json()["added"], 1);
    assert!(names(&site.get(NODES).await.json()).contains(&"n77".to_owned()));
    site.stop().await;
    smd.stop().await;
}

/// A token that may write the inventory must not reach the controller's files: neither as the token
/// of a source of its own, nor through an import.
#[tokio::test]
async fn inventory_writers_cannot_import_controller_files() {
    let smd = Smd::start(SmdSet::synthetic(5)).await;
    let site = Site::start().await;
    let scope = json!([{"verbs": ["read", "write"], "contexts": ["inventory"]}]);
    let token = site.token(scope).await;
    let secret = site.data_dir().join("admin.token");
    let requests = smd.requests();
    for body in [
        json!({"url": smd.url(), "token_file": secret}),
        json!({"url": format!("file:{}", secret.display())}),
    ] {
        let ask = site.ask_as(&token, "POST", "/inventory/v1/import").json(&body);
        let answer = ask.send().await;
        answer.problem(403, "forbidden");
    }
    assert_eq!(smd.requests(), requests);
    let ask = site.ask_as(&token, "POST", "/inventory/v1/import").json(&json!({"url": smd.url()}));
    ask.send().await.expect(200);
    site.stop().await;
    smd.stop().await;
}
