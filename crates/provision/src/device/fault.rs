//! A disk that breaks when it is told to, so that every place at which a write may end can be tried.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use super::ReadAt;
use super::disk::Disk;

/// When the disk breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Never,
    /// At the write of this number, counted from 0, before anything of it is written.
    AtWrite(u64),
    /// When so many bytes are written: of the write that reaches them, only those before.
    AfterBytes(u64),
}

/// What happens then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// This write fails, later ones do not.
    Fail,
    /// Nothing is written any more.
    Die,
    /// As `Die`, and of what was written since the last sync only some sectors have reached the disk;
    /// the number says which.
    CutPower(u64),
}

/// Of the smallest thing that a disk writes as a whole.
const SECTOR: usize = 512;

#[derive(Debug)]
pub struct Fault {
    when: When,
    then: Then,
    can_punch: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    written: Written,
    has_broken: bool,
    is_dead: bool,
    /// What the disk held before each write since the last sync.
    before: Vec<(u64, Vec<u8>)>,
}

/// What was asked for so far. Punching is a write of all of its bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    pub writes: u64,
    pub bytes: u64,
}

pub(super) enum Outcome {
    /// The device shall do it.
    Real,
    Taken,
    Refused,
}

impl Fault {
    pub fn new(when: When, then: Then) -> Self {
        Self { when, then, can_punch: true, state: Mutex::default() }
    }

    /// A device that cannot make zeros by itself, and has no other fault.
    pub fn without_punch() -> Self {
        Self { can_punch: false, ..Self::new(When::Never, Then::Fail) }
    }

    pub fn written(&self) -> Written {
        self.state().written
    }

    pub fn has_broken(&self) -> bool {
        self.state().has_broken
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self, disk: &Disk, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let fit = self.fitting(&mut state, bytes.len() as u64)?;
        let fit = usize::try_from(fit).expect("no more than there are");
        self.remember(&mut state, disk, at, fit)?;
        disk.file.write_all_at(&bytes[..fit], at)?;
        if fit == bytes.len() { Ok(()) } else { self.break_now(&mut state, disk) }
    }

    pub(super) fn punch(&self, disk: &Disk, at: u64, length: u64) -> io::Result<Outcome> {
        if !self.can_punch {
            return Ok(Outcome::Refused);
        }
        let mut state = self.state();
        let fit = self.fitting(&mut state, length)?;
        if fit == length && !matches!(self.then, Then::CutPower(_)) {
            return Ok(Outcome::Real);
        }
        let fit = usize::try_from(fit).expect("tests are small");
        self.remember(&mut state, disk, at, fit)?;
        disk.file.write_all_at(&vec![0; fit], at)?;
        if fit as u64 == length {
            return Ok(Outcome::Taken);
        }
        self.break_now(&mut state, disk).map(|()| Outcome::Taken)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.is_dead {
            return Err(dead());
        }
        state.before.clear();
        Ok(())
    }

    /// How many bytes of a write that begins now reach the disk.
    fn fitting(&self, state: &mut State, length: u64) -> io::Result<u64> {
        if state.is_dead {
            return Err(dead());
        }
        let Written { writes, bytes } = state.written;
        state.written = Written { writes: writes + 1, bytes: bytes + length };
        Ok(match self.when {
            _ if state.has_broken => length,
            When::AtWrite(number) if writes == number => 0,
            When::AfterBytes(limit) => length.min(limit.saturating_sub(bytes)),
            When::Never | When::AtWrite(_) => length,
        })
    }

    fn remember(&self, state: &mut State, disk: &Disk, at: u64, length: usize) -> io::Result<()> {
        if matches!(self.then, Then::CutPower(_)) {
            let mut before = vec![0; length];
            disk.read_at(at, &mut before)?;
            state.before.push((at, before));
        }
        Ok(())
    }

    fn break_now(&self, state: &mut State, disk: &Disk) -> io::Result<()> {
        state.has_broken = true;
        state.is_dead = self.then != Then::Fail;
        if let Then::CutPower(seed) = self.then {
            forget(disk, &std::mem::take(&mut state.before), seed)?;
        }
        Err(io::Error::other("the disk was told to break"))
    }
}

fn dead() -> io::Error {
    io::Error::other("the disk is gone")
}

/// Takes back some sectors of what was written, the last one first.
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
    use crate::device::{GuardedIo, Identity, Ranges};

    const SIZE: u64 = 16 * 1024;

    fn try_it(when: When, then: Then) -> (Vec<bool>, Vec<u8>) {
        let file = crate::device::scratch::file();
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
    fn a_disk_fails_once_or_for_ever_where_it_was_told_to() {
        let (good, bytes) = try_it(When::AtWrite(1), Then::Fail);
        assert_eq!(good, [true, true, false, true, true]);
        assert_eq!((bytes[4096], bytes[8192]), (0, 3));
        let (good, bytes) = try_it(When::AfterBytes(5000), Then::Die);
        assert_eq!(good, [true, true, false, false, false]);
        assert_eq!((bytes[4999], bytes[5000], bytes[8192]), (2, 0, 0));
        let (good, _) = try_it(When::Never, Then::Die);
        assert_eq!(good, [true; 5]);
    }

    #[test]
    fn a_power_cut_takes_some_of_what_was_not_synced_and_nothing_of_what_was() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 1..20 {
            let (good, bytes) = try_it(When::AfterBytes(8192 + 700), Then::CutPower(seed));
            assert_eq!(good, [true, true, true, false, false]);
            assert!(bytes[..4096].iter().all(|byte| *byte == 1), "it was synced");
            assert!(bytes[8192 + 700..].iter().all(|byte| *byte == 0), "it was never written");
            seen.insert(bytes[4096..8192].iter().map(|byte| u32::from(*byte)).sum::<u32>());
        }
        assert!(seen.len() > 3, "not always the same is lost: {seen:?}");
    }
}
