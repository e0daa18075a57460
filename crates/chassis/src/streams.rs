//! HTTP/2 streams: how many may be open, and how long one may take nothing.
//!
//! One connection has many streams, and its client decides by flow control how much it takes of
//! each: the socket of a client that takes nothing is as writable as any other. So every answer
//! over HTTP/2 has one of a bounded number of slots, and a stream that takes nothing for too long
//! is reset.
//!
//! Guarantees that a stream that takes nothing holds at most one frame of its answer, at most
//! [`PIECE`] bytes in memory; after its end h2 holds at most [`TAIL`] bytes more.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use hyper::body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tokio_util::task::TaskTracker;

use crate::principal::AnswerToToken;

/// Streams of one listener whose clients show a token.
const MAX_KNOWN: usize = 16_384;

/// Streams of one listener whose clients show none. Machines that boot speak HTTP/1.1, and so do
/// hoist's own programs.
const MAX_ANONYMOUS: usize = 1_024;

/// Streams of one connection whose client shows no token.
pub(crate) const MAX_ANONYMOUS_OF_ONE: usize = 16;

/// Most bytes that are handed to h2 at once: one frame.
const PIECE: usize = 16 * 1024;

/// The end of a piece is sent alone. Hyper is done with a stream once it has handed over the last
/// piece, of which h2 may have sent one byte: these bytes are not watched any more.
const TAIL: usize = 1024;

/// The places of one listener.
#[derive(Debug)]
pub(crate) struct StreamSlots {
    known: Arc<Semaphore>,
    anonymous: Arc<Semaphore>,
}

impl Default for StreamSlots {
    fn default() -> Self {
        Self {
            known: Arc::new(Semaphore::new(MAX_KNOWN)),
            anonymous: Arc::new(Semaphore::new(MAX_ANONYMOUS)),
        }
    }
}

/// The streams of one connection.
#[derive(Debug)]
pub(crate) struct Streams {
    places: Arc<StreamSlots>,
    anonymous: Arc<Semaphore>,
    /// The client has shown a certificate of this site.
    is_member: bool,
    open: AtomicUsize,
    opened: AtomicU64,
}

/// The right to one stream, until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamSlot {
    /// Of the listener, and of the connection where the client is anonymous.
    permits: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
    streams: Arc<Streams>,
}

impl Streams {
    pub(crate) fn new(places: &Arc<StreamSlots>, is_member: bool) -> Arc<Self> {
        Arc::new(Self {
            places: Arc::clone(places),
            anonymous: Arc::new(Semaphore::new(MAX_ANONYMOUS_OF_ONE)),
            is_member,
            open: AtomicUsize::new(0),
            opened: AtomicU64::new(0),
        })
    }

    /// A slot for a request that begins, before any work is done for it. A client with a token
    /// counts as known until the token is checked: [`StreamSlot::for_answer`].
    pub(crate) fn enter<B>(self: &Arc<Self>, request: &Request<B>) -> Option<StreamSlot> {
        let headers = request.headers();
        let claims = self.is_member
            || headers.contains_key(header::AUTHORIZATION)
            || headers.contains_key(header::COOKIE);
        let permits = if claims {
            (Arc::clone(&self.places.known).try_acquire_owned().ok()?, None)
        } else {
            self.anonymous_permits()?
        };
        self.open.fetch_add(1, Ordering::Relaxed);
        self.opened.fetch_add(1, Ordering::Relaxed);
        Some(StreamSlot { permits, streams: Arc::clone(self) })
    }

    fn anonymous_permits(&self) -> Option<(OwnedSemaphorePermit, Option<OwnedSemaphorePermit>)> {
        let of_connection = Arc::clone(&self.anonymous).try_acquire_owned().ok()?;
        let of_listener = Arc::clone(&self.places.anonymous).try_acquire_owned().ok()?;
        Some((of_listener, Some(of_connection)))
    }

    /// Streams that were ever opened, if none is open now.
    pub(crate) fn idle_since(&self) -> Option<u64> {
        let opened = self.opened.load(Ordering::Relaxed);
        (self.open.load(Ordering::Relaxed) == 0).then_some(opened)
    }
}

impl StreamSlot {
    /// The place for the answer: a claim that came to nothing needs one for anonymous clients.
    pub(crate) fn for_answer<B>(mut self, answer: &Response<B>) -> Option<Self> {
        let is_known =
            self.streams.is_member || answer.extensions().get::<AnswerToToken>().is_some();
        if self.permits.1.is_none() && !is_known {
            self.permits = self.streams.anonymous_permits()?;
        }
        Some(self)
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.streams.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The client may ask for the same again later: nothing was done.
pub(crate) fn refused() -> h2::Error {
    metrics::counter!("hoist_streams_refused_total").increment(1);
    h2::Reason::REFUSED_STREAM.into()
}

/// Progress of an answer, reported by its body to the task that sends it.
#[derive(Debug, Default)]
struct Progress {
    /// A frame was given out, and no further one was asked for.
    offered: AtomicBool,
    frames: AtomicU64,
}

tokio::task_local! {
    static PROGRESS: Arc<Progress>;
}

/// Runs the streams of a connection. They are joined like the connections.
#[derive(Clone)]
pub(crate) struct StreamTasks {
    pub(crate) tracker: TaskTracker,
    /// Time that a stream may be stalled.
    pub(crate) stall: Duration,
}

impl<F> Executor<F> for StreamTasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        let progress = Arc::<Progress>::default();
        let task = PROGRESS.scope(Arc::clone(&progress), task);
        let watched =
            WatchedTask { task: Box::pin(task), progress, stall: self.stall, timer: None };
        self.tracker.spawn(watched);
    }
}

/// A stream whose client is stalled is dropped, which resets it.
struct WatchedTask<F: Future> {
    task: Pin<Box<F>>,
    progress: Arc<Progress>,
    stall: Duration,
    /// Runs while a frame waits, with the number of that frame.
    timer: Option<(Pin<Box<Sleep>>, u64)>,
}

impl<F: Future> Future for WatchedTask<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.task.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !self.progress.offered.load(Ordering::Relaxed) {
            self.timer = None;
            return Poll::Pending;
        }
        let frame = self.progress.frames.load(Ordering::Relaxed);
        let end = Instant::now() + self.stall;
        let fresh = || (Box::pin(tokio::time::sleep_until(end)), frame);
        let (timer, of) = self.timer.get_or_insert_with(fresh);
        if *of != frame {
            timer.as_mut().reset(end);
            *of = frame;
        }
        if timer.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        metrics::counter!("hoist_streams_cut_total").increment(1);
        tracing::debug!("stream reset: its client takes nothing");
        Poll::Ready(())
    }
}

/// The body of an answer over HTTP/2: in small pieces, with its place.
pub(crate) struct AnswerBody<B> {
    body: B,
    /// The rest of a frame.
    rest: Bytes,
    progress: Option<Arc<Progress>>,
    _place: StreamSlot,
}

impl<B> AnswerBody<B> {
    /// In the task of the stream.
    pub(crate) fn new(body: B, place: StreamSlot) -> Self {
        let progress = PROGRESS.try_with(Arc::clone).ok();
        Self { body, rest: Bytes::new(), progress, _place: place }
    }

    fn is_offered(&self, offered: bool) {
        if let Some(progress) = &self.progress {
            progress.offered.store(offered, Ordering::Relaxed);
            progress.frames.fetch_add(u64::from(offered), Ordering::Relaxed);
        }
    }
}

/// The next piece of `rest`, which is not empty.
fn piece(rest: &mut Bytes) -> Bytes {
    match rest.len() {
        // A copy, so that a tail does not keep the whole of which it is one.
        ..=TAIL => Bytes::copy_from_slice(&std::mem::take(rest)),
        length if length <= PIECE => rest.split_to(length - TAIL),
        _ => rest.split_to(PIECE),
    }
}

impl<B> Body for AnswerBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if !self.rest.is_empty() {
            self.is_offered(true);
            return Poll::Ready(Some(Ok(Frame::data(piece(&mut self.rest)))));
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.is_offered(matches!(polled, Poll::Ready(Some(Ok(_)))));
        let Poll::Ready(Some(Ok(frame))) = polled else { return polled };
        let frame = match frame.into_data() {
            Ok(data) if data.is_empty() => Frame::data(data),
            Ok(data) => {
                self.rest = data;
                Frame::data(piece(&mut self.rest))
            }
            Err(frame) => frame,
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.rest.len() as u64;
        let inner = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + left);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + left);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    fn place(claims: bool, streams: &Arc<Streams>) -> Option<StreamSlot> {
        let request = Request::new(());
        let (mut parts, ()) = request.into_parts();
        if claims {
            let token = http::HeaderValue::from_static("Bearer kettle");
            parts.headers.insert(header::AUTHORIZATION, token);
        }
        streams.enter(&Request::from_parts(parts, ()))
    }

    #[test]
    fn anonymous_streams_are_bounded_by_connection_and_listener() {
        let places = Arc::new(StreamSlots::default());
        let mut held = Vec::new();
        let connections = MAX_ANONYMOUS / MAX_ANONYMOUS_OF_ONE;
        for _ in 0..connections {
            let streams = Streams::new(&places, false);
            held.extend((0..MAX_ANONYMOUS_OF_ONE).map(|_| place(false, &streams).unwrap()));
            assert!(place(false, &streams).is_none(), "of one connection");
        }
        let streams = Streams::new(&places, false);
        assert!(place(false, &streams).is_none(), "of the listener");
        // Others are not in their way, but for a token that turns out to be none.
        let known = place(true, &streams).unwrap();
        let mut answer = Response::new(());
        answer.extensions_mut().insert(AnswerToToken);
        let known = known.for_answer(&answer).unwrap();
        assert!(place(true, &streams).unwrap().for_answer(&Response::new(())).is_none());
        drop(held);
        assert!(place(true, &streams).unwrap().for_answer(&Response::new(())).is_some());
        assert_eq!(streams.idle_since(), None);
        drop(known);
        assert!(streams.idle_since().is_some());
    }

    #[tokio::test]
    async fn answer_is_sent_in_pieces_with_a_small_last_one() {
        let streams = Streams::new(&Arc::default(), false);
        for length in [1, TAIL, TAIL + 1, PIECE, PIECE + 1, 3 * PIECE + 7, 0] {
            let bytes: Bytes = (0..=255_u8).cycle().take(length).collect();
            let mut body =
                AnswerBody::new(Full::new(bytes.clone()), place(false, &streams).unwrap());
            assert_eq!(body.size_hint().exact(), Some(length as u64));
            let mut whole = Vec::new();
            let mut last = 0;
            while !body.is_end_stream() {
                let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
                last = piece.len();
                assert!(last <= PIECE);
                whole.extend_from_slice(&piece);
                assert_eq!(body.size_hint().exact(), Some((length - whole.len()) as u64));
            }
            assert!(whole == bytes && last <= TAIL, "{length}: {last}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stream_that_takes_nothing_is_dropped_and_a_quiet_one_is_not() {
        let stall = Duration::from_mins(1);
        let tasks = StreamTasks { tracker: TaskTracker::new(), stall };
        let streams = Streams::new(&Arc::default(), false);
        // As hyper does it: a frame is taken from the body and held until there is room for it.
        let held = place(false, &streams).unwrap();
        let quiet = place(false, &streams).unwrap();
        tasks.execute(async move {
            let mut body = AnswerBody::new(Full::new(Bytes::from_static(b"kettle")), held);
            body.frame().await.unwrap().unwrap();
            std::future::pending::<()>().await;
            drop(body);
        });
        tasks.execute(async move {
            let silent = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
            let mut body = AnswerBody::new(axum::body::Body::from_stream(silent), quiet);
            body.frame().await;
        });
        tasks.tracker.close();
        tokio::time::sleep(stall / 2).await;
        assert_eq!(tasks.tracker.len(), 2);
        tokio::time::sleep(stall).await;
        assert_eq!(
            tasks.tracker.len(),
            1,
            "the quiet one waits for its server, not for its client"
        );
        tokio::time::sleep(10 * stall).await;
        assert_eq!(tasks.tracker.len(), 1);
    }
}
