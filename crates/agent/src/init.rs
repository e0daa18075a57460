//! The first program of a machine: mounts, starts the agent, waits for what ends, starts it again.
//! Nothing else is done here, because when this ends the kernel does.

use std::fs::{self, File};
use std::io;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, WaitOptions, wait};

/// Before an agent that died is started again.
const PAUSE: Duration = Duration::from_secs(5);

const PATH: &str = "/sbin:/bin:/usr/sbin:/usr/bin";

/// File systems and their mount points. Types that the kernel lacks are skipped.
const MOUNTS: [(&str, &str); 6] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
    ("efivarfs", "/sys/firmware/efi/efivars"),
];

pub(crate) fn is_ours() -> bool {
    std::process::id() == 1
}

pub(crate) fn run() -> ExitCode {
    for (kind, at) in MOUNTS {
        // On some file systems there is nothing to run and no device, but `dev` is all devices.
        let flags = MountFlags::NOSUID;
        if let Err(error) = mount(kind, at, kind, flags, None)
            && kind != "efivarfs"
        {
            eprintln!("cannot mount {kind} at {at}: {error}");
        }
    }
    if let Err(error) = to_console() {
        eprintln!("cannot open the console: {error}");
    }
    // The console belongs to the agent's screen; kernel messages stay in the kernel log.
    let _ = fs::write("/proc/sys/kernel/printk", "1\n");
    loop {
        match start() {
            Ok(agent) => wait_for(&agent),
            Err(error) => eprintln!("cannot start the agent: {error}"),
        }
        eprintln!("the agent exited; restarting it in {} s", PAUSE.as_secs());
        std::thread::sleep(PAUSE);
    }
}

/// The kernel may not have found a console before devices were there.
fn to_console() -> io::Result<()> {
    let console = File::options().read(true).write(true).open("/dev/console")?;
    rustix::stdio::dup2_stdin(&console)?;
    rustix::stdio::dup2_stdout(&console)?;
    rustix::stdio::dup2_stderr(&console)?;
    Ok(())
}

fn start() -> io::Result<Child> {
    let mut agent = Command::new("/proc/self/exe");
    agent.args(["provision", "--bring-up"]).env_clear().env("PATH", PATH).env("HOME", "/root");
    agent.current_dir("/").spawn()
}

/// Reaps every child process until the agent itself exits.
fn wait_for(agent: &Child) {
    let agent = i32::try_from(agent.id()).ok().and_then(Pid::from_raw);
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, _))) if Some(pid) == agent => return,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
