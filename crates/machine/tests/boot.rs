//! Machines with real firmware against a server that sends only the answers of the test.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use hoist_machine::disk::Disk;
use hoist_machine::{Firmware, HOST, Hardware, Machine, Permit, guest};

const DEADLINE: Duration = Duration::from_mins(2);

/// The line of decision 32: on to the disk, whatever the firmware.
const TO_DISK: &str =
    "#!ipxe\niseq ${platform} efi && exit || sanboot --no-describe --drive 0x80 || exit\n";

/// Serves the paths that `files` gives for a loopback port, for as long as the process lives.
fn serve(files: impl FnOnce(u16) -> HashMap<&'static str, Vec<u8>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let port = listener.local_addr().expect("bound").port();
    let files = Arc::new(files(port));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let files = Arc::clone(&files);
            std::thread::spawn(move || answer(&stream, &files));
        }
    });
    port
}

fn answer(mut stream: &TcpStream, files: &HashMap<&str, Vec<u8>>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let asked = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let found = asked.split(' ').nth(1).and_then(|path| files.get(path));
    let (status, body) = found.map_or(("404 Not Found", &[][..]), |body| ("200 OK", body));
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(body)
}

fn machine(firmware: Firmware, port: u16, disk: Option<Disk>) -> Machine {
    let boot_url = format!("http://{HOST}:{port}/boot");
    let mac = "52:54:00:00:00:01".to_owned();
    let hardware = Hardware { firmware, mac, boot_url, disk, variables: None };
    Machine::power_on(hardware).expect("a machine")
}

/// What boots the guest with these words on its command line.
fn linux(words: &str) -> HashMap<&'static str, Vec<u8>> {
    let kernel = format!("kernel /kernel initrd=initrd console=ttyS0 quiet no_timer_check {words}");
    let script = format!("#!ipxe\n{kernel}\ninitrd --name initrd /initrd\nboot\n");
    let kernel = std::fs::read(guest::kernel().expect("set up")).expect("readable");
    let initrd = guest::initrd(guest::TEST_INIT).expect("set up");
    HashMap::from([
        ("/boot", script.into_bytes()),
        ("/kernel", kernel),
        ("/initrd", initrd),
        ("/hello", b"hello guest".to_vec()),
    ])
}

#[test]
fn bios_boots_a_linux_that_reaches_us() {
    let _permit = Permit::wait().unwrap();
    let port = serve(|port| linux(&format!("hoist.test.fetch=http://{HOST}:{port}/hello")));
    let mut machine = machine(Firmware::Bios, port, None);
    let line = machine.wait_for("hoist-test: kernel command line:", DEADLINE).unwrap();
    assert!(line.contains("initrd=initrd console=ttyS0"), "{line}");
    machine.wait_for("hoist-test: fetched: hello guest", DEADLINE).unwrap();
    machine.wait_until_off(DEADLINE).unwrap();
}

#[test]
fn uefi_boots_a_linux_also_after_a_power_cut() {
    let _permit = Permit::wait().unwrap();
    let port = serve(|_| linux(""));
    let mut machine = machine(Firmware::Uefi, port, None);
    machine.wait_for("/kernel... ", DEADLINE).unwrap();
    machine.power_cycle().unwrap();
    machine.wait_for("hoist-test: done", DEADLINE).unwrap();
    machine.wait_until_off(DEADLINE).unwrap();
}

#[test]
fn both_firmwares_leave_for_the_disk() {
    let _permit = Permit::wait().unwrap();
    let port = serve(|_| HashMap::from([("/boot", TO_DISK.into())]));
    for firmware in [Firmware::Bios, Firmware::Uefi] {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::saying("this is the disk", firmware, dir.path()).unwrap();
        let mut machine = machine(firmware, port, Some(disk));
        machine.wait_for("this is the disk", DEADLINE).unwrap();
    }
}

#[test]
fn a_wait_in_vain_shows_the_console() {
    let _permit = Permit::wait().unwrap();
    let mut machine = machine(Firmware::Bios, serve(|_| HashMap::new()), None);
    machine.wait_for("Filename: http://", DEADLINE).unwrap();
    let error = machine.wait_for("never said", Duration::from_secs(1)).unwrap_err().to_string();
    assert!(error.contains("has not said `never said` within "), "{error}");
    assert!(error.contains("iPXE"), "{error}");
    machine.power_off();
    let error = machine.wait_for("never said", DEADLINE).unwrap_err().to_string();
    assert!(error.contains("went off"), "{error}");
}
