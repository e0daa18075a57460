//! A few tests that together use everything `setup test` installs. They say nothing about the code
//! that all tests do not say; they say that setup is whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::program::{self, Outcome, Program};
use super::{Extent, KINDS};
use crate::{cargo, run_command, say};

/// Each with its program. The stacks are the slowest, with half a minute.
const TESTS: [(&str, &str); 24] = [
    // etcd, PostgreSQL, setpriv, kill.
    ("store tests/contract", "etcd::values_and_keys_come_back_exactly"),
    ("store tests/contract", "postgres::values_and_keys_come_back_exactly"),
    ("hoist tests/commands", "journey::controllers_on_one_etcd_see_each_other"),
    // sshd, ssh, ssh-keygen, sudo.
    ("hoist tests/deploy", "ssh::steps_run_as_the_user_that_sudo_makes"),
    // Puppet, Ansible, patch, Python.
    ("deploy lib", "actions::tests::puppet_applies_a_real_manifest"),
    ("deploy lib", "actions::tests::ansible_runs_a_real_playbook"),
    ("deploy lib", "actions::line_diff::tests::diff_applied_by_patch_gives_the_new_text"),
    ("engine tests/plugins", "examples::credential_is_passed_by_descriptor_only"),
    // PyYAML.
    ("compat tests/fuel", "generations::written_file_is_plain_yaml_for_other_readers"),
    // losetup, sgdisk, blkid, mkfs of every kind, mksquashfs, cryptsetup, qemu-img.
    ("device tests/disk", "signature::foreign_signatures_are_named_as_blkid_does"),
    ("device tests/disk", "table::tables_pass_the_checks_of_other_tools"),
    ("device tests/disk", "qcow2::qcow2_of_qemu_becomes_the_same_disk"),
    ("device tests/fat", "fat_volumes_of_any_size_hold_files_and_pass_fsck"),
    ("agent tests/disks", "apply::applied_disk_passes_other_tools_and_second_apply_is_empty"),
    (
        "agent tests/disks",
        "apply::foreign::foreign_disk_is_taken_only_when_all_its_content_is_named",
    ),
    // mdadm and LVM, in a machine; cpio, strip, objcopy.
    ("agent tests/initramfs", "stacks::mirrors_and_volumes_are_remade_only_on_named_disks"),
    ("initramfs lib", "tree::tests::archive_round_trips_its_entries"),
    ("hoist tests/images", "agent::agent_image_is_built_and_uploaded"),
    // dnsmasq.
    ("hoist tests/images", "network_boot::dnsmasq_accepts_the_examples_of_the_page"),
    ("image lib", "pe::tests::other_programs_read_the_sections_that_were_added"),
    // QEMU with both firmwares and network cards, GRUB and systemd-boot.
    ("machine tests/boot", "bios_boots_a_linux_that_reaches_us"),
    ("image tests/images", "boot::a_whole_disk_boots_with_bios_and_with_uefi"),
    // Trees with cloud-init, network namespaces.
    ("hoist tests/cloud_init", "unknown_client_is_held_until_it_is_declared"),
    // git.
    ("xtask bin xtask", "tidy::tests::repository_is_tidy"),
];

/// Fails if a test of the list is not among the programs: a renamed test must fail `make test` at its
/// start, not the bare machine at the end of CI.
pub(super) fn check_names(programs: &[Program]) -> Result<()> {
    let mut names: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for program in programs {
        if TESTS.iter().any(|(title, _)| *title == program.title()) {
            names.insert(program.title(), program.names()?);
        }
    }
    for (title, name) in TESTS {
        let names = names.get(title).with_context(|| format!("smoke: no program `{title}`"))?;
        ensure!(names.iter().any(|known| known == name), "smoke: `{title}` has no test {name}");
    }
    Ok(())
}

pub(crate) fn run() -> Result<()> {
    run_command(cargo().arg("test").args(KINDS).arg("--no-run"))?;
    let programs = program::built(KINDS)?.into_iter();
    let programs: BTreeMap<String, Arc<Program>> =
        programs.map(|program| (program.title().to_owned(), Arc::new(program))).collect();
    let mut failed = Vec::new();
    for (title, name) in TESTS {
        let program = programs.get(title).with_context(|| format!("no test program `{title}`"))?;
        let result = program.run_one(name, Extent::Usual)?;
        let passed = result.outcome == Outcome::Passed;
        let verdict = if passed { "passed" } else { "FAILED" };
        say(format!("{verdict} {:6.1} s  {}", result.took.as_secs_f64(), result.title()));
        if !passed {
            failed.push(name);
        }
    }
    let count = failed.len();
    let names = failed.join(", ");
    ensure!(failed.is_empty(), "smoke: {count} of {} tests failed: {names}", TESTS.len());
    say(format!("smoke: {} tests passed", TESTS.len()));
    Ok(())
}
