//! What is wrong with a document or with a machine for it, in words a person can act on.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One finding. Checks return all of them, so that a person mends a document once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Diagnostic {
    pub code: Code,
    pub class: Class,
    /// Path in the document (`disks.os.match`), or line and column of a text.
    #[serde(rename = "where")]
    pub place: String,
    pub what: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What was seen that led to this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
}

/// Most bytes of a place, and of what is said: either may repeat what somebody wrote.
const MAX_TEXT: usize = 2048;

fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let at = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(at);
        text.push('…');
    }
    text
}

/// Who has to do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Whoever wrote the document.
    Input,
    /// The machine is not as the document says.
    Facts,
    /// It could be done, and a rule says no. Never tried again by itself.
    Refused,
    /// Trying again may help.
    Transient,
    /// A device fails.
    Device,
    /// A program of somebody else does not keep to what was agreed.
    Plugin,
    /// Hoist itself is wrong.
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
        /// Kinds of findings, one for each thing that a person does about it.
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
    /// It cannot be read: no YAML or JSON, an unknown field, a value of another type.
    Unreadable "unreadable" Input;
    /// A limit of the format.
    TooLarge "too-large" Input;
    /// A value that says nothing.
    BadValue "bad-value" Input;
    /// Something is left out that is needed.
    Missing "missing" Input;
    /// Two things have one name, or claim one place.
    Twice "twice" Input;
    /// It names something that is not there, or that cannot be used so.
    NoSuchThing "no-such-thing" Input;
    /// Two parts of the document exclude each other.
    Contradiction "contradiction" Input;
    /// A way of doing it that is not supported.
    Unsupported "unsupported" Input;
    /// A match that does not identify a disk.
    WeakMatch "weak-match" Refused;
    /// No disk is the one that is described.
    NoDisk "no-disk" Facts;
    /// Several disks are.
    SeveralDisks "several-disks" Refused;
    /// The disk is of a kind that is never written to (S3).
    NeverTarget "never-target" Refused;
    /// The disk is one of several paths to the same storage.
    MultipathLeg "multipath-leg" Refused;
    /// There is less room than was asked for.
    NoRoom "no-room" Facts;
    /// What shall be kept is not there, or not as described.
    NotAsRetained "not-as-retained" Facts;
    /// Something of somebody else is on the disk (S4).
    ForeignData "foreign-data" Refused;
    /// The disk is in use (S5).
    Busy "busy" Refused;
    /// A stack has legs on disks that are none of ours (S6).
    SharedStack "shared-stack" Refused;
    /// An image does not fit (S8).
    ImageTooLarge "image-too-large" Refused;
    /// The firmware would not boot it (S9).
    Firmware "firmware" Refused;
    /// A name, label or UUID would be on the machine twice (S13).
    Duplicate "duplicate" Refused;
    /// The system would move to another disk (S14).
    RootMoved "root-moved" Refused;
    /// What was there cannot be put back.
    CannotUndo "cannot-undo" Refused;
    /// A program that has to be called is not there.
    MissingTool "missing-tool" Facts;
    /// Nobody has what is to be fetched.
    Unreachable "unreachable" Transient;
    /// What was fetched is not what the document says: its digest or its size is another.
    WrongContent "wrong-content" Input;
    /// What was fetched is cut off, or cannot be unpacked.
    Damaged "damaged" Input;
    /// A program of somebody else did not do its step.
    PluginFailed "plugin-failed" Plugin;
    /// What actions need of each other does not fit together.
    Contribution "contribution" Input;
}

impl Diagnostic {
    pub fn new(code: Code, place: impl Into<String>, what: impl Into<String>) -> Self {
        let (class, place, what) = (code.class(), cut(place.into()), cut(what.into()));
        Self { code, class, place, what, hint: None, evidence: Vec::new() }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
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

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        write!(f, "{} [{}]", self.what, self.code)?;
        if !self.evidence.is_empty() {
            write!(f, " ({})", self.evidence.join("; "))?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_written_with_its_code_class_place_and_hint() {
        let found = Diagnostic::new(Code::Busy, "disks.os", "disk `sda` is in use")
            .evidence(["`sda1` is mounted at `/srv`".to_owned()])
            .hint("unmount it");
        assert_eq!(
            found.to_string(),
            "disks.os: disk `sda` is in use [busy] (`sda1` is mounted at `/srv`); unmount it"
        );
        let written = serde_json::to_value(&found).expect("plain values");
        assert_eq!(written["class"], "refused");
        assert_eq!(written["where"], "disks.os");
        assert_eq!(written["code"], "busy");
    }

    #[test]
    fn what_somebody_wrote_is_not_repeated_without_end() {
        for long in ["x".repeat(1 << 20), format!("x{}", "ß".repeat(MAX_TEXT))] {
            let found = Diagnostic::new(Code::BadValue, long.clone(), long);
            assert!(found.place.len() <= MAX_TEXT + 3 && found.what.ends_with('…'));
        }
    }

    #[test]
    fn no_two_codes_are_one_word() {
        let mut words: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Code::ALL.len());
    }

    #[test]
    fn the_page_has_every_code_beside_its_class() {
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
