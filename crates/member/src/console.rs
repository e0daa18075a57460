//! Where a command tells people about its progress, and asks them.

use std::io::{self, BufRead, IsTerminal, Write};

/// Takes the progress of a command.
pub trait Console: Send + Sync {
    fn step(&self, text: &str);

    fn warn(&self, text: &str);

    /// Whether a person can answer questions.
    fn is_terminal(&self) -> bool {
        false
    }

    /// A question with the answers yes and no. Anything but a yes is a no.
    fn confirm(&self, _question: &str) -> bool {
        false
    }
}

/// Standard error and standard input; standard output is for results.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terminal;

impl Console for Terminal {
    fn step(&self, text: &str) {
        eprintln!("{text}");
    }

    fn warn(&self, text: &str) {
        eprintln!("warning: {text}");
    }

    fn is_terminal(&self) -> bool {
        io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    fn confirm(&self, question: &str) -> bool {
        let mut errors = io::stderr();
        let asked = write!(errors, "{question} [y/N] ").and_then(|()| errors.flush());
        let mut answer = String::new();
        let read = asked.and_then(|()| io::stdin().lock().read_line(&mut answer));
        read.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
    }
}
