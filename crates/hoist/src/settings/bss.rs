//! The environment of the Boot Script Service, so that its container can be replaced by hoist's.
//!
//! Its names stand beneath everything of hoist's own: file, variables and flags win over them.

use std::collections::BTreeMap;

use super::{Origin, Settings};

/// Taken over as they are.
const SAME: [(&str, &str); 5] = [
    ("BSS_HTTP_LISTEN", "listen"),
    ("BSS_ADVERTISE_ADDRESS", "boot.ds_address"),
    ("BSS_BOOTSCRIPT_NOTIFY_URL", "boot.notify_url"),
    ("BSS_JWKS_URL", "auth.jwks"),
    ("SPIRE_TOKEN_URL", "boot.spire_url"),
];

/// Numbers of seconds.
const SECONDS: [(&str, &str); 2] =
    [("BSS_RETRY_DELAY", "boot.retry_delay"), ("BSS_HSM_RETRIEVAL_DELAY", "boot.ask_delay")];

const CHAIN_BASE: &str = "boot.chain_base";

/// The parts of the URL where machines ask again, with BSS's defaults.
const CHAIN: [(&str, &str); 3] = [
    ("BSS_CHAIN_PROTO", "https"),
    ("BSS_IPXE_SERVER", "api-gw-service-nmn.local"),
    ("BSS_GW_URI", "/apis/bss"),
];

/// Useless without each other: a lone `S3_ENDPOINT` may be meant for another program.
const S3: [(&str, &str); 3] =
    [("S3_ENDPOINT", "s3.endpoint"), ("S3_REGION", "s3.region"), ("S3_BUCKET", "s3.bucket")];
const S3_KEYS: [&str; 2] = ["S3_ACCESS_KEY", "S3_SECRET_KEY"];

const OTHER_DATABASE: &str = "hoist does not open BSS's database; \
    copy its boot parameters with `hoist boot import-bss`, and say `store` for hoist's own";

/// Prefixes of variables of BSS that hoist does not use, and the remedy.
const LEFT: [(&str, &str); 9] = [
    ("BSS_OAUTH2_", "give the token for SMD with `import.token_file`"),
    ("BSS_USESQL", OTHER_DATABASE),
    ("BSS_DB", OTHER_DATABASE),
    ("ETCD_HOST", OTHER_DATABASE),
    ("ETCD_PORT", OTHER_DATABASE),
    ("ETCD_RETRY_", OTHER_DATABASE),
    ("DATASTORE_BASE", OTHER_DATABASE),
    ("NFD_URL", "not needed: hoist reads its source by itself, and `/boot/v1/scn` works without"),
    ("BSS_", "hoist has no counterpart"),
];

const EMPTY: &str = "it is empty";
const INCOMPLETE_S3: &str = "needs S3_ENDPOINT, S3_ACCESS_KEY and S3_SECRET_KEY together";
const NO_CHAIN_SERVER: &str = "BSS_IPXE_SERVER is empty, so the host of the request is used";

/// The used and ignored variables of BSS, logged once logging is set up.
#[derive(Debug, Default)]
pub(crate) struct Takeover {
    /// Variables without effect, and the reason.
    left: Vec<(String, &'static str)>,
    /// Variables with effect, unless hoist's own settings win, and their settings.
    taken: Vec<(&'static str, &'static str)>,
}

impl Settings {
    /// Takes what BSS's environment says. Called before anything else is read.
    pub(crate) fn read_bss(&mut self, environment: &BTreeMap<String, String>) -> Takeover {
        let given = |name: &str| environment.get(name).filter(|value| !value.is_empty());
        let mut left = left(environment);
        let read = SAME.iter().chain(&SECONDS).map(|(name, _)| *name).chain(["HSM_URL"]);
        let empty = read.filter(|name| environment.get(*name).is_some_and(String::is_empty));
        left.extend(empty.map(|name| (name.to_owned(), EMPTY)));
        for (name, key) in SAME {
            if let Some(value) = given(name) {
                self.take_over(key, name, value.clone());
            }
        }
        for (name, key) in SECONDS {
            if let Some(value) = given(name) {
                self.take_over(key, name, format!("{value}s"));
            }
        }
        if let Some(url) = given("HSM_URL") {
            let http = url.starts_with("http://") || url.starts_with("https://");
            let location = if http { format!("smd+{url}") } else { url.clone() };
            self.take_over("inventory", "HSM_URL", location);
        }
        if !self.take_chain(environment) {
            left.extend(present(environment, &["BSS_CHAIN_PROTO", "BSS_GW_URI"], NO_CHAIN_SERVER));
        }
        if S3_KEYS.iter().all(|name| given(name).is_some()) && given("S3_ENDPOINT").is_some() {
            for (name, key) in S3 {
                match given(name) {
                    Some(value) => self.take_over(key, name, value.clone()),
                    None => left.extend(present(environment, &[name], EMPTY)),
                }
            }
        } else {
            let names: Vec<&str> = S3.iter().map(|(name, _)| *name).chain(S3_KEYS).collect();
            left.extend(present(environment, &names, INCOMPLETE_S3));
        }
        self.take_auth(environment);
        let origins = self.0.iter().map(|(key, (_, origin))| (*key, origin));
        let taken = origins.filter_map(|(key, origin)| match origin {
            Origin::Bss(name) if environment.contains_key(*name) => Some((*name, key)),
            _ => None,
        });
        let mut taken: Vec<_> = taken.filter(|(_, key)| *key != CHAIN_BASE).collect();
        if matches!(self.0.get(CHAIN_BASE), Some((_, Origin::Bss(_)))) {
            let parts = CHAIN.iter().filter(|(name, _)| environment.contains_key(*name));
            taken.extend(parts.map(|(name, _)| (*name, CHAIN_BASE)));
        }
        taken.sort_unstable();
        left.sort();
        Takeover { left, taken }
    }

    /// BSS has defaults for each part; an empty server means the one that the machine asked.
    /// Returns whether the parts of the URL have an effect.
    fn take_chain(&mut self, environment: &BTreeMap<String, String>) -> bool {
        let Some((named, _)) = CHAIN.iter().find(|(name, _)| environment.contains_key(*name))
        else {
            return true;
        };
        let [proto, server, prefix] =
            CHAIN.map(|(name, default)| environment.get(name).map_or(default, String::as_str));
        if !server.is_empty() {
            self.take_over(CHAIN_BASE, named, format!("{proto}://{server}{prefix}"));
        }
        !server.is_empty()
    }

    /// As BSS did: check tokens if it was given keys, else allow every client. Only variables
    /// specific to BSS show that it ran here: Kubernetes sets `BSS_PORT` and others in every pod
    /// beside a service called `bss`.
    fn take_auth(&mut self, environment: &BTreeMap<String, String>) {
        let keys = environment.get("BSS_JWKS_URL").filter(|url| !url.is_empty());
        if keys.is_some() {
            self.take_over("bss.auth", "BSS_JWKS_URL", "jwks".to_owned());
        } else if environment.keys().any(|name| name.starts_with("BSS_") && is_taken(name)) {
            self.take_over("bss.auth", "environment, which has no BSS_JWKS_URL", "open".to_owned());
        }
    }

    fn take_over(&mut self, key: &'static str, name: &'static str, value: String) {
        self.0.insert(key, (value, Origin::Bss(name)));
    }

    /// Called when everything is read. Who was given keys of hoist's own has decided about access,
    /// so BSS's habit does not count any more.
    pub(crate) fn settle_bss(&mut self) {
        let origin = |key| self.0.get(key).map(|(_, origin)| origin);
        let habit = matches!(origin("bss.auth"), Some(Origin::Bss(_)));
        let own = !matches!(origin("auth.jwks"), Some(Origin::Bss(_) | Origin::Default));
        if habit && own {
            self.0.insert("bss.auth", ("token".to_owned(), Origin::Default));
        }
    }
}

fn is_taken(name: &str) -> bool {
    SAME.iter().chain(&SECONDS).chain(&CHAIN).any(|(known, _)| *known == name)
}

fn left(environment: &BTreeMap<String, String>) -> Vec<(String, &'static str)> {
    let reason = |name: &str| {
        let known = LEFT.iter().find(|(start, _)| name.starts_with(start));
        known.filter(|_| !is_taken(name)).map(|(_, reason)| *reason)
    };
    environment.keys().filter_map(|name| Some((name.clone(), reason(name)?))).collect()
}

/// Those of the variables that are set, with the reason why they have no effect.
fn present(
    environment: &BTreeMap<String, String>,
    names: &[&str],
    reason: &'static str,
) -> Vec<(String, &'static str)> {
    let is_set = |name: &&&str| environment.contains_key(**name);
    names.iter().filter(is_set).map(|name| ((*name).to_owned(), reason)).collect()
}

impl Takeover {
    /// Every variable without effect, with the reason; also those that hoist's own settings
    /// override.
    pub(crate) fn ignored(&self, settings: &Settings) -> Vec<(String, String)> {
        let mut ignored: Vec<_> =
            self.left.iter().map(|(name, reason)| (name.clone(), (*reason).to_owned())).collect();
        for (name, key) in &self.taken {
            match settings.0.get(key) {
                Some((_, Origin::Bss(_))) | None => {}
                Some((_, origin)) => {
                    ignored.push(((*name).to_owned(), format!("`{key}` is set {origin}")));
                }
            }
        }
        ignored
    }

    /// Logs which variables were used and which were not; never a value, which may be a secret.
    pub(crate) fn log(&self, settings: &Settings) {
        let taken: Vec<String> = settings
            .0
            .iter()
            .filter(|(_, (_, origin))| matches!(origin, Origin::Bss(_)))
            .map(|(key, (_, origin))| format!("{key} {origin}"))
            .collect();
        if !taken.is_empty() {
            let taken = taken.join(", ");
            tracing::info!(taken, "settings taken from BSS's environment");
        }
        for (name, reason) in self.ignored(settings) {
            tracing::warn!(name, reason, "variable of BSS's environment ignored");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::new();
        settings.read_bss(&environment(pairs));
        settings.settle_bss();
        settings
    }

    #[test]
    fn a_deployment_of_bss_is_taken_over_by_its_own_names() {
        let settings = settings(&[
            ("BSS_HTTP_LISTEN", ":27778"),
            ("HSM_URL", "http://smd:27779"),
            ("BSS_ADVERTISE_ADDRESS", "http://10.1.0.2"),
            ("BSS_IPXE_SERVER", "boot.example.org"),
            ("BSS_CHAIN_PROTO", "http"),
            ("BSS_GW_URI", ""),
            ("BSS_RETRY_DELAY", "5"),
            ("BSS_HSM_RETRIEVAL_DELAY", "7"),
            ("BSS_JWKS_URL", "https://id.example.org/keys"),
            ("BSS_BOOTSCRIPT_NOTIFY_URL", "http://tpm/notify"),
            ("SPIRE_TOKEN_URL", "https://spire-tokens:54440"),
            ("S3_ENDPOINT", "http://rgw"),
            ("S3_BUCKET", "boot-images"),
            ("S3_ACCESS_KEY", "a"),
            ("S3_SECRET_KEY", "hunter2"),
        ]);
        for (key, expected) in [
            ("listen", ":27778"),
            ("inventory", "smd+http://smd:27779"),
            ("boot.ds_address", "http://10.1.0.2"),
            ("boot.chain_base", "http://boot.example.org"),
            ("boot.retry_delay", "5s"),
            ("boot.ask_delay", "7s"),
            ("auth.jwks", "https://id.example.org/keys"),
            ("bss.auth", "jwks"),
            ("boot.notify_url", "http://tpm/notify"),
            ("boot.spire_url", "https://spire-tokens:54440"),
            ("s3.endpoint", "http://rgw"),
            ("s3.bucket", "boot-images"),
        ] {
            assert_eq!(settings.text(key), expected, "{key}");
        }
        assert!(!settings.print().contains("hunter2"));
    }

    #[test]
    fn the_chain_has_the_defaults_of_bss_only_where_bss_is_in_use() {
        let chain = |pairs: &[(&str, &str)]| settings(pairs).text("boot.chain_base").to_owned();
        assert_eq!(chain(&[]), "");
        assert_eq!(chain(&[("BSS_IPXE_SERVER", "h")]), "https://h/apis/bss");
        assert_eq!(chain(&[("BSS_GW_URI", "/x")]), "https://api-gw-service-nmn.local/x");
        assert_eq!(chain(&[("BSS_IPXE_SERVER", ""), ("BSS_CHAIN_PROTO", "http")]), "");
    }

    #[test]
    fn access_is_as_bss_had_it_and_only_where_bss_is_in_use() {
        let auth = |pairs: &[(&str, &str)]| settings(pairs).text("bss.auth").to_owned();
        assert_eq!(auth(&[]), "token");
        assert_eq!(auth(&[("S3_ENDPOINT", "http://rgw"), ("ETCD_HOST", "e")]), "token");
        assert_eq!(auth(&[("BSS_DEBUG", "true")]), "token");
        assert_eq!(auth(&[("BSS_RETRY_DELAY", "30")]), "open");
        assert_eq!(auth(&[("BSS_JWKS_URL", "")]), "open");
        assert_eq!(auth(&[("BSS_JWKS_URL", "http://h/keys")]), "jwks");
    }

    #[test]
    fn a_service_of_kubernetes_called_bss_opens_nothing() {
        let settings = settings(&[
            ("BSS_SERVICE_HOST", "10.96.0.17"),
            ("BSS_SERVICE_PORT", "27778"),
            ("BSS_SERVICE_PORT_HTTP", "27778"),
            ("BSS_PORT", "tcp://10.96.0.17:27778"),
            ("BSS_PORT_27778_TCP", "tcp://10.96.0.17:27778"),
            ("BSS_PORT_27778_TCP_PROTO", "tcp"),
            ("BSS_PORT_27778_TCP_PORT", "27778"),
            ("BSS_PORT_27778_TCP_ADDR", "10.96.0.17"),
        ]);
        assert_eq!(settings.text("bss.auth"), "token");
    }

    #[test]
    fn hoists_own_names_win() {
        let mut settings = Settings::new();
        settings.read_bss(&environment(&[("BSS_HTTP_LISTEN", ":1"), ("BSS_RETRY_DELAY", "9")]));
        let own = environment(&[("HOIST_LISTEN", ":2"), ("HOIST_AUTH_JWKS", "/keys")]);
        settings.read_environment(|name| own.get(name).cloned());
        settings.settle_bss();
        assert_eq!(settings.text("listen"), ":2");
        assert_eq!(settings.text("boot.retry_delay"), "9s");
        assert_eq!(settings.text("bss.auth"), "token", "keys of hoist's own are a decision");
    }

    #[test]
    fn lone_s3_variable_is_not_ours() {
        assert_eq!(settings(&[("S3_ENDPOINT", "http://rgw")]).text("s3.endpoint"), "");
    }

    #[test]
    fn settings_without_counterpart_are_reported() {
        let mut settings = Settings::new();
        let takeover = settings.read_bss(&environment(&[
            ("BSS_DBHOST", "postgres"),
            ("BSS_OAUTH2_ADMIN_BASE_URL", "http://hydra"),
            ("ETCD_HOST", "etcd"),
            ("NFD_URL", "http://nfd"),
            ("BSS_DEBUG", "true"),
            ("BSS_RETRY_DELAY", "30"),
            ("HOME", "/"),
        ]));
        let names: Vec<&str> = takeover.left.iter().map(|(name, _)| name.as_str()).collect();
        let expected =
            ["BSS_DBHOST", "BSS_DEBUG", "BSS_OAUTH2_ADMIN_BASE_URL", "ETCD_HOST", "NFD_URL"];
        assert_eq!(names, expected);
        assert_eq!(settings.text("store"), "embedded");
    }

    #[test]
    fn variables_without_effect_are_all_named() {
        let mut settings = Settings::new();
        let takeover = settings.read_bss(&environment(&[
            ("S3_ENDPOINT", "http://rgw"),
            ("S3_ACCESS_KEY", "hunter1"),
            ("BSS_IPXE_SERVER", ""),
            ("BSS_CHAIN_PROTO", "http"),
            ("BSS_HTTP_LISTEN", ":1"),
            ("BSS_RETRY_DELAY", "9"),
        ]));
        let own = environment(&[("HOIST_LISTEN", ":2")]);
        settings.read_environment(|name| own.get(name).cloned());
        settings.settle_bss();
        let ignored = takeover.ignored(&settings);
        let names: Vec<&str> = ignored.iter().map(|(name, _)| name.as_str()).collect();
        let expected = ["BSS_CHAIN_PROTO", "S3_ACCESS_KEY", "S3_ENDPOINT", "BSS_HTTP_LISTEN"];
        assert_eq!(names, expected);
        let reasons: String = ignored.iter().map(|(_, reason)| reason.as_str()).collect();
        assert!(reasons.contains("HOIST_LISTEN") && !reasons.contains("hunter"), "{reasons}");
    }

    #[test]
    fn empty_variables_and_all_parts_of_a_replaced_url_are_named() {
        let mut settings = Settings::new();
        let takeover = settings.read_bss(&environment(&[
            ("BSS_RETRY_DELAY", ""),
            ("HSM_URL", ""),
            ("SPIRE_TOKEN_URL", ""),
            ("ETCD_RETRY_COUNT", "10"),
            ("S3_ENDPOINT", "http://rgw"),
            ("S3_REGION", ""),
            ("S3_ACCESS_KEY", "a"),
            ("S3_SECRET_KEY", "b"),
            ("BSS_CHAIN_PROTO", "http"),
            ("BSS_IPXE_SERVER", "h"),
            ("BSS_GW_URI", "/x"),
        ]));
        let own = environment(&[("HOIST_BOOT_CHAIN_BASE", "http://other")]);
        settings.read_environment(|name| own.get(name).cloned());
        settings.settle_bss();
        let ignored = takeover.ignored(&settings);
        let names: Vec<&str> = ignored.iter().map(|(name, _)| name.as_str()).collect();
        let empty = ["BSS_RETRY_DELAY", "ETCD_RETRY_COUNT", "HSM_URL", "S3_REGION"];
        let parts = ["SPIRE_TOKEN_URL", "BSS_CHAIN_PROTO", "BSS_GW_URI", "BSS_IPXE_SERVER"];
        assert_eq!(names, [empty, parts].concat());
    }
}
