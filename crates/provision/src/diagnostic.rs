//! Problems of a document, or of a machine for a document: [`ProvisionDiagnostic`] adds a code, a
//! class and observations to a [`Diagnostic`].

use std::fmt;

use hoist_diagnostic::Diagnostic;
use serde::{Deserialize, Serialize};

/// One problem. Checks return all problems at once, so that a document is corrected once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvisionDiagnostic {
    pub code: Code,
    pub class: Class,
    /// Its place is a path in the document (`disks.os.match`), or line and column of a text.
    #[serde(flatten)]
    pub diagnostic: Diagnostic,
    /// Observations that led to the diagnostic.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
}

/// Most bytes of a place and of a message: both may quote the input.
const MAX_TEXT: usize = 2048;

fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let at = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(at);
        text.push('…');
    }
    text
}

/// The cause of a diagnostic, which decides who acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The document is wrong.
    Input,
    /// The machine is not as the document says.
    Facts,
    /// A safety rule forbids it. Never retried automatically.
    Refused,
    /// A retry may help.
    Transient,
    /// A device fails.
    Device,
    /// A plug-in violates its contract.
    Plugin,
    /// A defect of hoist.
    Bug,
}

impl Class {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Facts => "facts",
            Self::Refused => "refused",
            Self::Transient => "transient",
            Self::Device => "device",
            Self::Plugin => "plugin",
            Self::Bug => "bug",
        }
    }
}

macro_rules! codes {
    ($($(#[doc = $about:literal])+ $name:ident $text:literal $class:ident;)+) => {
        /// Kinds of diagnostics, one for each remedy.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[doc = $about])+ #[serde(rename = $text)] $name,)+
        }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$name),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            pub fn class(self) -> Class {
                match self { $(Self::$name => Class::$class,)+ }
            }
        }
    };
}

codes! {
    /// The text cannot be read: no YAML or JSON, an unknown field, a value of another type.
    Unreadable "unreadable" Input;
    /// A limit of the format is exceeded.
    TooLarge "too-large" Input;
    /// A value is invalid.
    BadValue "bad-value" Input;
    /// A required value is missing.
    Missing "missing" Input;
    /// Two entries have one name, or claim one place.
    Twice "twice" Input;
    /// A reference to an entry that does not exist, or that cannot be used there.
    NoSuchThing "no-such-thing" Input;
    /// Two parts of the document exclude each other.
    Contradiction "contradiction" Input;
    /// The request is valid, and not supported.
    Unsupported "unsupported" Input;
    /// A match that does not identify a disk.
    WeakMatch "weak-match" Refused;
    /// No disk matches.
    NoDisk "no-disk" Facts;
    /// Several disks match.
    SeveralDisks "several-disks" Refused;
    /// The disk is of a kind that is never written to (S3).
    NeverTarget "never-target" Refused;
    /// The disk is one of several paths to the same storage.
    MultipathLeg "multipath-leg" Refused;
    /// The available room is less than the requested size.
    NoRoom "no-room" Facts;
    /// A retained entry does not exist, or is not as described.
    NotAsRetained "not-as-retained" Facts;
    /// Foreign data is on the disk (S4).
    ForeignData "foreign-data" Refused;
    /// The disk is in use (S5).
    Busy "busy" Refused;
    /// A stack has legs on disks that the document does not name (S6).
    SharedStack "shared-stack" Refused;
    /// An image does not fit (S8).
    ImageTooLarge "image-too-large" Refused;
    /// The firmware would not boot it (S9).
    Firmware "firmware" Refused;
    /// A name, label or UUID would be on the machine twice (S13).
    Duplicate "duplicate" Refused;
    /// The system would move to another disk (S14).
    RootMoved "root-moved" Refused;
    /// The former contents cannot be restored.
    CannotUndo "cannot-undo" Refused;
    /// A required program is not installed.
    MissingTool "missing-tool" Facts;
    /// No source offers the content.
    Unreachable "unreachable" Transient;
    /// Fetched content has another digest or size than the document declares.
    WrongContent "wrong-content" Input;
    /// Fetched content is truncated, or cannot be unpacked.
    Damaged "damaged" Input;
    /// A step of a plug-in failed.
    PluginFailed "plugin-failed" Plugin;
    /// The contributions of actions contradict each other.
    Contribution "contribution" Input;
}

impl ProvisionDiagnostic {
    pub fn new(code: Code, at: impl Into<String>, message: impl Into<String>) -> Self {
        Self::of(code, Diagnostic::new(at, message))
    }

    pub fn of(code: Code, diagnostic: Diagnostic) -> Self {
        let Diagnostic { at, message, hint } = diagnostic;
        let diagnostic = Diagnostic { at: cut(at), message: cut(message), hint };
        Self { code, class: code.class(), diagnostic, evidence: Vec::new() }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.diagnostic.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn evidence(mut self, seen: impl IntoIterator<Item = String>) -> Self {
        self.evidence.extend(seen);
        self
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for ProvisionDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic { at, message, hint } = &self.diagnostic;
        if !at.is_empty() {
            write!(f, "{at}: ")?;
        }
        write!(f, "{message} [{}]", self.code)?;
        if !self.evidence.is_empty() {
            write!(f, " ({})", self.evidence.join("; "))?;
        }
        if let Some(hint) = hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diagnostic_has_code_class_place_and_hint() {
        let found = ProvisionDiagnostic::new(Code::Busy, "disks.os", "disk `sda` is in use")
            .evidence(["`sda1` is mounted at `/srv`".to_owned()])
            .hint("unmount it");
        assert_eq!(
            found.to_string(),
            "disks.os: disk `sda` is in use [busy] (`sda1` is mounted at `/srv`); unmount it"
        );
        let written = serde_json::to_value(&found).expect("plain values");
        assert_eq!(written["class"], "refused");
        assert_eq!(written["at"], "disks.os");
        assert_eq!(written["code"], "busy");
    }

    #[test]
    fn quoted_input_is_truncated() {
        for long in ["x".repeat(1 << 20), format!("x{}", "ß".repeat(MAX_TEXT))] {
            let found = ProvisionDiagnostic::new(Code::BadValue, long.clone(), long);
            let Diagnostic { at, message, .. } = found.diagnostic;
            assert!(at.len() <= MAX_TEXT + 3 && message.ends_with('…'));
        }
    }

    #[test]
    fn codes_have_distinct_names() {
        let mut words: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Code::ALL.len());
    }

    #[test]
    fn safety_page_has_every_code_with_its_class() {
        let page = include_str!("../../../docs/provision/safety.md");
        let codes = page.split_once("## Codes").expect("it has them").1;
        for code in Code::ALL {
            let class = serde_json::to_value(code.class()).expect("a word");
            let class = class.as_str().expect("a word");
            let is_row = |line: &&str| line.contains(&format!("`{code}`"));
            let row = codes.lines().find(is_row).unwrap_or_else(|| panic!("`{code}` is not there"));
            assert!(row.contains(&format!("| {class} |")), "{row}");
        }
    }
}
