//! The names people give to things.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use compact_str::CompactString;

use crate::text::as_text;

/// Longest name of any kind, that of a DNS label.
const MAX_NAME: usize = 63;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {what}; {rule}")]
pub struct ParseNameError {
    text: String,
    what: &'static str,
    rule: &'static str,
}

/// A checked name, kept inside the value up to 24 bytes, so that a node's many short names cost
/// no allocation each.
macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $rule:literal, $pattern:literal, $check:expr, $fold:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(CompactString);

        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = ParseNameError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let fold: fn(&str) -> CompactString = $fold;
                let check: fn(&str) -> bool = $check;
                let name = fold(text);
                if !name.is_empty() && name.len() <= MAX_NAME && check(&name) {
                    Ok(Self(name))
                } else {
                    Err(ParseNameError { text: text.to_owned(), what: $what, rule: $rule })
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self.0.as_str(), f)
            }
        }

        impl Deref for $type {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $type {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }

        as_text!($type, stringify!($type), $rule, Some($pattern));
    };
}

name!(
    /// A DNS label: the name of a node, a partition, a network or an interface's network.
    Name,
    "name",
    "use 1 to 63 letters, digits and dashes, with a letter or digit at both ends",
    "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
    |name| {
        name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !name.starts_with('-')
            && !name.ends_with('-')
    },
    |text| CompactString::from(text).to_ascii_lowercase()
);

name!(
    /// The name of a group inside its partition. Wider than a DNS label, because SMD's labels are.
    GroupName,
    "group name",
    "use 1 to 63 letters, digits and `-` `:` `.` `_`, starting with a letter or digit",
    "^[a-z0-9][-a-z0-9:._]{0,62}$",
    |name| {
        name.bytes().all(|b| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b':' | b'.' | b'_')
        }) && name.starts_with(|c: char| c.is_ascii_alphanumeric())
    },
    |text| CompactString::from(text).to_ascii_lowercase()
);

name!(
    /// The purpose of a node. Any word; written as given, compared without case.
    Role,
    "role",
    "use 1 to 63 letters, digits and `-` `.` `_`, starting with a letter or digit",
    "^[A-Za-z0-9][-A-Za-z0-9._]{0,62}$",
    |name| {
        name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
    },
    |text| CompactString::from(text)
);

name!(
    /// The key of a label.
    LabelKey,
    "label key",
    "use 1 to 63 letters, digits and `-` `.` `_` `/`, starting with a letter or digit",
    "^[A-Za-z0-9][-A-Za-z0-9._/]{0,62}$",
    |name| {
        name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'/'))
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
    },
    |text| CompactString::from(text)
);

name!(
    /// The name of an artifact: a file name, so that kernels keep theirs.
    ArtifactName,
    "artifact name",
    "use 1 to 63 letters, digits and `-` `.` `_` `+`, starting with a letter or digit",
    "^[A-Za-z0-9][-A-Za-z0-9._+]{0,62}$",
    |name| {
        name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'+'))
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
    },
    |text| CompactString::from(text)
);

impl Name {
    /// The partition of a node that names none.
    pub fn default_partition() -> Self {
        Self(CompactString::const_new("default"))
    }
}

impl Role {
    pub fn is(&self, word: &str) -> bool {
        self.0.eq_ignore_ascii_case(word)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_fold_case_and_refuse_the_rest() {
        assert_eq!("Login-1".parse::<Name>().unwrap().as_str(), "login-1");
        let long = "a".repeat(64);
        for text in ["", "-a", "a-", "a_b", "a.b", "ä", "a b", "a/b", &long] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
        assert!("a".repeat(63).parse::<Name>().is_ok());
        assert!("rack:1.a_b".parse::<GroupName>().is_ok());
        assert!(":a".parse::<GroupName>().is_err());
        assert!("Compute".parse::<Role>().unwrap().is("compute"));
    }

    proptest! {
        #[test]
        fn parsed_name_prints_as_its_own_parse(text in ".{0,70}") {
            if let Ok(name) = text.parse::<Name>() {
                prop_assert_eq!(name.to_string().parse(), Ok(name));
            }
            if let Ok(name) = text.parse::<GroupName>() {
                prop_assert_eq!(name.to_string().parse(), Ok(name));
            }
            let _ = (text.parse::<Role>(), text.parse::<LabelKey>());
        }
    }
}
