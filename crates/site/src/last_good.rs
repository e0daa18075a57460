//! The last-good copy of the roster on local disk, served when the store is away at start.
//!
//! One file, JSON lines: a header, one line per resource, a trailer with count and checksum. A new
//! copy is written beside the old one and renamed over it, so there is always one whole copy.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt;
use hoist_store::{Key, Record, Revision};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::record::Resource;
use crate::registry::Registry;
use crate::roster::{Incarnation, Roster};

/// Changes within this time are written together.
const SETTLE: Duration = Duration::from_secs(5);
const FORMAT: &str = "hoist roster 1";

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: String,
    incarnation: Incarnation,
    revision: u64,
    horizon: u64,
    taken: Timestamp,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line<'a> {
    key: String,
    #[serde(borrow)]
    value: &'a serde_json::value::RawValue,
}

#[derive(Debug, Serialize, Deserialize)]
struct Trailer {
    count: u64,
    sha256: String,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LastGoodError {
    #[error("no last-good copy found")]
    Absent,
    #[error("the last-good copy cannot be read")]
    Io(#[from] io::Error),
    #[error("the last-good copy `{path}` is damaged: {reason}")]
    Damaged { path: PathBuf, reason: String },
}

/// Writes a whole copy, readable by the owner only, and makes it durable.
pub fn write(path: &Path, roster: &Roster) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut out =
        HashingWriter { inner: BufWriter::new(options.open(&temporary)?), hash: Sha256::new() };
    let header = Header {
        format: FORMAT.to_owned(),
        incarnation: roster.incarnation().clone(),
        revision: roster.revision(),
        horizon: roster.horizon(),
        taken: Timestamp::now(),
    };
    line(&mut out, &header)?;
    let mut count = 0;
    for resource in roster.resources() {
        let value = String::from_utf8(resource.to_bytes()).expect("JSON is UTF-8");
        let value = serde_json::value::RawValue::from_string(value).expect("it was just made");
        line(&mut out, &Line { key: resource.key().to_key().to_string(), value: &value })?;
        count += 1;
    }
    let sha256 = hex(&out.hash);
    line(&mut out, &Trailer { count, sha256 })?;
    let file = out.inner.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    match path.parent() {
        Some(directory) => fs::File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

fn line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Reads a copy back, with the time it was taken. A copy that is not whole is no copy.
pub fn read(path: &Path) -> Result<(Roster, Timestamp), LastGoodError> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(LastGoodError::Absent),
        Err(error) => return Err(error.into()),
    };
    let damaged =
        |reason: &str| LastGoodError::Damaged { path: path.to_owned(), reason: reason.to_owned() };
    let mut lines =
        Lines { input: BufReader::new(file), hash: Sha256::new(), buffer: String::new() };
    let header: Header =
        lines.next(|text| serde_json::from_str(text).ok())?.ok_or_else(|| damaged("no header"))?;
    if header.format != FORMAT {
        return Err(damaged("another format"));
    }
    let mut resources = Vec::new();
    let trailer: Trailer = loop {
        let hash = hex(&lines.hash);
        let found = lines.next(|text| {
            resource(text)
                .map(ParsedLine::Resource)
                .or_else(|| Some(ParsedLine::Trailer(serde_json::from_str(text).ok()?)))
        })?;
        match found {
            Some(ParsedLine::Resource(resource)) => resources.push(resource),
            Some(ParsedLine::Trailer(trailer)) if trailer.sha256 == hash => break trailer,
            Some(ParsedLine::Trailer(_)) => return Err(damaged("the checksum does not match")),
            None => return Err(damaged("it ends too early, or has a line that cannot be read")),
        }
    };
    if trailer.count != resources.len() as u64 {
        return Err(damaged("lines are missing"));
    }
    let Header { incarnation, revision, horizon, taken, .. } = header;
    Ok((Roster::build(incarnation, revision, horizon, resources.into_iter()), taken))
}

enum ParsedLine {
    Resource(Resource),
    Trailer(Trailer),
}

fn resource(text: &str) -> Option<Resource> {
    let line: Line<'_> = serde_json::from_str(text).ok()?;
    let key: Key = line.key.parse().ok()?;
    let value = line.value.get().as_bytes().to_vec();
    Resource::from_record(&Record { key, value, revision: Revision(0) }).ok()?
}

struct Lines<R> {
    input: R,
    hash: Sha256,
    buffer: String,
}

impl<R: BufRead> Lines<R> {
    /// `None` at the end, and for a line that `parse` cannot read.
    fn next<T>(&mut self, parse: impl FnOnce(&str) -> Option<T>) -> io::Result<Option<T>> {
        self.buffer.clear();
        if self.input.read_line(&mut self.buffer)? == 0 {
            return Ok(None);
        }
        self.hash.update(self.buffer.as_bytes());
        Ok(parse(&self.buffer))
    }
}

struct HashingWriter<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn hex(hash: &Sha256) -> String {
    hash.clone().finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string");
        text
    })
}

/// Writes a copy whenever the roster has changed, and once more when told to stop.
pub async fn keep(registry: Registry, path: PathBuf, stop: CancellationToken) {
    let mut changes = registry.changes();
    let mut written = None;
    loop {
        let stopping = tokio::select! {
            () = stop.cancelled() => true,
            () = tokio::time::sleep(SETTLE) => false,
        };
        let roster = registry.roster();
        let now = (roster.incarnation().clone(), roster.revision());
        // A roster that came from the copy itself is not written back: it would look younger.
        let from_store = registry.contact().loaded_from == crate::registry::LoadedFrom::Store;
        if from_store && written.as_ref() != Some(&now) {
            let path = path.clone();
            let written_now = match tokio::task::spawn_blocking(move || write(&path, &roster)).await
            {
                Ok(Ok(())) => {
                    written = Some(now);
                    metrics::counter!("hoist_last_good_writes_total").increment(1);
                    true
                }
                Ok(Err(error)) => {
                    metrics::counter!("hoist_last_good_failures_total").increment(1);
                    tracing::warn!(%error, "the last-good copy could not be written");
                    false
                }
                Err(error) => {
                    tracing::error!(%error, "writing the last-good copy failed");
                    false
                }
            };
            // A full disk may have space again before the next change.
            if !written_now && !stopping {
                continue;
            }
        }
        if stopping {
            return;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}
