//! How long a machine is waited for, on a host that is slow or has other things to do.

use std::process::Child;
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;

/// A machine that only waits, for a disk of its host or for ever, may stand for so many times as long
/// as one may work.
const STANDS: u32 = 3;

/// A machine may use so much of a processor. An emulated one that gets a third of a core is not to
/// blame for being three times as slow; one that hangs uses nothing, and is given up later.
#[derive(Debug)]
pub(crate) struct Deadline {
    within: Duration,
    begun: Instant,
    used: Duration,
}

impl Deadline {
    pub(crate) fn new(machine: Option<&Child>, within: Duration) -> Self {
        Self { within, begun: Instant::now(), used: used(machine) }
    }

    pub(crate) fn is_over(&self, machine: Option<&Child>) -> bool {
        self.has_ended(self.begun.elapsed(), used(machine).saturating_sub(self.used))
    }

    fn has_ended(&self, since: Duration, used: Duration) -> bool {
        since >= self.within && (used >= self.within || since >= self.within * STANDS)
    }

    /// For messages.
    pub(crate) fn describe(&self, machine: Option<&Child>) -> String {
        let used = used(machine).saturating_sub(self.used);
        format!("{:.0?}, {used:.0?} of them at work", self.begun.elapsed())
    }
}

/// The processor time of a machine so far; zero for one that is off.
fn used(machine: Option<&Child>) -> Duration {
    let stat =
        machine.and_then(|it| std::fs::read_to_string(format!("/proc/{}/stat", it.id())).ok());
    stat.as_deref().and_then(ticks).map_or(Duration::ZERO, |ticks| {
        Duration::from_millis(ticks.saturating_mul(1000) / clock_ticks_per_second().max(1))
    })
}

/// Of a line of `/proc/PID/stat`: in user mode, and for us in the kernel. The name of the program is
/// in parentheses and may have anything in it.
fn ticks(stat: &str) -> Option<u64> {
    let behind = stat.rsplit_once(") ")?.1;
    let mut fields = behind.split(' ').skip(11).map(str::parse::<u64>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_machine_is_waited_for_and_hanging_one_is_not() {
        let deadline = Deadline::new(None, Duration::from_mins(2));
        let minutes =
            |since, used| deadline.has_ended(Duration::from_mins(since), Duration::from_mins(used));
        assert!(!minutes(1, 1) && !minutes(1, 2), "it is not over before its time");
        assert!(minutes(2, 2), "it had all that it may have");
        assert!(!minutes(5, 1), "it had little");
        assert!(minutes(6, 0), "it hangs");
    }

    #[test]
    fn processor_time_is_read_for_any_program_name() {
        let stat = "17 (a) b (c) S 1 17 17 0 -1 4194560 900 0 3 0 250 50 0 0 20 0 1 0 5 6 7";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("17 (a) S 1"), None);
    }

    #[test]
    fn a_program_that_works_uses_a_processor() {
        let mut busy = std::process::Command::new("sh");
        let mut busy = busy.args(["-c", "while :; do :; done"]).spawn().expect("sh starts");
        let deadline = Instant::now() + Duration::from_secs(30);
        while used(Some(&busy)).is_zero() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let seen = used(Some(&busy));
        busy.kill().and_then(|()| busy.wait()).expect("it is ours");
        assert!(!seen.is_zero());
    }
}
