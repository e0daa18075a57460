//! Users and groups by name, as the machine knows them.

use std::process::{Command, Stdio};

use hoist_engine::action::Failure;

use super::exit;

#[derive(Clone, Copy)]
pub(super) enum Base {
    User,
    Group,
}

/// The number of a user or group; a number is one already.
pub(super) fn number(base: Base, name: &str) -> Result<u32, Failure> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let (database, what) = match base {
        Base::User => ("passwd", "user"),
        Base::Group => ("group", "group"),
    };
    // It knows of directories in the network as well.
    let found = Command::new("getent").args([database, "--", name]).stdin(Stdio::null()).output();
    let found = found.map_err(|error| exit(format!("cannot run getent: {error}")))?;
    let text = String::from_utf8_lossy(&found.stdout);
    let number = text.split(':').nth(2).and_then(|number| number.trim().parse().ok());
    number.ok_or_else(|| exit(format!("{what} `{name}` not found")))
}
