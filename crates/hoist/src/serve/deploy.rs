//! The settings of deployment: `[deploy]`, and how long runs are kept.

use std::num::NonZero;
use std::path::PathBuf;

use hoist_engine::ssh::Login;
use hoist_model::selector::{BindError, Bound, Vocabulary};
use hoist_model::{GroupKey, NodeId, Selector};
use hoist_server::deploy::{DeploySettings, RunRetention};

use crate::settings::{SettingError, Settings};

pub(super) fn settings(settings: &Settings) -> Result<DeploySettings, SettingError> {
    Ok(DeploySettings {
        local: selector(settings, "deploy.local")?,
        ssh: selector(settings, "deploy.ssh")?,
        ssh_login: Box::new(Login {
            user: settings.given("deploy.ssh_user").map(str::to_owned),
            key: settings.given("deploy.ssh_key").map(PathBuf::from),
            port: port(settings)?,
            known_hosts: settings.given("deploy.ssh_known_hosts").map(PathBuf::from),
            jump: settings.given("deploy.ssh_jump").map(str::to_owned),
            become_user: settings.given("deploy.ssh_become").map(str::to_owned),
            ..Login::default()
        }),
        ssh_keys: settings.given("deploy.ssh_keys").map(PathBuf::from),
        ssh_program: settings.given("deploy.ssh_program").map(str::to_owned),
        ssh_arguments: vec![crate::over_ssh::ARGUMENT.to_owned()],
        plugins: settings.given("plugins.directory").map(PathBuf::from),
        isolation: settings.parse("plugins.isolation")?,
        hidden: settings.secret_files(),
        supervisor: Some(crate::supervisor()),
        retention: RunRetention {
            max_age: settings.duration("retention.runs_age")?,
            max_bytes: settings.parse("retention.runs_bytes")?,
            max_runs: settings.parse("retention.runs")?,
        },
    })
}

fn port(settings: &Settings) -> Result<Option<u16>, SettingError> {
    const KEY: &str = "deploy.ssh_port";
    let port: Option<NonZero<u16>> =
        settings.given(KEY).map(|_| settings.parse(KEY)).transpose()?;
    Ok(port.map(NonZero::get))
}

/// The selector must have a meaning for any nodes and groups: an error could not be reported later.
fn selector(settings: &Settings, key: &'static str) -> Result<Option<Selector>, SettingError> {
    if settings.given(key).is_none() {
        return Ok(None);
    }
    let selector: Selector = settings.parse(key)?;
    selector.bind(&EmptySite).map_err(|error| {
        let reason = match error {
            BindError::UnknownWord { word, .. } => {
                format!("`{word}` may be a role or a group; write `role:{word}` or `group:{word}`")
            }
            error => error.to_string(),
        };
        settings.wrong(key, reason)
    })?;
    Ok(Some(selector))
}

/// A site without nodes and groups.
struct EmptySite;

impl Vocabulary for EmptySite {
    fn is_role(&self, _: &str) -> bool {
        false
    }

    fn is_group(&self, _: &str) -> bool {
        false
    }

    fn known_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn selector_groups(&self) -> Vec<(GroupKey, Selector)> {
        Vec::new()
    }

    fn first(&self, _: &Bound) -> Option<NodeId> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_of_no_node_is_refused_with_key_and_remedy() {
        for key in ["deploy.local", "deploy.ssh"] {
            let read = |value: &str| {
                let mut settings = Settings::new();
                settings.set_flag(key, "--given", Some(value.to_owned()));
                super::settings(&settings).map_err(|error| error.to_string())
            };
            for good in ["*", "role:a and not group:b", "node:n[1-3] , rack=r1", "first(role:a)"] {
                read(good).expect(good);
            }
            for (bad, told) in [
                ("storage", "write `role:storage` or `group:storage`"),
                ("role:", "`role:`"),
                ("/n.*/", "regular expressions are for task files only"),
            ] {
                let error = read(bad).expect_err(bad);
                assert!(error.contains(key) && error.contains(told), "{error}");
            }
        }
    }
}
