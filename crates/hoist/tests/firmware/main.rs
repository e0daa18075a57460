//! Machines with real firmware boot the scripts of a real controller.

mod link;
mod upstream;

use std::path::Path;
use std::time::Duration;

use hoist_testkit::controller_process::{Controller, share_key};
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::machine::disk::Disk;
use hoist_testkit::machine::{Firmware, HOST, Hardware, Machine, Permit, guest};
use hoist_testkit::scratch::free_port;
use hoist_testkit::stores::fresh_name;
use link::Link;
use upstream::{Fault, Upstream};

/// Emulated machines on a busy host.
const DEADLINE: Duration = Duration::from_mins(3);

/// What iPXE says when it got a script.
const ASKED: &str = "/boot/v1/bootscript... ok";

const MAC: &str = "52:54:00:00:00:01";

fn power_on(firmware: Firmware, port: u16, disk: Option<Disk>) -> Machine {
    let boot_url = format!("http://{HOST}:{port}/boot/v1/bootscript?mac={MAC}");
    let hardware = Hardware { firmware, mac: MAC.to_owned(), boot_url, disk, variables: None };
    Machine::power_on(hardware).expect("a machine")
}

/// Waits for the guest's own words; gives its command line.
fn booted(machine: &mut Machine) -> String {
    let line = machine.wait_for("hoist-test: kernel command line: ", DEADLINE).expect("it boots");
    machine.wait_until_off(DEADLINE).expect("the guest ends by itself");
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

/// Where the guest's kernel and initrd are, as configurations name them.
struct Images {
    kernel: String,
    initrd: String,
}

impl Images {
    /// On the controller itself.
    fn added_to(controller: &Controller, dir: &Path) -> Self {
        let kernel = guest::kernel().expect("set up").display().to_string();
        let initrd = dir.join("initrd");
        std::fs::write(&initrd, guest::initrd(guest::TEST_INIT).expect("set up")).expect("a file");
        controller.does(&["artifact", "add", &kernel, "--name", "kernel"]);
        controller.does(&["artifact", "add", &initrd.display().to_string(), "--name", "initrd"]);
        Self { kernel: "artifact:kernel".to_owned(), initrd: "artifact:initrd".to_owned() }
    }

    /// On a server that has nothing to do with hoist.
    fn elsewhere() -> (Self, Upstream) {
        let kernel = std::fs::read(guest::kernel().expect("set up")).expect("readable");
        let initrd = guest::initrd(guest::TEST_INIT).expect("set up");
        let upstream = Upstream::start([("/kernel", kernel), ("/initrd", initrd)]);
        (Self { kernel: upstream.url("/kernel"), initrd: upstream.url("/initrd") }, upstream)
    }

    /// Applies that all nodes boot them.
    fn configure(&self, controller: &Controller, dir: &Path, mode: &str, params: &str) {
        let Self { kernel, initrd } = self;
        let config = format!(
            "api: hoist/v1\nkind: BootConfig\nname: test\nspec:\n  selector: '*'\n  mode: {mode}\n  \
             kernel: {kernel}\n  initrd: ['{initrd}']\n  params: console=ttyS0 no_timer_check {params}\n",
        );
        let file = dir.join("config.yaml");
        std::fs::write(&file, config).expect("a file to apply");
        controller.does(&["apply", "-f", &file.display().to_string()]);
    }
}

#[test]
fn configured_machine_boots_with_its_kernel_arguments() {
    let _permit = Permit::wait().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let controller = start(dir.path(), &[]);
    declare_node(&controller);
    let images = Images::added_to(&controller, dir.path());
    images.configure(&controller, dir.path(), "live", "quiet site.word=as-configured");

    let line = booted(&mut power_on(Firmware::Bios, controller.port(), None));
    let words: Vec<&str> = line.split(' ').collect();
    for word in ["initrd=initrd", "BOOTIF=01-52-54-00-00-00-01", "site.word=as-configured"] {
        assert!(words.contains(&word), "{word}: {line}");
    }
    let history = controller.does(&["boot", "history", "n1", "-o", "json"]);
    assert!(history.contains("test"), "{history}");
}

#[test]
fn unknown_machine_waits_across_a_controller_restart() {
    let _permit = Permit::wait().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let controller = start(dir.path(), &[]);
    let port = controller.port();
    let mut machine = power_on(Firmware::Bios, port, None);
    machine.wait_for(ASKED, DEADLINE).unwrap();
    controller.kill();
    machine.wait_for("/boot/v1/bootscript... Connection reset", DEADLINE).unwrap();

    let controller = start_on(port, dir.path(), &[]);
    machine.wait_for(ASKED, DEADLINE).unwrap();
    let machines = controller.does(&["node", "discovered", "-o", "json"]);
    // What iPXE for a BIOS was built for, whatever the machine is.
    assert!(machines.contains(MAC) && machines.contains("i386"), "{machines}");
    controller.does(&["node", "adopt", MAC, "--name", "n1"]);
    let images = Images::added_to(&controller, dir.path());
    images.configure(&controller, dir.path(), "live", "quiet site.word=late");
    assert!(booted(&mut machine).contains("site.word=late"));
}

/// iPXE for a BIOS has room for 14 scripts that run each other.
#[test]
fn machine_without_a_configuration_may_ask_many_times() {
    let _permit = Permit::wait().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let controller = start(dir.path(), &[]);
    declare_node(&controller);
    let mut machine = power_on(Firmware::Bios, controller.port(), None);
    for _round in 0..16 {
        machine.wait_for(ASKED, DEADLINE).unwrap();
    }
    let images = Images::added_to(&controller, dir.path());
    images.configure(&controller, dir.path(), "live", "quiet");
    booted(&mut machine);
}

/// Bytes that were fetched before the failure must not get into the next attempt.
#[test]
fn failed_fetch_is_retried() {
    let _permit = Permit::wait().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let controller = start(dir.path(), &[]);
    let (images, upstream) = Images::elsewhere();
    declare_node(&controller);
    images.configure(&controller, dir.path(), "live", "loglevel=7");
    upstream.fail_next("/kernel", Fault::Refused);
    upstream.fail_next("/kernel", Fault::CutShort);
    upstream.fail_next("/initrd", Fault::CutShort);

    let mut machine = power_on(Firmware::Bios, controller.port(), None);
    booted(&mut machine);
    assert_eq!((upstream.asked("/kernel"), upstream.asked("/initrd")), (4, 2));
    let loaded = ram_disk(&machine);
    let length = upstream.length("/initrd");
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

#[test]
fn machine_boots_although_its_controller_dies_during_a_fetch() {
    let _permit = Permit::wait().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = EtcdServer::shared().url(&fresh_name());
    let ports = [free_port(), free_port()];
    // Less than a kernel, more than anything before it.
    let link = Link::start(ports[0], 4 << 20);
    let [first, second] = [link.port(), ports[1]].map(|port| format!("http://{HOST}:{port}"));
    let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
    let more = ["--store", &store, "--advertise", &first, "--advertise", &second];
    std::fs::create_dir(&one).unwrap();
    std::fs::create_dir(&two).unwrap();
    let key_of = one.join("data");
    let one = start_on(ports[0], &one, &more);
    share_key(&key_of, &two.join("data"));
    let two = start_on(ports[1], &two, &more);
    declare_node(&one);
    Images::added_to(&one, dir.path()).configure(&one, dir.path(), "live", "quiet");
    // The same names and content: only the second copy is new.
    Images::added_to(&two, dir.path());

    let mut machine = power_on(Firmware::Bios, link.port(), None);
    link.wait_until_stuck(DEADLINE);
    one.kill();
    link.cut();
    machine.wait_for(&format!("{second}/artifacts/"), DEADLINE).unwrap();
    booted(&mut machine);
}

#[test]
fn installed_machine_boots_its_disk_from_then_on() {
    let _permit = Permit::wait().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let controller = start(dir.path(), &[]);
    // Where the guest's requests seem to come from.
    controller.does(&["node", "add", "n1", "--mac", MAC, "--ip", "127.0.0.1/8"]);
    let params = format!(
        "quiet hoist.test.report=http://{HOST}:{}/phone-home hoist.test.then=reboot",
        controller.port()
    );
    let images = Images::added_to(&controller, dir.path());
    images.configure(&controller, dir.path(), "install", &params);
    let disk = Disk::saying("this is the disk", Firmware::Bios, dir.path()).unwrap();
    let mut machine = power_on(Firmware::Bios, controller.port(), Some(disk));
    machine.wait_for("hoist-test: reported", DEADLINE).unwrap();
    machine.wait_for("this is the disk", DEADLINE).unwrap();
    machine.power_cycle().unwrap();
    machine.wait_for("this is the disk", DEADLINE).unwrap();
}

#[test]
fn uefi_leaves_for_the_disk() {
    let _permit = Permit::wait().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let controller = start(dir.path(), &[]);
    declare_node(&controller);
    controller.does(&["boot", "set", "node:n1", "disk"]);
    let disk = Disk::saying("this is the disk", Firmware::Uefi, dir.path()).unwrap();
    let mut machine = power_on(Firmware::Uefi, controller.port(), Some(disk));
    machine.wait_for("this is the disk", DEADLINE).unwrap();
}
