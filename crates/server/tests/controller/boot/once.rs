//! A configuration for one boot is served for one boot.

use hoist_testkit::etcd::EtcdServer;
use serde_json::json;

use crate::boot::{behind_a_proxy, bootscript, bootscript_of, config, explain, script, set};
use crate::site::{Answer, Site, mac, node_document};

/// The script of the `n`th node after it failed to boot the last one.
async fn retry(site: &Site, n: u32) -> String {
    bootscript_of(site, n, "&retry=1").await
}

fn was_given(answer: &Answer) -> bool {
    answer.json()["state"]["given"].is_object()
}

#[tokio::test]
async fn one_time_boot_is_served_again_only_if_booting_failed() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[
        node_document(1),
        config("base", &json!({})),
        config("rescue", &json!({"selector": "label:none"})),
    ])
    .await;
    set(&site, "n1", &json!({"mode": "disk"})).await.expect(200);
    set(&site, "n1", &json!({"once": "rescue"})).await.expect(200);
    // Looking at it does not use it up.
    for _ in 0..2 {
        assert!(site.get("/boot/v2/script/n1").await.text().contains("http://k/rescue"));
        assert_eq!(explain(&site, "n1").await["choice"]["name"], "rescue");
    }
    assert!(script(&site, 1).await.contains("http://k/rescue"));
    let again = retry(&site, 1).await;
    assert!(again.contains("http://k/rescue"), "trying again is the same boot: {again}");
    assert!(script(&site, 1).await.contains("sanboot"), "the next boot is another one");
    let path = "/boot/v2/state/n1";
    let written = site.eventually(path, |answer| answer.json()["state"].get("once").is_none());
    assert_eq!(written.await.json()["state"]["mode"], "disk");
    let site = site.restart().await;
    assert!(script(&site, 1).await.contains("sanboot"));

    // It can be revoked before its use.
    set(&site, "n1", &json!({"once": "rescue"})).await.expect(200);
    set(&site, "n1", &json!({"once": null})).await.expect(200);
    assert!(script(&site, 1).await.contains("sanboot"));
    // And said again, it is served again: each time once.
    for _ in 0..2 {
        set(&site, "n1", &json!({"once": "rescue"})).await.expect(200);
        assert!(script(&site, 1).await.contains("http://k/rescue"));
        assert!(script(&site, 1).await.contains("sanboot"));
        site.eventually(path, |answer| answer.json()["state"].get("once").is_none()).await;
    }
    site.stop().await;
}

#[tokio::test]
async fn request_from_elsewhere_does_not_use_up_a_one_time_boot() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[
        node_document(1),
        config("base", &json!({})),
        config("rescue", &json!({"selector": "label:none"})),
    ])
    .await;
    let elsewhere = async |query: &str| bootscript(&site, query).await.expect(200).text();
    let mac = format!("mac={}", mac(1));
    let nid = "nid=1";
    let since = site.controller.chassis().events.last_id();
    set(&site, "n1", &json!({"once": "rescue"})).await.expect(200);
    for query in [&mac, nid, "name=n1", &format!("{mac}&retry=1")] {
        assert!(elsewhere(query).await.contains("http://k/base"), "{query}");
    }
    site.ask_as_nobody("HEAD", &format!("/boot/v1/bootscript?{mac}")).send().await.expect(405);
    assert_ne!(site.controller.chassis().events.last_id(), since, "people are told");
    assert!(script(&site, 1).await.contains("http://k/rescue"), "it waits for the node");
    // Nor does it end the node's boot.
    assert!(elsewhere(&mac).await.contains("http://k/base"));
    assert!(elsewhere(&format!("{mac}&retry=1")).await.contains("http://k/base"));
    assert!(retry(&site, 1).await.contains("http://k/rescue"));
    assert!(script(&site, 1).await.contains("http://k/base"));

    site.apply(&[config("flash", &json!({"once": true}))]).await;
    assert!(elsewhere(&mac).await.contains("http://k/base"));
    assert!(script(&site, 1).await.contains("http://k/flash"));
    assert!(script(&site, 1).await.contains("http://k/base"));
    site.stop().await;
}

#[tokio::test]
async fn one_time_configuration_is_served_once_to_each_node() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[
        node_document(1),
        node_document(2),
        config("base", &json!({})),
        config("flash", &json!({"once": true})),
    ])
    .await;
    assert!(script(&site, 1).await.contains("http://k/flash"));
    assert!(script(&site, 1).await.contains("http://k/base"));
    assert!(script(&site, 2).await.contains("http://k/flash"));
    assert!(script(&site, 2).await.contains("http://k/base"));
    let spent = |answer: &crate::site::Answer| answer.json()["state"]["spent"].is_object();
    for node in ["n1", "n2"] {
        site.eventually(&format!("/boot/v2/state/{node}"), spent).await;
    }
    let site = site.restart().await;
    assert!(script(&site, 1).await.contains("http://k/base"));
    let why = explain(&site, "n1").await["lost"][0]["why"].clone();
    assert_eq!(why, "for one boot, which the node already had");
    // Changed, it is another one.
    site.apply(&[config("flash", &json!({"once": true, "params": "v2"}))]).await;
    assert!(script(&site, 1).await.contains(" v2 "));
    site.stop().await;
}

#[tokio::test]
async fn another_boot_in_between_ends_the_retries_of_the_one_before() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[
        node_document(1),
        config("base", &json!({})),
        config("rescue", &json!({"selector": "label:none"})),
    ])
    .await;
    set(&site, "n1", &json!({"once": "rescue"})).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/rescue"));
    assert!(script(&site, 1).await.contains("http://k/base"));
    assert!(retry(&site, 1).await.contains("http://k/base"), "it is that one that failed");
    // Nothing is left to remember.
    site.eventually("/boot/v2/states", |answer| answer.json()["items"] == json!([])).await;
    assert!(retry(&site, 1).await.contains("http://k/base"));
    site.stop().await;
}

/// Whether or not the served boot has been written down when they do.
#[tokio::test]
async fn decisions_and_reports_end_the_retries_at_once() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[
        node_document(1),
        config("wipe", &json!({"mode": "install", "selector": "label:none"})),
    ])
    .await;
    let path = "/boot/v2/state/n1";
    for (decision, then) in [
        (json!({"mode": "hold"}), "this node is held"),
        (json!({"mode": "disk"}), "sanboot"),
        (json!({"once": null}), "sanboot"),
        (json!({"mode": "live", "once": null}), "chain"),
    ] {
        for written in [false, true] {
            set(&site, "n1", &json!({"mode": "disk"})).await.expect(200);
            let wipe = json!({"once": "wipe", "reinstall": true});
            set(&site, "n1", &wipe).await.expect(200);
            assert!(script(&site, 1).await.contains("http://k/wipe"));
            assert!(retry(&site, 1).await.contains("http://k/wipe"));
            if written {
                site.eventually(path, was_given).await;
            }
            set(&site, "n1", &decision).await.expect(200);
            for _ in 0..2 {
                let text = retry(&site, 1).await;
                assert!(text.contains(then) && !text.contains("wipe"), "{decision}: {text}");
            }
        }
    }
    set(&site, "n1", &json!({"mode": "disk"})).await.expect(200);
    set(&site, "n1", &json!({"once": "wipe", "reinstall": true})).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/wipe"));
    site.post("/boot/v2/installed/n1", &json!({})).await.expect(200);
    assert!(retry(&site, 1).await.contains("sanboot"));
    site.stop().await;
}

#[tokio::test]
async fn changed_or_disabled_one_time_boot_is_not_retried() {
    let site = Site::start_with(behind_a_proxy).await;
    let rescue = |members| config("rescue", &members);
    site.apply(&[node_document(1), config("base", &json!({}))]).await;
    for changed in [json!({"once": true, "enabled": false}), json!({"once": true, "params": "v2"})]
    {
        site.apply(&[rescue(json!({"once": true, "params": "v1"}))]).await;
        assert!(script(&site, 1).await.contains(" v1 "));
        assert!(retry(&site, 1).await.contains(" v1 "));
        site.apply(&[rescue(changed)]).await;
        let text = retry(&site, 1).await;
        assert!(!text.contains(" v1 "), "{text}");
    }
    // Changed, it is another one, and has a boot and retries of its own.
    assert!(retry(&site, 1).await.contains(" v2 "));
    assert!(script(&site, 1).await.contains("http://k/base"));
    site.stop().await;
}

#[tokio::test]
async fn later_boot_mode_revokes_the_one_time_boot() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[
        node_document(1),
        config("base", &json!({"mode": "install"})),
        config("rescue", &json!({"selector": "label:none"})),
    ])
    .await;
    set(&site, "n1", &json!({"once": "rescue"})).await.expect(200);
    set(&site, "n1", &json!({"mode": "hold"})).await.expect(200);
    assert!(script(&site, 1).await.contains("this node is held"));
    // The other way around, and both at once, it is the next boot that differs.
    set(&site, "n1", &json!({"mode": "install"})).await.expect(200);
    set(&site, "n1", &json!({"once": "rescue"})).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/rescue"));
    assert!(script(&site, 1).await.contains("http://k/base"));
    set(&site, "n1", &json!({"mode": "hold", "once": "rescue"})).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/rescue"));
    assert!(script(&site, 1).await.contains("this node is held"));
    site.stop().await;
}

#[tokio::test]
async fn removed_one_time_configuration_blocks_no_write() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[
        node_document(1),
        node_document(2),
        config("base", &json!({"mode": "install"})),
        config("rescue", &json!({"selector": "label:none"})),
    ])
    .await;
    set(&site, "n1", &json!({"once": "rescue"})).await.expect(200);
    let gone = json!({"targets": ["BootConfig/rescue"]});
    site.post("/inventory/v1/delete", &gone).await.expect(200);
    let installing = |answer: &Answer| answer.json()["state"]["installing"] == "base";
    for n in [1, 2] {
        assert!(script(&site, n).await.contains("http://k/base"));
        site.eventually(&format!("/boot/v2/state/n{n}"), installing).await;
    }
    set(&site, "n1", &json!({"reason": "ticket 42"})).await.expect(200);
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_of_one_store_share_their_one_time_boots() {
    let store = EtcdServer::shared().url("pending-boots");
    let one = Site::start_with(|config| {
        config.store.clone_from(&store);
        behind_a_proxy(config);
    })
    .await;
    let two = one.start_beside(behind_a_proxy).await;
    one.apply(&[
        node_document(1),
        config("base", &json!({})),
        config("rescue", &json!({"selector": "label:none"})),
    ])
    .await;
    let path = "/boot/v2/state/n1";
    set(&one, "n1", &json!({"once": "rescue"})).await.expect(200);
    assert!(script(&one, 1).await.contains("http://k/rescue"));
    two.eventually("/boot/v2/states", |answer| {
        answer.json()["items"][0]["state"]["given"].is_object()
    })
    .await;
    assert!(retry(&two, 1).await.contains("http://k/rescue"), "it is the same boot");
    assert!(script(&two, 1).await.contains("http://k/base"), "it had it");
    one.eventually(path, |answer| !was_given(answer)).await;
    assert!(retry(&one, 1).await.contains("http://k/base"));
    two.stop().await;
    one.stop().await;
}

#[tokio::test]
async fn retry_after_restart_repeats_the_boot_and_the_next_does_not() {
    let site = Site::start_with(behind_a_proxy).await;
    site.apply(&[
        node_document(1),
        config("base", &json!({})),
        config("rescue", &json!({"selector": "label:none"})),
    ])
    .await;
    set(&site, "n1", &json!({"once": "rescue"})).await.expect(200);
    assert!(script(&site, 1).await.contains("http://k/rescue"));
    // Right after the answer: pending writes are written at the stop.
    let site = site.restart().await;
    assert!(retry(&site, 1).await.contains("http://k/rescue"));
    assert!(script(&site, 1).await.contains("http://k/base"));
    let site = site.restart().await;
    assert!(retry(&site, 1).await.contains("http://k/base"));
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_time_boot_during_an_outage_survives_a_restart() {
    let server = EtcdServer::start();
    let url = server.url("site");
    let site = Site::start_with(|config| {
        config.store.clone_from(&url);
        behind_a_proxy(config);
    })
    .await;
    site.apply(&[
        node_document(1),
        config("base", &json!({})),
        config("rescue", &json!({"selector": "label:none"})),
    ])
    .await;
    set(&site, "n1", &json!({"once": "rescue"})).await.expect(200);
    tokio::task::block_in_place(|| server.stop());
    assert!(script(&site, 1).await.contains("http://k/rescue"));
    let site = site.restart().await;
    let kept = site.data_dir().join("pending-boots.json");
    assert!(kept.exists());
    assert!(retry(&site, 1).await.contains("http://k/rescue"));
    assert!(script(&site, 1).await.contains("http://k/base"), "it had it");
    tokio::task::block_in_place(|| server.resume());
    let blank = |answer: &Answer| answer.json()["items"] == json!([]);
    site.eventually("/boot/v2/states", blank).await;
    assert!(script(&site, 1).await.contains("http://k/base"));
    site.stop().await;
}
