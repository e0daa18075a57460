//! A machine that has a disk and no network, as one has that was just provisioned.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fs_err as fs;

use crate::console;
use crate::machine::Firmware;
use crate::scratch::{Scratch, find_program};

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Where Debian keeps firmware that remembers.
const OVMF: &str = "/usr/share/OVMF";

/// An NVMe disk, by the file that it is.
#[derive(Debug, Clone)]
pub struct NvmeDisk {
    pub image: PathBuf,
    /// Bytes of a sector.
    pub sector: u32,
}

/// Boots from the disk, which stays as it is, until the machine is off, and gives what it said on its
/// console.
pub fn boot_from_disk(firmware: Firmware, disk: &NvmeDisk, within: Duration) -> Result<String> {
    let scratch = Scratch::new();
    let console = scratch.dir().join("console");
    let mut command = command(firmware, disk, &console, scratch.dir())?;
    let mut process = scratch.spawn("machine", &mut command);
    let deadline = Instant::now() + within;
    while process.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            let _ = process.kill();
            let _ = process.wait();
            let said = fs::read(&console).map(|bytes| console::plain(&bytes)).unwrap_or_default();
            bail!("the machine is still on after {within:?}; it said\n{said}");
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let said = fs::read(&console).with_context(|| scratch.log("machine"))?;
    Ok(console::plain(&said))
}

fn command(firmware: Firmware, disk: &NvmeDisk, console: &Path, dir: &Path) -> Result<Command> {
    let qemu = find_program("qemu-system-x86_64", &[]).context(
        "`qemu-system-x86_64` is not installed; run `make setup-test` or install `qemu-system-x86`",
    )?;
    let mut command = Command::new(qemu);
    command.args(["-accel", "tcg", "-cpu", "max", "-machine", "q35", "-m", "512"]);
    command.args(["-nographic", "-nodefaults", "-no-reboot", "-monitor", "none"]);
    command.arg("-serial").arg(format!("file:{}", console.display()));
    if firmware == Firmware::Uefi {
        let vars = dir.join("vars.fd");
        fs::copy(Path::new(OVMF).join("OVMF_VARS_4M.fd"), &vars)?;
        let flash = |unit: u32, more: &str| format!("if=pflash,format=raw,unit={unit},{more}");
        let code = format!("readonly=on,file={OVMF}/OVMF_CODE_4M.fd");
        command.arg("-drive").arg(flash(0, &code));
        command.arg("-drive").arg(flash(1, &format!("file={}", vars.display())));
    }
    let NvmeDisk { image, sector } = disk;
    let image = image.display().to_string().replace(',', ",,");
    command.args(["-drive", &format!("if=none,id=disk,format=raw,snapshot=on,file={image}")]);
    let sizes = format!("logical_block_size={sector},physical_block_size={sector}");
    command.args(["-device", &format!("nvme,drive=disk,serial=hoist,bootindex=0,{sizes}")]);
    Ok(command)
}
