//! Answers with everything in them: a few at a time, made beside the threads that answer booting
//! machines, and not kept for long for somebody who does not read them.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use hoist_api::Code;
use hoist_inventory::Roster;
use http::{HeaderValue, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{Boot, as_bss_json};
use crate::failure::Failure;
use crate::tasks::Tasks;

/// Answers that are made or read at once, for each kind of reader.
const AT_ONCE: usize = 8;
/// How long somebody waits for a turn. Gateways give up after 10 s.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long a reader may take. The rest is dropped then, and the connection cut.
const TO_READ: Duration = Duration::from_mins(2);
/// Handed to the connection at once.
const PIECE: usize = 64 * 1024;

/// Turns. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(super) struct WholeSites {
    /// Anybody may ask.
    open: Arc<Semaphore>,
    /// Readers of boot parameters do not wait for these.
    parameters: Arc<Semaphore>,
}

impl Default for WholeSites {
    fn default() -> Self {
        let turns = || Arc::new(Semaphore::new(AT_ONCE));
        Self { open: turns(), parameters: turns() }
    }
}

impl Boot {
    /// An answer that anybody may ask for.
    pub(super) async fn whole_site<F>(&self, text: F) -> Result<Response, Failure>
    where
        F: FnOnce(&Roster) -> Vec<u8> + Send + 'static,
    {
        self.whole(&self.whole_sites.open, text).await
    }

    pub(super) async fn all_parameters<F>(&self, text: F) -> Result<Response, Failure>
    where
        F: FnOnce(&Roster) -> Vec<u8> + Send + 'static,
    {
        self.whole(&self.whole_sites.parameters, text).await
    }

    async fn whole<F>(&self, turns: &Arc<Semaphore>, text: F) -> Result<Response, Failure>
    where
        F: FnOnce(&Roster) -> Vec<u8> + Send + 'static,
    {
        let turn = tokio::time::timeout(PATIENCE, Arc::clone(turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            return Err(Failure::new(Code::Timeout, "too many are reading everything")
                .with_remedy("ask for single nodes, or again in a while"));
        };
        let roster = self.registry.roster();
        let work = tokio::task::spawn_blocking(move || Bytes::from(text(&roster)));
        let text = work.await;
        let text =
            text.map_err(|_| Failure::new(Code::Internal, "the answer could not be made"))?;
        let length = HeaderValue::from(text.len());
        let mut response = as_bss_json(lend(&self.chassis.tasks, text, turn));
        // Known, though it is sent in pieces: a reader that is cut off sees that.
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
        Ok(response)
    }
}

/// The body of an answer, which is dropped with its turn when it is read, or when that takes too
/// long.
fn lend(tasks: &Tasks, text: Bytes, turn: OwnedSemaphorePermit) -> Body {
    let (reading, read) = oneshot::channel();
    let held = Held(Arc::new(Mutex::new(Some((text, turn)))));
    let forgotten = held.clone();
    tasks.spawn("whole site", async move {
        let _ = tokio::time::timeout(TO_READ, read).await;
        forgotten.lock().take();
    });
    held.into_body(reading)
}

/// What is left of an answer, and its turn.
#[derive(Debug, Clone)]
struct Held(Arc<Mutex<Option<(Bytes, OwnedSemaphorePermit)>>>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, Option<(Bytes, OwnedSemaphorePermit)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `reading` ends with the body.
    fn into_body(self, reading: oneshot::Sender<()>) -> Body {
        let pieces = std::iter::from_fn(move || {
            let _ = &reading;
            self.next()
        });
        Body::from_stream(stream::iter(pieces))
    }

    fn next(&self) -> Option<io::Result<Bytes>> {
        let mut held = self.lock();
        let Some((text, _)) = held.as_mut() else {
            return Some(Err(io::ErrorKind::TimedOut.into()));
        };
        let piece = text.split_to(PIECE.min(text.len()));
        (!piece.is_empty()).then_some(Ok(piece))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn lent(turns: &Arc<Semaphore>, length: usize) -> Body {
        let turn = Arc::clone(turns).acquire_owned().await.unwrap();
        lend(&Tasks::default(), vec![b'x'; length].into(), turn)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_its_turn_until_it_is_read() {
        let turns = Arc::new(Semaphore::new(1));
        for length in [0, 1, PIECE, 3 * PIECE + 1] {
            let body = lent(&turns, length).await;
            assert_eq!(turns.available_permits(), 0);
            assert_eq!(body.collect().await.unwrap().to_bytes().len(), length);
            // Waits for it.
            drop(turns.acquire().await.unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_is_dropped() {
        let turns = Arc::new(Semaphore::new(1));
        let mut body = lent(&turns, 3 * PIECE).await;
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), PIECE);
        let before = tokio::time::Instant::now();
        drop(turns.acquire().await.unwrap());
        assert_eq!(before.elapsed(), TO_READ);
        assert!(body.frame().await.unwrap().is_err(), "a part is not taken for the whole");
    }
}
