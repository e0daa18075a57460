//! Limits of a document. Entries that are compared pairwise are bounded before any comparison.

use super::storage::StorageNode;
use super::{
    Disk, Document, MAX_DISKS, MAX_FILES, MAX_IMAGES, MAX_LIST, MAX_ON, MAX_STORAGE,
    MAX_THIRD_PARTY, Wipe,
};
use crate::diagnostic::{Code, ProvisionDiagnostic};

/// Everything of which there is too much.
pub(super) fn limits(document: &Document) -> Vec<ProvisionDiagnostic> {
    let all = &document.sections;
    let drive = all.config_drive.as_ref().map_or(0, |drive| drive.files.len());
    let on = all.storage.iter().map(|node| node.on().len()).sum();
    let whole = [
        ("disks", all.disks.0.len(), MAX_DISKS),
        ("storage", all.storage.len(), MAX_STORAGE),
        ("storage", on, MAX_ON),
        ("images", all.images.0.len(), MAX_IMAGES),
        ("files", all.files.len(), MAX_FILES),
        ("config_drive.files", drive, MAX_FILES),
        ("sections", all.third_party.len(), MAX_THIRD_PARTY),
    ];
    let whole = whole.map(|(place, count, most)| (place.to_owned(), count, most));
    let lists = lists(document).into_iter().map(|(place, count)| (place, count, MAX_LIST));
    let too_much = whole.into_iter().chain(lists).filter(|(_, count, most)| count > most);
    let say = |(place, count, most): (String, usize, usize)| {
        let what = format!("{count} are more than the limit of {most}");
        ProvisionDiagnostic::new(Code::TooLarge, place, what)
    };
    too_much.map(say).collect()
}

/// Lists within entries, and how long they are.
fn lists(document: &Document) -> Vec<(String, usize)> {
    let all = &document.sections;
    let mut lists = Vec::new();
    for (id, Disk { matches, wipe }) in all.disks.iter() {
        lists.push((format!("disks.{id}.match.links"), matches.links.len()));
        if let Wipe::Kinds(kinds) = wipe {
            lists.push((format!("disks.{id}.wipe"), kinds.len()));
        }
    }
    for node in &all.storage {
        let count = match node {
            StorageNode::Fs(fs) => fs.options.len(),
            StorageNode::Part(part) => part.attributes.len(),
            _ => 0,
        };
        lists.push((format!("storage.{}", node.id()), count));
    }
    for (id, image) in all.images.iter() {
        lists.push((format!("images.{id}.sources"), image.sources.len()));
    }
    if let Some(boot) = &all.boot {
        lists.push(("boot.kernel_args".to_owned(), boot.kernel_args.len()));
        for (name, file) in boot.files.named() {
            let count = file.map_or(0, |file| file.sources.len());
            lists.push((format!("boot.files.{name}.sources"), count));
        }
    }
    let actions = all.flow.as_ref().and_then(|flow| flow.actions.as_ref());
    let erase = all.erase.as_ref();
    lists.push(("flow.actions".to_owned(), actions.map_or(0, Vec::len)));
    lists.push(("erase.disks".to_owned(), erase.map_or(0, |erase| erase.disks.len())));
    lists
}
