//! An artifact: a kernel, initrd, image or other file that hoist serves, known by its content.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use hoist_diagnostic::Diagnostic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ArtifactName;
use crate::image::UnpackedContent;
use crate::node::Arch;
use crate::text::as_text;

/// The SHA-256 of a file's content: identifies the content wherever it is stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a SHA-256 digest; write 64 hex digits")]
pub struct ParseDigestError(String);

/// A name for some content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactSpec {
    /// The content it stands for.
    pub sha256: Digest,
    /// In bytes.
    pub size: u64,
    /// What machines it is for; `unknown` when that does not matter.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub arch: Arch,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Of an archive of plug-ins: its actions and the sections that they read, as profiles name
    /// them; `*` if the archive was not examined. Of an agent image: `tool:NAME` for each program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub provides: Vec<String>,
    /// Of a packed disk image: the image in it. Jobs whose images name the artifact get this size
    /// and digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpacked: Option<UnpackedContent>,
}

/// An artifact as the site keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Artifact {
    pub name: ArtifactName,
    pub spec: ArtifactSpec,
    pub revision: u64,
}

/// Largest content: 64 GiB. Images of whole machines are a tenth of that.
pub const MAX_ARTIFACT_BYTES: u64 = 64 << 30;

/// Longest description.
const MAX_DESCRIPTION: usize = 1024;

/// Actions and sections of one archive, and the longest name of one.
const MAX_PROVIDES: usize = 128;
const MAX_PROVIDED: usize = 256;

/// The beginning of a program's name in `provides`.
pub const TOOL: &str = "tool:";

impl ArtifactSpec {
    pub fn check(&self) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::new();
        if self.size > MAX_ARTIFACT_BYTES {
            let message = format!("more than {MAX_ARTIFACT_BYTES} bytes");
            let hint = "serve larger files elsewhere, and name them by URL";
            diagnostics.push(Diagnostic::new("size", message).hint(hint));
        }
        if self.description.len() > MAX_DESCRIPTION {
            let message = format!("longer than {MAX_DESCRIPTION} bytes");
            diagnostics.push(Diagnostic::new("description", message));
        }
        if self.unpacked.as_ref().is_some_and(|unpacked| unpacked.size == 0) {
            diagnostics.push(Diagnostic::new("unpacked.size", "no image is empty"));
        }
        let is_long = |name: &String| name.is_empty() || name.len() > MAX_PROVIDED;
        if self.provides.len() > MAX_PROVIDES || self.provides.iter().any(is_long) {
            let message =
                format!("these are at most {MAX_PROVIDES} names of 1 to {MAX_PROVIDED} bytes");
            diagnostics.push(Diagnostic::new("provides", message));
        }
        diagnostics
    }

    /// Whether a program is in an agent image. `None` if the programs of the image are not known.
    pub fn has_tool(&self, name: &str) -> Option<bool> {
        let mut tools = self.provides.iter().filter_map(|it| it.strip_prefix(TOOL)).peekable();
        tools.peek()?;
        Some(tools.any(|tool| tool == name))
    }

    /// Whether an action or a section of this name is in it.
    pub fn has(&self, name: &str) -> bool {
        self.provides.iter().any(|provided| provided == name || provided == "*")
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_unknown(arch: &Arch) -> bool {
    *arch == Arch::Unknown
}

impl Digest {
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseDigestError(text.chars().take(80).collect());
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(64);
        for byte in self.0 {
            write!(text, "{byte:02x}")?;
        }
        f.pad(&text)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

as_text!(Digest, "Digest", "a SHA-256 digest, 64 hex digits", Some("^(sha256:)?[0-9a-fA-F]{64}$"));

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn artifacts_have_their_limits() {
        let diagnostics = |size: u64, description: usize| {
            let sha256 = Digest::from_bytes([0; 32]);
            let description = "x".repeat(description);
            let provides = Vec::new();
            let arch = Arch::Unknown;
            let unpacked = None;
            ArtifactSpec { sha256, size, arch, description, provides, unpacked }.check().len()
        };
        assert_eq!(diagnostics(MAX_ARTIFACT_BYTES, MAX_DESCRIPTION), 0);
        assert_eq!(diagnostics(MAX_ARTIFACT_BYTES + 1, MAX_DESCRIPTION + 1), 2);
    }

    proptest! {
        #[test]
        fn digests_print_as_they_parse(bytes in any::<[u8; 32]>(), text in ".{0,80}") {
            let digest = Digest::from_bytes(bytes);
            prop_assert_eq!(digest.to_string().parse(), Ok(digest));
            prop_assert_eq!(format!("sha256:{digest:X>64}").parse(), Ok(digest));
            let _ = text.parse::<Digest>();
        }
    }
}
