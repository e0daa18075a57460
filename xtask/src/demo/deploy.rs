//! The deployment part of the demo: a run fails at a precondition, is resumed and is undone.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};

use super::{Site, WAS_FAILED};
use crate::{root, say};

const FILES: [&str; 4] = ["hoist.toml", "nodes.yaml", "site.yaml", "index.html"];

/// Where the example's web server listens.
const PORT: &str = "18480";

pub(super) fn show(hoist: &Path, place: &Path) -> Result<()> {
    say(
        "\n# A deployment runs small tasks with checks on running machines. This is examples/deploy",
    );
    say("# (on a free port), with a controller whose three nodes are directories.");
    let example = copied(place)?;
    let data_dir = example.join("data");
    // Must be dropped after the controller, which could start more of them.
    let left = Daemons(data_dir.join("deploy/local"));
    let more = ["--tls-listen", "off", "--config", "hoist.toml"];
    let mut site = Site::start(hoist.to_owned(), &example, &example, &more)?;
    site.run(&["apply", "-f", "nodes.yaml"])?;
    site.run(&["deploy", "plan", "site.yaml"])?;

    say(
        "\n# A user is logged in on the web server's machine. The precondition of `web-start` fails:",
    );
    let web = left.0.join("web1");
    fs_err::create_dir_all(&web)?;
    let maintenance = web.join("maintenance");
    say(format!("\n$ touch {}", maintenance.display()));
    fs_err::write(&maintenance, "")?;
    site.run_ending(&["deploy", "run", "site.yaml"], WAS_FAILED)?;
    site.run(&["deploy", "explain", "last", "monitor-start@mon1"])?;

    say("\n# After the repair, `resume` runs only the remaining tasks:");
    say(format!("\n$ rm {}", maintenance.display()));
    fs_err::remove_file(&maintenance)?;
    site.run(&["deploy", "resume", "last"])?;
    let status = left.0.join("mon1/run/status");
    say(format!("\n$ cat {}", status.display()));
    say(fs_err::read_to_string(&status)?.trim_end());

    say("\n# `undo` undoes all steps of the run, from the last to the first:");
    site.run(&["deploy", "undo", "last"])?;
    site.run(&["deploy", "list"])?;
    site.stop()
}

/// A copy of the example whose web server has a free port.
fn copied(place: &Path) -> Result<PathBuf> {
    let from = root().join("examples/deploy");
    let to = place.join("deploy");
    fs_err::create_dir(&to)?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    for name in FILES {
        let text = fs_err::read_to_string(from.join(name))?;
        fs_err::write(to.join(name), text.replace(PORT, &port))?;
    }
    Ok(to)
}

/// Processes left by the example's tasks, found by the directory of the nodes. None remain after
/// the undo; this guard ends those of a demo that stops early.
struct Daemons(PathBuf);

impl Drop for Daemons {
    fn drop(&mut self) {
        for name in ["web1/run/web.pid", "mon1/run/monitor.pid"] {
            let written = fs_err::read_to_string(self.0.join(name)).unwrap_or_default();
            if let Some(pid) = written.trim().parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
    }
}
