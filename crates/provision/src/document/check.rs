//! Checks of a document without a machine. All problems are reported at once.
//!
//! Does not belong here: rules that need facts of a machine (`bind`, `layout`).

use std::collections::{BTreeMap, BTreeSet};

use super::limits::limits;
use super::storage::{Fs, FsKind, Part, StorageNode, in_order};
use super::{
    Boot, Compression, Content, Disk, DiskMatch, Document, FetchedFile, File, Id, Image,
    ImageFormat, LastRoot, Size,
};
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::digest::Digest;
use crate::fat_names::check_names;

/// Entries that a table has room for.
pub const MAX_PARTITIONS: usize = 128;
/// Longest name of a partition, in units of UTF-16.
const MAX_PART_NAME: usize = 36;
/// Longest text that identifies something: serial numbers, paths, names.
const MAX_TEXT: usize = 256;

/// All problems of a document.
pub fn check(document: &Document) -> Vec<ProvisionDiagnostic> {
    let mut checker = Checker { document, found: limits(document) };
    if !checker.found.is_empty() {
        return checker.found;
    }
    checker.node();
    checker.disks();
    checker.ids();
    checker.storage();
    checker.retained();
    checker.images();
    checker.files();
    checker.erase();
    checker.boot_and_report();
    checker.found
}

struct Checker<'a> {
    document: &'a Document,
    found: Vec<ProvisionDiagnostic>,
}

impl<'a> Checker<'a> {
    fn say(
        &mut self,
        code: Code,
        place: impl Into<String>,
        what: impl Into<String>,
    ) -> &mut ProvisionDiagnostic {
        self.found.push(ProvisionDiagnostic::new(code, place, what));
        self.found.last_mut().expect("just pushed")
    }

    fn say_hint(
        &mut self,
        code: Code,
        place: impl Into<String>,
        what: impl Into<String>,
        hint: &str,
    ) {
        self.say(code, place, what).diagnostic.hint = Some(hint.to_owned());
    }

    fn text(&mut self, place: String, text: &str) {
        if text.is_empty() || text.len() > MAX_TEXT || text.chars().any(char::is_control) {
            let what = format!("it has 1 to {MAX_TEXT} characters that can be printed");
            self.say(Code::BadValue, place, what);
        }
    }

    fn node(&mut self) {
        match &self.document.sections.node {
            Some(node) => {
                self.text("node.id".to_owned(), &node.id);
                for last in node.last_root.iter().flat_map(LastRoot::disks) {
                    self.matches("node.last_root", last);
                }
            }
            None if !self.document.sections.disks.is_empty() => self.say_hint(
                Code::Missing,
                "node",
                "`node.id` is missing",
                "write `node: {id: …}`; the markers on the disks carry it",
            ),
            None => {}
        }
    }

    fn disks(&mut self) {
        let document = self.document;
        for (id, Disk { matches, .. }) in document.sections.disks.iter() {
            self.matches(&format!("disks.{id}.match"), matches);
        }
    }

    fn matches(&mut self, place: &str, matches: &DiskMatch) {
        if *matches == DiskMatch::default() {
            let hint = "name it by its wwn, eui, serial or by_path";
            self.say_hint(Code::Missing, place, "the match identifies no disk", hint);
        }
        let texts = [
            ("wwn", &matches.wwn),
            ("eui", &matches.eui),
            ("serial", &matches.serial),
            ("by_path", &matches.by_path),
            ("hctl", &matches.hctl),
            ("model", &matches.model),
            ("kernel_name", &matches.kernel_name),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                self.text(format!("{place}.{name}"), text);
            }
        }
        for link in &matches.links {
            self.text(format!("{place}.links"), link);
        }
        if matches.links_first && matches.links.is_empty() {
            let place = format!("{place}.links_first");
            self.say_hint(Code::Contradiction, &place, "the disk has no `links`", "leave it out");
        }
        if let Some(range) = matches.size {
            let is_empty = matches!((range.min, range.max), (Some(min), Some(max)) if min > max);
            if is_empty || (range.min, range.max) == (None, None) {
                let place = format!("{place}.size");
                self.say_hint(Code::BadValue, place, "no size is in it", "write `{min: 400 GiB}`");
            }
        }
    }

    fn place(node: &StorageNode) -> String {
        format!("storage.{}", node.id())
    }

    /// Disks and storage nodes are named alike in `on` and `target`, so their names differ.
    fn ids(&mut self) {
        let mut seen: BTreeSet<&Id> = self.document.sections.disks.0.keys().collect();
        for node in &self.document.sections.storage {
            if !seen.insert(node.id()) {
                let what = format!("something else is called `{}`, too", node.id());
                self.say_hint(Code::Twice, Self::place(node), what, "give one another id");
            }
        }
    }

    fn storage(&mut self) {
        let document = self.document;
        let nodes = &document.sections.storage;
        let mut carried: BTreeMap<&Id, &Id> = BTreeMap::new();
        for node in nodes {
            let place = Self::place(node);
            self.one(&place, node);
            let mut own = BTreeSet::new();
            for on in node.on() {
                if !own.insert(on) {
                    self.say(Code::Twice, &place, format!("`{on}` is named two times"));
                    continue;
                }
                self.lies_on(&place, node, on);
                // Partitions share a disk, and volumes a group; all others have theirs alone.
                let shares = matches!(node, StorageNode::Part(_) | StorageNode::Lv(_));
                if !shares && let Some(other) = carried.insert(on, node.id()) {
                    let what = format!("`{other}` lies on `{on}`, too");
                    self.say_hint(Code::Twice, &place, what, "give each one of its own");
                }
            }
        }
        if in_order(nodes).is_none() {
            self.say(Code::Contradiction, "storage", "some nodes lie on each other in a circle");
        }
        self.sizes();
        self.mounts();
    }

    fn lies_on(&mut self, place: &str, node: &StorageNode, on: &Id) {
        let is_disk = self.document.sections.disks.get(on).is_some();
        let below = self.document.storage(on);
        let fits = match node {
            StorageNode::Part(_) => is_disk,
            StorageNode::Vg(_) => matches!(below, Some(StorageNode::Pv(_))),
            StorageNode::Lv(_) => matches!(below, Some(StorageNode::Vg(_))),
            StorageNode::Md(_) => {
                matches!(below, Some(StorageNode::Part(_) | StorageNode::Luks(_)))
            }
            StorageNode::Pv(_) | StorageNode::Luks(_) | StorageNode::Fs(_) => matches!(
                below,
                Some(
                    StorageNode::Part(_)
                        | StorageNode::Md(_)
                        | StorageNode::Lv(_)
                        | StorageNode::Luks(_)
                )
            ),
        };
        if fits {
            return;
        }
        let wanted = match node {
            StorageNode::Part(_) => "a part lies on a disk",
            StorageNode::Vg(_) => "a vg lies on pvs",
            StorageNode::Lv(_) => "an lv lies on a vg",
            StorageNode::Md(_) => "an md lies on parts",
            _ => "it lies on a part, md, lv or luks",
        };
        let is = below.map(StorageNode::kind).or_else(|| is_disk.then_some("disk"));
        let what = match is {
            Some("disk") => {
                let what = format!("`{on}` is a whole disk, and {wanted}");
                let hint = "make one part of size `rest` on it";
                return self.say_hint(Code::NoSuchThing, place, what, hint);
            }
            Some(kind) => format!("`{on}` is a {kind}, and {wanted}"),
            None => format!("`{on}` not found, and {wanted}"),
        };
        let known = self.document.sections.storage.iter().map(|node| node.id().as_str());
        let known = known.chain(self.document.sections.disks.0.keys().map(Id::as_str));
        let close = hoist_model::nearest(on.as_str(), known).filter(|_| is.is_none());
        let hint = close.map(|close| format!("did you mean `{close}`?"));
        self.say(Code::NoSuchThing, place, what).diagnostic.hint = hint;
    }

    fn one(&mut self, place: &str, node: &StorageNode) {
        match node {
            StorageNode::Part(part) => self.part(place, part),
            StorageNode::Md(md) => {
                let devices = md.on.len().saturating_sub(md.spares as usize);
                if devices < md.level.least() {
                    let level = md.level.as_str();
                    let least = md.level.least();
                    let what = format!("{level} needs at least {least} devices and has {devices}");
                    self.say(Code::BadValue, place, what);
                }
                self.name(place, md.name(), 32);
            }
            StorageNode::Vg(vg) => {
                if vg.on.is_empty() {
                    self.say(Code::Missing, place, "it lies on nothing");
                }
                self.name(place, vg.name(), 127);
            }
            StorageNode::Lv(lv) => self.name(place, lv.name(), 127),
            StorageNode::Fs(fs) => self.fs(place, fs),
            StorageNode::Luks(luks) => {
                if let Some(label) = &luks.label {
                    self.label(place, label, 47);
                }
            }
            StorageNode::Pv(_) => {}
        }
    }

    /// Names that become part of a path below `/dev`.
    fn name(&mut self, place: &str, name: &str, most: usize) {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
        let is_name = (1..=most).contains(&name.len())
            && name.chars().all(plain)
            && !name.starts_with(['-', '.']);
        if !is_name {
            let what = format!("`{name}` is no name for it");
            let hint = format!("take up to {most} letters, digits, `.`, `_`, `+` and `-`");
            self.say_hint(Code::BadValue, place, what, &hint);
        }
    }

    fn label(&mut self, place: &str, label: &str, most: usize) {
        if label.is_empty() || label.len() > most || label.chars().any(char::is_control) {
            let what = format!("`{label}` is no label for it");
            self.say_hint(Code::BadValue, place, what, &format!("take 1 to {most} bytes"));
        }
    }

    fn part(&mut self, place: &str, part: &Part) {
        let name = part.name();
        if name.encode_utf16().count() > MAX_PART_NAME || name.chars().any(char::is_control) {
            let what = format!("`{name}` is no name for a partition");
            let hint = format!("take up to {MAX_PART_NAME} characters");
            self.say_hint(Code::BadValue, place, what, &hint);
        }
        if let Some(retain) = &part.retain {
            if retain.partuuid.is_none() && (retain.name.is_none() || retain.type_guid.is_none()) {
                let what = "the retained partition has no identity";
                let hint = "give its partuuid, or its name and its type";
                self.say_hint(Code::Missing, format!("{place}.retain"), what, hint);
            }
            if !matches!(part.size, Size::Exact(_)) {
                let what = "a retained partition needs an exact size";
                self.say_hint(Code::Contradiction, place, what, "give the size that it has");
            }
        }
    }

    fn fs(&mut self, place: &str, fs: &Fs) {
        if let Some(label) = &fs.label {
            self.label(place, label, fs.kind.max_label());
            let is_strange = |c: char| !c.is_ascii() || "\"*+,./:;<=>?[\\]|".contains(c);
            if fs.kind == FsKind::Vfat && (label.contains(is_strange) || label.starts_with(' ')) {
                let what = format!("`{label}` is no label for FAT");
                let hint = "take letters, digits, `-` and `_`; they become capitals";
                self.say_hint(Code::BadValue, place, what, hint);
            }
        }
        if let Some(mount) = &fs.mount {
            let parts = mount.split('/').skip(1);
            let is_path = mount == "/" || {
                let mut parts = parts;
                mount.starts_with('/')
                    && mount.len() <= MAX_TEXT
                    && parts.all(|part| !part.is_empty() && part != "." && part != "..")
                    && !mount.chars().any(|c| c.is_control() || c.is_whitespace())
            };
            if !is_path {
                let what = format!("`{mount}` is no place to mount at");
                self.say_hint(Code::BadValue, place, what, "write a path like `/var/lib`");
            }
            if fs.kind == FsKind::Swap {
                self.say_hint(
                    Code::Contradiction,
                    place,
                    "swap is not mounted",
                    "leave `mount` out",
                );
            }
        }
        for option in &fs.options {
            if option.is_empty()
                || option.chars().any(|c| c.is_control() || c.is_whitespace() || c == ',')
            {
                let what = format!("`{option}` is no option of a mount");
                self.say_hint(Code::BadValue, place, what, "write each as an item of the list");
            }
        }
    }

    /// Within each disk and each group.
    fn sizes(&mut self) {
        let mut rest: BTreeMap<&Id, &Id> = BTreeMap::new();
        let mut shares: BTreeMap<&Id, u64> = BTreeMap::new();
        let mut counts: BTreeMap<&Id, usize> = BTreeMap::new();
        for node in &self.document.sections.storage {
            let (on, size) = match node {
                StorageNode::Part(part) => {
                    *counts.entry(&part.on).or_default() += 1;
                    (&part.on, part.size)
                }
                StorageNode::Lv(lv) => (&lv.on, lv.size),
                _ => continue,
            };
            match size {
                Size::Rest => {
                    if let Some(other) = rest.insert(on, node.id()) {
                        let what = format!("`{other}` takes the rest of `{on}` already");
                        let hint = "give one of them a size";
                        self.say_hint(
                            Code::Twice,
                            format!("{}.size", Self::place(node)),
                            what,
                            hint,
                        );
                    }
                }
                Size::Percent(share) => *shares.entry(on).or_default() += share.hundredths(),
                Size::Exact(_) => {}
            }
        }
        for (on, hundredths) in shares {
            if hundredths > 10_000 {
                let what = format!("the shares of `{on}` are more than 100 % of it");
                self.say(Code::Contradiction, format!("storage.{on}"), what);
            }
        }
        for (on, count) in counts {
            if count > MAX_PARTITIONS {
                let what =
                    format!("{count} partitions are more than the limit of {MAX_PARTITIONS}");
                self.say(Code::TooLarge, format!("disks.{on}"), what);
            }
        }
    }

    fn mounts(&mut self) {
        let mut seen: BTreeMap<&str, &Id> = BTreeMap::new();
        for fs in self.document.sections.storage.iter().filter_map(StorageNode::as_fs) {
            let Some(mount) = &fs.mount else { continue };
            if let Some(other) = seen.insert(mount, &fs.id) {
                let what = format!("`{other}` is mounted at `{mount}`, too");
                self.say(Code::Twice, format!("storage.{}.mount", fs.id), what);
            }
        }
    }

    /// A retained node lies on retained nodes, and no new node lies on it: otherwise retained data
    /// would be overwritten.
    fn retained(&mut self) {
        // Tables and stacks are all as they are then.
        let adopts = self.document.adopts_tables();
        for node in &self.document.sections.storage {
            let is_retained = node.is_retained();
            for below in node.on().iter().filter_map(|on| self.document.storage(on)) {
                if is_retained == below.is_retained() || adopts {
                    continue;
                }
                let (what, hint) = if is_retained {
                    (format!("it stays, and `{}` below it is made anew", below.id()), below)
                } else {
                    (format!("it is made anew, and `{}` below it stays", below.id()), node)
                };
                let hint = format!("say `retain` of `{}`, too, or of neither", hint.id());
                self.say_hint(Code::Contradiction, Self::place(node), what, &hint);
            }
        }
    }

    fn images(&mut self) {
        let document = self.document;
        let mut written: BTreeMap<&Id, &Id> = BTreeMap::new();
        for (id, image) in document.sections.images.iter() {
            let place = format!("images.{id}");
            self.image(&place, image);
            let Some(device) = self.device(&place, &image.target) else { continue };
            if let Some(other) = written.insert(device, id) {
                let what = format!("image `{other}` is written to `{device}`, too");
                self.say_hint(Code::Twice, &place, what, "give each a target of its own");
            }
            self.image_over_retained(&place, device);
            self.image_under_others(&place, image, device);
        }
    }

    fn image(&mut self, place: &str, image: &Image) {
        if image.sources.is_empty() == image.made_by.is_none() {
            let hint = "give its `sources`";
            self.say_hint(Code::Missing, place, "no sources are given", hint);
        }
        for source in image.sources.iter().chain(&image.manifest) {
            self.url(place, source);
        }
        self.digest(place, image.digest.as_deref());
        if image.sector_size.is_some_and(|size| ![512, 4096].contains(&size)) {
            self.say(Code::BadValue, place, "a sector has 512 or 4096 bytes");
        }
        self.digest(place, image.unpacked_digest.as_deref());
        let is_stream = image.format == ImageFormat::Raw && image.manifest.is_none();
        if image.unpacked_digest.is_some() && !is_stream {
            let what = "only a raw image without a manifest has an `unpacked_digest`";
            let hint = "leave it out: the manifest has the digests of the unpacked bytes";
            self.say_hint(Code::Contradiction, place, what, hint);
        }
        let is_packed = !matches!(image.compression, Compression::Detect | Compression::None);
        if image.format == ImageFormat::Qcow2 && (is_packed || image.manifest.is_some()) {
            let what = "a qcow2 image is packed by itself, and not once more or in chunks";
            let hint = "leave out `compression` and `manifest`, or convert it to raw";
            self.say_hint(Code::Contradiction, place, what, hint);
        }
    }

    fn digest(&mut self, place: &str, digest: Option<&str>) {
        if let Some(digest) = digest.filter(|digest| digest.parse::<Digest>().is_err()) {
            let what = format!("`{digest}` is no digest");
            self.say_hint(Code::BadValue, place, what, "write `sha256:` and 64 digits");
        }
    }

    fn url(&mut self, place: &str, url: &str) {
        let rest = ["http://", "https://", "file:///"].iter().find_map(|s| url.strip_prefix(s));
        let Some(rest) = rest.filter(|_| !url.chars().any(|c| c.is_control() || c == ' ')) else {
            let hint = "write `https://…`, `http://…` or `file:///…`";
            return self.say_hint(Code::BadValue, place, "this is no URL", hint);
        };
        // Credentials before the host are secret, and must not be repeated.
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if !url.starts_with("file:") && authority.contains('@') {
            let what = "there is a user or a password in a URL";
            self.say_hint(Code::BadValue, place, what, "give a `token: secret://…`");
        }
    }

    /// The target of an image; for a file system the node below it.
    fn device(&mut self, place: &str, target: &'a Id) -> Option<&'a Id> {
        match self.document.storage(target) {
            Some(StorageNode::Fs(fs)) => return Some(&fs.on),
            Some(StorageNode::Pv(_) | StorageNode::Vg(_)) => {
                let what = format!("`{target}` is nothing that an image can be written to");
                self.say(Code::NoSuchThing, format!("{place}.target"), what);
                return None;
            }
            Some(_) => return Some(target),
            None => {}
        }
        if self.document.sections.disks.get(target).is_some() {
            return Some(target);
        }
        let what = format!("`{target}` not found");
        let hint = "name a node of `storage`, or a disk";
        self.say_hint(Code::NoSuchThing, format!("{place}.target"), what, hint);
        None
    }

    fn image_over_retained(&mut self, place: &str, device: &Id) {
        let mut nodes = self.document.sections.storage.iter();
        let is_under = |node: &StorageNode| node.id() == device || node.on().contains(device);
        if let Some(kept) = nodes.find(|node| node.is_retained() && is_under(node)) {
            let what = format!("it would overwrite `{}`, which stays", kept.id());
            let hint = format!("leave out `retain` of `{}`, or the image", kept.id());
            self.say_hint(Code::Contradiction, format!("{place}.target"), what, &hint);
        }
    }

    /// An image brings its contents: only a file system that describes them may lie on its target.
    fn image_under_others(&mut self, place: &str, image: &Image, device: &Id) {
        let nodes = &self.document.sections.storage;
        let others = nodes.iter().filter(|node| node.on().contains(device));
        let in_the_way: Vec<_> = others
            .filter(|node| node.as_fs().is_none())
            .map(|node| node.id().to_string())
            .collect();
        if !in_the_way.is_empty() {
            let what =
                format!("`{}` is made on the target that it overwrites", in_the_way.join("`, `"));
            let hint = format!("give it another target than `{}`", image.target);
            self.say_hint(Code::Contradiction, format!("{place}.target"), what, &hint);
        }
    }

    fn files(&mut self) {
        let document = self.document;
        let mut seen = BTreeSet::new();
        for (at, file) in document.sections.files.iter().enumerate() {
            let place = format!("files[{at}]");
            match document.storage(&file.on).and_then(StorageNode::as_fs) {
                None => {
                    let what = format!("file system `{}` not found", file.on);
                    self.say(Code::NoSuchThing, format!("{place}.on"), what);
                }
                Some(fs) => self.file_on(&place, file, fs),
            }
            if !seen.insert((&file.on, &file.path)) {
                let what = format!("`{}` is there twice", file.path);
                self.say(Code::Twice, format!("{place}.path"), what);
            }
            self.path(&format!("{place}.path"), &file.path, true);
            let is_mode = |mode: &String| {
                (3..=4).contains(&mode.len()) && mode.bytes().all(|b| (b'0'..=b'7').contains(&b))
            };
            if !file.mode.as_ref().is_none_or(is_mode) {
                self.say(Code::BadValue, format!("{place}.mode"), "a mode is like `0644`");
            }
        }
        let drive = document.sections.config_drive.iter();
        let paths = drive.clone().flat_map(|drive| drive.files.keys().map(String::as_str));
        for error in check_names(paths) {
            self.say(Code::BadValue, "config_drive.files", error.to_string());
        }
        for (path, content) in drive.flat_map(|drive| &drive.files) {
            let place = format!("config_drive.files.{path}");
            self.path(&place, path, false);
            if matches!(content, Content::Fstab | Content::Crypttab) {
                let what = "a config drive has neither fstab nor crypttab";
                self.say_hint(Code::Contradiction, &place, what, "give it to `files`");
            }
            if matches!(content, Content::Secret(_)) {
                let what = "every user of the machine can read a config drive";
                self.say_hint(Code::Contradiction, place, what, "give the secret to `files`");
            }
        }
    }

    fn file_on(&mut self, place: &str, file: &File, fs: &Fs) {
        if fs.retain.is_some() {
            let what = format!("`{}` stays as it is, and this would be put into it", fs.id);
            let hint = format!("leave out `retain` of `{}`, or the file", fs.id);
            self.say_hint(Code::Contradiction, format!("{place}.on"), what, &hint);
        }
        match fs.kind {
            FsKind::Swap => {
                self.say(Code::NoSuchThing, format!("{place}.on"), "swap has no files");
            }
            FsKind::Vfat => {
                if file.mode.is_some() || (file.uid, file.gid) != (0, 0) {
                    let what = "FAT keeps neither modes nor owners";
                    let hint = "leave out `mode`, `uid` and `gid`";
                    self.say_hint(Code::Contradiction, place, what, hint);
                }
                for error in check_names([file.path.trim_start_matches('/')]) {
                    self.say(Code::BadValue, format!("{place}.path"), error.to_string());
                }
                if matches!(file.content, Content::Secret(_)) {
                    let what = "every user of the machine can read files on FAT";
                    let hint = "give the secret to a file system with modes";
                    self.say_hint(Code::Contradiction, place, what, hint);
                }
            }
            _ => {}
        }
    }

    /// A path must stay inside its base directory.
    fn path(&mut self, place: &str, path: &str, from_root: bool) {
        let relative = path.strip_prefix('/');
        let relative = if from_root { relative } else { Some(path).filter(|_| relative.is_none()) };
        let is_inside = |path: &str| {
            path.len() <= 4 * MAX_TEXT
                && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
                && !path.chars().any(char::is_control)
        };
        if !relative.is_some_and(is_inside) {
            let hint =
                if from_root { "write it like `/etc/hostname`" } else { "write it like `a/b`" };
            self.say_hint(Code::BadValue, place, format!("`{path}` is no path of a file"), hint);
        }
    }

    fn erase(&mut self) {
        let document = self.document;
        let keeps_tables =
            document.adopts_tables() && document.is_queued("erase") && !document.only_erases();
        for id in document.sections.erase.iter().flat_map(|erase| &erase.disks) {
            if document.sections.disks.get(id).is_none() {
                self.say(Code::NoSuchThing, "erase.disks", format!("disk `{id}` not found"));
            }
            let mut nodes = document.sections.storage.iter();
            let used = nodes.find(|node| node.on().contains(id) && node.is_retained());
            if let Some(node) = used {
                let what = format!("disk `{id}` is made empty, and `{}` on it stays", node.id());
                self.say(Code::Contradiction, "erase.disks", what);
            } else if keeps_tables && document.sections.storage.iter().any(|n| n.on().contains(id))
            {
                let what = format!("disk `{id}` is made empty, and its table stays");
                let hint = "let `disks` make the table, too, or do nothing else than to erase";
                self.say_hint(Code::Contradiction, "erase.disks", what, hint);
            }
        }
    }

    fn boot_files(&mut self, boot: &Boot) {
        for (name, file) in boot.files.named() {
            let Some(FetchedFile { sources, digest }) = file else { continue };
            let place = format!("boot.files.{name}");
            if sources.is_empty() {
                let what = "no sources are given";
                self.say_hint(Code::Missing, &place, what, "give its `sources`");
            }
            for source in sources {
                self.url(&place, source);
            }
            self.digest(&place, digest.as_deref());
        }
    }

    fn boot_and_report(&mut self) {
        let document = self.document;
        document.sections.boot.iter().for_each(|boot| self.boot_files(boot));
        if let Some(report) = &self.document.sections.report {
            self.url("report.url", &report.url);
        }
        for arg in self.document.sections.boot.iter().flat_map(|boot| &boot.kernel_args) {
            if arg.is_empty() || arg.chars().any(|c| c.is_control() || c == '"') {
                let what = format!("`{arg}` is no word for a kernel");
                self.say(Code::BadValue, "boot.kernel_args", what);
            }
        }
    }
}
