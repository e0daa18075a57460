//! The settings of deployment: `[deploy]`, and how long runs are kept.

use std::path::PathBuf;

use hoist_model::Selector;
use hoist_server::deploy::{DeploySettings, RunRetention};

use crate::settings::{SettingError, Settings};

pub(super) fn settings(settings: &Settings) -> Result<DeploySettings, SettingError> {
    Ok(DeploySettings {
        local: selector(settings, "deploy.local")?,
        ssh: selector(settings, "deploy.ssh")?,
        ssh_user: settings.given("deploy.ssh_user").map(str::to_owned),
        ssh_key: settings.given("deploy.ssh_key").map(PathBuf::from),
        plugins: settings.given("plugins.directory").map(PathBuf::from),
        retention: RunRetention {
            max_age: settings.duration("retention.runs_age")?,
            max_bytes: settings.parse("retention.runs_bytes")?,
            max_runs: settings.parse("retention.runs")?,
        },
    })
}

fn selector(settings: &Settings, key: &'static str) -> Result<Option<Selector>, SettingError> {
    settings.given(key).map(|_| settings.parse(key)).transpose()
}
