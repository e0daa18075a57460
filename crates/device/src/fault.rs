//! Fault injection: a disk that fails at a chosen write, so that tests can interrupt every write.

use std::io;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;

use hoist_provision::read_at::ReadAt;

use super::disk::Disk;

/// The time of the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultTrigger {
    Never,
    /// At the write with this number, counted from 0, before any of its bytes are written.
    AtWrite(u64),
    /// After this many bytes. The write that exceeds the limit is truncated there.
    AfterBytes(u64),
}

/// The effect of the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultEffect {
    /// This write fails; later ones succeed.
    Fail,
    /// This and all later writes fail.
    Die,
    /// As `Die`, and of the data written since the last sync only some sectors reach the disk. The
    /// number is the seed of the selection.
    CutPower(u64),
}

/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;

#[derive(Debug)]
pub struct Fault {
    when: FaultTrigger,
    then: FaultEffect,
    can_punch: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    count: WriteCount,
    has_broken: bool,
    is_dead: bool,
    /// Old contents of each range written since the last sync.
    before: Vec<(u64, Vec<u8>)>,
}

/// Writes requested so far. Punching a hole counts as a write of its length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteCount {
    pub writes: u64,
    pub bytes: u64,
}

pub(super) enum FaultOutcome {
    /// The real device must carry out the operation.
    Real,
    Taken,
    Refused,
}

impl Fault {
    pub fn new(when: FaultTrigger, then: FaultEffect) -> Self {
        Self { when, then, can_punch: true, state: Mutex::default() }
    }

    /// A device that cannot zero ranges itself, without another fault.
    pub fn without_punch() -> Self {
        Self { can_punch: false, ..Self::new(FaultTrigger::Never, FaultEffect::Fail) }
    }

    pub fn write_count(&self) -> WriteCount {
        self.state().count
    }

    pub fn has_broken(&self) -> bool {
        self.state().has_broken
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn write(&self, disk: &Disk, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let fit = self.fitting(&mut state, bytes.len() as u64)?;
        let fit = usize::try_from(fit).expect("no more than there are");
        self.remember(&mut state, disk, at, fit)?;
        disk.file.write_all_at(&bytes[..fit], at)?;
        if fit == bytes.len() { Ok(()) } else { self.break_now(&mut state, disk) }
    }

    pub(super) fn punch(&self, disk: &Disk, at: u64, length: u64) -> io::Result<FaultOutcome> {
        if !self.can_punch {
            return Ok(FaultOutcome::Refused);
        }
        let mut state = self.state();
        let fit = self.fitting(&mut state, length)?;
        if fit == length && !matches!(self.then, FaultEffect::CutPower(_)) {
            return Ok(FaultOutcome::Real);
        }
        let fit = usize::try_from(fit).expect("tests are small");
        self.remember(&mut state, disk, at, fit)?;
        disk.file.write_all_at(&vec![0; fit], at)?;
        if fit as u64 == length {
            return Ok(FaultOutcome::Taken);
        }
        self.break_now(&mut state, disk).map(|()| FaultOutcome::Taken)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.is_dead {
            return Err(dead());
        }
        state.before.clear();
        Ok(())
    }

    /// Bytes of the next write that reach the disk.
    fn fitting(&self, state: &mut State, length: u64) -> io::Result<u64> {
        if state.is_dead {
            return Err(dead());
        }
        let WriteCount { writes, bytes } = state.count;
        state.count = WriteCount { writes: writes + 1, bytes: bytes + length };
        Ok(match self.when {
            _ if state.has_broken => length,
            FaultTrigger::AtWrite(number) if writes == number => 0,
            FaultTrigger::AfterBytes(limit) => length.min(limit.saturating_sub(bytes)),
            FaultTrigger::Never | FaultTrigger::AtWrite(_) => length,
        })
    }

    fn remember(&self, state: &mut State, disk: &Disk, at: u64, length: usize) -> io::Result<()> {
        if matches!(self.then, FaultEffect::CutPower(_)) {
            let mut before = vec![0; length];
            disk.read_at(at, &mut before)?;
            state.before.push((at, before));
        }
        Ok(())
    }

    fn break_now(&self, state: &mut State, disk: &Disk) -> io::Result<()> {
        state.has_broken = true;
        state.is_dead = self.then != FaultEffect::Fail;
        if let FaultEffect::CutPower(seed) = self.then {
            forget(disk, &std::mem::take(&mut state.before), seed)?;
        }
        Err(io::Error::other("injected write failure"))
    }
}

fn dead() -> io::Error {
    io::Error::other("injected failure: the disk is gone")
}

/// Reverts some sectors of the unsynced writes, the last one first.
fn forget(disk: &Disk, before: &[(u64, Vec<u8>)], seed: u64) -> io::Result<()> {
    let mut random = seed | 1;
    for (at, bytes) in before.iter().rev() {
        for (number, sector) in (0..).zip(bytes.chunks(SECTOR)) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if random & 1 == 0 {
                disk.file.write_all_at(sector, at + number * SECTOR as u64)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GuardedIo, Identity, Ranges};

    const SIZE: u64 = 16 * 1024;

    fn try_it(when: FaultTrigger, then: FaultEffect) -> (Vec<bool>, Vec<u8>) {
        let file = crate::scratch::file();
        file.as_file().set_len(SIZE).expect("it has a size");
        let meant = Identity::of(file.path(), 512).expect("it is there");
        let io = GuardedIo::open(file.path(), &meant, &(0..SIZE).into(), &Ranges::default())
            .expect("it is free");
        let io = io.with_fault(Fault::new(when, then));
        let mut good = vec![io.write_at(0, &[1; 4096]).is_ok(), io.sync().is_ok()];
        good.push(io.write_at(4096, &[2; 4096]).is_ok());
        good.push(io.write_at(8192, &[3; 4096]).is_ok());
        good.push(io.sync().is_ok());
        (good, fs_err::read(file.path()).expect("it is there"))
    }

    #[test]
    fn fault_fails_one_write_or_all_later_ones() {
        let (good, bytes) = try_it(FaultTrigger::AtWrite(1), FaultEffect::Fail);
        assert_eq!(good, [true, true, false, true, true]);
        assert_eq!((bytes[4096], bytes[8192]), (0, 3));
        let (good, bytes) = try_it(FaultTrigger::AfterBytes(5000), FaultEffect::Die);
        assert_eq!(good, [true, true, false, false, false]);
        assert_eq!((bytes[4999], bytes[5000], bytes[8192]), (2, 0, 0));
        let (good, _) = try_it(FaultTrigger::Never, FaultEffect::Die);
        assert_eq!(good, [true; 5]);
    }

    #[test]
    fn power_cut_loses_unsynced_writes_only() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 1..20 {
            let (good, bytes) =
                try_it(FaultTrigger::AfterBytes(8192 + 700), FaultEffect::CutPower(seed));
            assert_eq!(good, [true, true, true, false, false]);
            assert!(bytes[..4096].iter().all(|byte| *byte == 1), "it was synced");
            assert!(bytes[8192 + 700..].iter().all(|byte| *byte == 0), "it was never written");
            seen.insert(bytes[4096..8192].iter().map(|byte| u32::from(*byte)).sum::<u32>());
        }
        assert!(seen.len() > 3, "not always the same is lost: {seen:?}");
    }
}
