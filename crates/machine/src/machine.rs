//! One virtual machine: power, network boot, serial console.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fs_err as fs;

use crate::console;
use crate::deadline::Deadline;
use crate::disk::{Disk, KEPT_BY_THE_HOST};
use crate::guest;
use crate::scratch::{Scratch, find_program};
use crate::variables;

/// The address of the loopback interface of the host, as seen by a guest.
pub const HOST: &str = "10.0.2.2";

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Bytes of the console that a failure shows.
const LAST_LINES: usize = 30;

/// The number of machines that may run at once: an emulated processor needs a whole core.
const PERMITS: usize = 2;

/// Arguments for the kernel of a guest on a busy host. They disable the reset of a disk that does not
/// answer for 30 seconds, and the check at start that the clock ticks within a few milliseconds.
pub(crate) const ON_A_BUSY_HOST: &str =
    "no_timer_check nvme_core.io_timeout=600 nvme_core.admin_timeout=600";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmware {
    Bios,
    Uefi,
}

/// The parts of a machine.
#[derive(Debug, Clone)]
pub struct Hardware {
    pub firmware: Firmware,
    /// MAC of the only network card, the first boot device.
    pub mac: String,
    /// The boot file name in the DHCP answer.
    pub boot_url: String,
    /// The second boot device.
    pub disk: Option<Disk>,
    /// The file of the variables of UEFI firmware, made when it is missing. Machines that use one
    /// disk after each other share it, as a real machine keeps its chip. With `None`, the machine
    /// has one file of its own, `vars.fd`, which it keeps over all of its power cycles and removes
    /// when it is dropped.
    pub variables: Option<PathBuf>,
}

/// A kernel that starts without firmware. A restart by the guest powers the machine off.
#[derive(Debug, Clone)]
pub struct Kernel {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub command_line: String,
    /// The date of the machine's clock, such as `2001-01-01`; the real time if absent.
    pub clock: Option<String>,
}

/// A machine that is on until it powers itself off, is powered off, or is dropped.
#[derive(Debug)]
pub struct Machine {
    hardware: Hardware,
    kernel: Option<Kernel>,
    scratch: Scratch,
    process: Option<Child>,
    /// How many bytes of the console have been read.
    read: usize,
}

impl Machine {
    pub fn power_on(hardware: Hardware) -> Result<Self> {
        Self::start_with(hardware, None)
    }

    /// Starts this kernel instead of booting from network or disk.
    pub fn power_on_with(hardware: Hardware, kernel: Kernel) -> Result<Self> {
        Self::start_with(hardware, Some(kernel))
    }

    fn start_with(hardware: Hardware, kernel: Option<Kernel>) -> Result<Self> {
        let scratch = Scratch::new();
        let mut machine = Self { hardware, kernel, scratch, process: None, read: 0 };
        machine.start()?;
        Ok(machine)
    }

    /// Cuts the power. Writes that the guest has not sent to its disk are lost.
    pub fn power_off(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
            self.scratch.forget("machine");
        }
    }

    /// Cuts the power and restores it. The console continues.
    pub fn power_cycle(&mut self) -> Result<()> {
        self.power_off();
        self.start()
    }

    pub fn is_on(&mut self) -> Result<bool> {
        let Some(process) = &mut self.process else { return Ok(false) };
        if process.try_wait()?.is_none() {
            return Ok(true);
        }
        self.process = None;
        self.scratch.forget("machine");
        Ok(false)
    }

    /// The next whole line of the console, once.
    pub fn next_line(&mut self) -> Result<Option<String>> {
        let bytes = self.console_bytes()?;
        let unread = bytes.get(self.read..).unwrap_or_default();
        let Some(end) = unread.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        self.read += end + 1;
        Ok(Some(console::plain(&unread[..end]).trim_end().to_owned()))
    }

    /// Reads lines until one contains this text, and returns it.
    pub fn wait_for(&mut self, text: &str, within: Duration) -> Result<String> {
        let deadline = self.deadline(within);
        loop {
            // Queried before reading: a machine that is off writes no further lines.
            let on = self.is_on()?;
            while let Some(line) = self.next_line()? {
                if line.contains(text) {
                    return Ok(line);
                }
            }
            if !on {
                bail!("the machine went off and never said `{text}`{}", self.last_lines());
            }
            if deadline.is_over(self.process.as_ref()) {
                let within = deadline.describe(self.process.as_ref());
                bail!("the machine has not said `{text}` within {within}{}", self.last_lines());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until a condition outside of the machine holds, while the machine is on. `what` names the
    /// condition in messages.
    pub fn wait_until(
        &mut self,
        what: &str,
        within: Duration,
        mut is_so: impl FnMut() -> bool,
    ) -> Result<()> {
        let deadline = self.deadline(within);
        while !is_so() {
            if !self.is_on()? {
                bail!("the machine went off before {what}{}", self.last_lines());
            }
            if deadline.is_over(self.process.as_ref()) {
                let within = deadline.describe(self.process.as_ref());
                bail!("the machine is on for {within}, but not {what}{}", self.last_lines());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Waits until the machine has powered itself off.
    pub fn wait_until_off(&mut self, within: Duration) -> Result<()> {
        let deadline = self.deadline(within);
        while self.is_on()? {
            if deadline.is_over(self.process.as_ref()) {
                let within = deadline.describe(self.process.as_ref());
                bail!("the machine is still on after {within}{}", self.last_lines());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn deadline(&self, within: Duration) -> Deadline {
        Deadline::new(self.process.as_ref(), within)
    }

    /// The whole output of the console so far.
    pub fn console(&self) -> Result<String> {
        Ok(console::plain(&self.console_bytes()?))
    }

    fn start(&mut self) -> Result<()> {
        let command = &mut command(&self.hardware, self.scratch.dir(), &self.console_file())?;
        if let Some(Kernel { kernel, initrd, command_line, clock }) = &self.kernel {
            command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
            command.args(["-append", &format!("{command_line} {ON_A_BUSY_HOST}")]);
            command.args(["-no-reboot", "-m", "512", "-cpu", "max"]);
            if let Some(clock) = clock {
                command.args(["-rtc", &format!("base={clock}")]);
            }
        }
        self.process = Some(self.scratch.spawn("machine", command));
        Ok(())
    }

    fn console_file(&self) -> PathBuf {
        self.scratch.dir().join("console")
    }

    fn console_bytes(&self) -> Result<Vec<u8>> {
        match fs::read(self.console_file()) {
            // The machine was switched on just now.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            read => Ok(read?),
        }
    }

    /// For messages: the end of the console, and the log of the emulator.
    fn last_lines(&self) -> String {
        let console = self.console().unwrap_or_default();
        let lines: Vec<&str> = console.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        format!("; its console ends with\n{last}\n{}", self.scratch.log("machine"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.power_off();
    }
}

fn command(hardware: &Hardware, dir: &Path, console: &Path) -> Result<Command> {
    let qemu = find_program("qemu-system-x86_64", &[]).context(
        "`qemu-system-x86_64` is not installed; run `make setup-test` or install `qemu-system-x86`",
    )?;
    let mut command = Command::new(qemu);
    command.args(["-accel", "tcg", "-m", "512", "-nographic", "-nodefaults", "-monitor", "none"]);
    let console = value(&console.display().to_string());
    command.args(["-chardev", &format!("file,id=console,append=on,path={console}")]);
    command.args(["-serial", "chardev:console"]);
    let url = value(&hardware.boot_url);
    // Without IPv6, iPXE waits 13 seconds for a router before it believes DHCP.
    command.args(["-netdev", &format!("user,id=net,bootfile={url}")]);
    let mac = value(&hardware.mac);
    command.args(["-device", &format!("virtio-net-pci,netdev=net,mac={mac},bootindex=1")]);
    if hardware.firmware == Firmware::Uefi {
        let own = || dir.join("vars.fd");
        command.args(variables::flash(&hardware.variables.clone().unwrap_or_else(own))?);
        // When iPXE leaves, the firmware's own network boot would be asked before the disk, and
        // waits half a minute for an answer over IPv6.
        for family in ["IPv4", "IPv6"] {
            let switch = format!("name=opt/org.tianocore/{family}PXESupport,string=n");
            command.args(["-fw_cfg", &switch]);
        }
    }
    let file = |path: &Path| value(&path.display().to_string());
    let nvme = |image: &Path, serial: &str| {
        (format!("file={}", file(image)), format!("nvme,serial={}", value(serial)))
    };
    let virtio = "virtio-blk-pci".to_owned();
    let disks = match &hardware.disk {
        None => Vec::new(),
        Some(Disk::Image(path)) => vec![(format!("file={}", file(path)), virtio)],
        Some(Disk::Directory(path)) => {
            vec![(format!("readonly=on,file=fat:{}", file(path)), virtio)]
        }
        Some(Disk::Nvme { image, serial }) => vec![nvme(image, serial)],
        Some(Disk::Nvmes(all)) => all.iter().map(|(image, serial)| nvme(image, serial)).collect(),
    };
    for (number, (drive, device)) in disks.into_iter().enumerate() {
        command.args(["-drive", &format!("if=none,id=disk{number},{KEPT_BY_THE_HOST},{drive}")]);
        let order = number + 2;
        command.args(["-device", &format!("{device},drive=disk{number},bootindex={order}")]);
    }
    Ok(command)
}

/// Escapes commas, which separate the options of a list.
fn value(text: &str) -> String {
    text.replace(',', ",,")
}

/// The right to run a machine, among all processes that use this workspace, until dropped. A test
/// that needs several machines holds one permit for all.
#[derive(Debug)]
pub struct Permit {
    _lock: File,
}

impl Permit {
    /// Waits until a permit is free.
    pub fn wait() -> Result<Self> {
        let dir = guest::directory();
        fs::create_dir_all(&dir)?;
        loop {
            for number in 0..PERMITS {
                let file = File::create(dir.join(format!("permit-{number}")))?;
                match file.try_lock() {
                    Ok(()) => return Ok(Self { _lock: file }),
                    Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(error)) => return Err(error.into()),
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_keeps_its_variables_over_power_cycles() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other.fd");
        for variables in [None, Some(other.clone())] {
            let hardware = Hardware {
                firmware: Firmware::Uefi,
                mac: "52:54:00:00:00:01".to_owned(),
                boot_url: "http://127.0.0.1/".to_owned(),
                disk: None,
                variables,
            };
            // Each time that the machine is switched on, it has a command of its own.
            let chip = || {
                let console = dir.path().join("console");
                let command = command(&hardware, dir.path(), &console).unwrap();
                let arguments = command.get_args().map(|word| word.to_str().unwrap().to_owned());
                let chip = arguments.into_iter().find(|word| word.contains("unit=1"));
                PathBuf::from(chip.unwrap().split_once("file=").unwrap().1)
            };
            let first = chip();
            variables::add(&first, &[("BootOrder", vec![1, 0])]).unwrap();
            assert_eq!(chip(), first);
            assert_eq!(variables::read(&first).unwrap()["BootOrder"], [1, 0]);
        }
        assert!(other.exists() && dir.path().join("vars.fd").exists());
    }
}
