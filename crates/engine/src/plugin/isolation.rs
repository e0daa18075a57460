//! What a plug-in is kept away from, and what it is started through.
//!
//! A plug-in has mounts, processes and a network of its own: it sees no devices but the harmless
//! ones, reaches no network unless it declares that it does, cannot set the kernel (`/proc` and
//! `/sys` are read-only), does not find what the controller keeps to itself, and nothing of it is left
//! when it ends. While it is asked something that changes nothing, no file of the machine can be
//! written. `unshare(1)` and `setpriv(1)` do that, because between fork and exec only unsafe code
//! could. Where that is not permitted no plug-in is run, unless the operator says so.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What an operator decided about plug-ins that cannot be isolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IsolationPolicy {
    /// They are not run.
    #[default]
    Required,
    /// All plug-ins are run as any other process of this user, also where more would be possible.
    None,
}

impl std::str::FromStr for IsolationPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "required" => Ok(Self::Required),
            "none" => Ok(Self::None),
            _ => Err("it is `required` or `none`".to_owned()),
        }
    }
}

/// How plug-ins are run on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Isolation {
    /// In namespaces of their own; with `user`, in one of users too, in which they seem to be root.
    Private { user: bool, hidden: Vec<PathBuf> },
    /// As any other process, because the operator says so.
    None { why: String },
    /// Not at all: namespaces are not permitted, or a program for them is not installed.
    Missing { why: String },
}

/// Process 1 of the namespaces: it makes the view that the plug-in has of the machine, runs the
/// plug-in, and tells when something of it is left, which ends with this process. As process 1 a
/// plug-in itself would not heed TERM.
///
/// Its arguments are a number, so many pairs of a word and a path as [`view`] gives them, and the
/// program. Directories are hidden behind an empty file system, files behind `/dev/null`; `first` and
/// `second` are directories that stay although something above them is hidden. Every mount that a plug-in
/// could write through is made read-only: all of them if `writes` is `no`, else those by which the
/// kernel is set, without the directories in `settable`. A mount point that leads to another mount is
/// covered by that one, which has a line of its own.
///
/// Also as root a plug-in may do no more than files, programs and ports need: who may mount or make
/// devices gets back what was taken away.
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

/// Directories that a question which changes nothing finds empty, as [`INIT`] has them.
const EMPTY_WITHOUT_WRITES: [&str; 3] = ["/tmp", "/var/tmp", "/run"];

/// What is started, and with what.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) program: &'a Path,
    /// Where it works.
    pub(super) directory: &'a Path,
    /// From [`FIRST_FD`] on.
    pub(super) descriptors: &'a [Descriptor],
    pub(super) network: bool,
    /// Whether it may write to files of the machine.
    pub(super) writes: bool,
    /// Directories below `/sys` in which it may write all the same.
    pub(super) settable: &'a [PathBuf],
    /// Commands of a shell that come first.
    pub(super) limits: String,
}

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
    /// What is possible here under this policy. `hidden` are files and directories that no plug-in
    /// finds; of those, directories that a step works in, or that its program is in, stay.
    pub fn find(policy: IsolationPolicy, hidden: impl IntoIterator<Item = PathBuf>) -> Self {
        if policy == IsolationPolicy::None {
            return Self::None { why: "the operator says so (`none`)".to_owned() };
        }
        // What is not there yet, or not for us, is looked for under its own name.
        let hidden = hidden.into_iter().map(|path| fs_err::canonicalize(&path).unwrap_or(path));
        let hidden: Vec<PathBuf> = hidden.filter(|path| path.is_absolute()).collect();
        let mut why = String::new();
        for user in [false, true] {
            let isolation = Self::Private { user, hidden: hidden.clone() };
            match isolation.try_out() {
                Ok(()) => return isolation,
                Err(reason) => why = reason,
            }
        }
        Self::Missing { why }
    }

    /// Isolation as every plug-in must have it where nobody can decide otherwise.
    pub fn required(hidden: impl IntoIterator<Item = PathBuf>) -> Self {
        Self::find(IsolationPolicy::Required, hidden)
    }

    pub fn is_private(&self) -> bool {
        matches!(self, Self::Private { .. })
    }

    fn try_out(&self) -> Result<(), String> {
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
            "unshare(1) failed without a word".to_owned()
        } else {
            said.join("; ")
        })
    }

    /// A command that runs the program with a clean environment.
    ///
    /// The descriptors are opened anew by a shell, so that ours are never inheritable: another
    /// thread may start a process at any moment.
    pub(super) fn command(&self, start: Start<'_>) -> Command {
        let Start { program, directory, descriptors, network, writes, settable, limits } = start;
        // Of what is above it only its real path may stay.
        let directory = &fs_err::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
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
        if let Self::Private { user, hidden } = self {
            // Nothing of it outlives the thread that waits for it.
            command.args(["setpriv", "--pdeathsig", "KILL", "unshare"]);
            let user: &[&str] = if *user { &["--user", "--map-root-user"] } else { &[] };
            let network: &[&str] = if network { &[] } else { &["--net"] };
            command.args(user).args(network);
            command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
            command.args(["/bin/sh", "-c", INIT, "hoist"]);
            command.env("directory", directory);
            command.env("writes", if writes { "yes" } else { "no" });
            command.env("settable", in_words(settable));
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

/// Directories of sysfs, by their real paths, as words of a shell. One with a name that is no word
/// stays read-only.
fn in_words(settable: &[PathBuf]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._:-,@+!".contains(c);
    let paths = settable.iter().filter_map(|path| fs_err::canonicalize(path).ok());
    let paths = paths.filter_map(|path| path.into_os_string().into_string().ok());
    let words = paths.filter(|path| path.starts_with("/sys/") && path.chars().all(is_plain));
    words.collect::<Vec<_>>().join(" ")
}

/// What a plug-in sees otherwise than it is, the upper paths first. The directory of the program and
/// the one it works in stay where something above them is hidden.
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
    // Nothing that is hidden comes back with what lies above it.
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
