//! A bounded number of aligned buffers for direct I/O.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Direct I/O needs memory aligned to the sector size of the device, which is at most this.
pub const ALIGNMENT: usize = 4096;

/// Bytes in one write. Smaller writes are slower, and larger ones only need more memory.
pub const CHUNK: usize = 4 * 1024 * 1024;

/// Bytes aligned to [`ALIGNMENT`].
#[derive(Debug)]
pub struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    length: usize,
}

impl Buffer {
    pub fn new(length: usize) -> Self {
        let bytes = vec![0; length + ALIGNMENT].into_boxed_slice();
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start, length }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// A pool with a fixed number of buffers. Taking a buffer waits until one is free. Buffers are
/// reused, because fresh memory costs a page fault for every page.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shelf>);

#[derive(Debug)]
struct Shelf {
    length: usize,
    free: Mutex<Free>,
    given_back: Condvar,
}

#[derive(Debug)]
struct Free {
    buffers: Vec<Buffer>,
    /// Buffers that may still be allocated.
    unmade: usize,
}

impl Pool {
    /// At most `count` buffers of `length` bytes, each allocated when it is first needed.
    pub fn new(count: usize, length: usize) -> Self {
        let free = Mutex::new(Free { buffers: Vec::new(), unmade: count });
        Self(Arc::new(Shelf { length, free, given_back: Condvar::new() }))
    }

    /// Takes a buffer. Its contents are undefined.
    pub fn take(&self) -> PooledBuffer {
        let mut free = self.0.free.lock();
        loop {
            if let Some(buffer) = free.buffers.pop() {
                return PooledBuffer { buffer: Some(buffer), pool: self.clone() };
            }
            if free.unmade > 0 {
                free.unmade -= 1;
                drop(free);
                return PooledBuffer {
                    buffer: Some(Buffer::new(self.0.length)),
                    pool: self.clone(),
                };
            }
            self.0.given_back.wait(&mut free);
        }
    }
}

/// A buffer that returns to its pool when dropped.
#[derive(Debug)]
pub struct PooledBuffer {
    /// `Some` until it is dropped.
    buffer: Option<Buffer>,
    pool: Pool,
}

impl Deref for PooledBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl DerefMut for PooledBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let mut free = self.pool.0.free.lock();
        free.buffers.extend(self.buffer.take());
        self.pool.0.given_back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_whatever_their_length() {
        for length in [0, 1, 511, 4096, 100_000] {
            let buffer = Buffer::new(length);
            assert_eq!(buffer.len(), length);
            assert_eq!(buffer.as_ptr().addr() % ALIGNMENT, 0);
        }
    }

    #[test]
    fn pool_never_exceeds_its_buffer_count() {
        let pool = Pool::new(2, 8);
        let first = pool.take();
        let second = pool.take();
        let place = first.as_ptr().addr();
        let waiting = std::thread::spawn({
            let pool = pool.clone();
            move || pool.take().as_ptr().addr()
        });
        drop(first);
        assert_eq!(waiting.join().expect("it ends"), place, "the one that was given back");
        drop(second);
        assert_eq!(pool.0.free.lock().buffers.len(), 2);
    }
}
