//! A bounded number of threads that work off a queue.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

type Task = Box<dyn FnOnce() + Send>;

/// Threads are created on demand and reused. Waiting tasks occupy no thread.
pub(crate) struct WorkerPool {
    shared: Arc<TaskQueue>,
    most: usize,
    stack: usize,
}

/// Stack size of a thread; plug-ins and programs are separate processes.
const STACK: usize = 2 * 1024 * 1024;

#[derive(Default)]
struct TaskQueue {
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

impl WorkerPool {
    pub(crate) fn new(most: usize) -> Self {
        Self { shared: Arc::default(), most: most.max(1), stack: STACK }
    }

    /// Queues a task. If no thread can be created at all, the caller runs the task itself, because
    /// it would wait forever.
    pub(crate) fn send(&self, task: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.queue.lock();
        queue.tasks.push_back(Box::new(task));
        if queue.tasks.len() > queue.idle && queue.threads < self.most {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("step".to_owned()).stack_size(self.stack);
            // Without another thread the task waits for the existing ones.
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

impl std::fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerPool").field("most", &self.most).finish_non_exhaustive()
    }
}

/// Running tasks end by themselves; waiting tasks are dropped.
impl Drop for WorkerPool {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.is_closed = true;
        queue.tasks.clear();
        drop(queue);
        self.shared.wake.notify_all();
    }
}

impl TaskQueue {
    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                drop(queue);
                task();
                queue = self.queue.lock();
            } else if queue.is_closed {
                return;
            } else {
                queue.idle += 1;
                self.wake.wait(&mut queue);
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
    fn task_runs_even_without_a_thread() {
        let mut workers = WorkerPool::new(3);
        workers.stack = usize::MAX / 4;
        let (send, done) = channel();
        workers.send(move || send.send(std::thread::current().id()).unwrap());
        assert_eq!(done.try_recv(), Ok(std::thread::current().id()));
    }

    #[test]
    fn pool_runs_all_tasks_within_its_thread_limit() {
        let workers = WorkerPool::new(3);
        let (send, done) = channel();
        let now = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        for at in 0..1000 {
            let send = send.clone();
            let now = Arc::clone(&now);
            let most = Arc::clone(&most);
            workers.send(move || {
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
