//! Stacks while they are put together. The kernel is asked what there is: nothing is remembered, so
//! that a run that was cut off leaves nothing behind that another would not find.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use hoist_engine::action::{Failure, Output, Secrets as _, Stream};
use hoist_engine::execute::process;
use hoist_engine::record::FailureKind;
use zeroize::Zeroizing;

use super::{Node, Stacks, What, programs};
use crate::actions::disks::{SYSTEM_PATH, find_tool};
use crate::actions::held::{Held, known_parts};
use crate::actions::{failed, wrong};
use crate::device::above::{self, above};
use crate::device::{Identity, ReadAt, ReadIo, signature};
use crate::document::{Bytes, Id};
use crate::facts::{Signature, SignatureKind, SignaturePlace};

/// Arrays get numbers from here down, as mdadm itself gives them.
const LAST_ARRAY: u32 = 127;

/// None of these programs writes more than a few MiB: one that is not done by then waits for a device
/// that does not answer.
const LONGEST: Duration = Duration::from_mins(10);

impl Held {
    /// The device of a partition or of something that is made of partitions, which is put together if
    /// it is not. Disks that it lies on are shared with the kernel from here on.
    pub(in crate::actions) fn raise(&self, id: &Id) -> Result<PathBuf, Failure> {
        if let Some((disk, table)) = self.stacks.parts.get(id) {
            self.share(disk)?;
            return known_parts(&self.path(disk)?, table, id);
        }
        let node = self.node(id)?;
        let devices = self.devices(node)?;
        match &node.what {
            What::Pv | What::Vg { .. } => {
                let first = devices.into_iter().next();
                return first.ok_or_else(|| wrong(format!("`{id}` lies on nothing")));
            }
            What::Md | What::Lv { .. } | What::Luks { .. } => {}
        }
        if let Some(found) = find(node, &devices)? {
            return Ok(found);
        }
        match &node.what {
            What::Md => {
                self.stacks.load("md_mod");
                let words = programs::assemble(node.uuid);
                let array = free_array().into_iter().chain(devices.iter().cloned());
                self.stacks.run(&words, array.map(OsString::from), b"")?;
            }
            What::Lv { group, .. } => {
                self.stacks.load("dm_mod");
                self.stacks.run(&programs::activate(group), settings(&devices)?, b"")?;
            }
            What::Luks { key } => self.unseal(node, key.name(), &devices)?,
            What::Pv | What::Vg { .. } => {}
        }
        let lost = || wrong(format!("`{id}` was put together, and there is no device of it"));
        find(node, &devices)?.ok_or_else(lost)
    }

    fn node(&self, id: &Id) -> Result<&Node, Failure> {
        self.stacks.node(id).ok_or_else(|| wrong(format!("`{id}` is nothing of this run")))
    }

    /// What a node is made of: of a volume, the devices of its group.
    fn devices(&self, node: &Node) -> Result<Vec<PathBuf>, Failure> {
        let on = match node.what {
            What::Lv { .. } => &self.node(&node.on[0])?.on,
            _ => &node.on,
        };
        on.iter().map(|id| self.raise(id)).collect()
    }

    fn unseal(&self, node: &Node, key: &str, devices: &[PathBuf]) -> Result<(), Failure> {
        self.stacks.load("dm_mod");
        self.stacks.load("dm_crypt");
        let key = Zeroizing::new(self.stacks.secrets.get(key)?);
        let name = format!("hoist-{}", node.uuid.simple());
        let words = devices.iter().map(OsString::from).chain([name.into()]);
        self.stacks.run(&programs::unseal(), words, key.as_bytes())
    }

    /// Makes it, and leaves it put together. If an earlier attempt of this run had begun with it, what
    /// that has left is taken away.
    pub(in crate::actions) fn make_node(&self, node: &Node, is_begun: bool) -> Result<(), Failure> {
        let devices = self.devices(node)?;
        let words = || devices.iter().map(OsString::from);
        let marked = || programs::marked(node.uuid).map(OsString::from).into_iter();
        match &node.what {
            What::Md => {
                self.stacks.load("md_mod");
                let array = free_array().map(OsString::from).into_iter();
                self.stacks.run(&node.program, array.chain(words()), b"")?;
            }
            What::Pv => {
                self.stacks.load("dm_mod");
                self.stacks.run(&node.program, words().chain(settings(&devices)?), b"")?;
            }
            What::Vg { name } => {
                self.stacks.load("dm_mod");
                let only = settings(&devices)?;
                let make = || {
                    self.stacks.run(&node.program, marked().chain(words()).chain(only.clone()), b"")
                };
                let old = programs::remove_group(name, node.uuid);
                make_again(is_begun, make, || self.stacks.run(&old, only.clone(), b""))?;
            }
            What::Lv { group, name } => {
                self.stacks.load("dm_mod");
                let only = settings(&devices)?;
                let make = || self.stacks.run(&node.program, marked().chain(only.clone()), b"");
                let old = programs::remove_volume(group, name, node.uuid);
                make_again(is_begun, make, || self.stacks.run(&old, only.clone(), b""))?;
            }
            What::Luks { key } => {
                let key = Zeroizing::new(self.stacks.secrets.get(key.name())?);
                self.stacks.run(&node.program, words(), key.as_bytes())?;
            }
        }
        self.is_large_enough(node)?;
        // What was at its place before must not be taken for what comes there.
        if matches!(node.what, What::Md | What::Lv { .. }) {
            let io = self.io(&node.id)?;
            let all = 0..io.size();
            signature::wipe(&io, all).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    fn is_large_enough(&self, node: &Node) -> Result<(), Failure> {
        if matches!(node.what, What::Pv | What::Vg { .. }) {
            return Ok(());
        }
        let path = self.raise(&node.id)?;
        let size = Identity::of(&path, 512).map_err(|error| failed(&error))?.size;
        if size >= node.size {
            return Ok(());
        }
        let (is, wanted) = (Bytes(size), Bytes(node.size));
        let reason = format!("`{}` has {is}, and {wanted} were planned for it", node.id);
        Err(Failure { kind: FailureKind::Exit, reason })
    }

    /// Why it is not what it shall be, if it is not.
    pub(in crate::actions) fn differs(&self, node: &Node) -> Result<Option<String>, Failure> {
        let devices = self.devices(node)?;
        let missing = |what: &str| Ok(Some(format!("`{}` is no {what}", node.id)));
        match &node.what {
            What::Md => {
                let uuid = node.uuid.to_string();
                let is_leg = |found: &Signature| {
                    found.kind == SignatureKind::Md && found.uuid.as_deref() == Some(&uuid)
                };
                for leg in &devices {
                    if !holds(leg, is_leg)? {
                        return Ok(Some(format!("`{}` is no part of it", leg.display())));
                    }
                }
            }
            What::Pv if !holds(&devices[0], |found| found.kind == SignatureKind::Lvm)? => {
                return missing("physical volume");
            }
            What::Vg { name }
                if !holds(&devices[0], |found| found.label.as_ref() == Some(name))? =>
            {
                return missing("volume group");
            }
            _ => {}
        }
        self.is_large_enough(node)?;
        Ok(None)
    }

    /// Stops everything that was put together on the disks of this run, and has them alone again.
    pub fn lower(&self) -> Result<(), Failure> {
        let shared = self.shared();
        let names: Result<Vec<String>, Failure> =
            shared.iter().map(|id| Ok(name(&self.path(id)?))).collect();
        let names = names?;
        above::stop_all(&names, &names).map_err(|error| failed(&error))?;
        shared.iter().try_for_each(|id| self.have_alone(id))
    }
}

/// What has a name already is taken away only if this run had begun to make it: of all else nobody
/// here knows what it holds.
fn make_again(
    is_begun: bool,
    make: impl Fn() -> Result<(), Failure>,
    remove: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    match make() {
        Err(_) if is_begun => {
            // If that fails, what makes it says why.
            let _ = remove();
            make()
        }
        Err(Failure { kind, reason }) => {
            let more = "what has its name and is not of this run stays";
            Err(Failure { kind, reason: format!("{reason}; {more}") })
        }
        Ok(()) => Ok(()),
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether a device says something of itself.
fn holds(device: &Path, is_it: impl Fn(&Signature) -> bool) -> Result<bool, Failure> {
    let io = ReadIo::open(device, 512).map_err(|error| failed(&error))?;
    let found = signature::probe(&io, 0..io.size(), SignaturePlace::Disk);
    Ok(found.map_err(|error| failed(&error))?.iter().any(is_it))
}

/// The device of a node, if it is put together.
fn find(node: &Node, devices: &[PathBuf]) -> Result<Option<PathBuf>, Failure> {
    let names: Vec<String> = devices.iter().map(|path| name(path)).collect();
    let found = above(&names).map_err(|error| failed(&error))?;
    let is_direct = |below: &[String]| below.iter().any(|below| names.contains(below));
    let found = found.iter().find(|one| node.is(one) && is_direct(&one.below));
    Ok(found.map(|one| above::node(&one.kernel_name)))
}

/// A number that no array has.
fn free_array() -> Option<PathBuf> {
    let is_free = |number: &u32| !Path::new(&format!("/sys/block/md{number}")).exists();
    let number = (0..=LAST_ARRAY).rev().find(is_free)?;
    Some(PathBuf::from(format!("/dev/md{number}")))
}

/// LVM takes what devices are called for patterns.
fn settings(devices: &[PathBuf]) -> Result<[OsString; 2], Failure> {
    let is_plain = |path: &&PathBuf| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/_-".contains(c);
        path.to_str().is_some_and(|text| text.chars().all(plain))
    };
    if let Some(strange) = devices.iter().find(|path| !is_plain(path)) {
        return Err(wrong(format!("`{}` cannot be told to LVM", strange.display())));
    }
    let paths: Vec<&Path> = devices.iter().map(PathBuf::as_path).collect();
    Ok(programs::settings(&paths).map(OsString::from))
}

/// What tools print is only of interest where they fail, and then the last line of it is told.
struct Silence;

impl Output for Silence {
    fn line(&mut self, _: Stream, _: &[u8]) {}
    fn progress(&mut self, _: u64, _: Option<u64>) {}
}

impl Stacks {
    /// Drivers that no hardware asks for. A kernel that has them built in needs nobody to load them, and
    /// one that has none is found out by whoever needs them.
    fn load(&self, driver: &str) {
        let words = ["modprobe", "-q", "--", driver].map(str::to_owned);
        if find_tool("modprobe").is_some() {
            let _ = self.run(&words, [], b"");
        }
    }

    /// Runs a program, until it ends, or somebody wants it to. No shell, and nothing of our
    /// environment; maps are made without udev.
    fn run(
        &self,
        program: &[String],
        more: impl IntoIterator<Item = OsString>,
        input: &[u8],
    ) -> Result<(), Failure> {
        let (tool, words) = program.split_first().ok_or_else(|| wrong("no program".to_owned()))?;
        let path =
            find_tool(tool).ok_or_else(|| wrong(format!("`{tool}` is not here any more")))?;
        let mut command = Command::new(path);
        command.args(words).args(more).env_clear().env("PATH", SYSTEM_PATH).env("LC_ALL", "C");
        command.envs([("DM_DISABLE_UDEV", "1"), ("LVM_SUPPRESS_FD_WARNINGS", "1")]);
        let deadline = Instant::now().checked_add(LONGEST);
        let ran = process::run(&mut command, input, deadline, &self.cancel, &mut Silence);
        match ran.map_err(|error| failed(&error))?.fault() {
            None => Ok(()),
            Some(fault) => {
                let verb =
                    words.iter().find(|word| !word.starts_with('-')).filter(|_| tool == "lvm");
                let verb = verb.map(|verb| format!(" {verb}")).unwrap_or_default();
                Err(Failure { kind: FailureKind::Exit, reason: format!("{tool}{verb}: {fault}") })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use hoist_engine::action::Cancel;

    use super::*;
    use crate::document::Secrets;

    #[test]
    fn programs_end_when_the_run_shall() {
        let cancel = Cancel::default();
        let stacks = Stacks::default().for_run(Secrets::default(), cancel.clone());
        let begun = Instant::now();
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            cancel.cancel();
        });
        let ended = stacks.run(&["sleep".to_owned(), "20".to_owned()], [], b"");
        assert_eq!(ended.expect_err("it was stopped").reason, "sleep: was stopped");
        assert!(begun.elapsed() < Duration::from_secs(10));
        ending.join().expect("it only waits");
    }

    #[test]
    fn what_has_the_name_already_is_removed_only_if_this_run_had_begun_with_it() {
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
            assert!(is_begun || said.contains("it exists; what has its name"), "{said}");
        }
    }
}
