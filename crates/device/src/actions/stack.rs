//! Assembling and stopping stacks. The state is always read from the kernel and never cached, so
//! that the next run finds everything an interrupted one left assembled.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use hoist_engine::action::{Cancel, Failure, Output, Secrets as _, Stream};
use hoist_engine::execute::process;
use hoist_engine::record::FailureKind;
use hoist_provision::document::{Bytes, Id, Secrets};
use hoist_provision::facts::{Signature, SignatureKind, SignaturePlace};
use hoist_provision::read_at::ReadAt as _;
use hoist_provision::steps::stack::{StackKind, StackNode, Stacks, map_of, programs};
use zeroize::Zeroizing;

use crate::actions::disks::{SYSTEM_PATH, find_tool};
use crate::actions::held_disks::{HeldDisks, known_parts};
use crate::actions::last_lines::LastLines;
use crate::actions::{failed, wrong};
use crate::holders::{self, Holder, Kind, holders_of};
use crate::{Identity, ReadIo, signature};

/// Highest number of a new array. Numbers are taken from here downwards, as mdadm does.
const LAST_ARRAY: u32 = 127;

/// Longest run time of a program. Each writes a few MiB at most, so a slower one waits for a device
/// that does not respond.
const LONGEST: Duration = Duration::from_mins(10);

impl HeldDisks {
    /// The device of a partition or a stacked node, assembled if necessary. The disks below it are
    /// shared with the kernel from here on.
    pub(in crate::actions) fn assemble(&self, id: &Id) -> Result<PathBuf, Failure> {
        if let Some((disk, table)) = self.stacks.stacks.parts.get(id) {
            self.share(disk)?;
            return known_parts(&self.path(disk)?, table, id);
        }
        let node = self.node(id)?;
        let devices = self.devices(node)?;
        match &node.what {
            StackKind::Pv | StackKind::Vg { .. } => {
                let first = devices.into_iter().next();
                return first.ok_or_else(|| wrong(format!("`{id}` has no devices below it")));
            }
            StackKind::Md | StackKind::Lv { .. } | StackKind::Luks { .. } => {}
        }
        if let Some(found) = find(node, &devices)? {
            return Ok(found);
        }
        match &node.what {
            StackKind::Md => {
                self.stacks.load("md_mod");
                let words = programs::assemble(node.uuid);
                let array = free_array().into_iter().chain(devices.iter().cloned());
                self.stacks.run(&words, array.map(OsString::from), b"")?;
            }
            StackKind::Lv { group, .. } => {
                self.stacks.load("dm_mod");
                self.stacks.run(&programs::activate(group), settings(&devices)?, b"")?;
            }
            StackKind::Luks { key } => self.unseal(node, key.name(), &devices)?,
            StackKind::Pv | StackKind::Vg { .. } => {}
        }
        let lost = || wrong(format!("`{id}` was assembled, but the kernel has no device of it"));
        find(node, &devices)?.ok_or_else(lost)
    }

    fn node(&self, id: &Id) -> Result<&StackNode, Failure> {
        self.stacks
            .stacks
            .node(id)
            .ok_or_else(|| wrong(format!("`{id}` does not belong to this run")))
    }

    /// The devices below a node. For a logical volume, the devices of its group.
    fn devices(&self, node: &StackNode) -> Result<Vec<PathBuf>, Failure> {
        let on = match node.what {
            StackKind::Lv { .. } => &self.node(&node.on[0])?.on,
            _ => &node.on,
        };
        on.iter().map(|id| self.assemble(id)).collect()
    }

    fn unseal(&self, node: &StackNode, key: &str, devices: &[PathBuf]) -> Result<(), Failure> {
        self.stacks.load("dm_mod");
        self.stacks.load("dm_crypt");
        let key = Zeroizing::new(self.stacks.secrets.get(key)?);
        let name = format!("hoist-{}", node.uuid.simple());
        let words = devices.iter().map(OsString::from).chain([name.into()]);
        self.stacks.run(&programs::unseal(), words, key.as_bytes())
    }

    /// Creates a node and leaves it assembled. Remains of an earlier attempt of this run are
    /// removed.
    pub(in crate::actions) fn make_node(
        &self,
        node: &StackNode,
        is_begun: bool,
    ) -> Result<(), Failure> {
        let devices = self.devices(node)?;
        let words = || devices.iter().map(OsString::from);
        let marked = || programs::marked(node.uuid).map(OsString::from).into_iter();
        match &node.what {
            StackKind::Md => {
                self.stacks.load("md_mod");
                let array = free_array().map(OsString::from).into_iter();
                self.stacks.run(&node.program, array.chain(words()), b"")?;
            }
            StackKind::Pv => {
                self.stacks.load("dm_mod");
                self.stacks.run(&node.program, words().chain(settings(&devices)?), b"")?;
            }
            StackKind::Vg { name } => {
                self.stacks.load("dm_mod");
                let only = settings(&devices)?;
                let make = || {
                    self.stacks.run(&node.program, marked().chain(words()).chain(only.clone()), b"")
                };
                let old = programs::remove_group(name, node.uuid);
                make_again(is_begun, make, || self.stacks.run(&old, only.clone(), b""))?;
            }
            StackKind::Lv { group, name } => {
                self.stacks.load("dm_mod");
                let only = settings(&devices)?;
                let make = || self.stacks.run(&node.program, marked().chain(only.clone()), b"");
                let old = programs::remove_volume(group, name, node.uuid);
                make_again(is_begun, make, || self.stacks.run(&old, only.clone(), b""))?;
            }
            StackKind::Luks { key } => {
                let key = Zeroizing::new(self.stacks.secrets.get(key.name())?);
                self.stacks.run(&node.program, words(), key.as_bytes())?;
            }
        }
        self.is_large_enough(node)?;
        // Old signatures inside the new device must not be taken for its contents.
        if matches!(node.what, StackKind::Md | StackKind::Lv { .. }) {
            let io = self.io(&node.id)?;
            let all = 0..io.size();
            signature::wipe(&io, all).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    fn is_large_enough(&self, node: &StackNode) -> Result<(), Failure> {
        if matches!(node.what, StackKind::Pv | StackKind::Vg { .. }) {
            return Ok(());
        }
        let path = self.assemble(&node.id)?;
        let size = Identity::of(&path, 512).map_err(|error| failed(&error))?.size;
        if size >= node.size {
            return Ok(());
        }
        let is = Bytes(size);
        let wanted = Bytes(node.size);
        let reason = format!("`{}` has {is} instead of the planned {wanted}", node.id);
        Err(Failure { kind: FailureKind::Exit, reason })
    }

    /// The difference between a node and its plan, if there is one.
    pub(in crate::actions) fn differs(&self, node: &StackNode) -> Result<Option<String>, Failure> {
        let devices = self.devices(node)?;
        let missing = |what: &str| Ok(Some(format!("`{}` is not a {what}", node.id)));
        match &node.what {
            StackKind::Md => {
                let uuid = node.uuid.to_string();
                let is_leg = |found: &Signature| {
                    found.kind == SignatureKind::Md && found.uuid.as_deref() == Some(&uuid)
                };
                for leg in &devices {
                    if !holds(leg, is_leg)? {
                        return Ok(Some(format!(
                            "`{}` is not a member of `{}`",
                            leg.display(),
                            node.id
                        )));
                    }
                }
            }
            StackKind::Pv if !holds(&devices[0], |found| found.kind == SignatureKind::Lvm)? => {
                return missing("physical volume");
            }
            StackKind::Vg { name }
                if !holds(&devices[0], |found| found.label.as_ref() == Some(name))? =>
            {
                return missing("volume group");
            }
            _ => {}
        }
        self.is_large_enough(node)?;
        Ok(None)
    }

    /// Stops all stacks on the disks of this run and opens the disks exclusively again.
    pub fn stop_stacks(&self) -> Result<(), Failure> {
        let shared = self.shared();
        let names: Result<Vec<String>, Failure> =
            shared.iter().map(|id| Ok(name(&self.path(id)?))).collect();
        let names = names?;
        holders::stop_all(&names, &names).map_err(|error| failed(&error))?;
        shared.iter().try_for_each(|id| self.have_alone(id))
    }
}

/// Removes an existing group or volume of the same name only if this run had started to create it.
/// Any other one may hold data.
fn make_again(
    is_begun: bool,
    make: impl Fn() -> Result<(), Failure>,
    remove: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    match make() {
        Err(_) if is_begun => {
            // If removing fails, the second attempt reports the reason.
            let _ = remove();
            make()
        }
        Err(Failure { kind, reason }) => {
            let more = "an existing one that this run did not create is kept";
            Err(Failure { kind, reason: format!("{reason}; {more}") })
        }
        Ok(()) => Ok(()),
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether a device has a signature that matches.
fn holds(device: &Path, is_it: impl Fn(&Signature) -> bool) -> Result<bool, Failure> {
    let io = ReadIo::open(device, 512).map_err(|error| failed(&error))?;
    let found = signature::probe(&io, 0..io.size(), SignaturePlace::Disk);
    Ok(found.map_err(|error| failed(&error))?.iter().any(is_it))
}

/// The device of a node, if the node is assembled.
fn find(node: &StackNode, devices: &[PathBuf]) -> Result<Option<PathBuf>, Failure> {
    let names: Vec<String> = devices.iter().map(|path| name(path)).collect();
    let found = holders_of(&names).map_err(|error| failed(&error))?;
    let is_direct = |below: &[String]| below.iter().any(|below| names.contains(below));
    let found = found.iter().find(|one| is_device_of(node, one) && is_direct(&one.below));
    Ok(found.map(|one| holders::node(&one.kernel_name)))
}

/// An unused array number.
fn free_array() -> Option<PathBuf> {
    let is_free = |number: &u32| !Path::new(&format!("/sys/block/md{number}")).exists();
    let number = (0..=LAST_ARRAY).rev().find(is_free)?;
    Some(PathBuf::from(format!("/dev/md{number}")))
}

/// LVM interprets device names in its settings as patterns.
fn settings(devices: &[PathBuf]) -> Result<[OsString; 2], Failure> {
    let is_plain = |path: &&PathBuf| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/_-".contains(c);
        path.to_str().is_some_and(|text| text.chars().all(plain))
    };
    if let Some(strange) = devices.iter().find(|path| !is_plain(path)) {
        return Err(wrong(format!("`{}` cannot be passed to LVM", strange.display())));
    }
    let paths: Vec<&Path> = devices.iter().map(PathBuf::as_path).collect();
    Ok(programs::settings(&paths).map(OsString::from))
}

/// Drops the output of tools. A failure reports the last line.
pub(super) struct Silence;

impl Output for Silence {
    fn line(&mut self, _: Stream, _: &[u8]) {}
    fn progress(&mut self, _: u64, _: Option<u64>) {}
}

/// Whether a kernel device belongs to this node.
fn is_device_of(node: &StackNode, device: &Holder) -> bool {
    match (&node.what, &device.kind) {
        (StackKind::Md, Kind::Array) => true,
        (StackKind::Lv { group, name }, Kind::Map { name: map, uuid }) => {
            uuid.starts_with("LVM-") && *map == map_of(group, name)
        }
        (StackKind::Luks { .. }, Kind::Map { uuid, .. }) => {
            uuid.starts_with(&format!("CRYPT-LUKS2-{}-", node.uuid.simple()))
        }
        _ => false,
    }
}

/// The stacks of a run, and the secrets and cancellation of its programs.
#[derive(Debug, Default)]
pub struct RunStacks {
    pub stacks: Stacks,
    /// Contains the keys of LUKS containers.
    pub secrets: Secrets,
    /// Stops the programs of the run.
    pub cancel: Cancel,
}

impl RunStacks {
    /// Loads a driver that no hardware requests. Failures are ignored: the driver may be built in,
    /// and a missing one fails the next step.
    fn load(&self, driver: &str) {
        let words = ["modprobe", "-q", "--", driver].map(str::to_owned);
        if find_tool("modprobe").is_some() {
            let _ = self.run(&words, [], b"");
        }
    }

    /// Runs a program until it ends or the run is cancelled. Without a shell and without our
    /// environment; maps are made without udev.
    fn run(
        &self,
        program: &[String],
        more: impl IntoIterator<Item = OsString>,
        input: &[u8],
    ) -> Result<(), Failure> {
        let (tool, words) = program.split_first().ok_or_else(|| wrong("no program".to_owned()))?;
        let path = find_tool(tool)
            .ok_or_else(|| wrong(format!("program `{tool}` is no longer available")))?;
        let mut command = Command::new(path);
        command.args(words).args(more).env_clear().env("PATH", SYSTEM_PATH).env("LC_ALL", "C");
        command.envs([("DM_DISABLE_UDEV", "1"), ("LVM_SUPPRESS_FD_WARNINGS", "1")]);
        let deadline = Instant::now().checked_add(LONGEST);
        let mut silence = Silence;
        let mut lines = LastLines::of(&mut silence);
        let ran = process::run(&mut command, input, deadline, &self.cancel, &mut lines);
        match lines.explain(&ran.map_err(|error| failed(&error))?) {
            None => Ok(()),
            Some(failure) => {
                let verb =
                    words.iter().find(|word| !word.starts_with('-')).filter(|_| tool == "lvm");
                let verb = verb.map(|verb| format!(" {verb}")).unwrap_or_default();
                Err(Failure { kind: FailureKind::Exit, reason: format!("{tool}{verb}: {failure}") })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn cancelled_run_ends_its_programs() {
        let cancel = Cancel::default();
        let stacks = RunStacks { cancel: cancel.clone(), ..RunStacks::default() };
        let dir = tempfile::tempdir().expect("a directory");
        let started = dir.path().join("started");
        let script = format!("touch {}; exec sleep 20", started.display());
        let begun = Instant::now();
        let ending = std::thread::spawn(move || {
            hoist_testkit::eventually("program runs", || started.exists());
            cancel.cancel();
        });
        let ended = stacks.run(&["sh".to_owned(), "-c".to_owned(), script], [], b"");
        assert_eq!(ended.expect_err("it was stopped").reason, "sh: stopped");
        assert!(begun.elapsed() < Duration::from_secs(10));
        ending.join().expect("it only waits");
    }

    #[test]
    fn existing_name_is_removed_only_if_this_run_made_it() {
        for (is_begun, expected) in
            [(false, &["make"][..]), (true, &["make", "remove", "make"][..])]
        {
            let did = RefCell::new(Vec::new());
            let make = || {
                did.borrow_mut().push("make");
                let is_there = !did.borrow().contains(&"remove");
                if is_there { Err(wrong("it exists".to_owned())) } else { Ok(()) }
            };
            let remove = || {
                did.borrow_mut().push("remove");
                Ok(())
            };
            let made = make_again(is_begun, make, remove);
            assert_eq!((made.is_ok(), &did.borrow()[..]), (is_begun, expected));
            let said = made.err().map(|failure| failure.reason).unwrap_or_default();
            assert!(is_begun || said.contains("it exists; an existing one"), "{said}");
        }
    }
}
