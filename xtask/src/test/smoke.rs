//! A few tests that together use everything `setup test` installs. They say nothing about the code
//! that all tests do not say; they say that setup is whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::program::{self, Outcome, Program};
use super::{Extent, KINDS};
use crate::{cargo, run_command, say};

/// Each with its program. The stacks are the slowest, with half a minute.
const TESTS: [(&str, &str); 22] = [
    // etcd, PostgreSQL, setpriv, kill.
    ("store tests/contract", "etcd::values_and_keys_come_back_exactly"),
    ("store tests/contract", "postgres::values_and_keys_come_back_exactly"),
    ("hoist tests/journey", "two_processes_on_one_etcd_see_each_other"),
    // sshd, ssh, ssh-keygen.
    ("engine tests/ssh", "a_step_is_done_over_there_with_all_that_belongs_to_it"),
    // Puppet, Ansible, patch, Python.
    ("deploy lib", "actions::tests::a_real_manifest_is_applied"),
    ("deploy lib", "actions::tests::a_real_playbook_is_run"),
    ("deploy lib", "actions::line_diff::tests::the_program_patch_makes_the_one_text_of_the_other"),
    ("engine tests/plugins", "examples::a_credential_comes_by_descriptor_and_is_nowhere_else"),
    // losetup, sgdisk, blkid, mkfs of every kind, mksquashfs, cryptsetup, qemu-img.
    ("provision tests/disk", "signature::what_others_make_is_told_as_they_tell_it"),
    (
        "provision tests/disk",
        "table::others_find_nothing_wrong_with_our_tables_and_read_them_as_we_do",
    ),
    ("provision tests/disk", "qcow2::what_qemu_makes_becomes_the_disk_that_it_is_of"),
    (
        "provision tests/fat",
        "volumes_of_every_size_and_sector_hold_what_was_put_there_and_others_find_no_fault",
    ),
    (
        "agent tests/by_hand",
        "what_is_applied_is_what_others_find_and_a_second_time_there_is_nothing_to_do",
    ),
    (
        "agent tests/by_hand",
        "foreign::disks_of_others_are_refused_as_they_are_and_taken_when_all_on_them_is_named",
    ),
    // mdadm and LVM, in a machine; cpio, strip, objcopy.
    (
        "agent tests/in_ram",
        "stacks::mirrors_and_volumes_are_made_and_made_again_and_never_taken_from_a_disk_that_nobody_named",
    ),
    ("initramfs lib", "tree::tests::what_was_put_in_comes_out_again"),
    ("hoist tests/agent_image", "an_image_is_made_and_brought_to_the_controller"),
    ("image lib", "pe::tests::other_programs_read_the_sections_that_were_added"),
    // QEMU with both firmwares and network cards, GRUB and systemd-boot.
    ("machine tests/boot", "bios_boots_a_linux_that_reaches_us"),
    ("image tests/boot", "a_whole_disk_boots_with_bios_and_with_uefi"),
    // Trees with cloud-init, network namespaces.
    ("hoist tests/cloud_init", "a_client_that_is_not_known_yet_is_held_and_then_told"),
    // git.
    ("xtask bin xtask", "tidy::tests::this_repository_is_tidy"),
];

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
    let (count, names) = (failed.len(), failed.join(", "));
    ensure!(failed.is_empty(), "smoke: {count} of {} tests failed: {names}", TESTS.len());
    say(format!("smoke: {} tests passed", TESTS.len()));
    Ok(())
}
