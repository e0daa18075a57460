//! From a stream back to entries, with every check there is.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};

use hoist_site::schema::{self, SchemaError};
use hoist_store::copy::{self, CopyError, CopySummary};
use sha2::{Digest, Sha256};
use tokio_util::io::SyncIoBridge;

use super::name::{Folder, Name};
use super::write::{HashingReader, sum_line};
use super::{BackupError, CHUNK_BYTES, Contents, FORMAT, MAX_ENTRIES, Manifest, Summary};
use hoist_chassis::{ca, secret};

/// Zeros after the last entry. tar(1) pads to 10 KiB.
const MAX_PADDING: u64 = 1024 * 1024;

/// Receives name and content of each entry from [`unpack`].
pub(super) type Keep<'a> = &'a mut dyn FnMut(&Name, &mut dyn Read) -> io::Result<()>;

/// Reads a whole backup (already decrypted) and checks all of it; gives the reader back.
pub async fn verify<R>(mut input: R) -> Result<(R, Summary), BackupError>
where
    R: Read + Send + 'static,
{
    let (reader, writer) = tokio::io::duplex(CHUNK_BYTES);
    let writer = SyncIoBridge::new(writer);
    let unpacking = tokio::task::spawn_blocking(move || {
        let mut export = writer;
        let mut root = Root::default();
        let unpacked = unpack(&mut input, &mut |name, content| match name {
            Name::Chunk(_) => io::copy(content, &mut export).map(drop),
            name => root.keep(name, content),
        });
        drop(export);
        unpacked.map(|(manifest, contents)| (input, manifest, contents, root))
    });
    let (copied, unpacked) = tokio::join!(copy::check_copy(reader), unpacking);
    let unpacked = unpacked.unwrap_or_else(|died| std::panic::resume_unwind(died.into_panic()));
    let (input, manifest, contents, root) = match (unpacked, copied) {
        // The record checker closed the pipe first and knows the cause.
        (Err(BackupError::Read(error)), Err(why)) if error.kind() == io::ErrorKind::BrokenPipe => {
            return Err(why.into());
        }
        (Err(error), _) => return Err(error),
        (Ok(unpacked), copied) => {
            check_records(&unpacked.2, copied)?;
            unpacked
        }
    };
    Ok((input, Summary { manifest, contents, ca_pin: root.pin()? }))
}

/// Reads all entries of an archive to its very end. Nothing that `keep` got may be used before
/// this has returned well.
pub(super) fn unpack(
    input: &mut dyn Read,
    keep: Keep<'_>,
) -> Result<(Manifest, Contents), BackupError> {
    let mut input = BufReader::new(input);
    if !input.fill_buf().map_err(read_error)?.starts_with(&super::seal::ZSTD_MAGIC) {
        return Err(BackupError::NotABackup);
    }
    let decoder = zstd::Decoder::with_buffer(input).map_err(read_error)?.single_frame();
    let mut archive = tar::Archive::new(decoder);
    let mut state = State::default();
    // Raw: extensions of tar (long names, links, sparse files) are entries of a strange kind, and
    // refused as such.
    for entry in archive.entries().map_err(read_error)?.raw(true) {
        state.entry(&mut entry.map_err(read_error)?, keep)?;
    }
    let mut decoder = archive.into_inner();
    let mut padding = Vec::new();
    (&mut decoder).take(MAX_PADDING).read_to_end(&mut padding).map_err(read_error)?;
    let mut input = decoder.finish();
    let rest = input.fill_buf().map_err(read_error)?;
    if !rest.is_empty() || padding.len() as u64 == MAX_PADDING || padding.iter().any(|b| *b != 0) {
        let name = "SHA256SUMS".to_owned();
        return Err(BackupError::Entry { name, detail: "is not the end" });
    }
    state.finish()
}

/// Compares the records with `contents.json`.
pub(super) fn check_records(
    contents: &Contents,
    copied: Result<CopySummary, CopyError>,
) -> Result<(), BackupError> {
    let held = copied?;
    let said = CopySummary { records: contents.records, sha256: contents.sha256.clone() };
    if said == held {
        return Ok(());
    }
    Err(BackupError::Contents { said: said.to_string(), held: held.to_string() })
}

/// How far into the archive we are.
#[derive(Default)]
struct State {
    manifest: Option<Manifest>,
    contents: Option<Contents>,
    chunks: u32,
    seen: BTreeSet<Name>,
    sums: String,
    complete: bool,
}

impl State {
    fn entry<R: Read>(
        &mut self,
        entry: &mut tar::Entry<'_, R>,
        keep: Keep<'_>,
    ) -> Result<(), BackupError> {
        let header = entry.header();
        let raw = header.path_bytes();
        let text = String::from_utf8_lossy(&raw).into_owned();
        let refuse = |detail| Err(BackupError::Entry { name: shown(&text), detail });
        if header.entry_type() != tar::EntryType::Regular {
            return refuse("is not a plain file");
        }
        let Some(name) = Name::parse(&text) else {
            // A foreign archive is a mistake of the caller; a crafted one is an attack.
            let ours = self.manifest.is_some() || text.contains("..") || text.starts_with('/');
            return if ours {
                refuse("has a name that no backup has")
            } else {
                Err(BackupError::NotABackup)
            };
        };
        let size = header.size().map_err(read_error)?;
        if size > name.max_bytes() {
            return refuse("is too large");
        }
        if let Err(detail) = self.check_order(&name) {
            return refuse(detail);
        }
        let mut content = HashingReader { inner: entry, hash: Sha256::new(), bytes: 0 };
        match &name {
            Name::Manifest => self.manifest = Some(read_manifest(&mut content)?),
            Name::Contents => self.contents = Some(read_json(&name, &mut content)?),
            Name::Sums => return self.check_sums(&mut content, size),
            _ => keep(&name, &mut content).map_err(read_error)?,
        }
        io::copy(&mut content, &mut io::sink()).map_err(read_error)?;
        if content.bytes != size {
            return Err(BackupError::Truncated);
        }
        self.sums.push_str(&sum_line(&secret::hex(&content.hash.finalize()), &name));
        self.seen.insert(name);
        Ok(())
    }

    fn check_order(&mut self, name: &Name) -> Result<(), &'static str> {
        if self.complete {
            return Err("comes after the end");
        }
        if self.manifest.is_none() != (*name == Name::Manifest) {
            return Err("is not where it belongs");
        }
        if self.contents.is_some() != (*name == Name::Sums) {
            return Err("is not where it belongs");
        }
        if let Name::Chunk(number) = name {
            let is_file = |seen: &Name| matches!(seen, Name::File(..) | Name::SecretsKey);
            let files = self.seen.iter().any(is_file);
            if *number != self.chunks || files {
                return Err("is not where it belongs");
            }
            self.chunks += 1;
        }
        if self.seen.contains(name) {
            return Err("is there twice");
        }
        if self.seen.len() >= MAX_ENTRIES {
            return Err("is one too many");
        }
        Ok(())
    }

    fn check_sums(&mut self, content: &mut impl Read, size: u64) -> Result<(), BackupError> {
        let mut said = String::new();
        content.read_to_string(&mut said).map_err(read_error)?;
        if said.len() as u64 != size {
            return Err(BackupError::Truncated);
        }
        if said != self.sums {
            let mut lines = said.lines().map(Some).chain(std::iter::repeat(None));
            let wrong = self.sums.lines().find(|line| lines.next().flatten() != Some(line));
            let name = wrong.and_then(|line| line.split("  ").nth(1)).unwrap_or("SHA256SUMS");
            return Err(BackupError::Checksum { name: name.to_owned() });
        }
        self.complete = true;
        Ok(())
    }

    fn finish(self) -> Result<(Manifest, Contents), BackupError> {
        match (self.complete, self.manifest, self.contents) {
            (true, Some(manifest), Some(contents)) => Ok((manifest, contents)),
            (_, None, _) => Err(BackupError::NotABackup),
            _ => Err(BackupError::Truncated),
        }
    }
}

fn read_manifest(content: &mut impl Read) -> Result<Manifest, BackupError> {
    /// What every format has.
    #[derive(serde::Deserialize)]
    struct Version {
        format: u32,
        #[serde(default)]
        hoist: String,
    }
    let mut bytes = Vec::new();
    content.read_to_end(&mut bytes).map_err(read_error)?;
    let Ok(Version { format, hoist }) = serde_json::from_slice(&bytes) else {
        return Err(BackupError::NotABackup);
    };
    if format > FORMAT {
        return Err(BackupError::Newer { found: format, by: hoist });
    }
    let manifest: Manifest = parse(&Name::Manifest, &bytes)?;
    if manifest.schema > schema::VERSION {
        let newer = SchemaError::Newer { found: manifest.schema, by: manifest.hoist };
        return Err(newer.into());
    }
    Ok(manifest)
}

fn read_json<T: serde::de::DeserializeOwned>(
    name: &Name,
    content: &mut impl Read,
) -> Result<T, BackupError> {
    let mut bytes = Vec::new();
    content.read_to_end(&mut bytes).map_err(read_error)?;
    parse(name, &bytes)
}

fn parse<T: serde::de::DeserializeOwned>(name: &Name, bytes: &[u8]) -> Result<T, BackupError> {
    let wrong =
        |_| BackupError::Entry { name: name.to_string(), detail: "is not as hoist writes it" };
    serde_json::from_slice(bytes).map_err(wrong)
}

/// A name from outside, fit to be printed.
fn shown(text: &str) -> String {
    text.chars().take(100).flat_map(char::escape_debug).collect()
}

/// The site's root, as far as it is in the backup.
#[derive(Default)]
pub(super) struct Root {
    pem: Option<Vec<u8>>,
    key: Option<zeroize::Zeroizing<Vec<u8>>>,
}

impl Root {
    fn keep(&mut self, name: &Name, content: &mut dyn Read) -> io::Result<()> {
        let Name::File(Folder::Ca, file) = name else { return Ok(()) };
        let mut bytes = Vec::new();
        match file.as_str() {
            "root.pem" => {
                content.read_to_end(&mut bytes)?;
                self.pem = Some(bytes);
            }
            "root.key" => {
                content.read_to_end(&mut bytes)?;
                self.key = Some(bytes.into());
            }
            _ => {}
        }
        Ok(())
    }

    /// The root as it is in the data directory or where it was staged.
    pub(super) fn read(dir: &std::path::Path) -> io::Result<Self> {
        let read = |name| match fs_err::read(dir.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        Ok(Self { pem: read("root.pem")?, key: read("root.key")?.map(Into::into) })
    }

    /// `None` when there is no root; an error when it cannot be used.
    pub(super) fn pin(&self) -> Result<Option<String>, BackupError> {
        let Some(pem) = &self.pem else { return Ok(None) };
        Ok(Some(ca::check_root(pem, self.key.as_ref().map(|key| key.as_slice()))?))
    }
}

/// Copies everything read through it: a backup is written and verified in one pass.
#[derive(Debug)]
pub struct Tee<R, W> {
    pub from: R,
    pub to: W,
}

impl<R: Read, W: Write> Read for Tee<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        MarkedWriter(&mut self.to).write_all(&buffer[..count])?;
        Ok(count)
    }
}

/// Marks the errors of a writer, so that a full disk is not taken for a damaged backup.
pub(super) struct MarkedWriter<W>(pub(super) W);

/// See [`MarkedWriter`].
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct WriteFailed(io::Error);

impl<W: Write> Write for MarkedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(marked)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(marked)
    }
}

/// An error that is not the backup's fault.
pub(super) fn marked(error: io::Error) -> io::Error {
    io::Error::other(WriteFailed(error))
}

/// Classifies an error while reading a backup.
fn read_error(error: io::Error) -> BackupError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return BackupError::Truncated;
    }
    match error.downcast::<WriteFailed>() {
        Ok(WriteFailed(error)) => BackupError::Output(error),
        Err(error) => BackupError::Read(error),
    }
}
