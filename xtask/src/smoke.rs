//! A few tests that together use everything `setup test` installs. They say nothing about the code
//! that all tests do not say; they say that setup is whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{cargo, root, say};

/// A test, by the directory of its crate, its file (`lib` for those beside the code) and its name.
struct Smoke {
    crate_dir: &'static str,
    file: &'static str,
    name: &'static str,
}

const fn test(crate_dir: &'static str, file: &'static str, name: &'static str) -> Smoke {
    Smoke { crate_dir, file, name }
}

const TESTS: [Smoke; 22] = [
    // etcd, PostgreSQL, setpriv, kill.
    test("crates/store", "contract", "etcd::values_and_keys_come_back_exactly"),
    test("crates/store", "contract", "postgres::values_and_keys_come_back_exactly"),
    test("crates/hoist", "journey", "two_processes_on_one_etcd_see_each_other"),
    // sshd, ssh, ssh-keygen.
    test("crates/engine", "ssh", "a_step_is_done_over_there_with_all_that_belongs_to_it"),
    // Puppet, Ansible, patch, Python.
    test("crates/deploy", "lib", "actions::tests::a_real_manifest_is_applied"),
    test("crates/deploy", "lib", "actions::tests::a_real_playbook_is_run"),
    test(
        "crates/deploy",
        "lib",
        "actions::line_diff::tests::the_program_patch_makes_the_one_text_of_the_other",
    ),
    test(
        "crates/engine",
        "plugins",
        "examples::a_credential_comes_by_descriptor_and_is_nowhere_else",
    ),
    // losetup, sgdisk, blkid, mkfs of every kind, mksquashfs, cryptsetup, qemu-img.
    test("crates/provision", "disk", "signature::what_others_make_is_told_as_they_tell_it"),
    test(
        "crates/provision",
        "disk",
        "table::others_find_nothing_wrong_with_our_tables_and_read_them_as_we_do",
    ),
    test("crates/provision", "disk", "qcow2::what_qemu_makes_becomes_the_disk_that_it_is_of"),
    test(
        "crates/provision",
        "fat",
        "volumes_of_every_size_and_sector_hold_what_was_put_there_and_others_find_no_fault",
    ),
    test(
        "crates/agent",
        "by_hand",
        "what_is_applied_is_what_others_find_and_a_second_time_there_is_nothing_to_do",
    ),
    test(
        "crates/agent",
        "by_hand",
        "foreign::disks_of_others_are_refused_as_they_are_and_taken_when_all_on_them_is_named",
    ),
    // mdadm and LVM, in a machine; cpio, strip, objcopy.
    test(
        "crates/agent",
        "in_ram",
        "stacks::mirrors_and_volumes_are_made_and_made_again_and_never_taken_from_a_disk_that_nobody_named",
    ),
    test("crates/initramfs", "lib", "tree::tests::what_was_put_in_comes_out_again"),
    test("crates/hoist", "agent_image", "an_image_is_made_and_brought_to_the_controller"),
    test("crates/image", "lib", "pe::tests::other_programs_read_the_sections_that_were_added"),
    // QEMU with both firmwares and network cards, GRUB and systemd-boot.
    test("crates/machine", "boot", "bios_boots_a_linux_that_reaches_us"),
    test("crates/image", "boot", "a_whole_disk_boots_with_bios_and_with_uefi"),
    // Trees with cloud-init, network namespaces.
    test("crates/hoist", "cloud_init", "a_client_that_is_not_known_yet_is_held_and_then_told"),
    // git.
    test("xtask", "bin", "tidy::tests::this_repository_is_tidy"),
];

pub(crate) fn run() -> Result<()> {
    let binaries = built()?;
    let mut failed = Vec::new();
    for smoke in &TESTS {
        let Smoke { crate_dir, file, name } = *smoke;
        let key = (root().join(crate_dir), file.to_owned());
        let binary = binaries
            .get(&key)
            .with_context(|| format!("smoke: {crate_dir} has no tests `{file}`"))?;
        let started = Instant::now();
        let said = smoke.run(binary);
        let verdict = if said.is_ok() { "passed" } else { "FAILED" };
        say(format!(
            "smoke: {verdict} {:6.1} s  {crate_dir} {name}",
            started.elapsed().as_secs_f64()
        ));
        if let Err(error) = said {
            say(format!("{error:#}"));
            failed.push(name);
        }
    }
    if failed.is_empty() {
        say(format!("smoke: {} tests passed", TESTS.len()));
        return Ok(());
    }
    bail!("smoke: {} of {} tests failed: {}", failed.len(), TESTS.len(), failed.join(", "))
}

impl Smoke {
    fn run(&self, binary: &Path) -> Result<()> {
        let directory = root().join(self.crate_dir);
        let mut command = Command::new(binary);
        command
            .args(["--exact", self.name])
            .current_dir(&directory)
            .env("CARGO_MANIFEST_DIR", &directory);
        let output = command.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let complaints = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{said}{complaints}");
        // A test that has another name by now does not run, and is no failure for its binary.
        ensure!(said.contains("ok. 1 passed"), "smoke: there is no such test; correct the list");
        Ok(())
    }
}

/// The binaries of all tests, as `make test` builds them, by crate and file.
fn built() -> Result<BTreeMap<(PathBuf, String), PathBuf>> {
    let mut build = cargo();
    build.args(["test", "--workspace", "--lib", "--bins", "--tests", "--no-run"]);
    build.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    say("$ cargo test --workspace --lib --bins --tests --no-run");
    let output = build.output()?;
    ensure!(output.status.success(), "smoke: the tests cannot be built");
    let messages = String::from_utf8(output.stdout)?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(messages.filter_map(|message| binary(&message)).collect())
}

fn binary(message: &Value) -> Option<((PathBuf, String), PathBuf)> {
    let target = &message["target"];
    let is_test = message["profile"]["test"].as_bool()?;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    let kind = target["kind"][0].as_str()?;
    let file = if kind == "test" { target["name"].as_str()? } else { kind };
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some(((directory.to_owned(), file.to_owned()), executable.into()))
}
