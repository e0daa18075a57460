//! Open routes can be locked one by one.

use hoist_server::controller::{Config, Controller};
use serde_json::json;

use crate::site::Site;

#[tokio::test]
async fn a_locked_path_needs_a_token_and_its_neighbours_do_not() {
    let site = Site::start_with(|config| {
        let paths = ["/boot/v1/dumpstate", "POST /boot/v1/hosts", "/boot/v1/scn"];
        config.policy.locked_paths = paths.map(str::to_owned).into();
    })
    .await;
    let reader = site.token(json!([{"verbs": ["read"], "contexts": ["boot"]}])).await;
    let writer = site.token(json!([{"verbs": ["write"], "contexts": ["boot"]}])).await;
    for path in ["/boot/v1/dumpstate", "/boot/v1/dumpstate/", "/apis/bss/boot/v1/dumpstate"] {
        site.ask_as_nobody("GET", path).send().await.expect(401);
        site.ask_as(&writer, "GET", path).send().await.expect(403);
        site.ask_as(&reader, "GET", path).send().await.expect(200);
    }
    site.ask_as_nobody("POST", "/boot/v1/hosts").send().await.expect(401);
    site.ask_as(&reader, "POST", "/boot/v1/hosts").send().await.expect(403);
    site.ask_as(&writer, "POST", "/boot/v1/hosts").send().await.expect(204);
    site.ask_as_nobody("POST", "/boot/v1/scn").json(&json!({})).send().await.expect(401);
    site.ask_as(&writer, "POST", "/boot/v1/scn").json(&json!({})).send().await.expect(200);
    for path in
        ["/boot/v1/hosts", "/boot/v1/service/status", "/boot/v1/bootscript?mac=020000000001"]
    {
        site.ask_as_nobody("GET", path).send().await.expect(200);
    }
    site.stop().await;
}

/// Boot scripts have a way past the router; a lock closes it too.
#[tokio::test]
async fn boot_scripts_can_be_locked() {
    let path = "/boot/v1/bootscript";
    let site = Site::start_with(|config| {
        config.policy.locked_paths = [path.to_owned()].into();
    })
    .await;
    let asked = format!("{path}?mac=02:00:00:00:00:01");
    site.ask_as_nobody("GET", &asked).send().await.expect(401);
    site.get(&asked).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn lock_on_an_unknown_route_is_an_error() {
    for path in ["/boot/v1/dumpstat", "POST /boot/v1/dumpstate", "/inventory/v1/nodes", "/"] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = Config::new(dir.path());
        config.policy.locked_paths = [path.to_owned()].into();
        let error = Controller::start(config).await.expect_err("it cannot be locked");
        let text = format!("{error:?}");
        assert!(text.contains("NotLockable") && text.contains(path), "{text}");
    }
}
