//! Documents that others serve: by the command line alone, or sent on.

use hoist_server::metadata::Mode;
use serde_json::json;

use crate::metadata::{DOCUMENTS, argument, ask, ask_from, id, key, mode, seed, site, spec};
use crate::site::{document, mac, plain_client, with};

#[tokio::test]
async fn external_is_an_argument_and_nothing_else() {
    let site = site(mode("external", "http://ci:27777/{name}/".to_owned())).await;
    for n in [1, 2] {
        let expected = format!("ds=nocloud;s=http://ci:27777/n{n}/;dsmode=net");
        // Made, kept and remembered.
        for _ in 0..3 {
            assert_eq!(argument(&site, n).await.as_deref(), Some(expected.as_str()));
        }
    }
    let node = id(&site, "n1").await;
    let token = key(&site).seed(node, 0);
    let path = format!("/meta/v1/seed/{node}/{}/meta-data", token.as_str());
    ask(&site, &path).await.problem(404, "not-found");
    ask_from(&site, "10.0.0.1", "/cloud-init/meta-data").await.problem(404, "not-found");
    // The preview of hoist's own documents says that the node gets others.
    let shown = site.get("/meta/v1/nodes/n1/render").await.expect(200).json();
    let place = "ds=nocloud;s=http://ci:27777/n1/;dsmode=net";
    assert_eq!((&shown["mode"], &shown["elsewhere"]), (&json!("external"), &json!(place)));
    site.stop().await;
}

#[tokio::test]
async fn redirect_sends_every_document_on_once_the_token_was_checked() {
    let site = site(mode("redirect", "http://ci:27777/cloud-init".to_owned())).await;
    let client = plain_client().redirect(reqwest::redirect::Policy::none());
    let client = client.build().expect("a client");
    let path = seed(&site, 1).await;
    for name in DOCUMENTS {
        let answer =
            client.get(site.url(&format!("{path}{name}"))).send().await.expect("an answer");
        assert_eq!(answer.status(), 307);
        assert_eq!(answer.headers()["location"], format!("http://ci:27777/cloud-init/{name}"));
    }
    let node = id(&site, "n1").await;
    let wrong = format!("/meta/v1/seed/{node}/{}/meta-data", key(&site).seed(node, 9).as_str());
    let answer = client.get(site.url(&wrong)).send().await.expect("an answer");
    assert_eq!(answer.status(), 403);
    site.stop().await;
}

#[tokio::test]
async fn a_group_has_a_mode_of_its_own_and_the_last_group_wins() {
    let site = site(|config| {
        let external = Mode::parse("external", Some("http://ci"), "ds=nocloud;s={base}/");
        config.metadata.groups = vec![
            ("default/login".parse().expect("a group"), external.expect("a mode")),
            ("default/bare".parse().expect("a group"), Mode::None),
            ("p1/login".parse().expect("a group"), Mode::None),
        ];
    })
    .await;
    let group = |name: &str, priority: i32| {
        document("Group", name, &json!({"priority": priority, "members": null}))
    };
    let groups = |groups: &[&str]| with(spec(2, "10.0.0.2/8"), &json!({"groups": groups}));
    site.apply(&[group("default/login", 1), group("default/bare", 5)]).await;
    assert!(argument(&site, 2).await.expect("a seed").contains("/meta/v1/seed/"));
    site.apply(&[document("Node", "n2", &groups(&["login"]))]).await;
    assert_eq!(argument(&site, 2).await.as_deref(), Some("ds=nocloud;s=http://ci/"));
    site.apply(&[document("Node", "n2", &groups(&["bare", "login"]))]).await;
    assert_eq!(argument(&site, 2).await, None);
    assert!(argument(&site, 1).await.expect("a seed").contains("/meta/v1/seed/"));
    site.stop().await;
}

#[tokio::test]
async fn configuration_may_define_the_documents_of_its_nodes() {
    let site = site(|_| {}).await;
    for (cloud_init, expected) in
        [("none", None), ("http://own/x", Some("ds=nocloud;s=http://own/x/;dsmode=net"))]
    {
        let spec = json!({"selector": "*", "kernel": "http://k/live", "cloud_init": cloud_init});
        site.apply(&[document("BootConfig", "live", &spec)]).await;
        assert_eq!(argument(&site, 1).await.as_deref(), expected);
    }
    // Boot parameters of BSS say what BSS says.
    let body = json!({"hosts": ["n1"], "kernel": "http://h/k"});
    site.put("/boot/v1/bootparameters", &body).await.expect(200);
    let script = ask(&site, &format!("/boot/v1/bootscript?mac={}", mac(1))).await.text();
    assert!(script.contains(&format!("ds=nocloud-net;s={}/ ", site.url(""))), "{script}");
    site.stop().await;
}
