//! Isolates plug-ins from the machine with namespaces.
//!
//! A plug-in has its own mounts, processes and network. It sees only harmless devices, reaches no
//! network unless it declares the need, cannot change kernel settings (`/proc` and `/sys` are
//! read-only), and does not see private files of the controller. No process of a plug-in survives
//! its end. During requests that change nothing, the whole file system is read-only. `unshare(1)`
//! and `setpriv(1)` do this, because between fork and exec only unsafe code could. Where namespaces
//! are not permitted no plug-in runs, unless the operator configures it.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The operator's decision about plug-ins that cannot be isolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IsolationPolicy {
    /// They are refused.
    #[default]
    Required,
    /// All plug-ins run as ordinary processes of this user, even where isolation is possible.
    None,
}

/// The text is not an isolation policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the isolation must be `required` or `none`")]
pub struct UnknownPolicy;

impl std::str::FromStr for IsolationPolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        match text {
            "required" => Ok(Self::Required),
            "none" => Ok(Self::None),
            _ => Err(UnknownPolicy),
        }
    }
}

/// How plug-ins run on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Isolation {
    /// In namespaces of their own; with `user`, including a user namespace in which they appear as
    /// root.
    Private { user: bool, hidden: Vec<PathBuf> },
    /// As ordinary processes, because the operator configured it.
    None { why: String },
    /// Not at all: namespaces are not permitted, or a required program is not installed.
    Missing { why: String },
}

/// Process 1 of the namespaces. It sets up the mounts, runs the plug-in, and reports leftover
/// processes, which end together with this process. A plug-in as process 1 would ignore TERM.
///
/// Arguments: a number, that many pairs of a word and a path (see [`view`]), and the program.
/// Directories are hidden behind an empty file system, files behind `/dev/null`; `first` and
/// `second` are directories that stay visible below hidden ones. If `writes` is `no`, every mount
/// becomes read-only; otherwise the mounts with kernel settings do, except the directories in
/// `settable`. A mount point that is covered by another mount is skipped, because the covering
/// mount has its own line.
///
/// A plug-in as root gets only the capabilities that files, programs and ports need: with the right
/// to mount or to create devices it could undo the isolation.
const INIT: &str = r#"
fail() {
    echo "hoist: cannot isolate the plug-in: $1" >&2
    exit 125
}
mount -n -t tmpfs -o mode=0755,size=16m,nosuid,noexec hoist-private /sys && cd /sys || fail /dev
for device in null zero full random urandom; do
    : >"$device" && mount -n --bind "/dev/$device" "$device" || fail "/dev/$device"
done
mkdir -m 1777 shm && ln -s /proc/self/fd fd || fail /dev
[ -z "$first" ] || { mkdir .first && mount -n --rbind "$first" .first; } || fail "$first"
[ -z "$second" ] || { mkdir .second && mount -n --rbind "$second" .second; } || fail "$second"
count=$1
shift
while [ "$count" -gt 0 ]; do
    case $1 in
    empty)
        [ ! -d "$2" ] || [ -L "$2" ] ||
            mount -n -t tmpfs -o mode=1777,size=256m,nosuid,nodev hoist-private "$2" || fail "$2"
        ;;
    hide)
        if [ -d "$2" ]; then
            mount -n -t tmpfs -o mode=0755,size=1m,nosuid,nodev,noexec hoist-hidden "$2" || fail "$2"
        elif [ -e "$2" ]; then
            mount -n --bind /dev/null "$2" || fail "$2"
        fi
        ;;
    first | second)
        mkdir -p "$2" && mount -n --move ".$1" "$2" || fail "$2"
        ;;
    *) fail "$1" ;;
    esac
    shift 2
    count=$((count - 1))
done
cd / && mount -n --move /sys /dev || fail /dev
for file in kcore keys sysrq-trigger; do
    [ ! -e "/proc/$file" ] || mount -n --bind /dev/null "/proc/$file" || fail "/proc/$file"
done
mount -n -o remount,bind,ro /proc || fail /proc
for path in $settable; do
    mount -n --bind "$path" "$path" || fail "$path"
done
root=
while read -r id _ _ _ point options rest; do
    [ "$point" != / ] || root=known
    case $options in ro | ro,*) continue ;; esac
    case $point in /proc | /proc/* | /dev | /dev/*) continue ;; esac
    case " $settable " in *" $point "*) continue ;; esac
    rest=${rest#*- }
    case $writes:$point:$rest in
    *:"tmpfs hoist-private "* | *:"autofs "*) continue ;;
    no:* | *:"tmpfs hoist-hidden "* | yes:/sys:* | yes:/sys/*) ;;
    *:"proc "* | *:"sysfs "* | *:cgroup* | *:"configfs "* | *:"debugfs "* | *:"tracefs "*) ;;
    *:"securityfs "* | *:"efivarfs "* | *:"binfmt_misc "* | *:"bpf "*) ;;
    *) continue ;;
    esac
    case $point in *\*) point=$(printf %b "$point") ;; esac
    [ -e "$point" ] || continue
    is=
    if [ -d "$point" ] || [ -f "$point" ]; then
        is=$(
            exec 3<"$point" || exit
            while read -r key value; do [ "$key" != mnt_id: ] || echo "$value"; done </proc/self/fdinfo/3
        ) 2>/dev/null
    fi
    [ -z "$is" ] || [ "$is" = "$id" ] || continue
    mount -n -o remount,bind,ro "$point" || fail "$point cannot be made read-only"
done </proc/self/mountinfo
[ "$root" ] || fail "/ is not a mount point; run hoist outside of chroot"
cd "$directory" || fail "$directory"
unset directory first second writes settable
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

/// Directories that appear empty during requests that change nothing; see [`INIT`].
const EMPTY_WITHOUT_WRITES: [&str; 3] = ["/tmp", "/var/tmp", "/run"];

/// The parameters of one start.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) program: &'a Path,
    /// The working directory.
    pub(super) directory: &'a Path,
    /// Numbered from [`FIRST_FD`].
    pub(super) descriptors: &'a [Descriptor],
    pub(super) network: bool,
    /// Whether the plug-in may write to files of the machine.
    pub(super) writes: bool,
    /// Directories below `/sys` that stay writable.
    pub(super) settable: &'a [PathBuf],
    /// Shell commands that run first.
    pub(super) limits: String,
}

/// Exit status by which [`INIT`] reports leftover processes.
pub(super) const LEFT_BEHIND: i32 = 124;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Descriptors that a plug-in can get in addition to the standard three. POSIX shells have no
/// numbers above 9.
pub(super) const FIRST_FD: u32 = 3;
pub(super) const LAST_FD: u32 = 9;

/// A descriptor for reading, or for reading and writing.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) fd: OwnedFd,
    pub(super) is_written: bool,
}

impl Isolation {
    /// The isolation that is possible on this machine under this policy. `hidden` are files and
    /// directories that no plug-in sees, except the working directory of a step and the directory
    /// of the program.
    pub fn find(policy: IsolationPolicy, hidden: impl IntoIterator<Item = PathBuf>) -> Self {
        if policy == IsolationPolicy::None {
            return Self::None { why: "disabled by the operator (`none`)".to_owned() };
        }
        // A path that cannot be resolved is hidden under its own name.
        let hidden = hidden.into_iter().map(|path| fs_err::canonicalize(&path).unwrap_or(path));
        let hidden: Vec<PathBuf> = hidden.filter(|path| path.is_absolute()).collect();
        let mut why = String::new();
        for user in [false, true] {
            let isolation = Self::Private { user, hidden: hidden.clone() };
            match isolation.probe() {
                Ok(()) => return isolation,
                Err(reason) => why = reason,
            }
        }
        Self::Missing { why }
    }

    /// The required isolation, for callers without a policy.
    pub fn required(hidden: impl IntoIterator<Item = PathBuf>) -> Self {
        Self::find(IsolationPolicy::Required, hidden)
    }

    pub fn is_private(&self) -> bool {
        matches!(self, Self::Private { .. })
    }

    fn probe(&self) -> Result<(), String> {
        let mut command = self.command(Start {
            program: Path::new("/bin/true"),
            directory: Path::new("/"),
            descriptors: &[],
            network: false,
            writes: false,
            settable: &[],
            limits: String::new(),
        });
        let ended = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        if ended.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ended.stderr);
        let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Err(if said.is_empty() {
            "unshare(1) failed without a message".to_owned()
        } else {
            said.join("; ")
        })
    }

    /// A command that runs the program with a clean environment.
    ///
    /// A shell reopens the descriptors, so that ours are never inheritable: another thread may
    /// start a process at any time.
    pub(super) fn command(&self, start: Start<'_>) -> Command {
        let Start { program, directory, descriptors, network, writes, settable, limits } = start;
        // Only the canonical path may stay visible below hidden directories.
        let directory = &fs_err::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
        let mut opens = limits;
        for (number, ours) in (FIRST_FD..=LAST_FD).zip(descriptors) {
            let process = std::process::id();
            let fd = ours.fd.as_raw_fd();
            let how = if ours.is_written { "<>" } else { "<" };
            write!(opens, "exec {number}{how}/proc/{process}/fd/{fd} || exit 125; ")
                .expect("writing to a string");
        }
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(opens + "exec \"$@\"").arg("hoist");
        command.env_clear().env("PATH", PATH).env("LC_ALL", "C.UTF-8").env("HOME", "/");
        command.current_dir(directory);
        if let Self::Private { user, hidden } = self {
            // No process of the plug-in may outlive the thread that waits for it.
            command.args(["setpriv", "--pdeathsig", "KILL", "unshare"]);
            let user: &[&str] = if *user { &["--user", "--map-root-user"] } else { &[] };
            let network: &[&str] = if network { &[] } else { &["--net"] };
            command.args(user).args(network);
            command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
            command.args(["/bin/sh", "-c", INIT, "hoist"]);
            command.env("directory", directory);
            command.env("writes", if writes { "yes" } else { "no" });
            command.env("settable", shell_words(settable));
            let view = view(hidden, program, directory, writes);
            for kept in ["first", "second"] {
                let path = view.iter().find(|(word, _)| *word == kept).map(|(_, path)| path);
                command.env(kept, path.cloned().unwrap_or_default());
            }
            command.arg(view.len().to_string());
            for (word, path) in &view {
                command.arg(word).arg(path);
            }
        }
        command.arg::<&OsStr>(program.as_ref());
        command
    }
}

/// Directories of sysfs, canonical, as words of a shell. A directory whose name is not a plain word
/// stays read-only.
fn shell_words(settable: &[PathBuf]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._:-,@+!".contains(c);
    let paths = settable.iter().filter_map(|path| fs_err::canonicalize(path).ok());
    let paths = paths.filter_map(|path| path.into_os_string().into_string().ok());
    let words = paths.filter(|path| path.starts_with("/sys/") && path.chars().all(is_plain));
    words.collect::<Vec<_>>().join(" ")
}

/// The paths that a plug-in sees differently, parents first. The directory of the program and the
/// working directory stay visible below hidden ones.
fn view(
    hidden: &[PathBuf],
    program: &Path,
    directory: &Path,
    writes: bool,
) -> Vec<(&'static str, PathBuf)> {
    let empty = EMPTY_WITHOUT_WRITES.iter().filter(|_| !writes).map(|path| ("empty", path.into()));
    let hidden = hidden.iter().map(|path| ("hide", path.clone()));
    let mut view: Vec<(&'static str, PathBuf)> = empty.chain(hidden).collect();
    let kept = [("first", program.parent().unwrap_or(directory)), ("second", directory)];
    for (word, path) in kept {
        let path = path.to_owned();
        let is_there = view.iter().any(|(word, kept)| *word == "first" && *kept == path);
        let is_covered =
            view.iter().any(|(word, above)| *word != "first" && path.starts_with(above));
        if is_covered && !is_there {
            view.push((word, path));
        }
    }
    // A parent must be mounted before its children, so that no hidden path reappears.
    view.sort_by_key(|(_, path)| path.components().count());
    view
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Private { user: false, .. } => {
                f.write_str("mounts, processes and network of its own")
            }
            Self::Private { user: true, .. } => {
                f.write_str("mounts, processes, network and users of its own")
            }
            Self::None { why } => write!(f, "none: {why}"),
            Self::Missing { why } => write!(f, "not possible: {why}"),
        }
    }
}
