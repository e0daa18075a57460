//! Machines with real firmware boot what a real controller tells them.

#[path = "support/controller.rs"]
mod controller;
#[path = "support/upstream.rs"]
mod upstream;

use std::path::Path;
use std::time::Duration;

use controller::Controller;
use hoist_testkit::machine::{Firmware, HOST, Hardware, Machine, Turn, guest};
use upstream::{Fault, Upstream};

/// Emulated machines on a busy host.
const PATIENCE: Duration = Duration::from_mins(3);

/// What iPXE says when it got a script.
const ASKED: &str = "/boot/v1/bootscript... ok";

const MAC: &str = "52:54:00:00:00:01";

fn power_on(firmware: Firmware, port: u16) -> Machine {
    let boot_url = format!("http://{HOST}:{port}/boot/v1/bootscript?mac={MAC}");
    let hardware = Hardware { firmware, mac: MAC.to_owned(), boot_url, disk: None };
    Machine::power_on(hardware).expect("a machine")
}

/// Waits for the guest's own words; gives its command line.
fn booted(machine: &mut Machine) -> String {
    let line = machine.wait_for("hoist-test: kernel command line: ", PATIENCE).expect("it boots");
    machine.wait_until_off(PATIENCE).expect("the guest ends by itself");
    line.split_once("line: ").expect("just seen").1.to_owned()
}

fn declare_node(controller: &Controller) {
    controller.does(&["node", "add", "n1", "--mac", MAC]);
}

/// A controller whose machines do not wait long between attempts.
fn start(dir: &Path, more: &[&str]) -> Controller {
    start_on(0, dir, more)
}

fn start_on(port: u16, dir: &Path, more: &[&str]) -> Controller {
    let config = dir.join("hoist.toml");
    std::fs::write(&config, "[boot]\nask_delay = '0s'\nretry_delay = '1s'\n").expect("a file");
    let config = config.display().to_string();
    Controller::start_on(port, &dir.join("data"), &[&["--config", &config], more].concat())
}

/// Applies what all nodes boot.
fn configure(controller: &Controller, dir: &Path, upstream: &Upstream, more: &str) {
    let config = format!(
        "api: hoist/v1\nkind: BootConfig\nname: test\nspec:\n  selector: '*'\n  \
         kernel: {}\n  initrd: [{}]\n  params: console=ttyS0 {more}\n",
        upstream.url("/kernel"),
        upstream.url("/initrd")
    );
    let file = dir.join("config.yaml");
    std::fs::write(&file, config).expect("a file to apply");
    controller.does(&["apply", "-f", &file.display().to_string()]);
}

/// The guest's kernel and initrd, on a server that has nothing to do with hoist.
fn images() -> Upstream {
    let kernel = std::fs::read(guest::kernel().expect("set up")).expect("readable");
    let initrd = guest::initrd(guest::TEST_INIT).expect("set up");
    Upstream::start([("/kernel", kernel), ("/initrd", initrd)])
}

#[test]
fn a_configured_machine_boots_with_the_command_line_of_its_configuration() {
    let _turn = Turn::wait().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let controller = start(dir.path(), &[]);
    declare_node(&controller);
    configure(&controller, dir.path(), &images(), "quiet site.word=as-configured");

    let line = booted(&mut power_on(Firmware::Bios, controller.port()));
    let words: Vec<&str> = line.split(' ').collect();
    for word in ["initrd=initrd", "BOOTIF=01-52-54-00-00-00-01", "site.word=as-configured"] {
        assert!(words.contains(&word), "{word}: {line}");
    }
}

#[test]
fn a_machine_nobody_knows_waits_also_for_a_controller_that_is_restarted() {
    let _turn = Turn::wait().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let controller = start(dir.path(), &[]);
    let port = controller.port();
    let mut machine = power_on(Firmware::Bios, port);
    machine.wait_for(ASKED, PATIENCE).unwrap();
    controller.kill();
    machine.wait_for("/boot/v1/bootscript... Connection reset", PATIENCE).unwrap();

    let controller = start_on(port, dir.path(), &[]);
    machine.wait_for(ASKED, PATIENCE).unwrap();
    declare_node(&controller);
    configure(&controller, dir.path(), &images(), "quiet site.word=late");
    assert!(booted(&mut machine).contains("site.word=late"));
}

/// iPXE for a BIOS has room for 14 scripts that run each other.
#[test]
fn a_machine_without_a_configuration_may_ask_many_times() {
    let _turn = Turn::wait().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let controller = start(dir.path(), &[]);
    declare_node(&controller);
    let mut machine = power_on(Firmware::Bios, controller.port());
    for _round in 0..16 {
        machine.wait_for(ASKED, PATIENCE).unwrap();
    }
    configure(&controller, dir.path(), &images(), "quiet");
    booted(&mut machine);
}

/// What was fetched before the failure must not get into the next attempt.
#[test]
fn what_cannot_be_fetched_is_tried_again() {
    let _turn = Turn::wait().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let controller = start(dir.path(), &[]);
    let upstream = images();
    declare_node(&controller);
    configure(&controller, dir.path(), &upstream, "loglevel=7");
    upstream.fail_next("/kernel", Fault::Refused);
    upstream.fail_next("/kernel", Fault::CutShort);
    upstream.fail_next("/initrd", Fault::CutShort);

    let mut machine = power_on(Firmware::Bios, controller.port());
    booted(&mut machine);
    assert_eq!((upstream.asked("/kernel"), upstream.asked("/initrd")), (4, 2));
    let (loaded, length) = (ram_disk(&machine), upstream.length("/initrd"));
    assert!(loaded - length < 4096, "{loaded} bytes of initrd, {length} are ours");
}

/// How much the kernel found behind `initrd=`, in bytes; it says so in its first lines.
fn ram_disk(machine: &Machine) -> usize {
    let console = machine.console().expect("readable");
    let (_, range) = console.split_once("RAMDISK: [mem 0x").expect("the kernel says so");
    let (start, rest) = range.split_once("-0x").expect("a range");
    let (end, _) = rest.split_once(']').expect("a range");
    let number = |digits| usize::from_str_radix(digits, 16).expect("an address");
    number(end) + 1 - number(start)
}
