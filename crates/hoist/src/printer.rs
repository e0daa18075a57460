//! The one way to the terminal: results on standard output, everything else on standard error.
//!
//! Only results go to standard output, so that `-o json` can always be piped. Colour is for
//! terminals, and `NO_COLOR` or `TERM=dumb` turns it off.

use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::failure::Failure;
use crate::table::Table;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Output {
    /// Columns for people.
    #[default]
    Table,
    /// More columns.
    Wide,
    Json,
    Yaml,
    /// One name per line, for loops.
    Name,
}

/// The meaning of a piece of text; determines its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Strong,
    Added,
    Changed,
    Removed,
    Faint,
}

/// Foreign text on one line, safe for a terminal: control characters are escaped.
pub(crate) fn plain(text: &str) -> String {
    let is_plain = |c: char| c == '\t' || !(c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'));
    text.chars().fold(String::with_capacity(text.len()), |mut text, c| {
        if is_plain(c) {
            text.push(c);
        } else {
            text.extend(c.escape_default());
        }
        text
    })
}

pub(crate) struct Printer {
    out: Box<dyn Write>,
    err: Box<dyn Write>,
    output: Output,
    colour_out: bool,
    colour_err: bool,
    /// A person is at the terminal: questions may be asked and progress shown.
    interactive: bool,
}

/// Whether the terminal can do nothing but print.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

impl Printer {
    pub(crate) fn standard(output: Output) -> Self {
        let out = io::stdout();
        let err = io::stderr();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let colour = wanted && !is_dumb();
        let out_terminal = out.is_terminal();
        let err_terminal = err.is_terminal();
        Self {
            colour_out: colour && out_terminal,
            colour_err: colour && err_terminal,
            interactive: out_terminal && err_terminal && io::stdin().is_terminal(),
            out: Box::new(io::BufWriter::new(out)),
            err: Box::new(err),
            output,
        }
    }

    pub(crate) fn output(&self) -> Output {
        self.output
    }

    /// Whether results may have colours.
    pub(crate) fn has_colour(&self) -> bool {
        self.colour_out
    }

    pub(crate) fn interactive(&self) -> bool {
        self.interactive
    }

    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.out.write_all(text.as_ref().as_bytes()).map_err(Failure::Output)?;
        self.out.write_all(b"\n").map_err(Failure::Output)
    }

    /// Text that has its ends of line already.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(Failure::Output)
    }

    pub(crate) fn toned(&mut self, tone: Tone, text: &str) -> Result<(), Failure> {
        let line = painted(self.colour_out, tone, text);
        self.line(line)
    }

    pub(crate) fn table(&mut self, table: &Table) -> Result<(), Failure> {
        let text = table.render(self.output == Output::Wide);
        let mut lines = text.lines();
        if let Some(header) = lines.next() {
            self.toned(Tone::Strong, header)?;
        }
        lines.try_for_each(|line| self.line(line))
    }

    /// A value as JSON or YAML, as was asked for; JSON where neither was.
    pub(crate) fn value(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        if self.output == Output::Yaml {
            return self.yaml(value);
        }
        // A plan of a large site is never in memory as text.
        serde_json::to_writer_pretty(&mut self.out, value).map_err(|error| {
            match error.io_error_kind() {
                Some(kind) => Failure::Output(kind.into()),
                None => Failure::Json(error),
            }
        })?;
        self.line("")
    }

    /// A value as YAML, which people read well too.
    pub(crate) fn yaml(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_saphyr::to_string(value).map_err(Failure::yaml)?;
        self.bytes(text.as_bytes())
    }

    /// One value on one line, for streams.
    pub(crate) fn json_line(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(Failure::Json)?;
        self.line(text)?;
        self.flush()
    }

    /// For the person in front of it, never for the program behind a pipe.
    pub(crate) fn note(&mut self, text: &str) {
        // A note follows the output it refers to. A closed stream means that notes are not wanted.
        let _ = self.out.flush();
        let _ = writeln!(self.err, "{text}");
    }

    pub(crate) fn warn(&mut self, text: &str) {
        let word = painted(self.colour_err, Tone::Changed, "warning:");
        let _ = writeln!(self.err, "{word} {text}");
    }

    pub(crate) fn failure(&mut self, failure: &Failure) {
        let rendered = failure.render();
        let word = painted(self.colour_err, Tone::Removed, "error:");
        let _ = writeln!(self.err, "{word} {}", rendered.message);
        for line in rendered.details {
            let _ = writeln!(self.err, "  {}", line.replace('\n', "\n  "));
        }
        if let Some(hint) = rendered.hint {
            let word = painted(self.colour_err, Tone::Added, "hint:");
            let _ = writeln!(self.err, "{word} {hint}");
        }
    }

    /// Asks; only `y` and `yes` mean yes.
    pub(crate) fn ask(&mut self, question: &str) -> Result<bool, Failure> {
        self.flush()?;
        let _ = write!(self.err, "{question} [y/N] ");
        let _ = self.err.flush();
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).map_err(Failure::Output)?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }

    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(Failure::Output)
    }
}

impl std::fmt::Debug for Printer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Printer").field("output", &self.output).finish_non_exhaustive()
    }
}

fn painted(colour: bool, tone: Tone, text: &str) -> String {
    let style = match tone {
        Tone::Plain => return text.to_owned(),
        Tone::Strong => Style::new().bold(),
        Tone::Added => AnsiColor::Green.on_default(),
        Tone::Changed => AnsiColor::Yellow.on_default(),
        Tone::Removed => AnsiColor::Red.on_default(),
        Tone::Faint => Style::new().dimmed(),
    };
    if colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// The printed text of both streams.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Paper {
        pub(crate) fn text(&self) -> String {
            let bytes = self.0.lock();
            String::from_utf8(bytes.clone()).unwrap()
        }
    }

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    pub(crate) fn printer(output: Output) -> (Printer, Paper, Paper) {
        let out = Paper::default();
        let err = Paper::default();
        let printer = Printer {
            out: Box::new(out.clone()),
            err: Box::new(err.clone()),
            output,
            colour_out: false,
            colour_err: false,
            interactive: false,
        };
        (printer, out, err)
    }

    #[test]
    fn colour_is_for_terminals() {
        assert_eq!(painted(false, Tone::Removed, "gone"), "gone");
        assert_eq!(painted(true, Tone::Removed, "gone"), "\u{1b}[31mgone\u{1b}[0m");
    }

    #[test]
    fn values_are_printed_as_asked_for() {
        for (output, text) in [(Output::Json, "{\n  \"a\": 1\n}\n"), (Output::Yaml, "a: 1\n")] {
            let (mut printer, out, _) = printer(output);
            printer.value(&serde_json::json!({"a": 1})).unwrap();
            assert_eq!(out.text(), text);
        }
    }

    #[test]
    fn a_closed_pipe_is_a_quiet_end() {
        struct ClosedPipe;
        impl Write for ClosedPipe {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (mut printer, ..) = printer(Output::Table);
        printer.out = Box::new(ClosedPipe);
        assert!(printer.line("x").unwrap_err().is_closed_pipe());
    }
}
