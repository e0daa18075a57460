//! How much memory a process really has: the kernel's word, not the allocator's.

use anyhow::{Context, Result};

/// Bytes resident now.
pub(crate) fn now(process: &str) -> Result<u64> {
    field(process, "VmRSS:")
}

/// The most bytes resident since [`reset_peak`].
pub(crate) fn peak(process: &str) -> Result<u64> {
    field(process, "VmHWM:")
}

pub(crate) fn reset_peak(process: &str) -> Result<()> {
    // 5 resets the high-water mark; see proc(5).
    Ok(fs_err::write(format!("/proc/{process}/clear_refs"), "5")?)
}

fn field(process: &str, name: &str) -> Result<u64> {
    let status = fs_err::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib: u64 = line
        .and_then(|line| line.trim().strip_suffix("kB"))
        .with_context(|| format!("no {name} in the status of {process}"))?
        .trim()
        .parse()?;
    Ok(kib * 1024)
}
