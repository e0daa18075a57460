//! What becomes of runs when the controller ends.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::deploy::{
    HOLD, RUNS, eventually, file, lines, order, plan, put, site, start, step, until, with,
};
use crate::site::Site;

fn records(dir: &Path, run: &str) -> PathBuf {
    dir.join("journal").join(run).join("records")
}

#[tokio::test]
async fn run_continues_after_a_restart() {
    let site = site().await;
    let vertices = [
        step("first@n1", 1, "echo once >> first", &[]),
        with(step("slow@n1", 1, HOLD, &[0]), "repeat", json!("safe")),
        step("last@n2", 2, "echo once >> last", &[1]),
    ];
    let run = start(&site, &plan(&vertices)).await;
    eventually("task has started", || file(&site, 1, "begun").exists()).await;
    let site = site.restart().await;
    put(&site, 1, "go");
    let ended = until(&site, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    assert_eq!((lines(&site, 1, "first"), lines(&site, 2, "last")), (1, 1));
    site.stop().await;
}

#[tokio::test]
async fn stopped_or_ended_run_stays_so_after_a_restart() {
    let site = site().await;
    let ended = start(&site, &plan(&[step("a@n1", 1, "echo x >> a", &[])])).await;
    until(&site, &ended, "ended").await;
    let vertices = [step("slow@n2", 2, HOLD, &[]), step("b@n2", 2, "true", &[0])];
    let paused = start(&site, &plan(&vertices)).await;
    order(&site, &paused, "pause", json!({})).await;
    put(&site, 2, "go");
    let site = site.restart().await;
    assert_eq!(until(&site, &ended, "ended").await["outcome"], "succeeded");
    assert_eq!(lines(&site, 1, "a"), 1);
    until(&site, &paused, "paused").await;
    order(&site, &paused, "unpause", json!({})).await;
    assert_eq!(until(&site, &paused, "ended").await["outcome"], "succeeded");
    site.stop().await;
}

#[tokio::test]
async fn damaged_journal_is_named_with_its_place_and_isolated() {
    let site = site().await;
    let after = |n: u32| n.checked_sub(1).into_iter().collect::<Vec<_>>();
    let command = |n: u32| if n < 5 { "true" } else { HOLD };
    let steps: Vec<_> =
        (0..6).map(|n| step(&format!("s{n}@n1"), 1, command(n), &after(n))).collect();
    let bad = start(&site, &plan(&steps)).await;
    let good = start(&site, &plan(&[step("other@n2", 2, HOLD, &[])])).await;
    eventually("both began", || {
        file(&site, 1, "begun").exists() && file(&site, 2, "begun").exists()
    })
    .await;
    let (dir, config) = site.stop().await;
    let path = records(dir.path(), &bad);
    let mut bytes = fs_err::read(&path).expect("a journal");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    fs_err::write(&path, &bytes).expect("a journal");
    let site = Site::start_again(dir, config).await;
    let broken = until(&site, &bad, "broken").await;
    let reason = broken["broken"].as_str().expect("a reason");
    assert!(reason.contains("damaged at byte"), "{reason}");
    assert_eq!(
        fs_err::read(records(site.data_dir(), &bad)).expect("a journal"),
        bytes,
        "nothing is cut"
    );
    let problem =
        site.post(&format!("{RUNS}/{bad}/resume"), &json!({})).await.problem(409, "conflict");
    assert!(problem.detail.contains("damaged at byte"), "{}", problem.detail);
    put(&site, 2, "go");
    assert_eq!(until(&site, &good, "ended").await["outcome"], "succeeded");
    site.stop().await;
}

#[tokio::test]
async fn a_journal_of_a_newer_version_is_not_touched() {
    let site = site().await;
    let run = start(&site, &plan(&[step("a@n1", 1, HOLD, &[])])).await;
    let (dir, config) = site.stop().await;
    let path = records(dir.path(), &run);
    let mut bytes = fs_err::read(&path).expect("a journal");
    bytes[7] += 1;
    fs_err::write(&path, &bytes).expect("a journal");
    let site = Site::start_again(dir, config).await;
    let broken = until(&site, &run, "broken").await;
    assert!(broken["broken"].to_string().contains("version 2"), "{broken}");
    site.post(&format!("{RUNS}/{run}/resume"), &json!({})).await.problem(409, "conflict");
    let after = fs_err::read(records(site.data_dir(), &run)).expect("a journal");
    assert_eq!(after, bytes, "nothing is written");
    site.stop().await;
}

#[tokio::test]
async fn run_locked_by_another_process_is_left_alone() {
    let site = site().await;
    let run = start(&site, &plan(&[step("a@n1", 1, HOLD, &[])])).await;
    let (dir, config) = site.stop().await;
    let lock = fs_err::File::open(dir.path().join("journal").join(&run).join("lock"));
    let lock = lock.expect("a lock").into_parts().0;
    lock.try_lock().expect("nobody holds it");
    let site = Site::start_again(dir, config).await;
    let broken = until(&site, &run, "broken").await;
    assert!(broken["broken"].to_string().contains("another process"), "{broken}");
    let events = format!("{RUNS}/{run}/events");
    let events = site.ask("GET", &events).header("accept", "text/event-stream").send().await;
    assert!(events.text().contains("event: plan"), "and it comes to its end: {}", events.text());
    let stop = site.post(&format!("{RUNS}/{run}/stop"), &json!({})).await;
    assert!(stop.problem(409, "conflict").detail.contains("no controller drives"));
    drop(lock);
    put(&site, 1, "go");
    order(&site, &run, "resume", json!({})).await;
    assert_eq!(until(&site, &run, "ended").await["outcome"], "succeeded");
    site.stop().await;
}

/// The state after a kill: the mark of a clean shutdown is missing.
fn forget_order(dir: &Path, run: &str) {
    fs_err::remove_file(dir.join("journal").join(run).join("left")).expect("it was left");
}

#[tokio::test]
async fn run_after_a_crash_follows_its_plan() {
    let site = site().await;
    let undo = json!({"action": "shell", "input": {"command": "rm first"}});
    let vertices = [
        with(step("first@n1", 1, "echo x >> first", &[]), "undo", undo.clone()),
        with(step("slow@n1", 1, HOLD, &[0]), "undo", undo.clone()),
    ];
    let with_end = |word: &str| {
        let mut plan = plan(&vertices);
        plan["on_crash"] = json!(word);
        plan
    };
    let asks = start(&site, &with_end("ask")).await;
    eventually("task has started", || file(&site, 1, "begun").exists()).await;
    let (dir, config) = site.stop().await;
    forget_order(dir.path(), &asks);
    let site = Site::start_again(dir, config).await;
    until(&site, &asks, "paused").await;
    let events = site.get(&format!("{RUNS}/{asks}/events")).await.expect(200).json();
    let items = events["items"].as_array().expect("a list").iter();
    let before: Vec<_> = items.take_while(|event| event["record"] != "pause").collect();
    let begun = before.iter().filter(|event| event["record"] == "intent").count();
    assert_eq!(begun, 2, "nothing new began before it asked: {before:#?}");
    put(&site, 1, "go");
    order(&site, &asks, "unpause", json!({})).await;
    assert_eq!(until(&site, &asks, "ended").await["outcome"], "succeeded");
    fs_err::remove_file(file(&site, 1, "go")).expect("it is there");
    fs_err::remove_file(file(&site, 1, "begun")).expect("it is there");

    let undoes = start(&site, &with_end("undo")).await;
    eventually("task has started", || file(&site, 1, "begun").exists()).await;
    let (dir, config) = site.stop().await;
    forget_order(dir.path(), &undoes);
    let site = Site::start_again(dir, config).await;
    until(&site, &undoes, "ended").await;
    let is_undone = |answer: &crate::site::Answer| {
        let newest = &answer.json()["items"][0];
        newest["undoes"] == *undoes && newest["state"] == "ended"
    };
    site.eventually(RUNS, is_undone).await;
    assert!(!file(&site, 1, "first").exists(), "it was undone");
    site.stop().await;
}

#[tokio::test]
async fn stray_files_do_not_block_loading_runs() {
    let site = site().await;
    let run = start(&site, &plan(&[step("slow@n1", 1, HOLD, &[])])).await;
    eventually("task has started", || file(&site, 1, "begun").exists()).await;
    let (dir, config) = site.stop().await;
    fs_err::write(dir.path().join("journal/new-x"), "").expect("a file");
    let site = Site::start_again(dir, config).await;
    put(&site, 1, "go");
    assert_eq!(until(&site, &run, "ended").await["outcome"], "succeeded");
    site.stop().await;
}

/// Says so much to a run that a snapshot of it is kept: every hold is a record.
async fn until_snapshot(site: &Site, run: &str, held: &[String]) -> PathBuf {
    let snapshot = records(site.data_dir(), run).with_added_extension("snapshot");
    for word in ["hold", "release", "hold", "release"] {
        assert!(!snapshot.exists(), "it is worth it only after many records");
        order(site, run, word, json!({ "instances": held })).await;
    }
    eventually("snapshot is written", || snapshot.exists()).await;
    snapshot
}

#[tokio::test]
async fn run_continues_from_its_snapshot_and_later_records() {
    const STEPS: u32 = 4200;
    let site = site().await;
    let mut vertices = vec![step("slow@n1", 1, HOLD, &[]), step("last@n1", 1, "true", &[0])];
    let held: Vec<String> = (2..STEPS).map(|n| format!("#{n}")).collect();
    let skipped =
        |n: u32| with(step(&format!("s{n}@n2"), 2, "false", &[0]), "skip", json!("not now"));
    vertices.extend((2..STEPS).map(skipped));
    let run = start(&site, &plan(&vertices)).await;
    eventually("task has started", || file(&site, 1, "begun").exists()).await;
    let snapshot = until_snapshot(&site, &run, &held).await;
    let (dir, config) = site.stop().await;

    // Something that no record says, to see where it comes from.
    let bytes = fs_err::read(&snapshot).expect("a snapshot");
    let (head, body) = bytes.split_at(12);
    let body = String::from_utf8(body.to_vec()).expect("text");
    let told = body.replace("\"paused\":null", "\"paused\":\"the snapshot\"");
    assert_ne!(told, body);
    let sum = crc32c::crc32c(told.as_bytes()).to_le_bytes();
    fs_err::write(&snapshot, [&head[..8], &sum, told.as_bytes()].concat()).expect("a snapshot");
    let site = Site::start_again(dir, config).await;
    until(&site, &run, "paused").await;
    order(&site, &run, "unpause", json!({})).await;
    put(&site, 1, "go");
    assert_eq!(until(&site, &run, "ended").await["outcome"], "succeeded");
    let events = site.get(&format!("{RUNS}/{run}/events")).await.expect(200).json();
    assert_eq!(events["items"][0]["record"], "plan", "everything can still be seen: {events:#}");
    site.stop().await;
}

#[tokio::test]
async fn unfinished_journal_wins_over_a_finished_summary() {
    let site = site().await;
    let vertices = [step("slow@n1", 1, HOLD, &[]), step("then@n1", 1, "echo x >> then", &[0])];
    let run = start(&site, &plan(&vertices)).await;
    eventually("step has started", || file(&site, 1, "begun").exists()).await;
    let early = fs_err::read(records(site.data_dir(), &run)).expect("a journal");
    put(&site, 1, "go");
    until(&site, &run, "ended").await;
    let (dir, config) = site.stop().await;
    fs_err::write(records(dir.path(), &run), early).expect("a journal");
    let site = Site::start_again(dir, config).await;
    assert_eq!(until(&site, &run, "ended").await["outcome"], "succeeded");
    let last = site.get(&format!("{RUNS}/{run}/events?after=999")).await.expect(200).json();
    assert_eq!(last["state"], "ended", "its journal says so as well: {last}");
    site.stop().await;
}
