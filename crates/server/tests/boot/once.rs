//! A configuration for one boot is served for one boot.

use serde_json::json;

use crate::site::{Site, mac, node_document};
use crate::{bootscript, config, explain, script, set};

#[tokio::test]
async fn boot_once_is_served_once_and_again_only_when_booting_failed() {
    let site = Site::start().await;
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
    let retry = bootscript(&site, &format!("mac={}&retry=1", mac(1))).await.expect(200).text();
    assert!(retry.contains("http://k/rescue"), "trying again is the same boot: {retry}");
    assert!(script(&site, 1).await.contains("sanboot"), "the next boot is another one");
    let path = "/boot/v2/state/n1";
    let written = site.eventually(path, |answer| answer.json()["state"].get("once").is_none());
    assert_eq!(written.await.json()["state"]["mode"], "disk");
    let site = site.restart().await;
    assert!(script(&site, 1).await.contains("sanboot"));

    // It can be taken back before it is used.
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
async fn a_configuration_marked_once_is_had_by_each_node_one_time() {
    let site = Site::start().await;
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
    assert_eq!(why, "it is for one boot, and the node has had it");
    // Changed, it is another one.
    site.apply(&[config("flash", &json!({"once": true, "params": "v2"}))]).await;
    assert!(script(&site, 1).await.contains(" v2 "));
    site.stop().await;
}
