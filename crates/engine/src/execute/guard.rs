//! Enforces the resource limits of programs.
//!
//! The kernel enforces limits of open files and file sizes. Memory and processes are counted here,
//! because the kernel limits each process separately, and does not limit processes of root.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::AttemptPrograms;
use super::leftover::{Process, Traces};
use crate::plan::MayUse;

/// Interval between measurements.
const LOOK: Duration = Duration::from_millis(200);

/// Turns off core dumps, which may contain secrets, unless the program turns them on.
pub(crate) fn without_core(process: Pid) {
    // The hard limit stays, so that the program can raise its own.
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    // The process may have ended in the meantime.
    let _ = prlimit(Some(process), Resource::Core, limit);
}

impl MayUse {
    /// Shell commands that set the limits, and exit if the kernel refuses.
    pub(crate) fn as_commands(&self) -> String {
        let mut commands = String::new();
        if let Some(open_files) = self.open_files {
            write!(commands, "ulimit -n {open_files} || exit 125; ").expect("writing to memory");
        }
        if let Some(file_size) = self.file_size {
            write!(commands, "ulimit -f {} || exit 125; ", file_size.div_ceil(512))
                .expect("writing to memory");
        }
        commands
    }

    pub(super) fn is_counted(&self) -> bool {
        self.memory.is_some() || self.processes.is_some()
    }

    /// The first exceeded limit.
    fn excess(&self, found: &[Process]) -> Option<String> {
        if let Some(most) = self.processes
            && found.len() > most as usize
        {
            return Some(format!(
                "the step had {} processes at once; the limit is {most}",
                found.len()
            ));
        }
        let most = self.memory?;
        let pids = || found.iter().map(|process| process.pid);
        // The cheap measurement counts shared memory for each process; only if it is too high is
        // the exact one taken.
        if pids().map(resident).sum::<u64>() <= most {
            return None;
        }
        let used: u64 = pids().map(|pid| proportional(pid).unwrap_or_else(|| resident(pid))).sum();
        let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
        (used > most).then(|| {
            format!(
                "the step used {} MiB of memory; the limit is {} MiB",
                mebibytes(used),
                mebibytes(most)
            )
        })
    }
}

/// Memory of a process, with shared memory counted in full.
fn resident(pid: i32) -> u64 {
    sum(&format!("/proc/{pid}/status"), &["RssAnon:", "RssShmem:", "VmSwap:"]).unwrap_or_default()
}

/// Memory of a process, with shared memory divided among its users.
fn proportional(pid: i32) -> Option<u64> {
    sum(&format!("/proc/{pid}/smaps_rollup"), &["Pss_Anon:", "Pss_Shmem:", "SwapPss:"])
}

/// Sums up lines `NAME: NUMBER kB`.
fn sum(path: &str, names: &[&str]) -> Option<u64> {
    let text = fs_err::read_to_string(path).ok()?;
    let kib = |line: &str| {
        let (name, rest) = line.split_once(char::is_whitespace)?;
        let number = rest.trim().strip_suffix("kB")?.trim();
        names.contains(&name).then(|| number.parse::<u64>().ok())?
    };
    Some(text.lines().filter_map(kib).sum::<u64>() * 1024)
}

/// Does the work of an attempt while its programs are watched. If they exceed a limit, all of them
/// are killed, and the second value names the limit.
pub(super) fn run_guarded<T>(
    may_use: Option<&MayUse>,
    programs: &AttemptPrograms,
    attempt: &str,
    work: impl FnOnce() -> T,
) -> (T, Option<String>) {
    let Some(may_use) = may_use.filter(|may_use| may_use.is_counted()) else {
        return (work(), None);
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| watch(may_use, programs, attempt, &is_over));
        let end = End { is_over: &is_over, watcher: watch.thread().clone() };
        let worked = work();
        drop(end);
        (worked, watch.join().unwrap_or_default())
    })
}

/// Ends the watch, even if the work panics.
struct End<'a> {
    is_over: &'a AtomicBool,
    watcher: Thread,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.watcher.unpark();
    }
}

fn watch(
    may_use: &MayUse,
    programs: &AttemptPrograms,
    attempt: &str,
    is_over: &AtomicBool,
) -> Option<String> {
    while !is_over.load(Ordering::Acquire) {
        let traces: Traces = programs.traces(attempt);
        if let Some(excess) = may_use.excess(&traces.working_processes()) {
            traces.kill();
            return Some(excess);
        }
        std::thread::park_timeout(LOOK);
    }
    None
}
