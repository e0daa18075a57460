//! An unknown machine: switched on, discovered, adopted, configured, booted.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hoist_machine::{Firmware, HOST, Hardware, Machine, guest};

use super::{DIFFERS, LOOK_EVERY, Site};
use crate::{say, shown_path};

pub(super) const MAC: &str = "52:54:00:10:00:09";
pub(super) const NAME: &str = "nid000009";
const CONFIG: &str = "examples/boot.yaml";
const LAYERS: &str = "examples/metadata/site.yaml";

/// An emulated machine takes seconds for each step, and longer on a busy host.
const DEADLINE: Duration = Duration::from_mins(10);

const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
echo "node: this is Linux $(uname -r)"
echo "node: booted with $(cat /proc/cmdline)"
poweroff -f
"#;

/// The shown part of the console: fetched files and the machine's own messages.
const WORTH_SHOWING: [&str; 3] = ["iPXE 1", "http://10.0.2.2", "node: "];

pub(super) async fn show(site: &Site, place: &Path) -> Result<()> {
    let port = site.url.rsplit(':').next().context("the controller's URL has a port")?;
    let boot_url = format!("http://{HOST}:{port}/boot/v1/bootscript?mac={MAC}");
    say("\n# An unknown machine is switched on. DHCP directs its firmware to the boot script at");
    say(format!("# {boot_url}"));
    say("# (the machine is QEMU with iPXE; lines with | are its serial console)");
    let hardware = Hardware {
        firmware: Firmware::Bios,
        mac: MAC.to_owned(),
        boot_url,
        disk: None,
        variables: None,
    };
    let mut screen = Screen::new(Machine::power_on(hardware)?, &WORTH_SHOWING);
    screen.until("/boot/v1/bootscript... ok").await?;

    say("\n# The machine waits and asks again. Meanwhile an operator adopts it as a node.");
    site.run(&["node", "discovered"])?;
    let label = ["--label", "rack=r9"];
    let adopt = ["node", "adopt", MAC, "--name", NAME, "--role", "compute", "--nid", "9"];
    site.run(&[&adopt[..], &label].concat())?;

    say("\n# The controller stores the kernel and the initramfs as artifacts.");
    let kernel = shown_path(&guest::kernel()?);
    let initrd = place.join("initrd.img");
    fs_err::write(&initrd, guest::initrd(INIT)?)?;
    site.run(&["artifact", "add", &kernel, "--name", "kernel", "--arch", "x86_64"])?;
    site.run(&["artifact", "add", &initrd.display().to_string(), "--name", "initrd"])?;
    say(format!("\n$ cat {CONFIG}"));
    say(fs_err::read_to_string(crate::root().join(CONFIG))?.trim_end());
    site.run_ending(&["boot", "diff", "-f", CONFIG], DIFFERS)?;
    site.run(&["apply", "-f", CONFIG])?;

    say("\n# With its next request the machine boots.");
    screen.until("node: booted with").await?;
    screen.machine.wait_until_off(DEADLINE)?;
    say("\n# The reason for this configuration, and the origin of each kernel argument:");
    site.run(&["boot", "explain", NAME])?;
    site.run(&["boot", "history", NAME])?;

    say(
        "\n# A kernel argument has the URL of the machine's cloud-init documents. The documents are",
    );
    say("# merged from layers; `--trace` shows the layer of each key:");
    site.run(&["apply", "-f", LAYERS])?;
    site.run(&["metadata", "render", NAME, "--trace"])
}

/// The machine's console. Shows only lines that contain one of the given words.
pub(super) struct Screen {
    machine: Machine,
    worth_showing: &'static [&'static str],
    before: String,
}

impl Screen {
    pub(super) fn new(machine: Machine, worth_showing: &'static [&'static str]) -> Self {
        Self { machine, worth_showing, before: String::new() }
    }

    /// Shows the console up to the line with this text.
    pub(super) async fn until(&mut self, text: &str) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let on = self.machine.is_on()?;
            while let Some(line) = self.machine.next_line()? {
                // A waiting machine repeats its lines.
                if line != self.before && self.worth_showing.iter().any(|word| line.contains(word))
                {
                    say(format!("  | {line}"));
                    self.before.clone_from(&line);
                }
                if line.contains(text) {
                    return Ok(());
                }
            }
            let console = || self.machine.console().unwrap_or_default();
            ensure!(on, "the machine went off before its console had `{text}`:\n{}", console());
            let is_late = Instant::now() >= deadline;
            ensure!(!is_late, "the console had no `{text}` within {DEADLINE:?}:\n{}", console());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
