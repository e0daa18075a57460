//! Importing over the network: a controller that takes its nodes from an SMD, from the first cycle
//! to an idle one and to one in which a few nodes changed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hoist_testkit::smd::{Mode, Smd, SmdSet};
use serde_json::Value;

use crate::sample::SITE;
use crate::verdict::{Limit, Row, multiple};
use crate::{bulk, inside, resident};

const NOTHING: Limit = Limit::AtMost(0.0);
/// One node of so many is changed.
const CHANGED_OF: u32 = 100;
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) fn measure() -> Result<Vec<Row>> {
    let roster = inside::ask(&["roster", &SITE.to_string()])?;
    let runtime = tokio::runtime::Runtime::new()?;
    // Not yet: the first cycle is to begin when we say so.
    let smd = runtime.block_on(Smd::start(SmdSet::synthetic(SITE)));
    smd.set_mode(Mode::Fail);
    let dir = tempfile::tempdir()?;
    let site = Site::start(dir.path(), &smd.url(), &runtime)?;
    site.wait_for_a_failure()?;

    let before = resident::now(&site.process)?;
    resident::reset_peak(&site.process)?;
    smd.set_mode(Mode::Normal);
    let first = site.refresh()?;
    ensure!(first.report["added"] == SITE, "all of them are new: {}", first.report);
    let peak = resident::peak(&site.process)?.saturating_sub(before);

    let idle = site.refresh()?;
    ensure!(idle.report["idle"] == true, "nothing changed: {}", idle.report);

    let changed = SITE / CHANGED_OF;
    smd.edit(|set| {
        for component in set.components.iter_mut().step_by(CHANGED_OF as usize) {
            component["Role"] = "Application".into();
        }
    });
    let few = site.refresh()?;
    ensure!(few.report["changed"] == changed, "{changed} changed: {}", few.report);
    let touched = site.touched_since(idle.revision)?;

    let mib = peak / (1024 * 1024);
    let second = |cycle: &Cycle| cycle.took.as_secs_f64();
    let revisions = |what: &str, from: &Cycle, to: &Cycle, wanted: u64| Row {
        what: what.to_owned(),
        measured: multiple((to.revision - from.revision).abs_diff(wanted), 1),
        unit: "",
        limit: Some(NOTHING),
        detail: format!("revision {} after {}", to.revision, from.revision),
    };
    let seconds = |what: &str, cycle: &Cycle| Row {
        what: what.to_owned(),
        measured: second(cycle),
        unit: " s",
        limit: None,
        detail: cycle.report["warnings"].as_array().map_or(0, Vec::len).to_string() + " warnings",
    };
    Ok(vec![
        seconds("first import of 100,000 nodes", &first),
        Row {
            what: "peak memory of it / roster".to_owned(),
            measured: multiple(peak, roster),
            unit: "x roster",
            limit: None,
            detail: format!("{mib} MiB above {} MiB", before / (1024 * 1024)),
        },
        seconds("idle import of 100,000 nodes", &idle),
        revisions("revisions made by an idle import of 100,000 nodes", &first, &idle, 0),
        seconds("import in which 1,000 nodes changed", &few),
        revisions("revisions made by it besides the one", &idle, &few, 1),
        Row {
            what: "nodes touched besides the 1,000 that changed".to_owned(),
            measured: multiple(touched.abs_diff(u64::from(changed)), 1),
            unit: "",
            limit: Some(NOTHING),
            detail: format!("{touched} of {SITE}"),
        },
    ])
}

struct Site<'r> {
    _running: inside::ControllerProcess,
    process: String,
    url: String,
    token: String,
    client: reqwest::Client,
    runtime: &'r tokio::runtime::Runtime,
}

struct Cycle {
    report: Value,
    revision: u64,
    took: Duration,
}

impl<'r> Site<'r> {
    fn start(dir: &Path, source: &str, runtime: &'r tokio::runtime::Runtime) -> Result<Self> {
        let running = inside::ControllerProcess::importing(dir, source)?;
        let token = fs_err::read_to_string(dir.join("admin.token"))?.trim().to_owned();
        let url = format!("http://{}/inventory/v1", running.address);
        let process = running.process();
        Ok(Self { _running: running, process, url, token, client: bulk::client()?, runtime })
    }

    /// The cycle that every controller begins with is over.
    fn wait_for_a_failure(&self) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        while self.ask(self.client.get(format!("{}/status", self.url)))?["source"]["error"]
            .is_null()
        {
            ensure!(Instant::now() < deadline, "the first cycle does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn refresh(&self) -> Result<Cycle> {
        let started = Instant::now();
        let report = self.ask(self.client.post(format!("{}/refresh", self.url)))?;
        let took = started.elapsed();
        let revision = report["revision"].as_u64().context("a revision")?;
        Ok(Cycle { report, revision, took })
    }

    fn touched_since(&self, revision: u64) -> Result<u64> {
        let url = format!("{}/nodes?since={revision}&wait=1s", self.url);
        let batch = self.ask(self.client.get(url))?;
        let lines = batch["lines"].as_array().context("a batch")?;
        Ok(lines.iter().filter(|line| line["type"] == "put").count() as u64)
    }

    fn ask(&self, request: reqwest::RequestBuilder) -> Result<Value> {
        self.runtime.block_on(async {
            let answer = request.bearer_auth(&self.token).send().await?;
            let status = answer.status();
            let text = answer.text().await?;
            let head: String = text.chars().take(500).collect();
            ensure!(status.is_success(), "{status}: {head}");
            Ok(serde_json::from_str(&text)?)
        })
    }
}
