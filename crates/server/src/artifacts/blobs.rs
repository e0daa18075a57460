//! Content on the disk, known by its digest: whole and checked, or not there at all.
//!
//! | below `<data-dir>/artifacts` | what |
//! | --- | --- |
//! | `blobs/ab/<digest>` | whole, checked, never written again |
//! | `parts/<digest>` | on its way, from an upload or from another controller |
//! | `damaged/<digest>` | was whole once, and is not any more |
//!
//! Only parsed digests become paths.
//!
//! Does not belong here: names of artifacts, and which content may be removed (`care`).

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use fs_err as fs;
use hoist_model::Digest;
use parking_lot::{Mutex, MutexGuard};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use hoist_chassis::secret;

/// Bytes gathered before they are written at once.
const BATCH: usize = 1024 * 1024;

/// Room that artifacts leave to the store and the logs on the same disk, or a quarter of it where
/// that is less.
const RESERVE: u64 = 1 << 30;

/// Bytes read at once to be hashed.
const HASH_CHUNK: usize = 1024 * 1024;

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Blobs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    /// Contents being written, each by one writer. Held for lookups only, never during disk I/O.
    growing: Mutex<HashMap<Digest, Growth>>,
    /// Serialises check-then-act on files. Only for threads that may block; must be taken before
    /// `growing`.
    deciding: Mutex<()>,
}

/// Content to read: whole, or followed while it arrives.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) file: Arc<File>,
    pub(crate) size: u64,
    /// Not yet checked, so long as there is one.
    pub(crate) growth: Option<watch::Receiver<Progress>>,
}

/// Where content comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From a client with write access: not readable before it was verified.
    Upload,
    /// From another controller, which had checked it: can be read along.
    Sibling,
}

/// State shared by a writer and the readers that follow it.
#[derive(Debug, Clone)]
struct Growth {
    origin: Origin,
    file: Arc<File>,
    size: u64,
    progress: watch::Receiver<Progress>,
}

/// How far a writer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// No source of the content was found yet.
    Seeking,
    Received(u64),
    /// All of it is there and has its digest.
    Checked,
    /// No asked controller has it.
    NotThere,
    /// It did not come to its end.
    Broken,
}

/// A file on the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlobFile {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
}

/// Why there is nothing to write.
#[derive(Debug)]
pub(crate) enum NoPart {
    /// Another writer is active; with the content if it can be read meanwhile.
    Busy(Option<Content>),
    Whole,
    Io(io::Error),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PartError {
    #[error("the content is not what its digest says: it has {found}")]
    WrongDigest { found: Digest },
    #[error("the content is longer than its declared size")]
    TooLong,
    #[error("cannot write")]
    Io(#[from] io::Error),
}

impl PartError {
    pub(crate) fn is_full(&self) -> bool {
        let Self::Io(error) = self else { return false };
        matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

impl Blobs {
    pub(crate) fn new(data_dir: &Path) -> Self {
        let root = data_dir.join("artifacts");
        Self(Arc::new(Inner { root, growing: Mutex::default(), deciding: Mutex::default() }))
    }

    fn blob(&self, digest: Digest) -> PathBuf {
        let name = digest.to_string();
        self.0.root.join("blobs").join(&name[..2]).join(name)
    }

    fn part(&self, digest: Digest) -> PathBuf {
        self.0.root.join("parts").join(digest.to_string())
    }

    fn damaged(&self, digest: Digest) -> PathBuf {
        self.0.root.join("damaged").join(digest.to_string())
    }

    fn growing(&self) -> MutexGuard<'_, HashMap<Digest, Growth>> {
        self.0.growing.lock()
    }

    fn deciding(&self) -> MutexGuard<'_, ()> {
        self.0.deciding.lock()
    }

    /// Whole content, if it is here. Blocks.
    pub(crate) fn open(&self, digest: Digest) -> io::Result<Option<Content>> {
        let file = match File::open(self.blob(digest)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let size = file.metadata()?.len();
        Ok(Some(Content { file: Arc::new(file), size, growth: None }))
    }

    /// Content that arrives from another controller.
    pub(crate) fn follow(&self, digest: Digest) -> Option<Content> {
        self.growing().get(&digest).and_then(Growth::content)
    }

    pub(crate) fn is_whole(&self, digest: Digest) -> bool {
        self.blob(digest).exists()
    }

    /// Bytes of a part. Blocks.
    pub(crate) fn received(&self, digest: Digest) -> io::Result<u64> {
        match fs::metadata(self.part(digest)) {
            Ok(found) => Ok(found.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Becomes the one writer of this content, from where the last one ended. Blocks.
    pub(crate) fn start(&self, digest: Digest, size: u64, origin: Origin) -> Result<Part, NoPart> {
        let _decided = self.deciding();
        if let Some(growth) = self.growing().get(&digest) {
            return Err(NoPart::Busy(growth.content()));
        }
        if self.is_whole(digest) {
            return Err(NoPart::Whole);
        }
        let path = self.part(digest);
        let (file, written) = open_part(&path, size).map_err(NoPart::Io)?;
        if let Err(full) = check_room(&file, size - written) {
            if written == 0 {
                let _ = std::fs::remove_file(path);
            }
            return Err(NoPart::Io(full));
        }
        let file = Arc::new(file);
        let (progress, receiver) = watch::channel(Progress::Seeking);
        let growth = Growth { origin, file: Arc::clone(&file), size, progress: receiver };
        self.growing().insert(digest, growth);
        let claim = Arc::new(Claim { blobs: self.clone(), digest });
        Ok(Part { claim, size, file, written, batch: Vec::new(), batched: 0, progress })
    }

    /// Says that content is about to be named, so that it is not collected. Blocks.
    pub(crate) fn renew(&self, digest: Digest, now: SystemTime) -> io::Result<()> {
        let _decided = self.deciding();
        File::open(self.blob(digest))?.set_modified(now)
    }

    /// All whole content, in the order of digests. Blocks.
    pub(crate) fn list(&self) -> io::Result<Vec<BlobFile>> {
        let mut found = Vec::new();
        for shard in entries(&self.0.root.join("blobs"))? {
            found.extend(kept(&shard)?);
        }
        found.sort_by_key(|kept: &BlobFile| kept.digest);
        Ok(found)
    }

    /// Unfinished uploads and damaged files, except those being written. Blocks.
    pub(crate) fn leftovers(&self) -> io::Result<Vec<Leftover>> {
        let mut found = Vec::new();
        for (dir, unfinished) in [("parts", true), ("damaged", false)] {
            let dir = self.0.root.join(dir);
            let path = |kept: &BlobFile| dir.join(kept.digest.to_string());
            let files = kept(&dir)?.into_iter();
            found.extend(files.map(|kept| Leftover { path: path(&kept), kept, unfinished }));
        }
        let growing = self.growing();
        found.retain(|leftover| !growing.contains_key(&leftover.kept.digest));
        Ok(found)
    }

    /// Removes content if it is `unwanted` as it is now, whatever was seen before. True when it is
    /// gone. Blocks.
    pub(crate) fn remove(
        &self,
        digest: Digest,
        unwanted: impl FnOnce(&BlobFile) -> bool,
    ) -> io::Result<bool> {
        let _decided = self.deciding();
        remove_file(&self.blob(digest), digest, unwanted)
    }

    /// Removes a result of `leftovers`, unless its upload continues. Blocks.
    pub(crate) fn remove_leftover(
        &self,
        leftover: &Leftover,
        unwanted: impl FnOnce(&BlobFile) -> bool,
    ) -> io::Result<bool> {
        let _decided = self.deciding();
        let digest = leftover.kept.digest;
        if self.growing().contains_key(&digest) {
            return Ok(false);
        }
        remove_file(&leftover.path, digest, unwanted)
    }

    /// Stops serving damaged content, and keeps the file for inspection. Blocks.
    pub(crate) fn set_aside(&self, digest: Digest) -> io::Result<()> {
        let from = self.blob(digest);
        let to = self.damaged(digest);
        let dir = to.parent().expect("it is below the root");
        secret::ensure_dir(dir)?;
        fs::rename(&from, &to)?;
        sync_dir(dir)?;
        sync_dir(from.parent().expect("it is below the root"))
    }
}

impl Growth {
    /// For those who want to read along, where that is allowed.
    fn content(&self) -> Option<Content> {
        let Self { origin, file, size, progress } = self;
        let growth = Some(progress.clone());
        let content = || Content { file: Arc::clone(file), size: *size, growth };
        (*origin == Origin::Sibling).then(content)
    }
}

/// A file that no request uses.
#[derive(Debug)]
pub(crate) struct Leftover {
    path: PathBuf,
    pub(crate) kept: BlobFile,
    /// It can be gone on with.
    pub(crate) unfinished: bool,
}

/// The right to write some content, which the last one who holds it gives back: a part, or work on
/// its file that goes on when the part is gone.
#[derive(Debug)]
struct Claim {
    blobs: Blobs,
    digest: Digest,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.blobs.growing().remove(&self.digest);
    }
}

/// Content being received. Its holder is the only writer.
#[derive(Debug)]
pub(crate) struct Part {
    claim: Arc<Claim>,
    size: u64,
    file: Arc<File>,
    /// On the disk.
    written: u64,
    /// Not yet on the disk.
    batch: Vec<Bytes>,
    batched: usize,
    progress: watch::Sender<Progress>,
}

impl Part {
    /// How much was taken so far.
    pub(crate) fn received(&self) -> u64 {
        self.written + self.batched as u64
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.received() == self.size
    }

    /// For those who want to read along.
    pub(crate) fn content(&self) -> Content {
        let growth = Some(self.progress.subscribe());
        Content { file: Arc::clone(&self.file), size: self.size, growth }
    }

    pub(crate) fn tell(&self, progress: Progress) {
        self.progress.send_replace(progress);
    }

    /// A source has the content: readers may start.
    pub(crate) fn begin(&self) {
        self.tell(Progress::Received(self.written));
    }

    pub(crate) async fn append(&mut self, bytes: Bytes) -> Result<(), PartError> {
        if self.received() + bytes.len() as u64 > self.size {
            return Err(PartError::TooLong);
        }
        self.batched += bytes.len();
        self.batch.push(bytes);
        if self.batched >= BATCH { self.flush().await } else { Ok(()) }
    }

    /// Writes the buffered bytes. A failed batch is dropped; the sender repeats it when the upload
    /// resumes.
    pub(crate) async fn flush(&mut self) -> Result<(), PartError> {
        let batch = std::mem::take(&mut self.batch);
        let file = self.file.clone();
        let at = self.written;
        let count = std::mem::take(&mut self.batched) as u64;
        if count > 0 {
            let claim = Arc::clone(&self.claim);
            blocking(move || {
                let _held = claim;
                check_room(&file, count)?;
                let mut at = at;
                for bytes in batch {
                    file.write_all_at(&bytes, at)?;
                    at += bytes.len() as u64;
                }
                Ok(())
            })
            .await?;
            self.written += count;
            self.begin();
        }
        Ok(())
    }

    /// Guarantees that acknowledged bytes survive a power cut.
    pub(crate) async fn sync(&mut self) -> Result<(), PartError> {
        self.flush().await?;
        let file = Arc::clone(&self.file);
        Ok(blocking(move || file.sync_data()).await?)
    }

    /// Verifies the content and publishes it; removes it if the digest is wrong.
    pub(crate) async fn finish(mut self) -> Result<(), PartError> {
        self.flush().await?;
        let file = Arc::clone(&self.file);
        let claim = Arc::clone(&self.claim);
        let found = blocking(move || {
            let found = hash(&file, &|| false)?.expect("nothing stops the hashing");
            if found != claim.digest {
                fs::remove_file(claim.blobs.part(claim.digest))?;
            }
            Ok(found)
        });
        let found = found.await?;
        if found != self.claim.digest {
            self.tell(Progress::Broken);
            return Err(PartError::WrongDigest { found });
        }
        // Those who read along need not wait for the disk.
        self.tell(Progress::Checked);
        let file = Arc::clone(&self.file);
        let claim = Arc::clone(&self.claim);
        blocking(move || {
            let Claim { blobs, digest } = &*claim;
            publish(&file, &blobs.part(*digest), &blobs.blob(*digest))
        })
        .await?;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.written == 0 {
            // It is still claimed, so that it is not the next writer's.
            let _ = std::fs::remove_file(self.claim.blobs.part(self.claim.digest));
        }
    }
}

/// The file of a part, and how much of it there is. Blocks.
fn open_part(path: &Path, size: u64) -> io::Result<(File, u64)> {
    secret::ensure_dir(path.parent().expect("it is below the root"))?;
    let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
    let written = file.metadata()?.len();
    if written > size {
        // Whatever that was, it was not this.
        file.set_len(0)?;
        return Ok((file, 0));
    }
    Ok((file, written))
}

/// Whether so much more can be written, with the reserve left.
fn check_room(file: &File, more: u64) -> io::Result<()> {
    let disk = rustix::fs::fstatvfs(file)?;
    let reserve = RESERVE.min(disk.f_blocks * disk.f_frsize / 4);
    let room = (disk.f_bavail * disk.f_frsize).saturating_sub(reserve);
    if more > room { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
}

fn publish(file: &File, part: &Path, blob: &Path) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o444))?;
    // It may have lain here for long before it was complete; it is new from now on.
    file.set_modified(SystemTime::now())?;
    file.sync_all()?;
    let shard = blob.parent().expect("it is below the root");
    let all = shard.parent().expect("it is below the root");
    secret::ensure_dir(shard)?;
    fs::rename(part, blob)?;
    sync_dir(shard)?;
    sync_dir(all)?;
    sync_dir(part.parent().expect("it is below the root"))
}

/// The digest of a file; `None` when told to stop before its end. Blocks.
pub(crate) fn hash(file: &File, stop: &dyn Fn() -> bool) -> io::Result<Option<Digest>> {
    let mut hash = Sha256::new();
    let mut at = 0;
    let mut buffer = vec![0; HASH_CHUNK];
    while !stop() {
        let count = file.read_at(&mut buffer, at)?;
        if count == 0 {
            return Ok(Some(Digest::from_bytes(hash.finalize().into())));
        }
        hash.update(&buffer[..count]);
        at += count as u64;
    }
    Ok(None)
}

/// Work that waits for the disk.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|died| Err(io::Error::other(died)))
}

fn sync_dir(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

/// The files of a directory that are named by a digest.
fn kept(dir: &Path) -> io::Result<Vec<BlobFile>> {
    let mut found = Vec::new();
    for path in entries(dir)? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(digest) = name.parse().ok().filter(|digest: &Digest| digest.to_string() == name)
        else {
            continue;
        };
        found.extend(look(&path, digest)?);
    }
    Ok(found)
}

/// Looks a file up; `None` if it was removed concurrently.
fn look(path: &Path, digest: Digest) -> io::Result<Option<BlobFile>> {
    match fs::metadata(path) {
        Ok(about) => Ok(Some(BlobFile { digest, size: about.len(), modified: about.modified()? })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn remove_file(
    path: &Path,
    digest: Digest,
    unwanted: impl FnOnce(&BlobFile) -> bool,
) -> io::Result<bool> {
    match look(path, digest)? {
        Some(kept) if unwanted(&kept) => fs::remove_file(path).map(|()| true),
        _ => Ok(false),
    }
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(content: &[u8]) -> Digest {
        Digest::from_bytes(secret::sha256(content))
    }

    fn empty() -> (tempfile::TempDir, Blobs) {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(dir.path());
        (dir, blobs)
    }

    #[tokio::test]
    async fn content_is_there_when_it_is_whole_and_not_before() {
        let (dir, blobs) = empty();
        let content = vec![7; 3 * BATCH / 2];
        let digest = digest(&content);
        let mut part = blobs.start(digest, content.len() as u64, Origin::Upload).unwrap();
        part.append(Bytes::from(content[..BATCH].to_vec())).await.unwrap();
        drop(part);
        assert!(blobs.open(digest).unwrap().is_none());
        assert_eq!(blobs.received(digest).unwrap(), BATCH as u64);

        let mut part = blobs.start(digest, content.len() as u64, Origin::Upload).unwrap();
        assert_eq!(part.received(), BATCH as u64);
        part.append(Bytes::from(content[BATCH..].to_vec())).await.unwrap();
        assert!(part.is_complete());
        part.finish().await.unwrap();
        assert_eq!(blobs.open(digest).unwrap().unwrap().size, content.len() as u64);
        assert_eq!(blobs.received(digest).unwrap(), 0);
        assert!(matches!(blobs.start(digest, 1, Origin::Sibling), Err(NoPart::Whole)));
        let mode = fs::metadata(blobs.blob(digest)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o444);
        assert!(blobs.blob(digest).starts_with(dir.path().join("artifacts/blobs")));
        assert_eq!(blobs.list().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn content_with_wrong_digest_leaves_nothing() {
        let (_dir, blobs) = empty();
        let digest = digest(b"tea");
        let mut part = blobs.start(digest, 3, Origin::Sibling).unwrap();
        let along = part.content().growth.unwrap();
        part.append(Bytes::from_static(b"pot")).await.unwrap();
        let error = part.finish().await.unwrap_err();
        assert!(matches!(error, PartError::WrongDigest { .. }), "{error}");
        assert_eq!(*along.borrow(), Progress::Broken);
        assert!(blobs.open(digest).unwrap().is_none());
        assert_eq!(blobs.received(digest).unwrap(), 0);
    }

    #[tokio::test]
    async fn blob_is_written_once_while_others_read_it() {
        let (_dir, blobs) = empty();
        let digest = digest(b"tea");
        let mut part = blobs.start(digest, 3, Origin::Sibling).unwrap();
        assert!(matches!(blobs.start(digest, 3, Origin::Sibling), Err(NoPart::Busy(_))));
        assert!(blobs.follow(digest).is_some());
        assert!(matches!(
            part.append(Bytes::from_static(b"kettle")).await,
            Err(PartError::TooLong)
        ));
        drop(part);
        assert!(blobs.follow(digest).is_none());
        assert!(blobs.leftovers().unwrap().is_empty(), "nothing was received");
    }

    #[test]
    fn a_write_that_outlives_its_part_keeps_others_away() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (_dir, blobs) = empty();
            let digest = digest(b"tea");
            // The only thread that may wait is taken, so that the write has to queue.
            let (gate, closed) = std::sync::mpsc::channel::<()>();
            let holding = tokio::task::spawn_blocking(move || closed.recv());
            let mut part = blobs.start(digest, 2 * BATCH as u64, Origin::Upload).unwrap();
            let write = part.append(Bytes::from(vec![7; BATCH]));
            assert!(futures_util::FutureExt::now_or_never(write).is_none());
            drop(part);
            assert!(matches!(blobs.start(digest, 3, Origin::Upload), Err(NoPart::Busy(None))));
            gate.send(()).unwrap();
            holding.await.unwrap().unwrap();
            // Behind the write in the queue.
            blocking(|| Ok(())).await.unwrap();
            assert!(blobs.start(digest, 3, Origin::Upload).is_ok());
        });
    }

    #[tokio::test]
    async fn a_part_that_is_too_long_is_begun_anew() {
        let (_dir, blobs) = empty();
        let digest = digest(b"tea");
        let mut part = blobs.start(digest, 100, Origin::Sibling).unwrap();
        part.append(Bytes::from(vec![0; 50])).await.unwrap();
        part.sync().await.unwrap();
        drop(part);
        assert_eq!(blobs.leftovers().unwrap().len(), 1);
        assert_eq!(blobs.start(digest, 3, Origin::Sibling).unwrap().received(), 0);
    }

    #[tokio::test]
    async fn quarantined_blob_is_not_opened() {
        let (_dir, blobs) = empty();
        let digest = digest(b"tea");
        let mut part = blobs.start(digest, 3, Origin::Sibling).unwrap();
        part.append(Bytes::from_static(b"tea")).await.unwrap();
        part.finish().await.unwrap();
        blobs.set_aside(digest).unwrap();
        assert!(blobs.open(digest).unwrap().is_none());
        let leftovers = blobs.leftovers().unwrap();
        assert_eq!(leftovers.len(), 1);
        assert!(!blobs.remove_leftover(&leftovers[0], |_| false).unwrap());
        assert!(blobs.remove_leftover(&leftovers[0], |_| true).unwrap());
        assert!(!blobs.remove_leftover(&leftovers[0], |_| true).unwrap(), "it is gone");
        assert!(blobs.leftovers().unwrap().is_empty());
    }
}
