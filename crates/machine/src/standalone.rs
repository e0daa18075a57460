//! A machine without a network: its devices, and whether it starts from a disk or with a kernel.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fs_err as fs;

use crate::console;
use crate::deadline::Deadline;
use crate::disk::KEPT_BY_THE_HOST;
use crate::machine::{Firmware, Kernel, ON_A_BUSY_HOST};
use crate::scratch::{Scratch, find_program};
use crate::variables;

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A disk, by the file that it is.
#[derive(Debug, Clone)]
pub struct Drive {
    pub image: PathBuf,
    /// As `-device` has it, without `drive`: `nvme,serial=A,addr=5`.
    pub device: String,
    /// Writes of the machine reach the file; otherwise the file stays unchanged.
    pub keeps: bool,
}

#[derive(Debug, Clone)]
pub struct StandaloneMachine {
    pub firmware: Firmware,
    /// What firmware of the UEFI kind remembers, see [`crate::variables`]; without it, it begins anew.
    pub variables: Option<PathBuf>,
    pub drives: Vec<Drive>,
    /// Devices that are no drives, and come before them: controllers of some kinds.
    pub devices: Vec<String>,
    /// Starts instead of the system on the disks.
    pub kernel: Option<Kernel>,
}

impl StandaloneMachine {
    pub fn new(firmware: Firmware) -> Self {
        let drives = Vec::new();
        let devices = Vec::new();
        Self { firmware, variables: None, drives, devices, kernel: None }
    }

    /// Runs until the machine is off, and returns its console output.
    pub fn run(&self, within: Duration) -> Result<String> {
        let scratch = Scratch::new();
        let console = scratch.dir().join("console");
        let mut command = self.command(&console, scratch.dir())?;
        let mut process = scratch.spawn("machine", &mut command);
        let said = || fs::read(&console).map(|bytes| console::plain(&bytes));
        let deadline = Deadline::new(Some(&process), within);
        while process.try_wait()?.is_none() {
            if deadline.is_over(Some(&process)) {
                let within = deadline.describe(Some(&process));
                let _ = process.kill();
                let _ = process.wait();
                let said = said().unwrap_or_default();
                bail!("the machine is still on after {within}; it said\n{said}");
            }
            std::thread::sleep(LOOK_EVERY);
        }
        said().with_context(|| scratch.log("machine"))
    }

    fn command(&self, console: &Path, dir: &Path) -> Result<Command> {
        let qemu = find_program("qemu-system-x86_64", &[]).context(
            "`qemu-system-x86_64` is not installed; run `make setup-test` or install \
             `qemu-system-x86`",
        )?;
        let mut command = Command::new(qemu);
        command.args(["-accel", "tcg", "-cpu", "max", "-machine", "q35", "-m", "512"]);
        command.args(["-nographic", "-nodefaults", "-no-reboot", "-monitor", "none"]);
        command.arg("-serial").arg(format!("file:{}", console.display()));
        if self.firmware == Firmware::Uefi {
            let own = || dir.join("vars.fd");
            let file = self.variables.clone().unwrap_or_else(own);
            command.args(variables::flash(&file)?);
        }
        for device in &self.devices {
            command.args(["-device", device]);
        }
        for (number, Drive { image, device, keeps }) in self.drives.iter().enumerate() {
            let snapshot = if *keeps { "off" } else { "on" };
            let image = escaped(image);
            let drive =
                format!("if=none,id=d{number},{KEPT_BY_THE_HOST},snapshot={snapshot},file={image}");
            command.args(["-drive", &drive, "-device", &format!("{device},drive=d{number}")]);
        }
        if let Some(Kernel { kernel, initrd, command_line, clock }) = &self.kernel {
            command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
            command.args(["-append", &format!("{command_line} {ON_A_BUSY_HOST}")]);
            if let Some(clock) = clock {
                command.args(["-rtc", &format!("base={clock}")]);
            }
        }
        Ok(command)
    }
}

/// In a list of options a comma would begin the next one.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
