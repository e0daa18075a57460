//! A bounded number of threads that work off a queue.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

type Task = Box<dyn FnOnce() + Send>;

/// Threads are made when there is work for them, and kept. What waits costs no thread.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    most: usize,
    stack: usize,
}

/// Of a thread; plug-ins and programs have their own.
const STACK: usize = 2 * 1024 * 1024;

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    idle: usize,
    threads: usize,
    is_closed: bool,
}

impl Crew {
    pub(crate) fn new(most: usize) -> Self {
        Self { shared: Arc::default(), most: most.max(1), stack: STACK }
    }

    /// Where not a single thread can be had, the work is done at once by who brings it: it would
    /// wait for ever.
    pub(crate) fn send(&self, task: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.lock();
        queue.tasks.push_back(Box::new(task));
        if queue.tasks.len() > queue.idle && queue.threads < self.most {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("step".to_owned()).stack_size(self.stack);
            // Without another thread the work waits for those there are.
            if thread.spawn(move || shared.work()).is_ok() {
                queue.threads += 1;
            }
        }
        if queue.threads == 0 {
            let task = queue.tasks.pop_back();
            drop(queue);
            return task.into_iter().for_each(|task| task());
        }
        drop(queue);
        self.shared.wake.notify_one();
    }
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").field("most", &self.most).finish_non_exhaustive()
    }
}

/// What is under way ends by itself; what waits is not begun.
impl Drop for Crew {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.is_closed = true;
        queue.tasks.clear();
        drop(queue);
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing that can panic runs while it is held.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                drop(queue);
                task();
                queue = self.lock();
            } else if queue.is_closed {
                return;
            } else {
                queue.idle += 1;
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn work_is_done_even_if_there_is_no_thread_for_it() {
        let mut crew = Crew::new(3);
        crew.stack = usize::MAX / 4;
        let (send, done) = channel();
        crew.send(move || send.send(std::thread::current().id()).unwrap());
        assert_eq!(done.try_recv(), Ok(std::thread::current().id()));
    }

    #[test]
    fn everything_is_done_by_no_more_threads_than_may_be() {
        let crew = Crew::new(3);
        let (send, done) = channel();
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for at in 0..1000 {
            let (send, now, most) = (send.clone(), Arc::clone(&now), Arc::clone(&most));
            crew.send(move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
                send.send(at).unwrap();
            });
        }
        let mut found: Vec<i32> = done.iter().take(1000).collect();
        found.sort_unstable();
        assert_eq!(found, (0..1000).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= 3);
    }
}
