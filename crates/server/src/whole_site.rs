//! Answers with everything in them: a few at a time, and not kept for long for somebody who does
//! not read them.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use hoist_api::Code;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::failure::Failure;
use crate::tasks::Tasks;

/// Answers that are made or read at once, for each kind of reader.
const AT_ONCE: usize = 8;
/// How long somebody waits for a turn. Gateways give up after 10 s.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long a reader may take. The rest is dropped then, and the connection cut.
const TO_READ: Duration = Duration::from_mins(2);
/// Handed to the connection at once.
pub(crate) const PIECE: usize = 64 * 1024;

/// Turns of one kind of reader. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Semaphore>);

/// The right to one answer with everything in it, until it is dropped.
pub(crate) type Turn = OwnedSemaphorePermit;

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Turns {
    pub(crate) async fn take(&self) -> Result<Turn, Failure> {
        let turn = tokio::time::timeout(PATIENCE, Arc::clone(&self.0).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            return Err(Failure::new(Code::Timeout, "too many are reading everything")
                .with_remedy("ask for single nodes, or again in a while"));
        };
        Ok(turn)
    }
}

/// The body of an answer, which is dropped with its turn when it is read, or when that takes too
/// long. The pieces are made as they are read.
pub(crate) fn lend<P>(tasks: &Tasks, pieces: P, turn: Turn) -> Body
where
    P: Iterator<Item = Bytes> + Send + 'static,
{
    let (reading, read) = oneshot::channel::<()>();
    let held = Arc::new(Held(Mutex::new(Some((pieces, turn)))));
    let forgotten = Arc::clone(&held);
    tasks.spawn("whole site", async move {
        let _ = tokio::time::timeout(TO_READ, read).await;
        forgotten.lock().take();
    });
    // `reading` ends with the body.
    let pieces = std::iter::from_fn(move || {
        let _ = &reading;
        held.next()
    });
    Body::from_stream(stream::iter(pieces))
}

/// A text that is already whole, in pieces.
pub(crate) fn cut(mut text: Bytes) -> impl Iterator<Item = Bytes> + Send {
    std::iter::from_fn(move || {
        let piece = text.split_to(PIECE.min(text.len()));
        (!piece.is_empty()).then_some(piece)
    })
}

/// What is left of an answer, and its turn.
struct Held<P>(Mutex<Option<(P, Turn)>>);

impl<P: Iterator<Item = Bytes>> Held<P> {
    fn lock(&self) -> MutexGuard<'_, Option<(P, Turn)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<io::Result<Bytes>> {
        match self.lock().as_mut() {
            Some((pieces, _)) => pieces.next().map(Ok),
            None => Some(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn lent(turns: &Turns, length: usize) -> Body {
        let turn = turns.take().await.unwrap();
        lend(&Tasks::default(), cut(vec![b'x'; length].into()), turn)
    }

    fn one() -> Turns {
        Turns(Arc::new(Semaphore::new(1)))
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_its_turn_until_it_is_read() {
        let turns = one();
        for length in [0, 1, PIECE, 3 * PIECE + 1] {
            let body = lent(&turns, length).await;
            assert_eq!(turns.0.available_permits(), 0);
            assert_eq!(body.collect().await.unwrap().to_bytes().len(), length);
            // Waits for it.
            drop(turns.0.acquire().await.unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_is_dropped() {
        let turns = one();
        let mut body = lent(&turns, 3 * PIECE).await;
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), PIECE);
        let before = tokio::time::Instant::now();
        drop(turns.0.acquire().await.unwrap());
        assert_eq!(before.elapsed(), TO_READ);
        assert!(body.frame().await.unwrap().is_err(), "a part is not taken for the whole");
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_turn_is_told_so_in_time() {
        let turns = one();
        let _body = lent(&turns, PIECE).await;
        let before = tokio::time::Instant::now();
        let refused = turns.take().await.unwrap_err();
        assert_eq!(refused.problem().code, Code::Timeout);
        assert_eq!(before.elapsed(), PATIENCE);
    }
}
