//! From a data directory and a store to a stream.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

use fs_err as fs;
use hoist_site::schema;
use hoist_store::Store;
use hoist_store::copy::{self, CopyError, CopySummary};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio_util::io::SyncIoBridge;

use super::name::{Folder, Name};
use super::{BackupError, CHUNK_BYTES, Contents, FORMAT, MAX_ENTRIES, Manifest};
use hoist_chassis::secret;

/// zstd's own default: beyond it, time grows faster than files shrink.
const LEVEL: i32 = 3;

/// Sources of a backup.
#[derive(Debug)]
pub struct Source {
    pub data_dir: PathBuf,
    pub store: Arc<dyn Store>,
    pub with_artifacts: bool,
    pub now: Timestamp,
}

/// Writes a whole backup, unencrypted, and gives the writer back. The store is read in one
/// snapshot; others may write meanwhile.
pub async fn write<W>(source: Source, out: W) -> Result<(W, Manifest, Contents), BackupError>
where
    W: Write + Send + 'static,
{
    let schema = schema::read(source.store.as_ref()).await?.ok_or(BackupError::NothingThere)?;
    let manifest = Manifest {
        format: FORMAT,
        hoist: env!("CARGO_PKG_VERSION").to_owned(),
        created: source.now,
        schema: schema.version,
        incarnation: schema.incarnation.as_str().to_owned(),
    };
    let Source { data_dir, store, with_artifacts, .. } = source;
    let (reader, writer) = tokio::io::duplex(CHUNK_BYTES);
    let (tell, told) = mpsc::sync_channel(1);
    let packing = {
        let reader = SyncIoBridge::new(reader);
        let manifest = manifest.clone();
        tokio::task::spawn_blocking(move || {
            let mut pack = Pack::start(out, manifest.created)?;
            pack.json(&Name::Manifest, &manifest)?;
            let exported = pack.chunks(reader, &told)?;
            let contents = pack.files(&data_dir, with_artifacts, &exported)?;
            pack.json(&Name::Contents, &contents)?;
            Ok((pack.finish()?, manifest, contents))
        })
    };
    let exporting = async {
        let writer = tokio::io::BufWriter::with_capacity(64 * 1024, writer);
        let copied = copy::export(store.as_ref(), writer).await?;
        // The packer asks for it after the last piece. One that gave up does not ask.
        let _ = tell.send(copied);
        drop(tell);
        Ok::<_, CopyError>(())
    };
    let (exported, packed) = tokio::join!(exporting, packing);
    let packed = packed.unwrap_or_else(|died| std::panic::resume_unwind(died.into_panic()));
    match (exported, packed) {
        // An export whose reader went away says nothing; why the reader went away does.
        (Err(CopyError::Io(_)), Err(error)) => Err(error),
        (Err(error), _) => Err(error.into()),
        (Ok(()), packed) => packed,
    }
}

/// An archive being written.
struct Pack<W: Write> {
    tar: tar::Builder<zstd::Encoder<'static, W>>,
    sums: String,
    entries: usize,
    created: Timestamp,
}

impl<W: Write> Pack<W> {
    fn start(out: W, created: Timestamp) -> Result<Self, BackupError> {
        let mut encoder = zstd::Encoder::new(out, LEVEL).map_err(BackupError::Output)?;
        encoder.include_checksum(true).map_err(BackupError::Output)?;
        let tar = tar::Builder::new(encoder);
        Ok(Self { tar, sums: String::new(), entries: 0, created })
    }

    fn json(&mut self, name: &Name, value: &impl serde::Serialize) -> Result<(), BackupError> {
        let bytes = serde_json::to_vec_pretty(value).expect("plain structs always serialize");
        self.bytes(name, &bytes)
    }

    fn bytes(&mut self, name: &Name, bytes: &[u8]) -> Result<(), BackupError> {
        self.entry(name, bytes.len() as u64, bytes).map_err(BackupError::Output)
    }

    /// Writes the export of the store in pieces; returns the exporter's summary.
    fn chunks(
        &mut self,
        mut export: impl Read,
        told: &mpsc::Receiver<CopySummary>,
    ) -> Result<CopySummary, BackupError> {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        for number in 0.. {
            chunk.clear();
            (&mut export)
                .take(CHUNK_BYTES as u64)
                .read_to_end(&mut chunk)
                .map_err(BackupError::Output)?;
            if chunk.is_empty() {
                break;
            }
            self.bytes(&Name::Chunk(number), &chunk)?;
        }
        // A closed channel means that the export failed; its own error is reported instead.
        told.recv().map_err(|_| BackupError::Output(io::ErrorKind::BrokenPipe.into()))
    }

    fn files(
        &mut self,
        data_dir: &Path,
        with_artifacts: bool,
        exported: &CopySummary,
    ) -> Result<Contents, BackupError> {
        let mut contents = Contents {
            records: exported.records,
            sha256: exported.sha256.clone(),
            ..Contents::default()
        };
        for place in Folder::ALL {
            let dir = data_dir.join(place.dir());
            for path in files_of(place, data_dir)? {
                let unfit = |detail| BackupError::Unfit { path: path.clone(), detail };
                let inside = path.strip_prefix(data_dir).ok().and_then(Path::to_str);
                let name = inside.and_then(Name::parse).ok_or_else(|| unfit("its name is odd"))?;
                match place {
                    Folder::Ca if is_remade(&path) => continue,
                    Folder::Ca | Folder::Secrets => {}
                    Folder::Journal => contents.journal_files += 1,
                    Folder::Artifacts if !path.starts_with(dir.join("blobs")) => continue,
                    Folder::Artifacts if with_artifacts => contents.artifacts += 1,
                    Folder::Artifacts => {
                        contents.artifacts_left_out += 1;
                        continue;
                    }
                }
                self.file(&name, &path)?;
            }
        }
        let key = data_dir.join(Name::SecretsKey.path());
        if key.is_file() {
            self.file(&Name::SecretsKey, &key)?;
        }
        Ok(contents)
    }

    fn file(&mut self, name: &Name, path: &Path) -> Result<(), BackupError> {
        let unfit = |detail| BackupError::Unfit { path: path.to_owned(), detail };
        if self.entries + 2 >= MAX_ENTRIES {
            return Err(unfit("there are too many files"));
        }
        let file = fs::File::open(path).map_err(BackupError::File)?;
        // A journal may grow meanwhile: only its current length is copied.
        let size = file.metadata().map_err(BackupError::File)?.len();
        if size > name.max_bytes() {
            return Err(unfit("it is too large"));
        }
        self.entry(name, size, file.take(size)).map_err(BackupError::File)
    }

    fn entry(&mut self, name: &Name, size: u64, content: impl Read) -> io::Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_path(name.path())?;
        header.set_size(size);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(self.created.as_second()).unwrap_or(0));
        header.set_entry_type(tar::EntryType::Regular);
        header.set_cksum();
        let mut content = HashingReader { inner: content, hash: Sha256::new(), bytes: 0 };
        self.tar.append(&header, &mut content)?;
        if content.bytes != size {
            return Err(io::Error::other(format!("`{name}` became shorter while it was read")));
        }
        self.entries += 1;
        let sum = secret::hex(&content.hash.finalize());
        self.sums.push_str(&sum_line(&sum, name));
        Ok(())
    }

    fn finish(mut self) -> Result<W, BackupError> {
        let sums = std::mem::take(&mut self.sums);
        self.bytes(&Name::Sums, sums.as_bytes())?;
        let finish = || {
            let mut out = self.tar.into_inner()?.finish()?;
            out.flush()?;
            Ok(out)
        };
        finish().map_err(BackupError::Output)
    }
}

/// As sha256sum(1) writes it.
pub(super) fn sum_line(sum: &str, name: &Name) -> String {
    format!("{sum}  {name}\n")
}

/// Hashes and counts everything read through it.
#[derive(Debug)]
pub(super) struct HashingReader<R> {
    pub(super) inner: R,
    pub(super) hash: Sha256,
    pub(super) bytes: u64,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}

/// Server certificates are made anew, for the names of the machine that is restored to.
fn is_remade(path: &Path) -> bool {
    path.file_stem().is_some_and(|stem| stem == "server")
}

/// All files of a place, in order; none if it is not there. Hidden ones are files in the making.
fn files_of(place: Folder, data_dir: &Path) -> Result<Vec<PathBuf>, BackupError> {
    let top = data_dir.join(place.dir());
    let mut found = Vec::new();
    let mut open = vec![top.clone()];
    while let Some(dir) = open.pop() {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(BackupError::File(error)),
        };
        for entry in entries {
            let entry = entry.map_err(BackupError::File)?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let kind = entry.file_type().map_err(BackupError::File)?;
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            } else if place == Folder::Secrets && kind.is_symlink() {
                found.extend(told_through(&entry.path(), &top).then(|| entry.path()));
            } else {
                let detail = "it is neither a file nor a directory";
                return Err(BackupError::Unfit { path: entry.path(), detail });
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Whether layers may read through a link: only to a file inside the directory.
fn told_through(link: &Path, top: &Path) -> bool {
    let inside = || Ok::<_, io::Error>(link.canonicalize()?.starts_with(top.canonicalize()?));
    link.is_file() && inside().unwrap_or(false)
}
