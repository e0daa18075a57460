//! Waiting for a state. Tests must wait through this module, never for a fixed time: a fixed time is
//! too short on a busy machine and too long on every other.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Long enough for a busy machine, short enough to notice that something hangs.
pub const DEADLINE: Duration = Duration::from_mins(2);

const POLL_EVERY: Duration = Duration::from_millis(20);

/// The result of one look at the subject: the value that the test waits for, or the state instead.
pub trait Observation {
    type Value;

    /// The value, or a description of the state for the message of a failed test.
    fn evaluate(self) -> Result<Self::Value, String>;
}

impl Observation for bool {
    type Value = ();

    fn evaluate(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "the condition is false".to_owned())
    }
}

impl<T> Observation for Option<T> {
    type Value = T;

    fn evaluate(self) -> Result<T, String> {
        self.ok_or_else(|| "no value".to_owned())
    }
}

impl<T, S: Debug> Observation for Result<T, S> {
    type Value = T;

    fn evaluate(self) -> Result<T, String> {
        self.map_err(|state| format!("{state:?}"))
    }
}

/// Polls until the observation holds, and returns its value. Panics after [`DEADLINE`] with the
/// subject and the last observed state.
#[track_caller]
pub fn eventually<O: Observation>(subject: &str, observe: impl FnMut() -> O) -> O::Value {
    eventually_within(DEADLINE, subject, observe)
}

/// As [`eventually`], with a deadline of its own.
#[track_caller]
pub fn eventually_within<O: Observation>(
    deadline: Duration,
    subject: &str,
    mut observe: impl FnMut() -> O,
) -> O::Value {
    let started = Instant::now();
    loop {
        match observe().evaluate() {
            Ok(value) => return value,
            Err(state) => {
                assert!(started.elapsed() < deadline, "{}", message(subject, deadline, &state));
            }
        }
        std::thread::sleep(POLL_EVERY);
    }
}

/// As [`eventually`], for asynchronous tests. The clock is the one of tokio, so a paused one works.
#[cfg(feature = "async")]
pub async fn eventually_async<O: Observation>(
    subject: &str,
    observe: impl AsyncFnMut() -> O,
) -> O::Value {
    eventually_async_within(DEADLINE, subject, observe).await
}

/// As [`eventually_async`], with a deadline of its own.
#[cfg(feature = "async")]
pub async fn eventually_async_within<O: Observation>(
    deadline: Duration,
    subject: &str,
    mut observe: impl AsyncFnMut() -> O,
) -> O::Value {
    let started = tokio::time::Instant::now();
    loop {
        match observe().await.evaluate() {
            Ok(value) => return value,
            Err(state) => {
                assert!(started.elapsed() < deadline, "{}", message(subject, deadline, &state));
            }
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

fn message(subject: &str, deadline: Duration, state: &str) -> String {
    format!("{subject}: not within {deadline:?}; last observed: {state}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_returned_once_it_is_observed() {
        let mut count = 0;
        let value = eventually("count", || {
            count += 1;
            if count < 3 { Err(count) } else { Ok(count) }
        });
        assert_eq!(value, 3);
    }

    #[test]
    #[should_panic(expected = "run r1 ends: not within 0ns; last observed: \"running\"")]
    fn deadline_panics_with_subject_and_last_state() {
        eventually_within(Duration::ZERO, "run r1 ends", || Err::<(), _>("running"));
    }
}
