//! Who runs where: servers and clients on all cores, or each on a half of them, where neither takes
//! from the other. Every server gets the same.

use std::process::Command;

use anyhow::{Result, ensure};

/// Lists of cores as `taskset` takes them.
#[derive(Debug, Clone)]
pub(crate) struct Cores {
    pub(crate) server: String,
    pub(crate) client: String,
    /// On each side.
    pub(crate) count: usize,
}

impl Cores {
    /// All processes on all cores, as on ordinary machines. A client can use the time that its
    /// server saves.
    pub(crate) fn shared() -> Result<Self> {
        let all = std::thread::available_parallelism()?.get();
        let list = format!("0-{}", all - 1);
        Ok(Self { server: list.clone(), client: list, count: all })
    }

    pub(crate) fn split() -> Result<Self> {
        let all = std::thread::available_parallelism()?.get();
        ensure!(all >= 2, "servers and clients need a core each; there is only one");
        let half = all / 2;
        let list = |from: usize| format!("{from}-{}", from + half - 1);
        Ok(Self { server: list(0), client: list(half), count: half })
    }
}

pub(crate) fn pinned(cores: &str, program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", cores, program]);
    command
}
