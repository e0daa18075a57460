//! Threads for plain connections: each has an event loop of its own, accepts by itself and keeps
//! what it accepted. A request that is answered from memory never crosses threads; every other one
//! is worked on by the runtime that the server was started in, so that no handler keeps a booting
//! machine waiting.

use std::io;
use std::num::NonZero;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

/// The threads end when it is dropped.
#[derive(Debug)]
pub(crate) struct Lanes {
    handles: Vec<Handle>,
    stop: CancellationToken,
}

impl Lanes {
    /// One for each core that this process may use.
    pub(crate) fn start() -> io::Result<Self> {
        let count = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut lanes = Self { handles: Vec::with_capacity(count), stop: CancellationToken::new() };
        for n in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            lanes.handles.push(runtime.handle().clone());
            let stop = lanes.stop.clone();
            let name = format!("lane-{n}");
            std::thread::Builder::new()
                .name(name)
                .spawn(move || runtime.block_on(stop.cancelled()))?;
        }
        Ok(lanes)
    }

    pub(crate) fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
