//! Measured figures compared with the promised limits.

use std::fmt;
use std::io::{self, Write};

/// One line of a table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) measured: f64,
    pub(crate) unit: &'static str,
    /// `None`: informative only, without a limit.
    pub(crate) limit: Option<Limit>,
    /// The inputs of the figure.
    pub(crate) detail: String,
}

/// The promised limit of a figure.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Limit {
    fn is_kept(self, measured: f64) -> bool {
        match self {
            Self::AtMost(limit) => measured <= limit,
            Self::AtLeast(limit) => measured >= limit,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "≤ {limit}"),
            Self::AtLeast(limit) => write!(f, "≥ {limit}"),
        }
    }
}

impl Row {
    pub(crate) fn is_missed(&self) -> bool {
        self.limit.is_some_and(|limit| !limit.is_kept(self.measured))
    }

    fn verdict(&self) -> &'static str {
        match self.limit {
            None => "-",
            Some(_) if self.is_missed() => "MISSED",
            Some(_) => "met",
        }
    }
}

/// Writes a Markdown table. A row must have the name that it has in `RESULTS.md`.
pub(crate) fn print(out: &mut impl Write, title: &str, rows: &[Row]) -> io::Result<()> {
    writeln!(out, "## {title}\n")?;
    writeln!(out, "| measurement | target | measured | verdict | from |")?;
    writeln!(out, "| --- | --- | --- | --- | --- |")?;
    for row in rows {
        let Row { what, unit, detail, .. } = row;
        let target = row.limit.map_or_else(|| "-".to_owned(), |limit| format!("{limit}{unit}"));
        let measured = number(row.measured);
        writeln!(out, "| {what} | {target} | {measured}{unit} | {} | {detail} |", row.verdict())?;
    }
    writeln!(out)
}

/// `one` as a multiple of `other`. A float represents byte counts of this size exactly.
#[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any machine has")]
pub(crate) fn multiple(one: u64, other: u64) -> f64 {
    one as f64 / other as f64
}

/// A count with a comma before each group of three digits.
pub(crate) fn grouped(count: u32) -> String {
    let digits = count.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

/// A figure with three significant digits.
fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 0.1 => format!("{v:.2}"),
        v => format!("{v:.5}"),
    }
}
