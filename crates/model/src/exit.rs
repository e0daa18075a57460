//! The one table of exit codes, for both binaries.

/// How a command ended. Scripts may rely on every number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    /// `diff`: there are differences.
    Failed = 1,
    Usage = 2,
    Refused = 3,
    Waiting = 4,
    Unknown = 5,
    Killed = 6,
    Degraded = 7,
    Stopped = 8,
    NoCluster = 9,
    Ambiguous = 10,
    Locked = 11,
    WouldChange = 20,
}

impl Exit {
    pub const ALL: [Self; 13] = [
        Self::Done,
        Self::Failed,
        Self::Usage,
        Self::Refused,
        Self::Waiting,
        Self::Unknown,
        Self::Killed,
        Self::Degraded,
        Self::Stopped,
        Self::NoCluster,
        Self::Ambiguous,
        Self::Locked,
        Self::WouldChange,
    ];

    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done, or nothing to do",
            Self::Failed => "an error (for `diff`: there are differences)",
            Self::Usage => "wrong usage or invalid input; nothing was changed",
            Self::Refused => "refused by a rule; nothing was changed",
            Self::Waiting => "waiting, or an operator is needed",
            Self::Unknown => "the outcome is not known; ask for the status before trying again",
            Self::Killed => "something had to be killed",
            Self::Degraded => "it works, but degraded",
            Self::Stopped => "stopped on request",
            Self::NoCluster => "no cluster found, and not told to found one",
            Self::Ambiguous => "ambiguous: more than one thing has that name",
            Self::Locked => "a lock is held by another process",
            Self::WouldChange => "dry run: there are changes to make",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Exit;

    #[test]
    fn the_numbers_are_the_promised_ones() {
        let codes = Exit::ALL.map(Exit::code);
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 20]);
    }
}
