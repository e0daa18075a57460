//! Timing that survives a busy machine: candidates take turns, and the best turn of each counts.

use std::time::{Duration, Instant};

/// The fastest of `rounds` turns of each of the two, taken alternately.
pub(crate) fn best_of<A, B>(
    rounds: usize,
    mut one: impl FnMut() -> A,
    mut other: impl FnMut() -> B,
) -> (Duration, Duration) {
    let mut best = (Duration::MAX, Duration::MAX);
    for _ in 0..rounds {
        best.0 = best.0.min(time(&mut one));
        best.1 = best.1.min(time(&mut other));
    }
    best
}

/// How long it takes to make the value; not how long it takes to drop it.
pub(crate) fn time<T>(make: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    let made = make();
    let took = start.elapsed();
    drop(std::hint::black_box(made));
    took
}

pub(crate) fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}
