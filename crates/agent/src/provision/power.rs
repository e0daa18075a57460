//! What becomes of the machine at the end.

use std::io;

use rustix::system::{RebootCommand, reboot};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Power {
    Restart,
    Off,
}

/// Does not come back, unless the kernel refuses.
pub(crate) fn switch(power: Power) -> io::Result<()> {
    rustix::fs::sync();
    let command = match power {
        Power::Restart => RebootCommand::Restart,
        Power::Off => RebootCommand::PowerOff,
    };
    Ok(reboot(command)?)
}
