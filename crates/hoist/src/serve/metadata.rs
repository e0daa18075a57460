//! The settings of nodes' documents: `[metadata]`.

use std::collections::BTreeMap;
use std::ffi::OsString;

use hoist_model::GroupKey;
use hoist_model::metadata_layer::SECRET_VARIABLES;
use hoist_server::metadata::{MetadataSettings, Mode, ParseModeError};
use secrecy::SecretString;

use crate::settings::{SettingError, Settings};

pub(super) fn settings(settings: &Settings) -> Result<MetadataSettings, SettingError> {
    Ok(MetadataSettings {
        mode: mode(settings)?,
        groups: groups(settings)?,
        unknown: settings.parse("metadata.unknown")?,
        authorities: settings.authorities("metadata.ca")?,
        variables: BTreeMap::new(),
    })
}

/// Those that layers may name; as everywhere, an empty one counts as not set.
pub(super) fn variables(
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<String, SecretString> {
    let ours = |(name, value): (OsString, OsString)| {
        let name = name.into_string().ok().filter(|name| name.starts_with(SECRET_VARIABLES))?;
        let value = value.into_string().ok().filter(|value| !value.is_empty())?;
        Some((name, SecretString::from(value)))
    };
    environment.filter_map(ours).collect()
}

fn mode(settings: &Settings) -> Result<Mode, SettingError> {
    let word = settings.text("metadata.mode");
    let argument = settings.text("metadata.argument");
    let mode = Mode::parse(word, settings.given("metadata.url"), argument);
    mode.map_err(|error| settings.wrong("metadata.mode", error.to_string()))
}

/// Parses `PARTITION/GROUP=MODE URL`, separated by commas; modes without a URL have none.
fn groups(settings: &Settings) -> Result<Vec<(GroupKey, Mode)>, SettingError> {
    settings.list("metadata.groups").map(|text| group(settings, text)).collect()
}

fn group(settings: &Settings, text: &str) -> Result<(GroupKey, Mode), SettingError> {
    let wrong = |reason: String| settings.wrong("metadata.groups", reason);
    let form = || wrong(format!("`{text}` is not PARTITION/GROUP=MODE URL"));
    let (group, rest) = text.split_once('=').ok_or_else(form)?;
    let mut words = rest.split_whitespace();
    let (Some(mode), url, None) = (words.next(), words.next(), words.next()) else {
        return Err(form());
    };
    let group = group.trim().parse::<GroupKey>().map_err(|error| wrong(error.to_string()))?;
    let mode = Mode::parse(mode, url, settings.text("metadata.argument")).map_err(|error| {
        let remedy = match error {
            ParseModeError::NoUrl(_) => {
                "; write PARTITION/GROUP=MODE URL: groups do not use `metadata.url`"
            }
            _ => "",
        };
        wrong(format!("`{text}`: {error}{remedy}"))
    })?;
    Ok((group, mode))
}

#[cfg(test)]
mod tests {
    use hoist_server::metadata::Unknown;

    use super::*;

    fn with(values: &[(&'static str, &str)]) -> Settings {
        let mut settings = Settings::new();
        for (key, value) in values {
            settings.set_flag(key, "--flag", Some((*value).to_owned()));
        }
        settings
    }

    #[test]
    fn a_site_has_a_mode_and_its_groups_may_have_others() {
        let read = settings(&with(&[])).unwrap();
        assert_eq!((read.mode, read.groups.len()), (Mode::Builtin, 0));
        assert_eq!(read.unknown, Unknown::Hold);
        let groups = "p1/login=proxy http://ci:27777/cloud-init, gpu=none,x=builtin";
        let read = settings(&with(&[
            ("metadata.mode", "redirect"),
            ("metadata.url", "http://other/{name}"),
            ("metadata.groups", groups),
        ]));
        let read = read.unwrap();
        let proxy = Mode::parse("proxy", Some("http://ci:27777/cloud-init"), "").unwrap();
        let expected = [
            ("p1/login".parse().unwrap(), proxy),
            ("default/gpu".parse().unwrap(), Mode::None),
            ("default/x".parse().unwrap(), Mode::Builtin),
        ];
        assert_eq!(read.groups, expected);
        assert_eq!(read.mode.as_str(), "redirect");
    }

    #[test]
    fn secret_variables_are_read_and_never_printed() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let environment = [
            pair("PATH", "/bin"),
            pair("HOIST_SECRET_DB", "hunter2"),
            pair("HOIST_SECRET_EMPTY", ""),
            pair("HOIST_S3_SECRET_KEY", "x"),
        ];
        let read = variables(environment.into_iter());
        assert_eq!(read.keys().collect::<Vec<_>>(), ["HOIST_SECRET_DB"]);
        assert!(!format!("{read:?}").contains("hunter2"));
    }

    #[test]
    fn impossible_setting_is_reported_with_its_place() {
        for (values, expected) in [
            (&[("metadata.mode", "kettle")][..], "use builtin, external"),
            (&[("metadata.mode", "proxy")], "needs the URL"),
            (&[("metadata.url", "http://h")], "takes no URL"),
            (&[("metadata.unknown", "ignore")], "use hold, default or deny"),
            (&[("metadata.groups", "gpu")], "PARTITION/GROUP=MODE URL"),
            (&[("metadata.groups", "gpu=proxy http://h more")], "PARTITION/GROUP=MODE URL"),
            (&[("metadata.groups", "g p=none")], "g p"),
            (&[("metadata.groups", "gpu=redirect")], "needs the URL"),
            (
                &[
                    ("metadata.mode", "redirect"),
                    ("metadata.url", "http://h"),
                    ("metadata.groups", "default/red=redirect"),
                ],
                "write PARTITION/GROUP=MODE URL",
            ),
        ] {
            let error = settings(&with(values)).unwrap_err().to_string();
            assert!(error.contains(expected), "{values:?}: {error}");
        }
    }
}
