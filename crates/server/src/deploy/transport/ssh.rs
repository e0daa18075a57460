//! How a node is reached by ssh: the settings of the site, and its `data.ssh`.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use hoist_engine::action;
use hoist_engine::plugin::IsolationPolicy;
use hoist_engine::pull::LOST_AFTER;
use hoist_engine::ssh::{FindError, Login, SentPlugins, SshSetup, Target};
use hoist_model::NodeSpec;
use serde::Deserialize;

use super::RunContext;
use crate::deploy::DeploySettings;

/// The ssh settings of a node, in `data.ssh`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeSsh {
    address: Option<String>,
    user: Option<String>,
    port: Option<u16>,
    /// The name of a file in `deploy.ssh_keys`: who may write the node may not read any file.
    key: Option<PathBuf>,
    jump: Option<String>,
    r#become: Option<String>,
}

impl RunContext {
    /// Everything that runs need for their nodes behind ssh.
    pub(super) fn ssh(&self) -> SshSetup {
        let registry = self.registry.clone();
        let settings = self.settings.clone();
        let target = move |name: &str| {
            let roster = registry.roster();
            let node = roster.by_name(name).ok_or_else(|| NodeSshError::Unknown(name.to_owned()));
            let found = node.and_then(|node| target(&settings, name, &node.spec));
            found.map_err(|error| FindError(error.to_string()))
        };
        SshSetup {
            arguments: self.settings.ssh_arguments.clone(),
            secrets: Arc::clone(&self.secrets) as Arc<dyn action::Secrets>,
            plugins: SentPlugins {
                directory: self.settings.plugins.clone(),
                are_unconfined: self.settings.isolation == IsolationPolicy::None,
            },
            lost_after: LOST_AFTER,
            target: Arc::new(target),
        }
    }
}

/// Why a node cannot be reached with ssh.
#[derive(Debug, thiserror::Error)]
enum NodeSshError {
    #[error("node `{0}` not found")]
    Unknown(String),
    #[error("node `{node}`: `data.ssh`: {error}; correct it")]
    Data { node: String, error: serde_json::Error },
    #[error("node `{0}` has no address; give an interface one")]
    NoAddress(String),
    #[error("node `{node}`: `data.ssh.key` is `{}`: {error}", key.display())]
    Key { node: String, key: PathBuf, error: KeyError },
}

#[derive(Debug, thiserror::Error)]
enum KeyError {
    #[error("set `deploy.ssh_keys` to the directory of the keys")]
    NoDirectory,
    #[error("write the name of a file in `deploy.ssh_keys`, without a directory")]
    NotAName,
}

fn target(settings: &DeploySettings, name: &str, spec: &NodeSpec) -> Result<Target, NodeSshError> {
    let node = || name.to_owned();
    let said = spec.data.as_ref().and_then(|data| data.get("ssh")).cloned();
    let said: NodeSsh = serde_json::from_value(said.unwrap_or_else(|| serde_json::json!({})))
        .map_err(|error| NodeSshError::Data { node: node(), error })?;
    let own = || spec.own_addresses().next().map(|address| address.to_string());
    let host = said.address.or_else(own);
    let host = host.ok_or_else(|| NodeSshError::NoAddress(node()))?;
    let mut login = Login::clone(&settings.ssh_login);
    if let Some(key) = &said.key {
        let file = named_key(settings.ssh_keys.as_deref(), key);
        let failed = |error| NodeSshError::Key { node: node(), key: key.clone(), error };
        login.key = Some(file.map_err(failed)?);
    }
    login.user = said.user.or(login.user);
    login.port = said.port.or(login.port);
    // An empty word takes the site's away.
    let other = |said: Option<String>, site| said.or(site).filter(|word| !word.is_empty());
    login.jump = other(said.jump, login.jump);
    login.become_user = other(said.r#become, login.become_user);
    let program = settings.ssh_program.as_ref();
    let program = program.map(|path| path.replace("{arch}", spec.arch.as_str()).into());
    Ok(Target { host, login, program: program.unwrap_or_else(|| "/proc/self/exe".into()) })
}

fn named_key(keys: Option<&Path>, name: &Path) -> Result<PathBuf, KeyError> {
    let keys = keys.ok_or(KeyError::NoDirectory)?;
    let mut parts = name.components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) => Ok(keys.join(name)),
        _ => Err(KeyError::NotAName),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(data: &serde_json::Value) -> Result<Target, NodeSshError> {
        let spec = json!({
            "interfaces": [{"name": "e", "mac": "02:00:00:00:00:01", "addresses": ["10.0.0.7/8"]}],
            "arch": "aarch64",
            "data": {"ssh": data},
        });
        let login = Login {
            user: Some("root".to_owned()),
            jump: Some("gate".to_owned()),
            ..Login::default()
        };
        let settings = DeploySettings {
            ssh_login: Box::new(login),
            ssh_keys: Some("/keys".into()),
            ssh_program: Some("/lib/hoist-{arch}".to_owned()),
            ..DeploySettings::default()
        };
        target(&settings, "n1", &serde_json::from_value(spec).expect("a node"))
    }

    #[test]
    fn data_of_a_node_goes_before_the_settings_of_the_site() {
        let plain = found(&json!({})).expect("a target");
        assert_eq!((&*plain.host, plain.login.user.as_deref()), ("10.0.0.7", Some("root")));
        assert_eq!(plain.login.jump.as_deref(), Some("gate"));
        assert_eq!(plain.program, Path::new("/lib/hoist-aarch64"));
        let data = json!({"address": "n1.lan", "user": "adm", "port": 2222, "key": "rack7",
            "jump": "", "become": "root"});
        let Target { host, login, .. } = found(&data).expect("a target");
        assert_eq!(
            (&*host, login.user.as_deref(), login.port),
            ("n1.lan", Some("adm"), Some(2222))
        );
        assert_eq!(login.key.as_deref(), Some(Path::new("/keys/rack7")));
        assert_eq!((login.jump, login.become_user.as_deref()), (None, Some("root")));
    }

    #[test]
    fn unusable_data_of_a_node_is_named() {
        for (data, why) in [
            (json!({"pork": 22}), "node `n1`: `data.ssh`: unknown field `pork`"),
            (json!({"key": "../id"}), "node `n1`: `data.ssh.key` is `../id`: write the name"),
            (json!({"key": "/etc/shadow"}), "write the name of a file in `deploy.ssh_keys`"),
        ] {
            let error = found(&data).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
