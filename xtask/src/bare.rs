//! The demo and the tests as a new user runs them: in a Debian that has cargo, a C compiler and make,
//! and nothing else. What `setup` does not name is missing there, and fails.
//!
//! The tree is made once and kept under `target/bare`; every job has a fresh copy of it, in namespaces
//! of its own. The kernel unmounts and ends everything with the job, however that ends. The checkout
//! is at its own path with its `target`, so that nothing is built twice. What setup unpacks for
//! virtual machines is hidden; Debian's trees under `target/cloud-init` are used again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::setup::as_root;
use crate::{apt, root, run_command, say, setup, shown_path};

/// Packages that a user must install besides cargo.
const PACKAGES: &str = "gcc,libc6-dev,make,ca-certificates";

/// Variables of cargo and of the network connection. No other variable is passed on.
const PASSED_ON: [&str; 11] = [
    "CARGO_INCREMENTAL",
    "CARGO_NET_OFFLINE",
    "CARGO_TARGET_DIR",
    "CARGO_TERM_COLOR",
    "RUSTFLAGS",
    "RUST_BACKTRACE",
    "TERM",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTPS_PROXY",
];

/// Runs as the init process of its namespaces: mounts, enters the tree, and ends leftover daemons.
/// It must not become the job itself, or orphans would not be reaped.
const ENTER: &str = r#"
set -eu
cp -L /etc/resolv.conf /etc/hosts "$ROOT/etc/"
cp -L /etc/ssl/certs/ca-certificates.crt "$ROOT/etc/ssl/certs/"
# The root of the job has to be a mount of its own.
mount --bind "$ROOT" "$ROOT"
for place in dev sys; do mount --rbind "/$place" "$ROOT/$place"; done
mount -t proc proc "$ROOT/proc"
mount --bind "$ARCHIVES" "$ROOT/var/cache/apt/archives"
for place in $LENT; do
    mkdir -p "$ROOT$place"
    mount --bind "$place" "$ROOT$place"
done
for place in $HIDDEN; do
    mkdir -p "$ROOT$place" "$ROOT/hidden$place"
    mount --bind "$ROOT/hidden$place" "$ROOT$place"
done
# Rather than chroot, below which nobody makes namespaces of users.
cd "$ROOT"
mkdir -p before
pivot_root . before
umount --lazy before
status=0
env -i "$@" || status=$?
exit "$status"
"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    Demo,
    Test,
}

pub(crate) const JOBS: [Job; 2] = [Job::Demo, Job::Test];

impl Job {
    fn name(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Test => "test",
        }
    }

    /// Setup, followed by its purpose.
    fn commands(self) -> &'static str {
        match self {
            Self::Demo => "make demo",
            Self::Test => "make setup-test && cargo xtask smoke",
        }
    }
}

pub(crate) fn run(jobs: &[Job]) -> Result<()> {
    setup::bare()?;
    let place = Place::here()?;
    place.make_tree()?;
    let mut summary = Vec::new();
    for job in jobs {
        let started = Instant::now();
        place.run(*job)?;
        let took = started.elapsed().as_secs();
        summary.push(format!("bare: {} passed in {} min {} s", job.name(), took / 60, took % 60));
    }
    summary.iter().for_each(say);
    Ok(())
}

/// Where everything is, on this machine and in the tree.
struct Place {
    /// `target/bare`.
    directory: PathBuf,
    target: PathBuf,
    cargo_home: PathBuf,
    toolchain: PathBuf,
}

impl Place {
    fn here() -> Result<Self> {
        let target = hoist_machine::guest::target();
        let home = std::env::var_os("HOME").map(PathBuf::from).context("HOME is not set")?;
        let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let toolchain = PathBuf::from(asked(Command::new("rustc").args(["--print", "sysroot"]))?);
        ensure!(
            toolchain != Path::new("/usr"),
            "bare: the toolchain lies in /usr and cannot be lent to another tree; install it with rustup"
        );
        Ok(Self {
            directory: target.join("bare"),
            target,
            cargo_home: cargo_home.unwrap_or_else(|| home.join(".cargo")),
            toolchain,
        })
    }

    fn tree(&self) -> PathBuf {
        self.directory.join("tree")
    }

    fn archives(&self) -> PathBuf {
        self.directory.join("archives")
    }

    /// Unless there is one that was made of the same.
    fn make_tree(&self) -> Result<()> {
        let release = release()?;
        let sources = apt::sources()?;
        let options = apt::options()?;
        let made_of =
            format!("{release}\n{PACKAGES}\n{}\n", [&sources[..], &options].concat().join("\n"));
        let label = self.directory.join("tree.made-of");
        if fs_err::read_to_string(&label).is_ok_and(|text| text == made_of) {
            return Ok(());
        }
        say(format!("bare: making a {release} with {PACKAGES}"));
        fs_err::create_dir_all(self.archives().join("partial"))?;
        remove(&self.tree())?;
        let mut make = as_root("mmdebstrap");
        make.args(["--quiet", "--variant=minbase", "--mode=root", "--format=directory"]);
        // Neither this tree nor its copies outlive a power cut.
        make.arg("--dpkgopt=force-unsafe-io").arg(format!("--include={PACKAGES}"));
        make.args(options.iter().map(|option| format!("--aptopt={option}")));
        run_command(make.arg(release).arg(self.tree()).args(&sources))?;
        Ok(fs_err::write(label, made_of)?)
    }

    fn run(&self, job: Job) -> Result<()> {
        let copy = self.directory.join(job.name());
        remove(&copy)?;
        run_command(as_root("cp").args(["-a", "--reflink=auto"]).arg(self.tree()).arg(&copy))?;
        say(format!("bare: {} in {}: {}", job.name(), shown_path(&copy), job.commands()));
        let status = self.entering(job, &copy)?.status()?;
        detach_loops(&copy)?;
        ensure!(
            status.success(),
            "bare: {} failed ({status}); its tree is left in {}",
            job.name(),
            shown_path(&copy)
        );
        remove(&copy)
    }

    /// The job, in a tree and in namespaces of its own.
    fn entering(&self, job: Job, tree: &Path) -> Result<Command> {
        let mut lent =
            vec![root(), self.target.clone(), self.cargo_home.clone(), self.toolchain.clone()];
        let git = Command::new("git")
            .args(["rev-parse", "--git-common-dir"])
            .current_dir(root())
            .output();
        // A worktree of git keeps its files elsewhere; `.git` is in the checkout.
        let git = git.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        lent.extend(git.ok().filter(|place| place.starts_with('/')).map(PathBuf::from));
        let hidden = [self.directory.clone(), hoist_machine::guest::directory()];
        let mut command = as_root("env");
        command.arg(format!("ROOT={}", tree.display()));
        command.arg(format!("ARCHIVES={}", self.archives().display()));
        command.arg(format!("LENT={}", words(&lent)?)).arg(format!("HIDDEN={}", words(&hidden)?));
        command.args(["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]);
        command.args(["sh", "-c", ENTER, "bare"]);
        let bin = self.toolchain.join("bin");
        command.arg(format!(
            "PATH={}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            bin.display()
        ));
        command.arg(format!("CARGO_HOME={}", self.cargo_home.display()));
        command.args(["HOME=/root", "LANG=C.UTF-8", "HOIST_DEMO_ONCE=1"]);
        // The checkout may be of a user, and the tree has only root.
        command.args([
            "GIT_CONFIG_COUNT=1",
            "GIT_CONFIG_KEY_0=safe.directory",
            "GIT_CONFIG_VALUE_0=*",
        ]);
        let passed = |name: &str| Some(format!("{name}={}", std::env::var(name).ok()?));
        command.args(PASSED_ON.into_iter().filter_map(passed));
        let script = format!("cd '{}' && {}", root().display(), job.commands());
        command.args(["sh", "-c", &script]);
        Ok(command)
    }
}

/// The name of this machine's Debian.
fn release() -> Result<String> {
    let text = fs_err::read_to_string("/etc/os-release")?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("/etc/os-release names no release of Debian")?.trim_matches('"').to_owned())
}

/// For a variable of a shell script that is split at spaces.
fn words(paths: &[PathBuf]) -> Result<String> {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let odd =
        paths.iter().find(|path| path.contains(|c: char| c.is_whitespace() || "*?['".contains(c)));
    ensure!(odd.is_none(), "bare: the path {odd:?} has a space or a sign of shells in it; move it");
    Ok(paths.join(" "))
}

/// Loop devices belong to the machine, not to a namespace: a test that was killed leaves them.
fn detach_loops(tree: &Path) -> Result<()> {
    let listed =
        asked(as_root("losetup").args(["--list", "--noheadings", "--output", "NAME,BACK-FILE"]))?;
    let tree = tree.display().to_string();
    for line in listed.lines().filter(|line| line.contains(&tree)) {
        let device = line.split_whitespace().next().unwrap_or_default();
        run_command(as_root("losetup").args(["--detach", device]))?;
    }
    Ok(())
}

fn remove(tree: &Path) -> Result<()> {
    run_command(as_root("rm").args(["-rf", "--one-file-system"]).arg(tree))
}

fn asked(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("bare: {program} does not start"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "bare: {program}: {}", said.trim());
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
