//! The programs that a document needs on any machine, known before a machine is.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::document::{Document, Fs, Id, StorageNode};
use crate::steps::disks::{self, NewFileSystem};
use crate::steps::grow::FileSystemGrowth;
use crate::steps::images;

/// Programs by name, each with a storage node that needs it. File systems that only exist on some
/// machines, as those that `boot` adds, are FAT and need none.
pub fn needed_tools(document: &Document) -> BTreeMap<String, Id> {
    let mut needed = BTreeMap::new();
    let makes_disks = document.is_queued(disks::NAME);
    let nodes = document.sections.storage.iter().filter(|node| makes_disks && !node.is_retained());
    for node in nodes {
        let tool = match node {
            StorageNode::Part(_) => None,
            StorageNode::Md(_) => Some("mdadm".to_owned()),
            StorageNode::Pv(_) | StorageNode::Vg(_) | StorageNode::Lv(_) => Some("lvm".to_owned()),
            StorageNode::Luks(_) => Some("cryptsetup".to_owned()),
            StorageNode::Fs(fs) => new_file_system(document, fs),
        };
        needed.extend(tool.map(|tool| (tool, node.id().clone())));
    }
    if !document.is_queued(images::NAME) {
        return needed;
    }
    for (_, image) in document.sections.images.iter().filter(|(_, image)| image.grow) {
        let fs = document.storage(&image.target).and_then(StorageNode::as_fs);
        let growth = fs.and_then(|fs| FileSystemGrowth::new(&fs.id, fs.kind));
        if let Some(growth) = &growth {
            needed.extend(growth.tools().map(|tool| (tool.to_owned(), growth.id.clone())));
        }
    }
    needed
}

/// The program that makes a file system, unless it comes with an image.
fn new_file_system(document: &Document, fs: &Fs) -> Option<String> {
    let mut images = document.sections.images.iter();
    let has_image = images.any(|(_, image)| image.target == fs.id || image.target == fs.on);
    let new = NewFileSystem::new(&fs.id, fs.kind, Uuid::nil(), None);
    new.tool().filter(|_| !has_image).map(str::to_owned)
}
