//! The systemd unit of the agent, and its state before the join.
//!
//! Does not belong here: other service managers. Where systemd does not run, the operator starts
//! `hoist-agent daemon` by other means.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::state::{StateDir, StateError};

/// The unit as packages have it.
pub const UNIT: &str = include_str!("../../../dist/systemd/hoist-agent.service");

const NAME: &str = "hoist-agent.service";

/// The place of units and of systemd; tests have places of their own.
#[derive(Debug, Clone)]
pub struct ServiceHost {
    pub units: PathBuf,
    /// A directory that exists while systemd runs.
    pub running: PathBuf,
    pub systemctl: PathBuf,
}

impl Default for ServiceHost {
    fn default() -> Self {
        Self {
            units: "/etc/systemd/system".into(),
            running: "/run/systemd/system".into(),
            systemctl: "systemctl".into(),
        }
    }
}

/// The unit before it was installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreviousService {
    /// The text of the unit; `None` if there was none.
    pub unit: Option<String>,
    pub is_enabled: bool,
    pub is_active: bool,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    #[error(
        "systemd does not run here; leave `--install-service` out and start `hoist-agent daemon` by other means"
    )]
    NoSystemd,
    #[error("cannot use the unit `{path}`")]
    Unit { path: PathBuf, source: io::Error },
    #[error("`systemctl {command}` failed: {output}")]
    Systemctl { command: String, output: String },
    #[error(transparent)]
    State(#[from] StateError),
}

impl ServiceHost {
    pub fn is_available(&self) -> bool {
        self.running.is_dir()
    }

    /// Installs, enables and starts the unit. The state before is durable before anything changes.
    pub(crate) fn install(&self, state: &StateDir) -> Result<PreviousService, ServiceError> {
        if !self.is_available() {
            return Err(ServiceError::NoSystemd);
        }
        // An earlier attempt may have changed the unit already.
        let previous = if let Some(previous) = state.previous_service()? {
            previous
        } else {
            let previous = self.observe()?;
            state.store_previous_service(&previous)?;
            previous
        };
        self.write(UNIT)?;
        self.systemctl(&["daemon-reload"])?;
        self.systemctl(&["enable", NAME])?;
        // The membership is not confirmed yet: until it is, the daemon ends and systemd tries again.
        self.systemctl(&["restart", "--no-block", NAME])?;
        Ok(previous)
    }

    /// Restores the unit, whether it was enabled, and whether it ran.
    pub(crate) fn restore(
        &self,
        state: &StateDir,
        previous: Option<&PreviousService>,
    ) -> Result<(), ServiceError> {
        let previous = match previous {
            Some(previous) => Some(previous.clone()),
            None => state.previous_service()?,
        };
        // Without a record nothing was changed.
        let Some(previous) = previous else { return Ok(()) };
        if !previous.is_active {
            self.systemctl(&["stop", NAME])?;
        }
        if !previous.is_enabled {
            self.systemctl(&["disable", NAME])?;
        }
        match &previous.unit {
            Some(text) => self.write(text)?,
            None => self.remove()?,
        }
        self.systemctl(&["daemon-reload"])?;
        if previous.is_active {
            self.systemctl(&["restart", "--no-block", NAME])?;
        }
        Ok(())
    }

    fn observe(&self) -> Result<PreviousService, ServiceError> {
        let path = self.path();
        let unit = match fs_err::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(ServiceError::Unit { path, source }),
        };
        Ok(PreviousService {
            unit,
            is_enabled: self.asks("is-enabled"),
            is_active: self.asks("is-active"),
        })
    }

    fn path(&self) -> PathBuf {
        self.units.join(NAME)
    }

    fn write(&self, text: &str) -> Result<(), ServiceError> {
        let path = self.path();
        let temporary = self.units.join(format!(".{NAME}.new"));
        let written = fs_err::write(&temporary, text)
            .and_then(|()| sync(&temporary))
            .and_then(|()| fs_err::rename(&temporary, &path))
            .and_then(|()| sync(&self.units));
        written.map_err(|source| ServiceError::Unit { path, source })
    }

    fn remove(&self) -> Result<(), ServiceError> {
        let path = self.path();
        match fs_err::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ServiceError::Unit { path, source: error })
            }
            _ => Ok(()),
        }
    }

    fn asks(&self, question: &str) -> bool {
        let asked = Command::new(&self.systemctl).args([question, "--quiet", NAME]).output();
        asked.is_ok_and(|output| output.status.success())
    }

    fn systemctl(&self, arguments: &[&str]) -> Result<(), ServiceError> {
        let failed =
            |output: String| ServiceError::Systemctl { command: arguments.join(" "), output };
        let output = Command::new(&self.systemctl)
            .args(arguments)
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(failed(text.lines().last().unwrap_or("no reason given").to_owned()))
    }
}

fn sync(path: &Path) -> io::Result<()> {
    fs_err::File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A `systemctl` that notes its arguments and answers questions with no.
    fn host(dir: &Path) -> ServiceHost {
        let systemctl = dir.join("systemctl");
        let log = dir.join("log");
        let script = format!(
            "#!/bin/sh\necho \"$*\" >> {}\ncase $1 in is-*) exit 1;; esac\n",
            log.display()
        );
        fs_err::write(&systemctl, script).unwrap();
        fs_err::set_permissions(&systemctl, std::fs::Permissions::from_mode(0o755)).unwrap();
        let units = dir.join("units");
        fs_err::create_dir(&units).unwrap();
        ServiceHost { running: units.clone(), units, systemctl }
    }

    #[test]
    fn undo_restores_the_unit_and_its_state() {
        let dir = tempfile::tempdir().unwrap();
        let host = host(dir.path());
        let state = StateDir::new(dir.path().join("state"));
        state.create().unwrap();
        fs_err::write(host.path(), "mine").unwrap();
        let previous = host.install(&state).unwrap();
        assert_eq!(fs_err::read_to_string(host.path()).unwrap(), UNIT);
        // A second attempt must not take its own unit for the one before.
        assert_eq!(host.install(&state).unwrap(), previous);
        host.restore(&state, None).unwrap();
        assert_eq!(fs_err::read_to_string(host.path()).unwrap(), "mine");
        let log = fs_err::read_to_string(dir.path().join("log")).unwrap();
        assert!(
            log.ends_with("stop hoist-agent.service\ndisable hoist-agent.service\ndaemon-reload\n"),
            "{log}"
        );
    }

    #[test]
    fn service_needs_systemd() {
        let dir = tempfile::tempdir().unwrap();
        let host = ServiceHost { running: dir.path().join("none"), ..ServiceHost::default() };
        let state = StateDir::new(dir.path());
        assert!(matches!(host.install(&state), Err(ServiceError::NoSystemd)));
        host.restore(&state, None).unwrap();
    }
}
