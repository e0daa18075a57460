//! Processes of attempts whose executor is gone.
//!
//! A program that a step started outlives the controller when that is killed. It is found by what
//! its environment says, and ended before anybody is told that the attempt is gone: two of one step
//! never run at once.

use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::ATTEMPT_VARIABLE;

/// Time to end by themselves.
const GRACE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// Ends what is left of an attempt. `false` if something does not go away.
pub(crate) fn end(attempt: &str) -> bool {
    let until = Instant::now() + GRACE;
    let mut signal = Signal::TERM;
    loop {
        let left = processes(attempt);
        if left.is_empty() {
            return true;
        }
        for pid in left {
            send(pid, attempt, signal);
        }
        if Instant::now() > until {
            if signal == Signal::KILL {
                return false;
            }
            signal = Signal::KILL;
        }
        std::thread::sleep(POLL);
    }
}

fn send(pid: Pid, attempt: &str, signal: Signal) {
    // The number may be somebody else's by now; what the descriptor stands for stays the same.
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
        && belongs(pid, attempt)
    {
        // It may have ended just now.
        let _ = pidfd_send_signal(process, signal);
    }
}

fn processes(attempt: &str) -> Vec<Pid> {
    let entries = fs_err::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Pid::from_raw)
        .filter(|pid| *pid != getpid() && belongs(*pid, attempt))
        .collect()
}

fn belongs(pid: Pid, attempt: &str) -> bool {
    let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
    let wanted = format!("{ATTEMPT_VARIABLE}={attempt}");
    let Ok(environment) = fs_err::read(path) else { return false };
    // A part of an attempt has a name of its own, after a dot.
    let is_ours = |rest: &[u8]| rest.first().is_none_or(|byte| *byte == b'.');
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| variable.strip_prefix(wanted.as_bytes()).is_some_and(is_ours))
}
