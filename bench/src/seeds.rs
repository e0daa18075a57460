//! The documents that cloud-init fetches, beside boot scripts of the same controller.

use std::path::Path;

use anyhow::{Result, ensure};
use hoist_server::site_key;

use crate::boot::{self, median};
use crate::cores::Cores;
use crate::inside;
use crate::sample::{self, SITE, Shuffle};
use crate::verdict::{Limit, Row};
use crate::wrk::{self, Connections};

/// Scripts and documents take turns.
const ROUNDS: usize = 7;
const SECONDS: u32 = 2;
/// Turns until every node has asked.
const WARM_UP: usize = 6;
/// Of the scripts' rate.
const RATE: Limit = Limit::AtLeast(0.5);

/// The two that every node fetches and that say something.
const DOCUMENTS: [&str; 2] = ["meta-data", "user-data"];

pub(crate) fn measure() -> Result<Vec<Row>> {
    let dir = tempfile::tempdir()?;
    let site = dir.path().join("site");
    inside::ask(&["site", &SITE.to_string(), inside::path(&site)?, "embedded"])?;
    let cores = Cores::split()?;
    let controller = inside::ControllerProcess::start_on(&site, "embedded", Some(&cores.server))?;
    let scripts = boot::write_scripts(dir.path(), SITE)?;
    let seeds = dir.path().join("seeds");
    fs_err::write(&seeds, paths(&site)?.join("\n"))?;
    check(&controller.address, &seeds)?;
    std::thread::sleep(boot::SETTLE);
    let ask = |paths: &Path| {
        wrk::throughput(&cores, &controller.address, paths, Connections::KeptAlive, SECONDS)
    };
    // Documents are cached at their first request; until then each is rendered.
    let first = ask(&seeds)?;
    for _ in 1..WARM_UP {
        ask(&seeds)?;
    }
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..ROUNDS {
        ours.push(ask(&seeds)?);
        theirs.push(ask(&scripts)?);
    }
    let ratios = ours.iter().zip(&theirs).map(|(seeds, scripts)| seeds / scripts).collect();
    let ours = median(ours);
    let theirs = median(theirs);
    let row = |what: &str, measured, limit, ours: f64| Row {
        what: what.to_owned(),
        measured,
        unit: "x",
        limit,
        detail: format!("{ours:.0}/s and {theirs:.0}/s, a random one of {SITE} nodes"),
    };
    Ok(vec![
        row(
            "documents/s, nodes that asked before / boot scripts/s",
            median(ratios),
            Some(RATE),
            ours,
        ),
        row("the same, nodes that ask for the first time", first / theirs, Some(RATE), first),
    ])
}

/// Of random nodes, each with its token.
fn paths(site: &Path) -> Result<Vec<String>> {
    let key = site_key::open(site)?;
    let mut random = Shuffle::new();
    let path = |(n, document): (u32, &str)| {
        let node = sample::node(n, 1);
        let token = key.seed(node.id, node.generation);
        format!("/meta/v1/seed/{}/{}/{document}", node.id, token.as_str())
    };
    let nodes = (0..SITE).map(|_| random.below(SITE));
    Ok(nodes.zip(DOCUMENTS.into_iter().cycle()).map(path).collect())
}

/// Checks that the documents are correct.
fn check(address: &str, paths: &Path) -> Result<()> {
    for path in fs_err::read_to_string(paths)?.lines().take(100) {
        let text = boot::fetch(address, path)?;
        let node = path.split('/').nth(4).unwrap_or_default();
        let told = if path.ends_with("meta-data") { node } else { "#cloud-config" };
        ensure!(text.contains(told), "{path} has\n{text}");
    }
    Ok(())
}
