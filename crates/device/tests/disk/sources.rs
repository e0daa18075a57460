//! Sources that do not answer: nothing is written before every image has one that does.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_device::RunInputs;
use hoist_device::apply::{self, ApplyError};
use hoist_device::images::{Notices, WaitNotice};
use hoist_device::observe::{SourceTimeout, observe_until};
use hoist_engine::action::Cancel;
use hoist_provision::diagnostic::Code;
use hoist_provision::digest::Digest;
use hoist_provision::document::Document;
use hoist_provision::plan::{self, ProvisionPlan};
use parking_lot::Mutex;

use crate::machine::{FileMachine, Quiet, document};
use crate::server::{Answer, Server};

const MIB: usize = 1 << 20;

fn machine() -> FileMachine {
    let machine = FileMachine::new();
    machine.add("sda", 512, &vec![0; 16 * MIB]);
    machine
}

/// A document with one partition and one image for each list of sources.
fn wanted(number: u8, images: &[&[&str]]) -> Document {
    let mut storage = String::new();
    let mut sections = String::new();
    for (number, sources) in images.iter().enumerate() {
        let _ = writeln!(storage, "  - part: {{id: p{number}, on: os, size: 4 MiB}}");
        let sources = sources.join("', '");
        let _ = writeln!(sections, "    i{number}: {{sources: ['{sources}'], target: p{number}}}");
    }
    document(&format!(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-0000000004{number:02}\nsections:\n  node: {{id: \
         n1}}\n  disks: {{os: {{match: {{serial: S-sda}}, wipe: any}}}}\n  storage:\n{storage}  \
         images:\n{sections}"
    ))
}

/// A URL whose server refuses connections.
fn closed() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("http://{}/image?secret=1", listener.local_addr().expect("it is bound"))
}

fn apply(machine: &FileMachine, document: &Document, plan: &ProvisionPlan) -> Option<ApplyError> {
    let machine = machine.machine();
    let given = RunInputs::default();
    apply::apply(document, plan, &machine, &given, None, Arc::new(Quiet)).err()
}

#[test]
fn nothing_is_written_before_every_source_answers() {
    let machine = machine();
    let image = vec![5; 2 * MIB];
    let good = Server::start(&image, &[Answer::Good]);
    let silent = Server::start(&image, &[Answer::Status(503)]);
    let gone = closed();
    for bad in [&silent.url, &gone] {
        let document = wanted(1, &[&[&good.url], &[bad]]);
        let plan = machine.decide(&document);
        let shown = plan.to_string();
        let warning = "warning: images.i1.sources: cannot fetch `http://127.0.0.1";
        assert!(shown.contains(warning) && !shown.contains("secret"), "{shown}");
        assert!(!shown.contains("i0.sources"), "{shown}");
        let error = apply(&machine, &document, &plan).expect("a source is missing");
        let ApplyError::Refused(found) = &error else { panic!("{error:?}") };
        assert_eq!(found[0].code, Code::Unreachable, "{error}");
        assert!(machine.bytes("sda").iter().all(|byte| *byte == 0), "nothing was written");
    }
}

#[test]
fn nothing_is_written_before_the_boot_files_answer() {
    let machine = machine();
    fs_err::create_dir_all(machine.path("sys/firmware/efi")).expect("created");
    let kernel = b"kernel";
    let good = Server::start(kernel, &[Answer::Good; 8]);
    let image = vec![5; 2 * MIB];
    let root = Server::start(&image, &[Answer::Good]);
    let digest = Digest::of(kernel);
    let asked = |kernel: &str, initrd: &str| {
        let source = |url: &str| format!("{{sources: ['{url}'], digest: '{digest}'}}");
        document(&format!(
            "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-000000000411\nsections:\n  node: {{id: n1}}\n  \
             disks: {{os: {{match: {{serial: S-sda}}, wipe: any}}}}\n  storage:\n  \
             - part: {{id: esp, on: os, size: 64 MiB, role: esp}}\n  \
             - fs: {{id: esp-fs, on: esp, kind: vfat, label: ESP}}\n  \
             - part: {{id: root, on: os, size: 8 MiB}}\n  \
             - fs: {{id: root-fs, on: root, kind: ext4, mount: /}}\n  \
             images:\n    root: {{sources: ['{}'], target: root-fs}}\n  \
             boot:\n    firmware: uefi\n    loader: systemd_boot\n    kernel_args: [quiet]\n    \
             files:\n      kernel: {}\n      initrd: {}\n      loader: {}\n",
            root.url,
            source(kernel),
            source(initrd),
            source(&good.url)
        ))
    };
    machine.add("sda", 512, &vec![0; 96 * MIB]);
    let gone = closed();
    for (kernel, initrd) in [(&gone, &good.url), (&good.url, &gone)] {
        let document = asked(kernel, initrd);
        let plan = machine.decide(&document);
        let shown = plan.to_string();
        let warning = "warning: boot.files: cannot fetch `http://127.0.0.1";
        assert!(shown.contains(warning) && !shown.contains("secret"), "{shown}");
        let error = apply(&machine, &document, &plan).expect("a boot file is missing");
        let ApplyError::Refused(found) = &error else { panic!("{error:?}") };
        assert_eq!(
            (found[0].code, found[0].diagnostic.at.as_str()),
            (Code::Unreachable, "boot.files")
        );
        assert!(machine.bytes("sda").iter().all(|byte| *byte == 0), "nothing was written");
    }
    // With an answer, the same document is no longer refused for it.
    let plan = machine.decide(&asked(&good.url, &good.url));
    assert!(plan.unanswered.is_empty(), "{plan}");
}

#[test]
fn written_image_with_a_new_source_is_asked_for_again() {
    let machine = machine();
    let image = vec![5; 2 * MIB];
    let good = Server::start(&image, &[Answer::Good]);
    machine.apply(&wanted(1, &[&[&good.url]])).expect("nothing is wrong");
    let before = machine.bytes("sda");
    // The image has the same name, and its receipt is on the disk.
    let document = wanted(2, &[&[&closed()]]);
    let plan = machine.decide(&document);
    assert!(plan.to_string().contains("warning: images.i0.sources"), "{plan}");
    assert!(matches!(apply(&machine, &document, &plan), Some(ApplyError::Refused(_))));
    assert!(before == machine.bytes("sda"), "the old system is whole");
}

#[test]
fn silent_mirror_is_only_a_warning() {
    let machine = machine();
    let image = vec![5; 2 * MIB];
    let good = Server::start(&image, &[Answer::Good]);
    let missing = Server::start(&image, &[Answer::Status(404)]);
    for bad in [&closed(), &missing.url] {
        for urls in [[&good.url, bad], [bad, &good.url]] {
            machine.add("sda", 512, &vec![0; 16 * MIB]);
            let document = wanted(1, &[&[urls[0], urls[1]]]);
            let plan = machine.decide(&document);
            let shown = plan.to_string();
            assert!(shown.contains("; another source answered"), "{shown}");
            let failed = apply(&machine, &document, &plan);
            assert!(failed.is_none(), "{failed:?}");
            assert!(machine.bytes("sda")[MIB..].starts_with(&image));
        }
    }
}

#[test]
fn source_that_answers_late_is_waited_for() {
    let machine = machine();
    let image = vec![5; 2 * MIB];
    // With the growing pauses between them these take about six seconds.
    let answers = [&[Answer::Status(503); 5][..], &[Answer::Good]].concat();
    let server = Server::start(&image, &answers);
    let document = wanted(1, &[&[&server.url]]);
    let heard: Arc<Mutex<Vec<WaitNotice>>> = Arc::default();
    let into = Arc::clone(&heard);
    let timeout = SourceTimeout {
        timeout: Some(Duration::from_mins(2)),
        notices: Notices::to(move |notice| into.lock().push(notice.clone())),
        ..SourceTimeout::default()
    };
    let given = RunInputs::default();
    let seen = observe_until(&document, &machine.machine(), &given, &timeout);
    let plan = plan::decide(&document, &seen).expect("it answered in the end");
    assert!(plan.unanswered.is_empty(), "{plan}");
    let heard = heard.lock();
    let notice = heard.first().expect("a notice after a few seconds");
    assert!(notice.since >= Duration::from_secs(3), "{notice:?}");
    let told = notice.to_string();
    assert!(
        told.starts_with("waiting for `http://127.0.0.1:") && !told.contains("secret"),
        "{told}"
    );
    assert!(told.contains(" s: the server returned status 503"), "{told}");
}

#[test]
fn cancelled_wait_for_sources_ends_soon() {
    let machine = machine();
    // Connections wait in the backlog; no server accepts them.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = format!("http://{}/image", silent.local_addr().expect("it is bound"));
    let document = wanted(1, &[&[&silent]]);
    let cancel = Cancel::default();
    let timeout = SourceTimeout {
        timeout: Some(Duration::from_mins(2)),
        cancel: cancel.clone(),
        ..SourceTimeout::default()
    };
    let begun = Instant::now();
    let document = &document;
    let machine = &machine;
    let timeout = &timeout;
    let seen = std::thread::scope(|scope| {
        let given = RunInputs::default();
        let seen =
            scope.spawn(move || observe_until(document, &machine.machine(), &given, timeout));
        cancel.cancel();
        seen.join().expect("it does not panic")
    });
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let found = plan::decide(document, &seen).map(drop).expect_err("it never answered");
    assert!(found[0].to_string().contains("cancelled"), "{}", found[0]);
}
