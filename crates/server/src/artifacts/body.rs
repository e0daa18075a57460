//! File contents as response bodies: large chunks in reused buffers, without a copy.
//!
//! Cached pages are read at once; reads from the disk go to a thread that may block. Memory per
//! client is one chunk, whatever the size of the file.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::Version;
use metrics::Counter;
use parking_lot::Mutex;
use rustix::fs::Advice;
use rustix::io::ReadWriteFlags;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::blobs::{Content, Progress, blocking};
use hoist_chassis::log_limit::LogLimit;

/// Read and sent at once.
const CHUNK: usize = 256 * 1024;

/// Buffers kept for the next reader: 32 MiB.
const KEPT: usize = 128;

/// The same over HTTP/2, where one connection can open many streams and take nothing on any.
const H2_CHUNK: usize = 16 * 1024;

/// Unread chunks of all HTTP/2 clients together: 64 MiB. Further clients wait without holding
/// memory.
const H2_CHUNKS: usize = 4096;

/// How long that is borne.
const H2_WAIT: Duration = Duration::from_mins(1);

/// Buffers that are used again. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Buffers {
    kept: Arc<Mutex<Vec<Box<[u8]>>>>,
    h2: Arc<Semaphore>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self { kept: Arc::default(), h2: Arc::new(Semaphore::new(H2_CHUNKS)) }
    }
}

impl Buffers {
    fn take(&self) -> Box<[u8]> {
        let kept = self.kept.lock().pop();
        kept.unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice())
    }

    fn give_back(&self, buffer: Box<[u8]>) {
        let mut kept = self.kept.lock();
        if kept.len() < KEPT {
            kept.push(buffer);
        }
    }

    /// The first bytes of a buffer, which comes back when they are sent.
    fn filled(&self, buffer: Box<[u8]>, length: usize) -> Bytes {
        Bytes::from_owner(PooledChunk { buffer, length, home: self.clone() })
    }
}

struct PooledChunk {
    buffer: Box<[u8]>,
    length: usize,
    home: Buffers,
}

impl AsRef<[u8]> for PooledChunk {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Drop for PooledChunk {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.buffer));
    }
}

/// A chunk for an HTTP/2 client.
struct PermittedChunk {
    bytes: Vec<u8>,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for PermittedChunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The bytes of `range`, as they can be read.
struct Reader {
    content: Content,
    range: Range<u64>,
    version: Version,
    buffers: Buffers,
    served: Counter,
}

/// A body with these bytes. A read error ends it early, which the client detects by the content
/// length.
pub(super) fn body(
    content: Content,
    range: Range<u64>,
    version: Version,
    buffers: &Buffers,
    served: Counter,
) -> Body {
    // Makes the kernel read further ahead; one that does not want to is no slower than before.
    let _ = rustix::fs::fadvise(&content.file, range.start, None, Advice::Sequential);
    let reader = Reader { content, range, version, buffers: buffers.clone(), served };
    Body::from_stream(stream::unfold(Some(reader), async |reader| {
        let mut reader = reader.filter(|reader| !reader.range.is_empty())?;
        match reader.next().await {
            Ok(bytes) => Some((Ok(bytes), Some(reader))),
            Err(error) => {
                static LINES: LogLimit = LogLimit::per_second();
                if let Some(left_out) = LINES.permit() {
                    tracing::warn!(%error, left_out, "artifact not sent to its end");
                }
                Some((Err(error), None))
            }
        }
    }))
}

impl Reader {
    async fn next(&mut self) -> io::Result<Bytes> {
        let at = self.range.start;
        let readable = match &mut self.content.growth {
            None => self.range.end,
            Some(growth) => readable_beyond(at, self.range.end, growth).await?,
        };
        let many_streams = self.version == Version::HTTP_2;
        let most = if many_streams { H2_CHUNK } else { CHUNK };
        let length = (readable.min(self.range.end) - at).min(most as u64);
        let length = usize::try_from(length).expect("a chunk is small");
        let bytes = if many_streams {
            self.read_in_turn(at, length).await?
        } else {
            self.read(at, length).await?
        };
        self.range.start += bytes.len() as u64;
        self.served.increment(bytes.len() as u64);
        Ok(bytes)
    }

    async fn read(&self, at: u64, length: usize) -> io::Result<Bytes> {
        let mut buffer = self.buffers.take();
        if let Some(count) = read_now(&self.content.file, &mut buffer[..length], at) {
            return Ok(self.buffers.filled(buffer, count));
        }
        let file = Arc::clone(&self.content.file);
        let buffer = blocking(move || {
            file.read_exact_at(&mut buffer[..length], at)?;
            Ok(buffer)
        })
        .await?;
        Ok(self.buffers.filled(buffer, length))
    }

    async fn read_in_turn(&self, at: u64, length: usize) -> io::Result<Bytes> {
        let place = Arc::clone(&self.buffers.h2).acquire_owned();
        let place = tokio::time::timeout(H2_WAIT, place).await;
        let place = place.map_err(|_| {
            io::Error::other(
                "no buffer became free: other HTTP/2 clients do not read their answers",
            )
        })?;
        let place = place.expect("nobody closes it");
        let mut bytes = vec![0; length];
        if let Some(count) = read_now(&self.content.file, &mut bytes, at) {
            bytes.truncate(count);
        } else {
            let file = Arc::clone(&self.content.file);
            bytes = blocking(move || file.read_exact_at(&mut bytes, at).map(|()| bytes)).await?;
        }
        Ok(Bytes::from_owner(PermittedChunk { bytes, _place: place }))
    }
}

/// Reads cached pages only, without waiting for the disk.
fn read_now(file: &File, buffer: &mut [u8], at: u64) -> Option<usize> {
    let mut slices = [IoSliceMut::new(buffer)];
    let count = rustix::io::preadv2(file, &mut slices, at, ReadWriteFlags::NOWAIT).ok()?;
    // At the end of a file that is shorter than it was, the other way finds the words.
    (count > 0).then_some(count)
}

/// The readable length of a growing file, once it exceeds `at`. The last requested byte, at `end`,
/// is held back until the digest was verified, so that no client gets a complete wrong answer.
async fn readable_beyond(
    at: u64,
    end: u64,
    growth: &mut watch::Receiver<Progress>,
) -> io::Result<u64> {
    let readable = |progress: Progress| match progress {
        Progress::Seeking => Some(0),
        Progress::Received(count) => Some(count.min(end.saturating_sub(1))),
        Progress::Checked => Some(end),
        Progress::NotThere | Progress::Broken => None,
    };
    let enough = |progress: &Progress| readable(*progress).is_none_or(|end| end > at);
    let broken = || io::Error::other("the content did not arrive whole");
    let progress = *growth.wait_for(enough).await.map_err(|_| broken())?;
    readable(progress).ok_or_else(broken)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use http_body_util::BodyExt;

    use super::*;

    fn content(bytes: &[u8], growth: Option<watch::Receiver<Progress>>) -> Content {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Content { file: Arc::new(file), size: bytes.len() as u64, growth }
    }

    fn sent(content: Content, range: Range<u64>, buffers: &Buffers) -> Body {
        body(content, range, Version::HTTP_11, buffers, Counter::noop())
    }

    #[tokio::test]
    async fn every_byte_is_sent_once_and_buffers_come_back() {
        let bytes: Vec<u8> = (0..=250).cycle().take(3 * CHUNK + 5).collect();
        let buffers = Buffers::default();
        let range = 3..(bytes.len() as u64 - 1);
        let body = sent(content(&bytes, None), range, &buffers);
        let got = body.collect().await.unwrap().to_bytes();
        assert!(got == bytes[3..bytes.len() - 1]);
        let kept = buffers.kept.lock().len();
        assert!(kept > 0 && kept <= 4, "{kept}");
    }

    #[tokio::test(start_paused = true)]
    async fn streams_that_take_nothing_hold_no_more_than_their_share() {
        let buffers = Buffers::default();
        let file = content(&vec![7; 2 * H2_CHUNK], None);
        let stream = |version| {
            let range = 0..file.size;
            body(file.clone(), range, version, &buffers, Counter::noop())
        };
        let mut held = Vec::new();
        for _ in 0..H2_CHUNKS {
            let frame = stream(Version::HTTP_2).frame().await.unwrap().unwrap();
            held.push(frame.into_data().unwrap());
        }
        assert!(held.iter().all(|bytes| bytes.len() == H2_CHUNK));
        // Machines speak HTTP/1, and are not in their way.
        stream(Version::HTTP_11).collect().await.unwrap();
        // Further clients wait, and get an error after the timeout.
        assert!(stream(Version::HTTP_2).collect().await.is_err());
        held.truncate(H2_CHUNKS - 2);
        let whole = stream(Version::HTTP_2).collect().await.unwrap().to_bytes();
        assert!(whole == vec![7; 2 * H2_CHUNK]);
    }

    #[tokio::test]
    async fn a_file_that_is_too_short_breaks_the_answer_off() {
        let mut short = content(b"tea", None);
        short.size = 9;
        assert!(sent(short, 0..9, &Buffers::default()).collect().await.is_err());
    }

    #[tokio::test]
    async fn the_last_byte_waits_until_the_whole_is_checked() {
        let (sender, receiver) = watch::channel(Progress::Seeking);
        let mut body = sent(content(b"tea", Some(receiver)), 0..3, &Buffers::default());
        sender.send_replace(Progress::Received(3));
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(&first[..], b"te");
        sender.send_replace(Progress::Checked);
        assert_eq!(&body.collect().await.unwrap().to_bytes()[..], b"a");
    }

    #[tokio::test]
    async fn the_last_byte_of_a_range_waits_too() {
        let (sender, receiver) = watch::channel(Progress::Received(9));
        let along = content(b"teakettle", Some(receiver));
        let mut body = sent(along, 0..3, &Buffers::default());
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(&first[..], b"te");
        sender.send_replace(Progress::Broken);
        assert!(body.collect().await.is_err());
    }

    #[tokio::test]
    async fn follower_of_an_upload_sees_it_break() {
        for last in [Some(Progress::Broken), None] {
            let (sender, receiver) = watch::channel(Progress::Received(1));
            let mut body = sent(content(b"tea", Some(receiver)), 0..3, &Buffers::default());
            body.frame().await.unwrap().unwrap();
            match last {
                Some(progress) => drop(sender.send_replace(progress)),
                None => drop(sender),
            }
            assert!(body.collect().await.is_err());
        }
    }
}
