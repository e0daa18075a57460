//! The real cloud-init of Debian's releases, run without a machine: a cached tree of each release,
//! with its stages in namespaces of their own.
//!
//! `make setup-test` makes the trees under `target/cloud-init` and installs nothing. A client
//! writes to an overlay, which is removed with the client, and never into its tree.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use fs_err as fs;
use rustix::thread::UnshareFlags;

use crate::guest;

/// Debian's releases whose clients are tried: one from before clients wait for 503, one from after.
pub const RELEASES: [&str; 2] = ["bookworm", "trixie"];

/// The packages of a tree.
pub const PACKAGES: [&str; 3] = ["cloud-init", "iproute2", "procps"];

/// Longest time for all stages of a boot, in seconds.
const DEADLINE: &str = "120";

/// Modules that touch neither disks nor users. All other settings are those of the release.
const CONFIGURATION: &str = "\
cloud_init_modules: [write_files, set_hostname, update_hostname]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts_user, phone_home]
";

/// In namespaces of its own, before the client's root is entered.
const POWER_ON: &str = r#"
set -e
mount -t proc proc "$ROOT/proc"
mount -t sysfs sysfs "$ROOT/sys"
mount -t tmpfs run "$ROOT/run"
mount -t tmpfs tmp "$ROOT/tmp"
printf '%s\n' "$COMMAND_LINE" > "$ROOT/run/cmdline"
hostname "$(cat "$ROOT/etc/hostname")"
exec chroot "$ROOT" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
    DEBUG_PROC_CMDLINE="$COMMAND_LINE" PATH_PROC_CMDLINE=/run/cmdline sh -c "$STAGES"
"#;

/// What systemd would run, in its order. The answers go to files.
const STAGES: &str = r"
cd /var/lib/hoist-test
{
    /usr/lib/cloud-init/ds-identify --force
    cloud-init init --local
    cloud-init init
    cloud-init modules --mode=config
    cloud-init modules --mode=final
} > stages 2>&1
cloud-init status --long > status 2>&1
echo $? > code
hostname > hostname
cloud-init query --all > instance 2>&1
";

/// Where a release's tree is kept between runs.
pub fn tree(release: &str) -> PathBuf {
    guest::target().join("cloud-init").join(release)
}

/// Whether setup has made it.
pub fn is_complete(release: &str) -> bool {
    tree(release).join("usr/bin/cloud-init").is_file()
}

/// Moves the calling thread to a network namespace with a loopback interface only, and to a mount
/// namespace. Threads and processes that it starts later follow.
///
/// A client is configured as its machine would be, and the host must not notice. Both namespaces
/// end with the thread and its children.
pub fn enter_own_network() -> Result<()> {
    #[expect(deprecated, reason = "only for `FILES`, with which it is unsound")]
    rustix::thread::unshare(UnshareFlags::NEWNET | UnshareFlags::NEWNS)
        .context("no namespaces of our own; run the tests as root")?;
    run(Command::new("mount").args(["--make-rprivate", "/"]))?;
    run(Command::new("ip").args(["link", "set", "lo", "up"]))
}

/// A machine with cloud-init on its disk. Needs [`enter_own_network`] first.
#[derive(Debug)]
pub struct Client {
    /// The root file system: the tree below, the client's writes above.
    root: PathBuf,
    dir: tempfile::TempDir,
}

/// How a boot went.
#[derive(Debug, Clone)]
pub struct BootResult {
    /// With which `cloud-init status` ended: 0 done, 1 failed, 2 done with complaints.
    pub code: i32,
    /// The output of `cloud-init status`.
    pub status: String,
    pub hostname: String,
    /// The instance data of the client, as JSON.
    pub instance: String,
    /// What all stages said.
    pub stages: String,
}

impl Client {
    pub fn new(release: &str) -> Result<Self> {
        ensure!(
            is_complete(release),
            "no cloud-init of {release} in {}; run `make setup-test`",
            tree(release).display()
        );
        let dir = tempfile::tempdir()?;
        // In memory: the directory may be on a file system that takes no overlay.
        run(Command::new("mount").args(["-t", "tmpfs", "client"]).arg(dir.path()))?;
        let client = Self { root: dir.path().join("root"), dir };
        let place = |name: &str| client.dir.path().join(name);
        for name in ["root", "above", "work"] {
            fs::create_dir(place(name))?;
        }
        let above = place("above");
        let work = place("work");
        let layers = format!(
            "lowerdir={},upperdir={},workdir={}",
            tree(release).display(),
            above.display(),
            work.display()
        );
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "client", "-o", &layers]).arg(&client.root);
        run(&mut mount)?;
        fs::write(client.at("/etc/hostname"), "unconfigured\n")?;
        fs::write(client.at("/etc/cloud/cloud.cfg.d/99-hoist-test.cfg"), CONFIGURATION)?;
        fs::create_dir(client.at("/var/lib/hoist-test"))?;
        // As an SSH server would have made them: reports of clients have them, or a complaint.
        fs::create_dir_all(client.at("/etc/ssh"))?;
        for kind in ["rsa", "dsa", "ecdsa", "ed25519"] {
            let file = client.at(&format!("/etc/ssh/ssh_host_{kind}_key.pub"));
            fs::write(file, format!("ssh-{kind} AAAA client\n"))?;
        }
        Ok(client)
    }

    /// Runs all stages with this kernel command line. Written files stay for the next boot.
    pub fn boot(&self, command_line: &str) -> Result<BootResult> {
        let mut machine = Command::new("timeout");
        machine
            .args(["--kill-after=5", DEADLINE, "unshare"])
            .args(["--mount", "--pid", "--fork", "--kill-child", "--uts", "sh", "-c", POWER_ON])
            .env("ROOT", &self.root)
            .env("COMMAND_LINE", command_line)
            .env("STAGES", STAGES);
        run(&mut machine)?;
        let said = |name: &str| fs::read_to_string(self.at(&format!("/var/lib/hoist-test/{name}")));
        Ok(BootResult {
            code: said("code")?.trim().parse().context("no exit code")?,
            status: said("status")?,
            hostname: said("hostname")?.trim().to_owned(),
            instance: said("instance")?,
            stages: said("stages")?,
        })
    }

    /// A file of the client.
    pub fn read(&self, path: &str) -> Result<String> {
        Ok(fs::read_to_string(self.at(path))?)
    }

    /// The files that the client wrote in which `text` stands.
    pub fn wrote(&self, text: &str) -> Result<Vec<PathBuf>> {
        let mut command = Command::new("grep");
        command.args(["--recursive", "--text", "--files-with-matches", "--fixed-strings", "-e"]);
        let output = command.arg(text).arg(self.dir.path().join("above")).output()?;
        let complaints = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() < Some(2), "`grep` failed: {}", complaints.trim());
        Ok(String::from_utf8(output.stdout)?.lines().map(PathBuf::from).collect())
    }

    /// The metadata that the client reads from a service in the format of EC2, as JSON.
    pub fn read_ec2(&self, url: &str) -> Result<String> {
        const READ: &str = "import json, sys; from cloudinit.sources.helpers import ec2; \
            of = dict(metadata_address=sys.argv[1], retries=0); \
            print(json.dumps({'meta': ec2.get_instance_metadata(**of), \
            'user': ec2.get_instance_userdata(**of).decode()}))";
        let mut python = Command::new("chroot");
        let output = python.arg(&self.root).args(["python3", "-c", READ, url]).output()?;
        let complaints = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "EC2 cannot be read: {}", complaints.trim());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The files of systemd-networkd that the client makes from a network-config, by name.
    pub fn network_of(&self, config: &str) -> Result<BTreeMap<String, String>> {
        let given = "/var/lib/hoist-test/network";
        let made = "/var/lib/hoist-test/networkd";
        fs::write(self.at(given), config)?;
        // They are made over to a user that a small tree does not have.
        for (file, line) in [("/etc/passwd", "998::/:/bin/false"), ("/etc/group", "")] {
            let all = self.read(file)? + "systemd-network:x:998:" + line + "\n";
            fs::write(self.at(file), all)?;
        }
        let mut convert = Command::new("chroot");
        convert.arg(&self.root).args(["cloud-init", "devel", "net-convert", "-k", "yaml"]);
        run(convert.args(["-p", given, "-d", made, "-D", "debian", "-O", "networkd"]))?;
        let files = fs::read_dir(self.at(made).join("etc/systemd/network"))?;
        let file = |entry: std::io::Result<fs::DirEntry>| {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, fs::read_to_string(path)?))
        };
        files.map(file).collect()
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The directory cannot be removed while something is mounted there.
        let _ = run(Command::new("umount").args(["--recursive", "--lazy"]).arg(self.dir.path()));
    }
}

fn run(command: &mut Command) -> Result<()> {
    let program = Path::new(command.get_program()).display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("`{program}` does not start"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{program}` failed ({}): {}", output.status, said.trim());
    Ok(())
}
