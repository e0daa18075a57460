//! Signals that ask a command to end.
//!
//! The first one cancels the step that runs, and the command undoes its changes. The second one
//! cancels the undo too; the journals stay, and a later run continues.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use hoist_engine::action::Cancel;
use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

type Notice = Box<dyn Fn() + Send>;

/// Shared by a command and the thread that waits for signals.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Shared>);

#[derive(Default)]
struct Shared {
    first: Cancel,
    second: Cancel,
    notice: Mutex<Option<Notice>>,
}

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Interrupt").field(&self.0.first.is_cancelled()).finish()
    }
}

impl Interrupt {
    /// Starts to wait for SIGINT and SIGTERM, in a thread of its own that sleeps until one comes.
    pub fn on_signals() -> io::Result<Self> {
        let interrupt = Self::default();
        let (mut read, write) = UnixStream::pair()?;
        pipe::register(SIGINT, write.try_clone()?)?;
        pipe::register(SIGTERM, write)?;
        let shared = interrupt.clone();
        let wait = move || {
            let mut byte = [0];
            while read.read_exact(&mut byte).is_ok() {
                shared.trigger();
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
        Ok(interrupt)
    }

    /// As a signal does.
    pub fn trigger(&self) {
        if self.0.first.is_cancelled() {
            self.0.second.cancel();
        }
        self.0.first.cancel();
        if let Some(notice) = &*self.0.notice.lock() {
            notice();
        }
    }

    pub fn is_triggered(&self) -> bool {
        self.0.first.is_cancelled()
    }

    /// Cancelled by the first signal.
    pub(crate) fn first(&self) -> Cancel {
        self.0.first.clone()
    }

    /// Cancelled by the second signal.
    pub(crate) fn second(&self) -> Cancel {
        self.0.second.clone()
    }

    /// Calls `notice` at each signal from now on, instead of the notice before. A signal that came
    /// earlier is told at once.
    pub(crate) fn tell(&self, notice: impl Fn() + Send + 'static) {
        let mut place = self.0.notice.lock();
        if self.is_triggered() {
            notice();
        }
        *place = Some(Box::new(notice));
    }

    /// Sends a value at each signal.
    pub(crate) fn wake(&self, wake: Sender<()>) {
        // The receiver is gone when the command has ended.
        self.tell(move || _ = wake.send(()));
    }
}
