//! The limit of open files of this process. Each connection needs one, and one more for the file
//! that it reads.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::listen::Limits;

/// Never more than this: programs that this one starts inherit the limit, and some close every
/// number up to it before they begin.
const MOST: u64 = 524_288;

/// Open files for everything but connections: the store, logs, programs, fetches.
const RESERVE: u64 = 512;

/// A connection and the artifact that it reads, of two listeners.
const PER_CONNECTION: u64 = 2 * 2;

/// Raises the limit of this process as far as it may, and returns it.
pub fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let held = current.unwrap_or(u64::MAX);
    let wanted = maximum.unwrap_or(u64::MAX).min(MOST);
    if held >= wanted {
        return held;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        Ok(()) => wanted,
        Err(error) => {
            tracing::warn!(%error, limit = held, "limit of open files not raised");
            held
        }
    }
}

impl Limits {
    /// The same limits, with no more connections than there may be open files.
    #[must_use]
    pub fn within(self, open_files: u64) -> Self {
        let fit = (open_files.saturating_sub(RESERVE) / PER_CONNECTION).max(1);
        let fit = usize::try_from(fit).unwrap_or(usize::MAX);
        if fit >= self.max_connections {
            return self;
        }
        tracing::warn!(
            open_files,
            configured = self.max_connections,
            used = fit,
            "limits.connections: too few open files are allowed; raise the hard limit (LimitNOFILE=)"
        );
        Self { max_connections: fit, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_into_the_limit_of_open_files() {
        let limits = || Limits { max_connections: 1000, ..Limits::default() };
        for (open_files, expected) in [(1024, 128), (0, 1), (4512, 1000), (u64::MAX, 1000)] {
            assert_eq!(limits().within(open_files).max_connections, expected, "{open_files}");
        }
    }

    #[test]
    fn limit_of_open_files_is_as_high_as_it_may_be() {
        let raised = raise();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current.unwrap_or(u64::MAX), raised);
        assert!(raised >= maximum.unwrap_or(u64::MAX).min(MOST));
    }
}
