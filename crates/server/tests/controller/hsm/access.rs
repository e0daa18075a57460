//! Rights of readers; no client writes.

use hoist_api::admin::Context;
use serde_json::{Value, json};

use crate::hsm::{COMPONENTS, INTERFACES, mac, node, open, sets, small, xname};
use crate::site::Site;

/// The paths of the view, as the server's own document lists them.
async fn paths(site: &Site) -> Vec<(String, String)> {
    let document = open(site, "/openapi.json").await.expect(200).json();
    let paths = document["paths"].as_object().expect("paths").iter();
    paths
        .filter(|(path, _)| path.starts_with("/hsm/"))
        .map(|(path, methods)| {
            assert_eq!(methods.as_object().expect("methods").len(), 1, "{path} is for reading");
            (
                path.clone(),
                methods["get"]["x-hoist-access-class"]
                    .as_str()
                    .expect("an access class")
                    .to_owned(),
            )
        })
        .collect()
}

fn filled(path: &str) -> String {
    let bare = mac(1).replace(':', "");
    path.replace("{xname}", &xname(1))
        .replace("{nid}", "1")
        .replace("{id}", &bare)
        .replace("{label}", "compute")
        .replace("{name}", "p1")
        .replace("{list}", "role")
}

#[tokio::test]
async fn public_smd_lists_are_open_and_the_rest_needs_a_token() {
    let site = small().await;
    let paths = paths(&site).await;
    assert_eq!(paths.len(), 23, "{paths:?}");
    for (path, access) in paths {
        let asked = filled(&path);
        let public = [COMPONENTS, INTERFACES].contains(&path.as_str())
            || path.starts_with("/hsm/v2/service/");
        assert_eq!(access.starts_with("lockable"), public, "{path}: {access}");
        let answer = open(&site, &asked).await;
        if public {
            assert!(matches!(answer.status, 200 | 204), "{path}: {}", answer.text());
        } else {
            answer.problem(401, "unauthenticated");
        }
        for path in [asked.clone(), format!("{asked}/")] {
            let answer = site.get(&path).await;
            assert!(matches!(answer.status, 200 | 204), "{path}: {}", answer.text());
        }
    }
    site.stop().await;
}

#[tokio::test]
async fn open_list_tells_no_memberships_by_its_filters() {
    let site = small().await;
    let other = site.token(json!([{"verbs": ["read"], "contexts": ["boot"]}])).await;
    let reader = site.token(json!([{"verbs": ["read"], "contexts": ["inventory"]}])).await;
    for filter in ["group=compute", "partition=p1", "group=NULL", "id=x&group=nowhere"] {
        let path = format!("{COMPONENTS}?{filter}");
        open(&site, &path).await.problem(401, "unauthenticated");
        site.ask_as(&other, "GET", &path).send().await.problem(401, "unauthenticated");
        site.ask_as(&reader, "GET", &path).send().await.expect(200);
    }
    site.stop().await;
}

#[tokio::test]
async fn a_site_can_lock_them_too() {
    let site = Site::start_with(|config| {
        config.policy.locked.insert(Context::Inventory);
    })
    .await;
    for path in [COMPONENTS, INTERFACES, "/hsm/v2/service/ready"] {
        open(&site, path).await.problem(401, "unauthenticated");
        site.get(path).await.expect(200);
    }
    site.stop().await;
}

#[tokio::test]
async fn smd_routes_are_read_only() {
    let site = small().await;
    let before = site.records().await;
    for (path, _) in paths(&site).await {
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            let answer = site.ask(method, &filled(&path)).json(&json!({})).send().await;
            answer.problem(405, "method-not-allowed");
        }
    }
    for path in ["/hsm/v2", "/hsm/v2/locks/status", "/hsm/v2/Subscriptions/SCN", "/hsm/v2/sysinfo"]
    {
        site.get(path).await.problem(404, "unknown-route");
    }
    assert_eq!(site.records().await, before);
    site.stop().await;
}

#[tokio::test]
async fn a_limited_token_sees_its_nodes_and_no_others() {
    let site = small().await;
    let hidden = [xname(2), xname(3), mac(2), mac(2).replace(':', ""), "spare".to_owned()];
    let token = site.limited_token("node:n1").await;
    let mut seen = 0;
    for (path, access) in paths(&site).await {
        let answer = site.ask_as(&token, "GET", &filled(&path)).send().await;
        if access.starts_with("lockable") {
            // Open: the token is not checked.
            continue;
        }
        let text = answer.expect(200).text();
        for hidden in &hidden {
            assert!(!text.contains(hidden.as_str()), "{path} shows {hidden}: {text}");
        }
        seen += usize::from(text.contains(&xname(1)));
    }
    assert!(seen > 8, "{seen}");
    // Nor sets in which it has no node.
    for (path, expected) in [
        ("/hsm/v2/groups/labels", json!(["compute", "rack-a"])),
        ("/hsm/v2/partitions/names", json!(["p1"])),
        ("/hsm/v2/groups/compute/members?partition=NULL", json!({"ids": []})),
    ] {
        let answer = site.ask_as(&token, "GET", path).send().await;
        assert_eq!(answer.expect(200).json(), expected, "{path}");
    }
    let odd = site.limited_token("node:spare").await;
    for (path, expected) in [
        ("/hsm/v2/groups/labels", json!(["odd"])),
        ("/hsm/v2/partitions/names", json!([])),
        ("/hsm/v2/partitions", json!([])),
    ] {
        let answer = site.ask_as(&odd, "GET", path).send().await;
        assert_eq!(answer.expect(200).json(), expected, "{path}");
    }
    for path in
        ["/hsm/v2/groups/compute", "/hsm/v2/groups/compute/members", "/hsm/v2/partitions/p1"]
    {
        site.ask_as(&odd, "GET", path).send().await.problem(404, "not-found");
    }
    for path in [
        format!("{COMPONENTS}/{}", xname(2)),
        format!("{COMPONENTS}/ByNID/2"),
        format!("{COMPONENTS}/spare"),
        format!("{INTERFACES}/{}", mac(2).replace(':', "")),
        format!("/hsm/v2/Inventory/ComponentEndpoints/{}", xname(2)),
        format!("/hsm/v2/memberships/{}", xname(2)),
    ] {
        site.ask_as(&token, "GET", &path).send().await.problem(404, "not-found");
        site.get(&path).await.expect(200);
    }
    site.stop().await;

    let locked = Site::start_with(|config| {
        config.policy.locked.insert(Context::Inventory);
    })
    .await;
    locked.apply(&sets().into_iter().chain([node(1)]).collect::<Vec<Value>>()).await;
    let token = locked.limited_token("node:n1").await;
    locked.ask_as(&token, "GET", COMPONENTS).send().await.problem(403, "forbidden");
    locked.stop().await;
}
