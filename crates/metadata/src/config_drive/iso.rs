//! A small ISO 9660 image with Joliet names: written once, whole, and always the same for the same
//! files. It supports only the size of a config drive.
//!
//! Sectors: 16 system area, two volume descriptors and their end, two path tables for each, the
//! directories of both trees, the files.

use std::collections::BTreeMap;

use bytes::Bytes;

const SECTOR: usize = 2048;
/// The first one behind the descriptors.
const PATH_TABLES: u32 = 19;
/// 2000-01-01: the same content must give the same image.
const DATE: [u8; 7] = [100, 1, 1, 0, 0, 0, 0];
const IS_DIRECTORY: u8 = 2;

/// Which of the two trees is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    /// Capital letters, digits and underscores.
    Primary,
    /// As they are.
    Joliet,
}

#[derive(Debug, Default)]
struct Directory {
    name: String,
    parent: usize,
    directories: Vec<usize>,
    /// With their places among the files.
    files: Vec<(String, usize)>,
}

/// Where things are, in sectors.
struct Layout {
    primary: Vec<u32>,
    joliet: Vec<u32>,
    files: Vec<u32>,
    end: u32,
}

pub(super) fn image(files: &BTreeMap<String, Bytes>, label: &str) -> Vec<u8> {
    let directories = directories(files.keys());
    let contents: Vec<&Bytes> = files.values().collect();
    let layout = Layout::of(&directories, &contents);
    let mut image = vec![0; sectors(16 * SECTOR) as usize * SECTOR];
    for names in [Names::Primary, Names::Joliet] {
        image.extend(descriptor(names, &directories, &layout, label));
    }
    image.extend(padded(b"\xffCD001\x01".to_vec()));
    for names in [Names::Primary, Names::Joliet] {
        for big_endian in [false, true] {
            image.extend(padded(path_table(names, &directories, &layout, big_endian)));
        }
    }
    for names in [Names::Primary, Names::Joliet] {
        for at in 0..directories.len() {
            image.extend(listing(names, &directories, at, &layout, &contents));
        }
    }
    for content in contents {
        image.extend(padded(content.to_vec()));
    }
    image
}

/// Breadth first, as path tables want them.
fn directories<'p>(paths: impl Iterator<Item = &'p String>) -> Vec<Directory> {
    let mut by_parent: BTreeMap<(usize, String), usize> = BTreeMap::new();
    let mut found = vec![Directory::default()];
    let split: Vec<Vec<&str>> = paths.map(|path| path.split('/').collect()).collect();
    let depth = split.iter().map(Vec::len).max().unwrap_or(0);
    let mut at = vec![0; split.len()];
    for level in 0..depth {
        for (file, parts) in split.iter().enumerate() {
            let Some(part) = parts.get(level) else { continue };
            let parent = at[file];
            if level + 1 == parts.len() {
                found[parent].files.push(((*part).to_owned(), file));
                continue;
            }
            at[file] = *by_parent.entry((parent, (*part).to_owned())).or_insert_with(|| {
                found.push(Directory { name: (*part).to_owned(), parent, ..Directory::default() });
                let new = found.len() - 1;
                found[parent].directories.push(new);
                new
            });
        }
    }
    found
}

impl Layout {
    fn of(directories: &[Directory], contents: &[&Bytes]) -> Self {
        let mut end = PATH_TABLES + 4;
        let mut place = |length: usize| {
            let at = end;
            end += sectors(length);
            at
        };
        let mut tree = |names: Names| -> Vec<u32> {
            let all = 0..directories.len();
            all.map(|at| place(listing_length(names, directories, at))).collect()
        };
        let primary = tree(Names::Primary);
        let joliet = tree(Names::Joliet);
        let files = contents.iter().map(|content| place(content.len())).collect();
        Self { primary, joliet, files, end }
    }

    fn directories(&self, names: Names) -> &[u32] {
        match names {
            Names::Primary => &self.primary,
            Names::Joliet => &self.joliet,
        }
    }
}

impl Names {
    fn directory(self, name: &str) -> Vec<u8> {
        match self {
            // The root.
            _ if name.is_empty() => vec![0],
            Self::Primary => capitals(name),
            Self::Joliet => wide(name),
        }
    }

    fn file(self, name: &str) -> Vec<u8> {
        match self {
            Self::Primary => {
                let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
                let dotted = [capitals(stem), capitals(extension)].join(&b'.');
                [dotted, b";1".to_vec()].concat()
            }
            Self::Joliet => wide(&format!("{name};1")),
        }
    }

    fn text(self, text: &str, length: usize) -> Vec<u8> {
        let (mut bytes, blank): (Vec<u8>, &[u8]) = match self {
            Self::Primary => (text.as_bytes().to_vec(), b" "),
            Self::Joliet => (wide(text), b"\0 "),
        };
        bytes.truncate(length);
        while bytes.len() < length {
            bytes.extend(blank);
        }
        bytes.truncate(length);
        bytes
    }
}

fn capitals(name: &str) -> Vec<u8> {
    let plain = |b: u8| if b.is_ascii_alphanumeric() { b.to_ascii_uppercase() } else { b'_' };
    name.bytes().map(plain).collect()
}

fn wide(name: &str) -> Vec<u8> {
    name.encode_utf16().flat_map(u16::to_be_bytes).collect()
}

/// Everything in a directory: identifier, extent, length and flags, sorted as readers expect it.
fn entries(
    names: Names,
    directories: &[Directory],
    at: usize,
    layout: Option<(&Layout, &[&Bytes])>,
) -> Vec<Vec<u8>> {
    let directory = &directories[at];
    let extent = |of: usize| layout.map_or(0, |(layout, _)| layout.directories(names)[of]);
    // Its own length is known without the layout; that of the others is only asked with it.
    let length = |of: usize| match layout {
        Some(_) => sectors(listing_length(names, directories, of)) as usize * SECTOR,
        None => 0,
    };
    let own = |of: usize, id: u8| record(&[id], extent(of), length(of), IS_DIRECTORY);
    let mut named = Vec::new();
    for &inside in &directory.directories {
        let id = names.directory(&directories[inside].name);
        named.push((id.clone(), record(&id, extent(inside), length(inside), IS_DIRECTORY)));
    }
    for (name, file) in &directory.files {
        let (start, bytes) =
            layout.map_or((0, 0), |(layout, all)| (layout.files[*file], all[*file].len()));
        let id = names.file(name);
        named.push((id.clone(), record(&id, start, bytes, 0)));
    }
    named.sort();
    let dots = [own(at, 0), own(directory.parent, 1)];
    dots.into_iter().chain(named.into_iter().map(|(_, record)| record)).collect()
}

fn record(id: &[u8], extent: u32, length: usize, flags: u8) -> Vec<u8> {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let mut record = vec![0, 0];
    record.extend(both(extent));
    record.extend(both(length));
    record.extend(DATE);
    record.extend([flags, 0, 0]);
    record.extend([1, 0, 0, 1]);
    record.push(u8::try_from(id.len()).unwrap_or(u8::MAX));
    record.extend(id);
    if record.len() % 2 == 1 {
        record.push(0);
    }
    record[0] = u8::try_from(record.len()).unwrap_or(u8::MAX);
    record
}

/// Records do not reach over the end of a sector.
fn listing_length(names: Names, directories: &[Directory], at: usize) -> usize {
    laid(&entries(names, directories, at, None)).len()
}

fn listing(
    names: Names,
    directories: &[Directory],
    at: usize,
    layout: &Layout,
    contents: &[&Bytes],
) -> Vec<u8> {
    padded(laid(&entries(names, directories, at, Some((layout, contents)))))
}

fn laid(records: &[Vec<u8>]) -> Vec<u8> {
    let mut text: Vec<u8> = Vec::new();
    for record in records {
        if text.len() % SECTOR + record.len() > SECTOR {
            text.resize(text.len().next_multiple_of(SECTOR), 0);
        }
        text.extend(record);
    }
    text
}

fn path_table(
    names: Names,
    directories: &[Directory],
    layout: &Layout,
    big_endian: bool,
) -> Vec<u8> {
    let mut table = Vec::new();
    for (at, directory) in directories.iter().enumerate() {
        let id = names.directory(&directory.name);
        let extent = layout.directories(names)[at];
        let parent = u16::try_from(directory.parent + 1).unwrap_or(1);
        table.extend([u8::try_from(id.len()).unwrap_or(u8::MAX), 0]);
        if big_endian {
            table.extend(extent.to_be_bytes());
            table.extend(parent.to_be_bytes());
        } else {
            table.extend(extent.to_le_bytes());
            table.extend(parent.to_le_bytes());
        }
        let odd = id.len() % 2 == 1;
        table.extend(id);
        if odd {
            table.push(0);
        }
    }
    table
}

fn descriptor(names: Names, directories: &[Directory], layout: &Layout, label: &str) -> Vec<u8> {
    let (kind, tables) = match names {
        Names::Primary => (1, PATH_TABLES),
        Names::Joliet => (2, PATH_TABLES + 2),
    };
    let table = path_table(names, directories, layout, false).len();
    let root = sectors(listing_length(names, directories, 0)) as usize * SECTOR;
    let mut text = vec![kind];
    text.extend(b"CD001\x01\0");
    text.extend(names.text("", 32));
    text.extend(names.text(label, 32));
    text.extend([0; 8]);
    text.extend(both(layout.end));
    let mut escapes = [0; 32];
    if names == Names::Joliet {
        escapes[..3].copy_from_slice(b"%/E");
    }
    text.extend(escapes);
    text.extend([1, 0, 0, 1, 1, 0, 0, 1]);
    text.extend([0, 8, 8, 0]);
    text.extend(both(u32::try_from(table).unwrap_or(u32::MAX)));
    text.extend(tables.to_le_bytes());
    text.extend([0; 4]);
    text.extend((tables + 1).to_be_bytes());
    text.extend([0; 4]);
    text.extend(record(&[0], layout.directories(names)[0], root, IS_DIRECTORY));
    for length in [128, 128, 128, 128, 37, 37, 37] {
        text.extend(names.text("", length));
    }
    for _ in 0..4 {
        text.extend(*b"0000000000000000\0");
    }
    text.push(1);
    padded(text)
}

fn both(number: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn sectors(length: usize) -> u32 {
    u32::try_from(length.div_ceil(SECTOR)).unwrap_or(u32::MAX)
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bytes: &[u8]) -> usize {
        let little = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let big = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
        assert_eq!(little, big);
        usize::try_from(little).unwrap()
    }

    /// All files below a directory, by the names of its tree.
    fn read(image: &[u8], record: &[u8], at: &str, wide: bool, all: &mut BTreeMap<String, Bytes>) {
        let start = number(&record[2..]) * SECTOR;
        let length = number(&record[10..]);
        let mut listing = &image[start..start + length];
        while !listing.is_empty() {
            let size = usize::from(listing[0]);
            if size == 0 {
                let rest = listing.len() % SECTOR;
                listing = &listing[if rest == 0 { SECTOR } else { rest }..];
                continue;
            }
            let (entry, rest) = listing.split_at(size);
            listing = rest;
            let id = &entry[33..33 + usize::from(entry[32])];
            if id == [0] || id == [1] {
                continue;
            }
            let name = if wide {
                let pairs = id.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
                String::from_utf16(&pairs.collect::<Vec<_>>()).unwrap()
            } else {
                String::from_utf8(id.to_vec()).unwrap()
            };
            let path = format!("{at}/{}", name.trim_end_matches(";1"));
            if entry[25] & IS_DIRECTORY != 0 {
                read(image, entry, &path, wide, all);
            } else {
                let start = number(&entry[2..]) * SECTOR;
                let length = number(&entry[10..]);
                let content = Bytes::copy_from_slice(&image[start..start + length]);
                all.insert(path.trim_start_matches('/').to_owned(), content);
            }
        }
    }

    fn files(image: &[u8], sector: usize) -> BTreeMap<String, Bytes> {
        let descriptor = &image[sector * SECTOR..][..SECTOR];
        assert_eq!(&descriptor[1..6], b"CD001");
        assert_eq!(number(&descriptor[80..]) * SECTOR, image.len());
        let mut all = BTreeMap::new();
        read(image, &descriptor[156..190], "", descriptor[0] == 2, &mut all);
        all
    }

    #[test]
    fn both_trees_lead_to_the_same_files() {
        let many = (0..200)
            .map(|n| (format!("a/b/a-file-with-a-name-{n:03}.json"), Bytes::from(n.to_string())));
        let mut all: BTreeMap<String, Bytes> = many.collect();
        all.insert("a/empty".to_owned(), Bytes::new());
        all.insert("a/large".to_owned(), Bytes::from(vec![7; 3 * SECTOR]));
        all.insert("top".to_owned(), Bytes::from("x"));
        all.insert("z/b/ünicode".to_owned(), Bytes::from("y"));
        let image = image(&all, "config-2");
        assert_eq!(files(&image, 17), all);
        let primary = files(&image, 16);
        assert_eq!(primary.len(), all.len());
        assert_eq!(primary["A/B/A_FILE_WITH_A_NAME_007.JSON"], "7");
        assert_eq!(primary["TOP."], "x");
        assert_eq!(&image[16 * SECTOR + 40..][..8], b"config-2");
        assert_eq!(super::image(&all, "config-2"), image);
    }

    #[test]
    fn empty_tree_makes_an_image() {
        assert_eq!(files(&image(&BTreeMap::new(), "x"), 17), BTreeMap::new());
    }
}
