//! The provisioning part of the demo: the agent installs a system on an empty disk, the machine
//! starts it, and an undo empties the disk again.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use hoist_machine::disk::Disk;
use hoist_machine::{Firmware, HOST, Hardware, Machine, guest};

use super::boot::{MAC, NAME, Screen};
use super::{STOPPED, Site, WAITS, WOULD_CHANGE};
use crate::{say, shown_path};

const PROFILE: &str = "examples/provision/profile.yaml";
/// As the profile has it.
const SERIAL: &str = "HOIST-1";
/// A section that only a plug-in reads.
const TUNING: &str = "tuning.example/readahead@1: {disk: system, kib: 256}";
const DISK: u64 = 256 * 1024 * 1024;

/// The shown part of the console: fetched files, the agent's screen, and messages of the new
/// system.
const WORTH_SHOWING: [&str; 5] = ["http://10.0.2.2", "  now ", "[#", "  error", "hoist-tiny"];

pub(super) async fn show(site: &Site, place: &Path, firmware: Firmware) -> Result<()> {
    say("\n# The machine gets an empty disk. The provisioning agent and the system to install are");
    say("# built here, from Debian's kernel and busybox:");
    agent_image(site, place)?;
    system_image(site, place)?;
    say(format!("\n$ cat {PROFILE}"));
    let profile = fs_err::read_to_string(crate::root().join(PROFILE))?;
    say(profile.trim_end());
    plugin_archive(site, place)?;
    let tuned = place.join("profile.yaml");
    fs_err::write(&tuned, format!("{profile}    {TUNING}\n"))?;
    say(format!("\n# The same profile with one more section, {TUNING}"));
    site.run(&["apply", "-f", &tuned.display().to_string()])?;
    let node = format!("node:{NAME}");
    let start = ["provision", "start", &node];
    site.run_ending(&[&start[..], &["--dry-run"]].concat(), WOULD_CHANGE)?;
    site.run(&start)?;
    site.run(&["boot", "explain", NAME])?;

    let image = place.join("disk.img");
    fs_err::File::create(&image)?.set_len(DISK)?;
    let port = site.url.rsplit(':').next().context("the controller's URL has a port")?;
    let hardware = || Hardware {
        firmware,
        mac: MAC.to_owned(),
        boot_url: format!("http://{HOST}:{port}/boot/v1/bootscript?mac={MAC}"),
        disk: Some(Disk::Nvme { image: image.clone(), serial: SERIAL.to_owned() }),
        variables: Some(place.join("variables.fd")),
    };
    say("\n# The machine is switched on. The agent checks the plan against the real disk first.");
    let power_on = Instant::now();
    let mut screen = Screen::new(Machine::power_on(hardware())?, &WORTH_SHOWING);
    screen.until("MiB/s").await?;
    site.run_ending(&["provision", "status", NAME], WAITS)?;
    say("");
    screen.until("hoist-tiny: up").await?;
    say(format!(
        "\n# From power-on to a system that runs from its own disk: {} s.",
        power_on.elapsed().as_secs()
    ));
    site.run(&["provision", "status", NAME])?;
    site.run(&["provision", "facts", NAME])?;
    site.run(&["boot", "explain", NAME])?;
    drop(screen);

    say(
        "\n# Undo the installation. Disk and controller both have a record that the disk was empty:",
    );
    site.run_ending(&["provision", "undo", NAME, "--dry-run"], WOULD_CHANGE)?;
    site.run(&["provision", "undo", NAME])?;
    let mut screen = Screen::new(Machine::power_on(hardware())?, &WORTH_SHOWING);
    screen.until("report acknowledged by the controller: done").await?;
    drop(screen);
    let mut head = vec![1; 1 << 20];
    std::io::Read::read_exact(&mut fs_err::File::open(&image)?, &mut head)?;
    ensure!(head.iter().all(|byte| *byte == 0), "the first MiB of the disk is not empty");
    say("\n# The first MiB of the disk is empty again.");
    site.run_ending(&["provision", "status", NAME], STOPPED)?;
    site.run(&["boot", "explain", NAME])
}

/// Packs an example plug-in and adds it as an artifact.
fn plugin_archive(site: &Site, place: &Path) -> Result<()> {
    say("\n# A plug-in with an action of its own, for machines whose profile has its section:");
    let from = crate::root().join("examples/plugins");
    let to = place.join("plugins");
    fs_err::create_dir_all(&to)?;
    let file = "hoist-action-readahead";
    fs_err::copy(from.join(file), to.join(file))?;
    let archive = place.join("readahead.cpio");
    let [to, archive] = [to, archive].map(|path| path.display().to_string());
    site.run(&["plugin", "pack", &to, "--out", &archive, "--add"])
}

fn agent_image(site: &Site, place: &Path) -> Result<()> {
    let kernel = guest::kernel()?;
    let modules = guest::modules()?;
    let out = place.join("agent");
    let [kernel, modules, out] = [&kernel, &modules, &out].map(|path| shown_path(path));
    let from = ["--kernel", &kernel, "--modules", &modules, "--out", &out];
    // Fast packing; a small image matters only when thousands of machines load it.
    site.run(&[&["agent", "image"][..], &from, &["--level", "3", "--add"]].concat())
}

/// The example image, built from the files that are already unpacked.
fn system_image(site: &Site, place: &Path) -> Result<()> {
    let example = fs_err::read_to_string(crate::root().join("examples/image/tiny.yaml"))?;
    let kernel = guest::kernel()?;
    let modules = guest::modules()?;
    let kernel = format!("{{file: {}, modules: {}}}", kernel.display(), modules.display());
    let busybox = format!("{{file: {}}}", guest::busybox()?.display());
    let text = example
        .replace("{package: linux-image-cloud-amd64}", &kernel)
        .replace("{package: busybox-static}", &busybox);
    let document = place.join("tiny.yaml");
    fs_err::write(&document, text)?;
    site.run(&["image", "build", "-f", &document.display().to_string(), "--add"])
}
