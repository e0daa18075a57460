//! What a plug-in is kept away from, and what it is started through.
//!
//! Where it is permitted a plug-in has mounts, processes and a network of its own: it sees no
//! devices but the harmless ones, reaches no network unless it declares that it does, and nothing
//! of it is left when it ends. `unshare(1)` and `setpriv(1)` do that, because between fork and exec
//! only unsafe code could.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

/// How plug-ins are run on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Isolation {
    /// In namespaces of their own; with `user`, in one of users too, in which they seem to be root.
    Private { user: bool },
    /// As any other process, because more is not permitted or not installed.
    None { why: String },
}

/// Process 1 of the namespace: it makes `/dev`, runs the plug-in, and tells when something of it is
/// left, which ends with this process. As process 1 a plug-in itself would not heed TERM.
///
/// Also as root a plug-in may do no more than files, programs and ports need: who may mount or make
/// devices gets back what was taken away.
const INIT: &str = r#"
{
    mount -n -t tmpfs -o mode=0755,size=16m,nosuid,noexec hoist /sys && cd /sys &&
    for device in null zero full random urandom; do
        : >"$device" && mount -n --bind "/dev/$device" "$device" || exit 125
    done &&
    mkdir -m 1777 shm && ln -s /proc/self/fd fd && cd / && mount -n --move /sys /dev
} || exit 125
cd "$directory" || exit 125
unset directory
is_alive() {
    while read -r key value _; do
        if [ "$key" = State: ]; then [ "$value" != Z ]; return; fi
    done <"$1/status"
    return 1
}
may=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+sys_chroot,+net_bind_service,+net_raw
setpriv --no-new-privs --inh-caps=-all --bounding-set="$may" -- "$@"
status=$?
for look in 1 2 3 4 5; do
    left=
    for process in /proc/[0-9]*; do
        [ "$process" = /proc/1 ] || ! is_alive "$process" || left=yes
    done 2>/dev/null
    [ "$left" ] || { [ $status -ne 124 ] || status=1; exit $status; }
    sleep 0.1
done
exit 124
"#;

/// With this status [`INIT`] says that processes were left.
pub(super) const LEFT_BEHIND: i32 = 124;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Descriptors that a plug-in can be given beside the three that every process has. POSIX shells
/// know no number above 9.
pub(super) const FIRST_FD: u32 = 3;
pub(super) const LAST_FD: u32 = 9;

/// Something that a plug-in may read, or write to as well.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) fd: OwnedFd,
    pub(super) is_written: bool,
}

impl Isolation {
    /// Tries what is possible here.
    pub fn find() -> Self {
        let mut why = String::new();
        for user in [false, true] {
            let isolation = Self::Private { user };
            match isolation.try_out() {
                Ok(()) => return isolation,
                Err(reason) => why = reason,
            }
        }
        Self::None { why }
    }

    pub fn is_private(&self) -> bool {
        matches!(self, Self::Private { .. })
    }

    fn try_out(&self) -> Result<(), String> {
        let mut command =
            self.command(Path::new("/bin/true"), Path::new("/"), &[], false, String::new());
        let ended = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        if ended.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ended.stderr);
        Err(said.lines().last().unwrap_or("unshare(1) failed without a word").trim().to_owned())
    }

    /// A command that runs the program with a clean environment, in this directory, with these
    /// descriptors from [`FIRST_FD`] on, after the commands in `limits`.
    ///
    /// The descriptors are opened anew by a shell, so that ours are never inheritable: another
    /// thread may start a process at any moment.
    pub(super) fn command(
        &self,
        program: &Path,
        directory: &Path,
        descriptors: &[Descriptor],
        network: bool,
        limits: String,
    ) -> Command {
        let mut opens = limits;
        for (number, ours) in (FIRST_FD..=LAST_FD).zip(descriptors) {
            let (process, fd) = (std::process::id(), ours.fd.as_raw_fd());
            let how = if ours.is_written { "<>" } else { "<" };
            write!(opens, "exec {number}{how}/proc/{process}/fd/{fd} || exit 125; ")
                .expect("writing to a string");
        }
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(opens + "exec \"$@\"").arg("hoist");
        command.env_clear().env("PATH", PATH).env("LC_ALL", "C.UTF-8").env("HOME", "/");
        command.current_dir(directory);
        if let Self::Private { user } = self {
            // Nothing of it outlives the thread that waits for it.
            command.args(["setpriv", "--pdeathsig", "KILL", "unshare"]);
            let user: &[&str] = if *user { &["--user", "--map-root-user"] } else { &[] };
            let network: &[&str] = if network { &[] } else { &["--net"] };
            command.args(user).args(network);
            command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
            command.args(["/bin/sh", "-c", INIT, "hoist"]);
            command.env("directory", directory);
        }
        command.arg::<&OsStr>(program.as_ref());
        command
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Private { user: false } => {
                f.write_str("mounts, processes and network of its own")
            }
            Self::Private { user: true } => {
                f.write_str("mounts, processes, network and users of its own")
            }
            Self::None { why } => write!(f, "none: {why}"),
        }
    }
}
