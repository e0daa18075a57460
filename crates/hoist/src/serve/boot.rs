//! The settings of booting: `[boot]`, `[bss]`, `[s3]` and `advertise`.

use hoist_chassis::auth::BssAuth;
use hoist_server::boot::{BootSettings, Helpers, S3, ScriptSettings};
use http::Uri;
use secrecy::{ExposeSecret, SecretString};

use crate::settings::{SettingError, Settings};

/// A key is a line, not a file of any size.
const MAX_KEY_BYTES: u64 = 4096;

pub(super) fn settings(settings: &Settings) -> Result<BootSettings, SettingError> {
    Ok(BootSettings {
        scripts: ScriptSettings {
            advertise: advertised(settings)?,
            chain_base: url(settings, "boot.chain_base")?,
            ds_address: ds_address(settings)?,
            portable_ds: settings.parse("bss.portable_ds")?,
            agent_server: agent_server(settings)?,
            retry_delay: settings.duration("boot.retry_delay")?,
            ask_delay: settings.duration("boot.ask_delay")?,
            max_ask_delay: settings.duration("boot.max_ask_delay")?,
            s3: s3(settings)?,
        },
        keep_kernel: settings.parse("bss.keep_kernel")?,
        dialect: settings.parse("bss.dialect")?,
        helpers: Helpers {
            spire: url(settings, "boot.spire_url")?,
            notify: notify_url(settings)?,
            authorities: settings.authorities("boot.ca")?,
        },
    })
}

/// Who may use boot parameters.
pub(super) fn auth(settings: &Settings) -> Result<BssAuth, SettingError> {
    let auth = settings.parse("bss.auth")?;
    if auth == BssAuth::Jwks && settings.given("auth.jwks").is_none() {
        let reason = "no keys for checking tokens; set `auth.jwks`";
        return Err(settings.wrong("bss.auth", reason.to_owned()));
    }
    Ok(auth)
}

/// Agents show tokens there, so it is never plain HTTP.
fn agent_server(settings: &Settings) -> Result<Option<String>, SettingError> {
    const KEY: &str = "boot.agent_server";
    let Some(text) = settings.given(KEY) else { return Ok(None) };
    let url = read_url(text).filter(|(base, path)| base.starts_with("https://") && path.is_empty());
    let reason = "write it as https://HOST:PORT, without a path";
    url.map(|(base, _)| Some(base)).ok_or_else(|| settings.wrong(KEY, reason.to_owned()))
}

/// Every advertised URL, without a slash at the end.
pub(super) fn advertised(settings: &Settings) -> Result<Vec<String>, SettingError> {
    let one = |text| {
        let url = read_url(text).filter(|(_, path)| path.is_empty()).map(|(base, _)| base);
        let reason = "write each as http://HOST:PORT or https://HOST:PORT, without a path";
        url.ok_or_else(|| settings.wrong("advertise", reason.to_owned()))
    };
    settings.list("advertise").map(one).collect()
}

fn url(settings: &Settings, key: &'static str) -> Result<Option<String>, SettingError> {
    let Some(text) = settings.given(key) else { return Ok(None) };
    let reason = "write it as http://HOST:PORT/PATH or https://HOST:PORT/PATH";
    let (base, path) = read_url(text).ok_or_else(|| settings.wrong(key, reason.to_owned()))?;
    Ok(Some(format!("{base}{path}")))
}

/// Kept as written: the path is an agreement between the operator and that service.
fn notify_url(settings: &Settings) -> Result<Option<String>, SettingError> {
    let Some(text) = settings.given("boot.notify_url") else { return Ok(None) };
    let (base, _) = text.split_once('?').unwrap_or((text, ""));
    let reason = "write it as http://HOST:PORT/PATH or https://HOST:PORT/PATH";
    let good = read_url(base).is_some() && text.parse::<Uri>().is_ok();
    let wrong = || settings.wrong("boot.notify_url", reason.to_owned());
    good.then(|| Some(text.to_owned())).ok_or_else(wrong)
}

/// Scheme and host, and the path without a slash at its end.
fn read_url(text: &str) -> Option<(String, String)> {
    let uri: Uri = text.parse().ok()?;
    let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"))?;
    let authority = uri.authority()?.as_str();
    let plain = !authority.contains('@') && uri.host().is_some_and(|host| !host.is_empty());
    let bare = uri.query().is_none() && !text.contains('#');
    (plain && bare)
        .then(|| (format!("{scheme}://{authority}"), uri.path().trim_end_matches('/').to_owned()))
}

/// As BSS, whatever it is, but it must stay one word of the command line.
fn ds_address(settings: &Settings) -> Result<Option<String>, SettingError> {
    let Some(text) = settings.given("boot.ds_address") else { return Ok(None) };
    if !text.chars().all(|c| c.is_ascii_graphic()) {
        let reason = "not a URL that fits into a kernel argument";
        return Err(settings.wrong("boot.ds_address", reason.to_owned()));
    }
    Ok(Some(text.trim_end_matches('/').to_owned()))
}

fn s3(settings: &Settings) -> Result<Option<S3>, SettingError> {
    let Some(endpoint) = s3_endpoint(settings)? else { return Ok(None) };
    let access = key(settings, "s3.access_key_file", ["HOIST_S3_ACCESS_KEY", "S3_ACCESS_KEY"])?;
    let secret = key(settings, "s3.secret_key_file", ["HOIST_S3_SECRET_KEY", "S3_SECRET_KEY"])?;
    Ok(Some(S3 {
        endpoint,
        region: settings.text("s3.region").to_owned(),
        access_key: access.expose_secret().to_owned(),
        secret_key: secret.expose_secret().to_owned(),
        bucket: settings.text("s3.bucket").to_owned(),
    }))
}

/// Buckets are the first part of the path, so there is none before; and the host is signed as
/// clients write it, without the port that goes without saying.
fn s3_endpoint(settings: &Settings) -> Result<Option<String>, SettingError> {
    let Some(text) = settings.given("s3.endpoint") else { return Ok(None) };
    let base = read_url(text).filter(|(_, path)| path.is_empty()).map(|(base, _)| base);
    let reason = "write it as http://HOST:PORT or https://HOST:PORT, without a path";
    let base = base.ok_or_else(|| settings.wrong("s3.endpoint", reason.to_owned()))?;
    let usual = if base.starts_with("https:") { ":443" } else { ":80" };
    Ok(Some(base.strip_suffix(usual).unwrap_or(&base).to_owned()))
}

/// From its file, else from the first variable that has it. Never from the command line or the
/// configuration, where others could read it.
fn key(
    settings: &Settings,
    file: &'static str,
    variables: [&str; 2],
) -> Result<SecretString, SettingError> {
    let Some(path) = settings.given(file) else {
        let given = variables.iter().find_map(|name| std::env::var(name).ok());
        let given = given.filter(|key| !key.is_empty()).map(SecretString::from);
        let reason = format!("`s3.endpoint` is set, so it must be, or {}", variables[0]);
        return given.ok_or_else(|| settings.wrong(file, reason));
    };
    let large = fs_err::metadata(path).is_ok_and(|file| file.len() > MAX_KEY_BYTES);
    let text = if large { Ok(String::new()) } else { fs_err::read_to_string(path) };
    let text = text.map_err(|error| settings.wrong(file, error.to_string()))?;
    match text.trim() {
        "" => Err(settings.wrong(file, "a key is one line of text".to_owned())),
        key => Ok(key.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(key: &'static str, value: &str) -> Settings {
        let mut settings = Settings::new();
        settings.set_flag(key, "--flag", Some(value.to_owned()));
        settings
    }

    #[test]
    fn advertised_urls_are_a_scheme_and_a_host() {
        let read = |text| advertised(&with("advertise", text));
        let both = read("http://10.1.0.2:27778, https://[fd00::1]:27443/").unwrap();
        assert_eq!(both, ["http://10.1.0.2:27778", "https://[fd00::1]:27443"]);
        for wrong in
            ["10.1.0.2", "ftp://h", "http://", "http://h/path", "http://u:p@h", "http://h?q", "h:1"]
        {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains("without a path"), "{wrong}: {error}");
        }
    }

    #[test]
    fn script_values_stay_one_word() {
        assert!(ds_address(&with("boot.ds_address", "http://a\nchain b")).is_err());
        let address = ds_address(&with("boot.ds_address", "http://10.1.0.2/")).unwrap();
        assert_eq!(address.as_deref(), Some("http://10.1.0.2"));
        for wrong in ["http://h", "https://h/x", "h"] {
            assert!(agent_server(&with("boot.agent_server", wrong)).is_err(), "{wrong}");
        }
        let server = agent_server(&with("boot.agent_server", "https://h:9")).unwrap();
        assert_eq!(server.as_deref(), Some("https://h:9"));
        assert!(url(&with("boot.chain_base", "http://h /x"), "boot.chain_base").is_err());
    }

    #[test]
    fn notice_target_is_kept_as_written() {
        let notify = |text| notify_url(&with("boot.notify_url", text));
        let text = "http://tpm:8080/notify/?from=boot";
        assert_eq!(notify(text).unwrap().as_deref(), Some(text));
        for wrong in ["tpm/notify", "http://u:p@tpm/", "http:///x", "http://tpm/a b"] {
            assert!(notify(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_are_wanted_with_the_endpoint_and_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let access = dir.path().join("a");
        let secret = dir.path().join("s");
        fs_err::write(&access, "AKIA\n").unwrap();
        fs_err::write(&secret, "hunter2\n").unwrap();
        let mut settings = with("s3.endpoint", "http://rgw:8080");
        let path = |path: &std::path::Path| Some(path.display().to_string());
        settings.set_flag("s3.access_key_file", "--flag", path(&access));
        settings.set_flag("s3.secret_key_file", "--flag", path(&secret));
        let read = s3(&settings).unwrap().unwrap();
        assert_eq!((read.access_key.as_str(), read.secret_key.as_str()), ("AKIA", "hunter2"));
        assert!(!settings.print().contains("hunter2") && !format!("{read:?}").contains("hunter2"));
        fs_err::write(&secret, "x".repeat(5000)).unwrap();
        assert!(s3(&settings).unwrap_err().to_string().contains("one line"));
    }

    #[test]
    fn the_endpoint_of_s3_is_what_clients_say_to_it() {
        let read = |text| s3_endpoint(&with("s3.endpoint", text)).map(Option::unwrap_or_default);
        for (given, expected) in [
            ("http://rgw:8080/", "http://rgw:8080"),
            ("https://rgw:443", "https://rgw"),
            ("http://rgw:80/", "http://rgw"),
            ("http://rgw:443", "http://rgw:443"),
            ("https://[fd00::443]:443", "https://[fd00::443]"),
            ("https://[fd00::443]", "https://[fd00::443]"),
        ] {
            assert_eq!(read(given).unwrap(), expected, "{given}");
        }
        for wrong in ["http://rgw/s3", "http://rgw/s3/", "rgw:8080", "s3://rgw", "http://u:p@rgw"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains("without a path"), "{wrong}: {error}");
        }
    }

    #[test]
    fn keys_of_others_are_checked_only_with_keys() {
        let error = super::auth(&with("bss.auth", "jwks")).unwrap_err().to_string();
        assert!(error.contains("set `auth.jwks`"), "{error}");
        let error = super::auth(&with("bss.auth", "maybe")).unwrap_err().to_string();
        assert!(error.contains("`token`, `jwks` or `open`"), "{error}");
    }
}
