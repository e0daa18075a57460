//! Installing what tests and the demo need, on Debian and its relatives.
//!
//! Does nothing at all when everything is there. Services that come with the packages are neither
//! started nor left enabled; the tests start their own servers. A service that ran before goes on.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::{run_command, say};

/// A program that must be there, and the Debian package it comes with.
struct Need {
    program: &'static str,
    package: &'static str,
    /// Looked at besides `PATH`; `*` stands for any directory.
    elsewhere: &'static [&'static str],
}

const POSTGRES: &[&str] = &["/usr/lib/postgresql/*/bin"];

const TEST: [Need; 5] = [
    Need { program: "etcd", package: "etcd-server", elsewhere: &["/usr/bin"] },
    Need { program: "postgres", package: "postgresql", elsewhere: POSTGRES },
    Need { program: "initdb", package: "postgresql", elsewhere: POSTGRES },
    Need { program: "pg_isready", package: "postgresql", elsewhere: POSTGRES },
    // Runs PostgreSQL as somebody else when the tests run as root.
    Need { program: "setpriv", package: "util-linux", elsewhere: &[] },
];

/// Units that those packages would start and enable.
const SERVICES: [&str; 2] = ["etcd.service", "postgresql.service"];

/// Asked by every package before it starts its service; 101 means no.
const POLICY: &str = "/usr/sbin/policy-rc.d";

pub(crate) fn test() -> Result<()> {
    let missing: Vec<&Need> = TEST.iter().filter(|need| !need.is_met()).collect();
    if missing.is_empty() {
        say("setup-test: everything is there");
        return Ok(());
    }
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    packages.dedup();
    let programs: Vec<&str> = missing.iter().map(|need| need.program).collect();
    say(format!("setup-test: missing {}; installing {}", programs.join(", "), packages.join(" ")));
    install(&packages)?;
    if let Some(need) = TEST.iter().find(|need| !need.is_met()) {
        bail!("`{}` is still missing after installing `{}`", need.program, need.package);
    }
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "as the other jobs")]
pub(crate) fn demo() -> Result<()> {
    say("setup-demo: the demo needs nothing beyond cargo and a C compiler");
    Ok(())
}

impl Need {
    fn is_met(&self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let elsewhere = self.elsewhere.iter().flat_map(|pattern| directories(pattern));
        std::env::split_paths(&path).chain(elsewhere).any(|dir| dir.join(self.program).is_file())
    }
}

/// The directories a pattern with at most one `*` stands for.
fn directories(pattern: &str) -> Vec<PathBuf> {
    let Some((above, below)) = pattern.split_once("*/") else { return vec![pattern.into()] };
    let entries = std::fs::read_dir(above).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().join(below)).collect()
}

fn install(packages: &[&str]) -> Result<()> {
    if !is_program("apt-get") {
        bail!("there is no apt-get; install these by hand: {}", packages.join(" "));
    }
    let quiet: Vec<&str> = SERVICES.into_iter().filter(|unit| !is("is-active", unit)).collect();
    let dull: Vec<&str> = SERVICES.into_iter().filter(|unit| !is("is-enabled", unit)).collect();

    // Somebody else's policy stays; then services may start, and are stopped below.
    let ours = !Path::new(POLICY).exists();
    if ours {
        let script = format!("printf '#!/bin/sh\\nexit 101\\n' > {POLICY} && chmod 755 {POLICY}");
        run_command(as_root("sh").args(["-c", &script]))?;
    }
    let installed = apt(packages);
    if ours {
        run_command(as_root("rm").arg(POLICY))?;
    }
    installed?;

    if is_program("systemctl") {
        for unit in dull.iter().filter(|unit| is("is-enabled", unit)) {
            run_command(as_root("systemctl").args(["disable", "--quiet", unit]))?;
        }
        for unit in quiet.iter().filter(|unit| is("is-active", unit)) {
            run_command(as_root("systemctl").args(["stop", unit]))?;
        }
    }
    Ok(())
}

fn apt(packages: &[&str]) -> Result<()> {
    run_command(as_root("apt-get").args(["update", "-qq"]))?;
    let mut install = as_root("env");
    install.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qq", "-y"]);
    run_command(install.arg("--no-install-recommends").args(packages))
}

/// `systemctl is-active` and the like; no systemd means no.
fn is(question: &str, unit: &str) -> bool {
    let mut command = Command::new("systemctl");
    command.args([question, "--quiet", unit]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn as_root(program: &str) -> Command {
    if rustix::process::geteuid().is_root() {
        Command::new(program)
    } else {
        let mut command = Command::new("sudo");
        command.arg(program);
        command
    }
}

fn is_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}
