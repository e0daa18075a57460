//! Programs that are called: found, given nothing of this machine, and heard when they fail.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long one program may take; the slowest unpacks a distribution from far away.
const LONGEST: Duration = Duration::from_hours(2);

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Length of the program's output in an error.
const LAST_WORDS: u64 = 2048;

/// Searched besides `PATH`, which lacks them for ordinary users.
const ALSO: [&str; 2] = ["/usr/sbin", "/sbin"];

/// The only variables of the caller that a program gets: the network proxies.
const PASSED_ON: [&str; 6] =
    ["http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

/// A program, and the Debian package that brings it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

pub(crate) const APT_CACHE: Tool = Tool { program: "apt-cache", package: "apt" };
pub(crate) const APT_GET: Tool = Tool { program: "apt-get", package: "apt" };
pub(crate) const DPKG_DEB: Tool = Tool { program: "dpkg-deb", package: "dpkg" };
pub(crate) const GRUB_MKIMAGE: Tool = Tool { program: "grub-mkimage", package: "grub-common" };
pub(crate) const MKE2FS: Tool = Tool { program: "mke2fs", package: "e2fsprogs" };
pub(crate) const MKSQUASHFS: Tool = Tool { program: "mksquashfs", package: "squashfs-tools" };
pub(crate) const MMDEBSTRAP: Tool = Tool { program: "mmdebstrap", package: "mmdebstrap" };
pub(crate) const UNSHARE: Tool = Tool { program: "unshare", package: "util-linux" };

/// Why a program was of no use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    #[error("`{program}` is not installed; install the package `{package}`")]
    Missing { program: &'static str, package: &'static str },
    #[error("cannot run `{program}`")]
    Run { program: String, source: io::Error },
    #[error("`{program}` failed with {status}: {said}")]
    Failed { program: String, status: ExitStatus, said: String },
    #[error("`{program}` did not finish within {LONGEST:?} and was killed")]
    Hung { program: String },
}

impl Tool {
    /// Its file, if it is installed.
    pub(crate) fn find(self) -> Result<PathBuf, ToolError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = std::env::split_paths(&path).chain(ALSO.map(PathBuf::from));
        places
            .map(|place| place.join(self.program))
            .find(|file| file.is_file())
            .ok_or(ToolError::Missing { program: self.program, package: self.package })
    }

    /// The command, in an environment that is the same everywhere.
    pub(crate) fn command(self, epoch: u32) -> Result<Command, ToolError> {
        let mut command = Command::new(self.find()?);
        settle(&mut command, epoch);
        Ok(command)
    }
}

fn settle(command: &mut Command, epoch: u32) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(ALSO.map(PathBuf::from));
    // Joining the parts of a split `PATH` cannot fail.
    let path = std::env::join_paths(places).unwrap_or(path);
    command.env_clear().env("PATH", path).env("HOME", "/");
    command.env("LC_ALL", "C.UTF-8").env("TZ", "UTC").env("DEBIAN_FRONTEND", "noninteractive");
    command.env("SOURCE_DATE_EPOCH", epoch.to_string());
    // The same for older programs that make file systems.
    command.env("E2FSPROGS_FAKE_TIME", epoch.to_string());
    for name in PASSED_ON {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
}

/// Runs a program to its end. Its output goes to `log` and, on failure, its end into the error.
pub(crate) fn run(command: &mut Command, log: &Path) -> Result<(), ToolError> {
    let program = name(command.get_program());
    let wrong = |source| ToolError::Run { program: program.clone(), source };
    let open = || File::options().create(true).truncate(true).read(true).write(true).open(log);
    let mut said = open().map_err(wrong)?;
    let out = said.try_clone().map_err(wrong)?;
    let err = said.try_clone().map_err(wrong)?;
    let mut child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().map_err(wrong)?;
    let deadline = Instant::now() + LONGEST;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(wrong)? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill().and_then(|()| child.wait()).map_err(wrong)?;
            return Err(ToolError::Hung { program });
        }
        std::thread::sleep(LOOK_EVERY);
    };
    if status.success() {
        return Ok(());
    }
    let said = last_words(&mut said).unwrap_or_default();
    Err(ToolError::Failed { program, status, said })
}

/// The output of a program that only reads this machine.
pub(crate) fn ask(command: &mut Command) -> Result<String, ToolError> {
    let program = name(command.get_program());
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(source) => return Err(ToolError::Run { program, source }),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ToolError::Failed { program, status: output.status, said })
}

fn last_words(log: &mut File) -> io::Result<String> {
    let length = log.seek(SeekFrom::End(0))?;
    log.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS)))?;
    let mut bytes = Vec::new();
    log.take(LAST_WORDS).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Ok(lines.join("; "))
}

fn name(program: &OsStr) -> String {
    let name = Path::new(program).file_name().unwrap_or(program);
    name.to_string_lossy().into_owned()
}
