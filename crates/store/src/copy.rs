//! Copies of a whole store: to a file, from a file, from one store to another.
//!
//! The file is JSON lines: a header, one line per record in key order, a trailer with count and
//! checksum. Everything streams; memory does not grow with the number of records. Leases are not
//! copied (they belong to running processes), nor are revisions (they belong to a store).
//!
//! ```json
//! {"format":"hoist-store","version":1}
//! {"key":"node/a","text":"…"}
//! {"key":"node/b","base64":"…"}
//! {"count":2,"sha256":"…"}
//! ```
//!
//! An import is many commits. While it runs, and after it was interrupted, the record at
//! [`MARKER`] says so; it goes with the last commit.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncSeekExt, AsyncWrite, AsyncWriteExt, BufReader,
};

use crate::{
    Compare, Cursor, Key, MAX_VALUE_BYTES, Op, Prefix, Record, Revision, Store, StoreError, Txn,
};

/// Where an unfinished import leaves its mark.
pub const MARKER: &str = "import/unfinished";

/// Summary of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopySummary {
    pub records: u64,
    /// Over all keys and values, in hexadecimal. The same content has the same checksum, whatever
    /// store it is in.
    pub sha256: String,
}

/// Why a copy was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    #[error("cannot read or write the copy")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nothing was imported.
    #[error("line {line} of the copy is wrong: {detail}")]
    Line { line: u64, detail: String },
    /// Nothing was imported.
    #[error("the copy is incomplete or damaged: it says {said}, it holds {held}")]
    Mismatch { said: String, held: String },
    /// Nothing was changed.
    #[error("the store holds records already (`{key}`); say that they may be replaced")]
    NotEmpty { key: Key },
    /// The target differs from the source after the copy; its marker is still there.
    #[error("the records arrived differently: {from} became {to}")]
    Differs { from: String, to: String },
}

/// Records read at once. The largest page is this many times the largest value.
const PAGE: usize = 256;

/// One commit of an import.
const COMMIT_RECORDS: usize = 1000;
const COMMIT_BYTES: usize = 4 * 1024 * 1024;

/// The longest line: a value of the largest size in base64, its key, and the JSON around them.
const MAX_LINE: usize = MAX_VALUE_BYTES * 6 + 64 * 1024;

const FORMAT: &str = "hoist-store";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
}

#[derive(Serialize, Deserialize, Default)]
struct Line {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Trailer {
    count: u64,
    sha256: String,
}

/// Whether an import was begun and not finished: the store then holds a part of something.
pub async fn is_unfinished(store: &dyn Store) -> Result<bool, StoreError> {
    Ok(store.get(&marker()).await?.is_some())
}

/// Writes one snapshot of the store.
pub async fn export(
    store: &dyn Store,
    mut to: impl AsyncWrite + Unpin,
) -> Result<CopySummary, CopyError> {
    write_line(&mut to, &Header { format: FORMAT.to_owned(), version: VERSION }).await?;
    let mut sum = Sum::default();
    let mut pages = Pages::default();
    while let Some(records) = pages.next(store).await? {
        for record in records {
            sum.add(record.key.as_str(), &record.value);
            write_line(&mut to, &line(record)).await?;
        }
    }
    let copied = sum.finish();
    let trailer = Trailer { count: copied.records, sha256: copied.sha256.clone() };
    write_line(&mut to, &trailer).await?;
    to.flush().await?;
    Ok(copied)
}

/// Replaces the content of the store by that of the copy.
///
/// The copy is spooled to a temporary file and verified to its end before the store is touched: a
/// damaged copy changes nothing. A store with records is refused unless `overwrite`.
pub async fn import(
    store: &dyn Store,
    from: impl AsyncRead + Unpin,
    overwrite: bool,
) -> Result<CopySummary, CopyError> {
    let mut spool = tokio::fs::File::from_std(tempfile::tempfile()?);
    let copied = check(BufReader::new(from), &mut spool).await?;
    spool.rewind().await?;
    import_checked(store, spool, overwrite, |_, value| Some(value)).await?;
    Ok(copied)
}

/// Reads a copy to its end and changes nothing.
pub async fn check_copy(from: impl AsyncRead + Unpin) -> Result<CopySummary, CopyError> {
    check(BufReader::new(from), &mut tokio::io::sink()).await
}

/// As [`import`], for a copy that [`check_copy`] has accepted and that cannot have changed since.
/// `edit` sees every record on its way in: it may replace the value, or leave the record out.
pub async fn import_checked(
    store: &dyn Store,
    from: impl AsyncRead + Unpin,
    overwrite: bool,
    mut edit: impl FnMut(&Key, Vec<u8>) -> Option<Vec<u8>>,
) -> Result<(), CopyError> {
    let mut import = Import::begin(store, overwrite).await?;
    let mut lines = Lines::new(BufReader::new(from));
    lines.next().await?;
    while let Some(text) = lines.next().await? {
        if let Some((key, value)) = lines.record(&text)?
            && let Some(value) = edit(&key, value)
        {
            import.add(key, value).await?;
        }
    }
    import.end().await
}

/// Copies everything from one store to another and verifies what arrived.
pub async fn migrate(
    from: &dyn Store,
    to: &dyn Store,
    overwrite: bool,
) -> Result<CopySummary, CopyError> {
    migrate_watched(from, to, overwrite, |_| {}).await
}

/// As [`migrate`], telling how many records were read, now and then.
pub async fn migrate_watched(
    from: &dyn Store,
    to: &dyn Store,
    overwrite: bool,
    mut progress: impl FnMut(u64),
) -> Result<CopySummary, CopyError> {
    let mut import = Import::begin(to, overwrite).await?;
    let mut sum = Sum::default();
    let mut pages = Pages::default();
    while let Some(records) = pages.next(from).await? {
        for record in records {
            sum.add(record.key.as_str(), &record.value);
            import.add(record.key, record.value).await?;
        }
        progress(sum.count);
    }
    let sent = sum.finish();
    import.flush().await?;
    let arrived = checksum(to).await?;
    if arrived != sent {
        return Err(CopyError::Differs { from: sent.to_string(), to: arrived.to_string() });
    }
    import.end().await?;
    Ok(sent)
}

/// [`CopyError::NotEmpty`] when there is anything that an import would replace.
pub async fn check_empty(store: &dyn Store) -> Result<(), CopyError> {
    let mut pages = Pages::default();
    while let Some(records) = pages.next(store).await? {
        if let Some(record) = records.into_iter().next() {
            return Err(CopyError::NotEmpty { key: record.key });
        }
    }
    if is_unfinished(store).await? {
        return Err(CopyError::NotEmpty { key: marker() });
    }
    Ok(())
}

/// Count and checksum of one snapshot of a store.
pub async fn checksum(store: &dyn Store) -> Result<CopySummary, StoreError> {
    let mut sum = Sum::default();
    let mut pages = Pages::default();
    while let Some(records) = pages.next(store).await? {
        for record in records {
            sum.add(record.key.as_str(), &record.value);
        }
    }
    Ok(sum.finish())
}

impl std::fmt::Display for CopySummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} records with checksum {}", self.records, self.sha256)
    }
}

fn marker() -> Key {
    Key(MARKER.to_owned())
}

fn is_copied(key: &Key) -> bool {
    !key.is_lease() && key.as_str() != MARKER
}

/// One snapshot, page by page, without the records that are never copied.
#[derive(Default)]
struct Pages {
    next: Option<Cursor>,
    done: bool,
}

impl Pages {
    async fn next(&mut self, store: &dyn Store) -> Result<Option<Vec<Record>>, StoreError> {
        if self.done {
            return Ok(None);
        }
        let mut page = store.list(&Prefix::All, self.next.take(), PAGE).await?;
        page.records.retain(|record| is_copied(&record.key));
        self.next = page.next;
        self.done = self.next.is_none();
        Ok(Some(page.records))
    }
}

#[derive(Default)]
struct Sum {
    hash: Sha256,
    count: u64,
}

impl Sum {
    fn add(&mut self, key: &str, value: &[u8]) {
        self.count += 1;
        // With lengths, so that nothing can move between a key and a value unnoticed.
        for part in [key.as_bytes(), value] {
            self.hash.update((part.len() as u64).to_be_bytes());
            self.hash.update(part);
        }
    }

    fn finish(self) -> CopySummary {
        let digits = self.hash.finalize().into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let hex = digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect();
        CopySummary { records: self.count, sha256: hex }
    }
}

/// A running import: gathers records into commits that all compare the marker, so that two imports
/// cannot mix.
struct Import<'a> {
    store: &'a dyn Store,
    at: Revision,
    ops: Vec<Op>,
    bytes: usize,
}

impl<'a> Import<'a> {
    async fn begin(store: &'a dyn Store, overwrite: bool) -> Result<Self, CopyError> {
        if !overwrite {
            check_empty(store).await?;
        }
        let txn = Txn { compares: vec![], ops: vec![Op::Put(marker(), Vec::new())] };
        let at = store.commit(txn).await?;
        let mut import = Self { store, at, ops: Vec::new(), bytes: 0 };
        let mut pages = Pages::default();
        while let Some(records) = pages.next(store).await? {
            for record in records {
                import.push(Op::Delete(record.key), 0).await?;
            }
        }
        import.flush().await?;
        Ok(import)
    }

    async fn add(&mut self, key: Key, value: Vec<u8>) -> Result<(), CopyError> {
        let size = value.len();
        self.push(Op::Put(key, value), size).await
    }

    async fn push(&mut self, op: Op, size: usize) -> Result<(), CopyError> {
        self.ops.push(op);
        self.bytes += size;
        if self.ops.len() >= COMMIT_RECORDS || self.bytes >= COMMIT_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), CopyError> {
        self.bytes = 0;
        let ops = std::mem::take(&mut self.ops);
        if !ops.is_empty() {
            self.store.commit(Txn { compares: vec![self.guard()], ops }).await?;
        }
        Ok(())
    }

    async fn end(mut self) -> Result<(), CopyError> {
        self.flush().await?;
        let ops = vec![Op::Delete(marker())];
        self.store.commit(Txn { compares: vec![self.guard()], ops }).await?;
        Ok(())
    }

    fn guard(&self) -> Compare {
        Compare::At(marker(), self.at)
    }
}

/// Reads the copy to its end, keeping it in `spool`.
async fn check(
    from: impl AsyncBufRead + Unpin,
    spool: &mut (impl AsyncWrite + Unpin),
) -> Result<CopySummary, CopyError> {
    let mut spool = tokio::io::BufWriter::new(spool);
    let mut lines = Lines::new(from);
    lines.header().await?;
    spool.write_all(b"\n").await?;
    let mut sum = Sum::default();
    let mut last: Option<Key> = None;
    while let Some(text) = lines.next().await? {
        let Some((key, value)) = lines.record(&text)? else {
            let said: Trailer = lines.parse(&text)?;
            if lines.next().await?.is_some() {
                return Err(lines.wrong("there is something after the trailer"));
            }
            spool.flush().await?;
            return compare(said, sum.finish());
        };
        if last.as_ref().is_some_and(|last| *last >= key) {
            return Err(lines.wrong("the keys are out of order"));
        }
        sum.add(key.as_str(), &value);
        last = Some(key);
        spool.write_all(&text).await?;
        spool.write_all(b"\n").await?;
    }
    let held = sum.finish().to_string();
    Err(CopyError::Mismatch { said: "nothing (no trailer)".to_owned(), held })
}

fn compare(said: Trailer, held: CopySummary) -> Result<CopySummary, CopyError> {
    let said = CopySummary { records: said.count, sha256: said.sha256 };
    if said == held {
        Ok(held)
    } else {
        Err(CopyError::Mismatch { said: said.to_string(), held: held.to_string() })
    }
}

/// Lines of a copy, counted, each of bounded length.
struct Lines<R> {
    from: R,
    number: u64,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    fn new(from: R) -> Self {
        Self { from, number: 0 }
    }

    async fn next(&mut self) -> Result<Option<Vec<u8>>, CopyError> {
        use tokio::io::AsyncReadExt;
        let mut line = Vec::new();
        let mut limited = (&mut self.from).take(MAX_LINE as u64);
        if limited.read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        self.number += 1;
        if line.pop_if(|byte| *byte == b'\n').is_none() && line.len() >= MAX_LINE {
            return Err(self.wrong("the line is too long"));
        }
        Ok(Some(line))
    }

    async fn header(&mut self) -> Result<(), CopyError> {
        let first = self.next().await?.unwrap_or_default();
        let header: Header = self.parse(&first)?;
        if header.format != FORMAT || header.version != VERSION {
            let Header { format, version } = header;
            let detail = format!("this is `{format}` version {version}, not `{FORMAT}` {VERSION}");
            return Err(self.wrong(&detail));
        }
        Ok(())
    }

    /// `None` for the trailer.
    fn record(&self, text: &[u8]) -> Result<Option<(Key, Vec<u8>)>, CopyError> {
        let Ok(line) = serde_json::from_slice::<Line>(text) else {
            self.parse::<Trailer>(text)?;
            return Ok(None);
        };
        let key: Key = line
            .key
            .parse()
            .map_err(|error: crate::ParseKeyError| self.wrong(&error.to_string()))?;
        if !is_copied(&key) {
            return Err(self.wrong(&format!("`{key}` cannot be imported")));
        }
        let value = match (line.text, line.base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(encoded)) => STANDARD
                .decode(encoded)
                .map_err(|error| self.wrong(&format!("bad base64: {error}")))?,
            _ => return Err(self.wrong("a record has either `text` or `base64`")),
        };
        if value.len() > MAX_VALUE_BYTES {
            return Err(StoreError::TooLarge { key, bytes: value.len() }.into());
        }
        Ok(Some((key, value)))
    }

    fn parse<T: for<'de> Deserialize<'de>>(&self, text: &[u8]) -> Result<T, CopyError> {
        serde_json::from_slice(text).map_err(|error| self.wrong(&error.to_string()))
    }

    fn wrong(&self, detail: &str) -> CopyError {
        CopyError::Line { line: self.number, detail: detail.to_owned() }
    }
}

fn line(record: Record) -> Line {
    let key = record.key.0;
    match String::from_utf8(record.value) {
        Ok(text) => Line { key, text: Some(text), base64: None },
        Err(raw) => Line { key, text: None, base64: Some(STANDARD.encode(raw.as_bytes())) },
    }
}

async fn write_line(
    to: &mut (impl AsyncWrite + Unpin),
    line: &impl Serialize,
) -> Result<(), CopyError> {
    let mut text = serde_json::to_vec(line).map_err(io::Error::from)?;
    text.push(b'\n');
    to.write_all(&text).await?;
    Ok(())
}
