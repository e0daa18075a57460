//! Answers that contain a whole site: a few at a time, and dropped for readers that do not read.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use hoist_api::Code;
use http::{HeaderValue, header};
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use crate::failure::Failure;
use crate::tasks::Tasks;

/// Answers that are made or read at once, for each kind of reader.
const AT_ONCE: usize = 8;
/// Time that a request waits for a permit. Gateways give up after 10 s.
const TIMEOUT: Duration = Duration::from_secs(8);
/// How long a reader may take nothing before its connection is cut. Must be less than [`TIMEOUT`],
/// so that requests behind idle readers get a permit.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes per second that a reader must take, after one [`GRACE`] in all. Compressed it is a
/// twentieth of that.
const PACE: u32 = 512 * 1024;
/// Handed to the connection at once.
pub const PIECE: usize = 64 * 1024;

/// Permits for one kind of reader. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct AnswerPermits(Arc<Semaphore>);

/// The right to one answer with everything in it, until it is dropped.
pub type AnswerPermit = OwnedSemaphorePermit;

impl Default for AnswerPermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl AnswerPermits {
    pub async fn take(&self) -> Result<AnswerPermit, Failure> {
        let permit = tokio::time::timeout(TIMEOUT, Arc::clone(&self.0).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(Failure::new(Code::Timeout, "too many are reading everything")
                .with_remedy("ask for single nodes, or again in a while"));
        };
        Ok(permit)
    }
}

/// The body of an answer, which is dropped with its permit when it is read, or when its reader is too
/// slow. The pieces are made as they are read.
pub fn lend<P>(tasks: &Tasks, pieces: P, permit: AnswerPermit) -> Body
where
    P: Iterator<Item = Bytes> + Send + 'static,
{
    let (reading, mut read) = oneshot::channel::<()>();
    let due = Instant::now() + GRACE;
    let lent = LentAnswer { pieces, due, paced: due, _permit: permit };
    let held = Arc::new(RemainingAnswer(Mutex::new(Some(lent))));
    let watched = Arc::clone(&held);
    tasks.spawn("whole site", async move {
        while let Some(due) = watched.due() {
            if tokio::time::timeout_at(due, &mut read).await.is_ok() {
                break;
            }
        }
        watched.lock().take();
    });
    // `reading` ends with the body.
    let pieces = std::iter::from_fn(move || {
        let _ = &reading;
        held.next()
    });
    Body::from_stream(stream::iter(pieces))
}

/// A text that is already whole, in pieces.
pub fn cut(mut text: Bytes) -> impl Iterator<Item = Bytes> + Send {
    std::iter::from_fn(move || {
        let piece = text.split_to(PIECE.min(text.len()));
        (!piece.is_empty()).then_some(piece)
    })
}

/// A JSON answer in pieces. A large text is neither copied while it grows, nor in memory as a whole
/// while it is sent.
pub fn json(value: &impl Serialize) -> Response {
    let mut text = TextPieces::default();
    if let Err(error) = serde_json::to_writer(&mut text, value) {
        tracing::error!(%error, "answer cannot be written as JSON");
        return Failure::new(Code::Internal, "the log has the reason").into_response();
    }
    let TextPieces { mut pieces, last } = text;
    let body = if pieces.is_empty() {
        Body::from(last)
    } else {
        pieces.push(last.into());
        Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, io::Error>)))
    };
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], body).into_response()
}

#[derive(Default)]
struct TextPieces {
    pieces: Vec<Bytes>,
    last: Vec<u8>,
}

impl io::Write for TextPieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(PIECE)];
        if self.last.len() + bytes.len() > PIECE && !self.last.is_empty() {
            let full = std::mem::replace(&mut self.last, Vec::with_capacity(PIECE));
            self.pieces.push(full.into());
        }
        self.last.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The rest of an answer.
struct RemainingAnswer<P>(Mutex<Option<LentAnswer<P>>>);

struct LentAnswer<P> {
    pieces: P,
    /// When the next piece has to be taken.
    due: Instant,
    /// Deadline by the bytes taken so far. Socket buffers take megabytes before a reader reads, so
    /// the idle deadline alone says little.
    paced: Instant,
    _permit: AnswerPermit,
}

impl<P: Iterator<Item = Bytes>> RemainingAnswer<P> {
    fn lock(&self) -> MutexGuard<'_, Option<LentAnswer<P>>> {
        self.0.lock()
    }

    /// When the reader is checked next, unless it is too slow already.
    fn due(&self) -> Option<Instant> {
        self.lock().as_ref().map(|lent| lent.due).filter(|due| *due > Instant::now())
    }

    fn next(&self) -> Option<io::Result<Bytes>> {
        let mut held = self.lock();
        let Some(lent) = held.as_mut() else {
            return Some(Err(io::ErrorKind::TimedOut.into()));
        };
        let piece = lent.pieces.next()?;
        let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        lent.paced += Duration::from_secs(1) * length / PACE;
        lent.due = lent.paced.min(Instant::now() + GRACE);
        Some(Ok(piece))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn lent(permits: &AnswerPermits, length: usize) -> Body {
        let permit = permits.take().await.unwrap();
        lend(&Tasks::default(), cut(vec![b'x'; length].into()), permit)
    }

    fn one() -> AnswerPermits {
        AnswerPermits(Arc::new(Semaphore::new(1)))
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_its_turn_until_it_is_read() {
        let permits = one();
        for length in [0, 1, PIECE, 3 * PIECE + 1] {
            let body = lent(&permits, length).await;
            assert_eq!(permits.0.available_permits(), 0);
            assert_eq!(body.collect().await.unwrap().to_bytes().len(), length);
            // Waits for it.
            drop(permits.0.acquire().await.unwrap());
        }
    }

    #[tokio::test]
    async fn large_json_comes_in_pieces_and_small_json_whole() {
        for (count, is_whole) in [(1, true), (PIECE, false)] {
            let value = vec!["text"; count];
            let mut body = json(&value).into_body();
            assert_eq!(axum::body::HttpBody::size_hint(&body).exact().is_some(), is_whole);
            let mut read = Vec::new();
            while let Some(frame) = body.frame().await {
                let piece = frame.unwrap().into_data().unwrap();
                assert!(piece.len() <= PIECE, "{}", piece.len());
                read.extend_from_slice(&piece);
            }
            assert_eq!(read, serde_json::to_vec(&value).unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unread_answer_is_dropped() {
        let permits = one();
        let mut body = lent(&permits, 300 * PIECE).await;
        for _ in 0..200 {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), PIECE);
        }
        let before = Instant::now();
        // A waiting request gets the permit.
        drop(permits.take().await.unwrap());
        assert_eq!(before.elapsed(), GRACE);
        assert!(body.frame().await.unwrap().is_err(), "a part is not taken for the whole");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_has_to_keep_pace() {
        let pieces = 400;
        for (pause, arrives) in [(120, true), (160, false)] {
            let permits = one();
            let mut body = lent(&permits, pieces * PIECE).await;
            let mut read = 0;
            while let Some(Ok(frame)) = body.frame().await {
                read += frame.into_data().unwrap().len();
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            assert_eq!(read == pieces * PIECE, arrives, "{pause}: {read}");
            // However slow it is, the permit comes back.
            let longest = GRACE + Duration::from_secs(1) * 400 / 8;
            drop(tokio::time::timeout(longest, permits.0.acquire()).await.unwrap().unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_without_a_permit_is_refused_in_time() {
        let permits = one();
        let _permit = permits.take().await.unwrap();
        let before = Instant::now();
        let refused = permits.take().await.unwrap_err();
        assert_eq!(refused.problem().code, Code::Timeout);
        assert_eq!(before.elapsed(), TIMEOUT);
    }
}
