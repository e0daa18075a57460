//! Acceptor threads for plain connections. Each thread has its own event loop, accepts connections
//! and keeps them. A request answered from memory never crosses threads. Every other request runs
//! on the runtime that started the server, so no handler delays a booting machine.

use std::io;
use std::num::NonZero;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

/// The threads end when it is dropped.
#[derive(Debug)]
pub(crate) struct AcceptorThreads {
    handles: Vec<Handle>,
    stop: CancellationToken,
}

impl AcceptorThreads {
    /// One for each core that this process may use.
    pub(crate) fn start() -> io::Result<Self> {
        let count = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut acceptors =
            Self { handles: Vec::with_capacity(count), stop: CancellationToken::new() };
        for n in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            acceptors.handles.push(runtime.handle().clone());
            let stop = acceptors.stop.clone();
            let name = format!("acceptor-{n}");
            std::thread::Builder::new()
                .name(name)
                .spawn(move || runtime.block_on(stop.cancelled()))?;
        }
        Ok(acceptors)
    }

    pub(crate) fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

impl Drop for AcceptorThreads {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
