//! The disk of the data directory: whether there is space for what the controller writes there.

use std::path::Path;

use hoist_chassis::health::{CheckResult, Readiness};

/// Below this, the last-good copy of a large site or the next growth of the embedded file may fail.
const LOW_BYTES: u64 = 64 << 20;

const MIB: u64 = 1 << 20;

pub(crate) fn check(readiness: &Readiness, data_dir: &Path) {
    let data_dir = data_dir.to_owned();
    readiness.add("data disk", move || {
        let free = free_bytes(&data_dir);
        async move { free.map_or_else(|| CheckResult::ok("unknown"), judge) }
    });
}

/// Sets the gauge.
#[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
pub(crate) fn measure(data_dir: &Path) {
    if let Some(free) = free_bytes(data_dir) {
        metrics::gauge!("hoist_data_disk_free_bytes").set(free as f64);
    }
}

fn free_bytes(data_dir: &Path) -> Option<u64> {
    rustix::fs::statvfs(data_dir).ok().map(|disk| disk.f_bavail * disk.f_frsize)
}

fn judge(free: u64) -> CheckResult {
    let left = format!("{} MiB free", free / MIB);
    if free < LOW_BYTES {
        CheckResult::degraded(format!("almost full, {left}; make room"))
    } else {
        CheckResult::ok(left)
    }
}

#[cfg(test)]
mod tests {
    use hoist_api::event::HealthStatus;

    use super::*;

    #[test]
    fn disk_with_little_space_is_degraded() {
        assert_eq!(judge(LOW_BYTES).status, HealthStatus::Ok);
        let low = judge(LOW_BYTES - 1);
        assert_eq!(low.status, HealthStatus::Degraded);
        assert!(low.detail.contains("63 MiB"), "{}", low.detail);
    }
}
