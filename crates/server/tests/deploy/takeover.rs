//! Controllers that share a store, and the runs of one that is gone.

use std::time::Duration;

use hoist_store::Store;
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::stores::fresh_name;

use crate::{HOLD, RUNS, eventually, file, lines, plan, put, site_with, start, step, until};

#[tokio::test(flavor = "multi_thread")]
async fn another_controller_takes_over_what_one_has_left() {
    let store = EtcdServer::shared().url(&fresh_name());
    let first = site_with(|config| config.store.clone_from(&store)).await;
    let second = first
        .start_beside(|config| config.deploy.local = Some("*".parse().expect("a selector")))
        .await;
    let vertices = [
        step("first@n1", 1, "echo x >> first", &[]),
        step("slow@n1", 1, HOLD, &[0]),
        step("last@n2", 2, "echo x >> last", &[1]),
    ];
    let run = start(&first, &plan(&vertices)).await;
    eventually("it began", || file(&first, 1, "begun").exists()).await;
    let listed = second.eventually(RUNS, |answer| answer.json()["items"][0]["id"] == *run).await;
    assert_eq!(listed.json()["items"][0]["state"], "running", "the other one sees it too");
    put(&first, 1, "go");
    first.stop().await;
    put(&second, 1, "go");
    let ended = until(&second, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    assert_eq!(lines(&second, 1, "first"), 0, "what the first one has done is not done again");
    assert_eq!(lines(&second, 2, "last"), 1);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_has_lost_its_lease_writes_nothing_more() {
    let store = EtcdServer::shared().url(&fresh_name());
    let site = site_with(|config| config.store.clone_from(&store)).await;
    let run =
        start(&site, &plan(&[step("slow@n1", 1, HOLD, &[]), step("b@n1", 1, "true", &[0])])).await;
    eventually("it began", || file(&site, 1, "begun").exists()).await;
    let shared = site.controller.chassis().store.clone();
    let (name, path) = (format!("run-{run}"), site.data_dir().join("journal/owner"));
    let owner = fs_err::read_to_string(path).expect("it has a name");
    let ours = shared.acquire(&name, &owner, Duration::from_secs(15)).await;
    let ours = ours.expect("the store answers").expect("it is ours");
    shared.release(ours).await.expect("the store answers");
    let taken = shared.acquire(&name, "another", Duration::from_mins(1)).await;
    assert!(taken.expect("the store answers").is_some());
    put(&site, 1, "go");
    // Its thread ends, and the run is not ours any more.
    let gone = |answer: &crate::site::Answer| answer.status == 404;
    site.eventually(&format!("{RUNS}/{run}"), gone).await;
    let third = format!("journal/{run}/records/{:010}", 2).parse().expect("a key");
    assert_eq!(shared.get(&third).await.expect("the store answers"), None, "it ended, unheard");
    site.stop().await;
}
