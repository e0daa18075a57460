//! Buffers that devices take as they are, and a bounded number of them.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Devices want memory that begins at a multiple of their sector size, which is never larger.
pub const ALIGNMENT: usize = 4096;

/// What is written at once: smaller writes are slower, larger ones only need more memory.
pub const CHUNK: usize = 4 * 1024 * 1024;

/// Bytes whose first one is at a multiple of [`ALIGNMENT`].
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

/// So many buffers and no more: who wants one waits until one is given back. Buffers are used again,
/// because fresh memory costs a fault for every page.
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
    /// That may still be made.
    unmade: usize,
}

impl Pool {
    /// At most `count` buffers of `length` bytes, each made when it is first needed.
    pub fn new(count: usize, length: usize) -> Self {
        let free = Mutex::new(Free { buffers: Vec::new(), unmade: count });
        Self(Arc::new(Shelf { length, free, given_back: Condvar::new() }))
    }

    /// Its bytes are whatever they were.
    pub fn take(&self) -> Pooled {
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(buffer) = free.buffers.pop() {
                return Pooled { buffer: Some(buffer), pool: self.clone() };
            }
            if free.unmade > 0 {
                free.unmade -= 1;
                drop(free);
                return Pooled { buffer: Some(Buffer::new(self.0.length)), pool: self.clone() };
            }
            free = self.0.given_back.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A buffer that goes back to its pool.
#[derive(Debug)]
pub struct Pooled {
    /// Always there until it is dropped.
    buffer: Option<Buffer>,
    pool: Pool,
}

impl Deref for Pooled {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let mut free = self.pool.0.free.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn a_pool_makes_no_more_buffers_than_it_may() {
        let pool = Pool::new(2, 8);
        let (first, second) = (pool.take(), pool.take());
        let place = first.as_ptr().addr();
        let waiting = std::thread::spawn({
            let pool = pool.clone();
            move || pool.take().as_ptr().addr()
        });
        drop(first);
        assert_eq!(waiting.join().expect("it ends"), place, "the one that was given back");
        drop(second);
        assert_eq!(pool.0.free.lock().expect("nobody panicked").buffers.len(), 2);
    }
}
