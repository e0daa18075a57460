//! Servers that stop answering: a cancelled run must not wait for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_device::apply::{self, ApplyError, Listener};
use hoist_device::images::{
    ChunkedImage, ImageError, KEEP_EVERY, Origin, Stream, pack, write, write_chunks, write_qcow2,
};
use hoist_device::{GuardedIo, Identity, Ranges, RunInputs};
use hoist_engine::action::Cancel;
use hoist_provision::document::Compression;
use hoist_testkit::eventually;

use crate::machine::{FileMachine, document};
use crate::server::{Answer, Server};

const MIB: usize = 1 << 20;

/// The longest time that a cancelled call may take.
const SOON: Duration = Duration::from_secs(5);

/// Incompressible bytes.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(length).collect()
}

/// Returns a token that is cancelled at the next stall of an answer.
fn at_next_stall(stalls: impl Fn() -> usize + Send + 'static) -> (Cancel, Instant) {
    let cancel = Cancel::default();
    let from_here = cancel.clone();
    let before = stalls();
    std::thread::spawn(move || {
        eventually("answer stalls", || stalls() > before);
        from_here.cancel();
    });
    (cancel, Instant::now())
}

#[test]
fn cancelled_fetch_ends_soon() {
    let image = noise(6 * MIB);
    let mut packed = Vec::new();
    let manifest = pack(&image[..], &mut packed, 1).expect("it is memory");
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(8 << 20).expect("it has a size");
    let meant = Identity::of(file.path(), 512).expect("it is there");
    let all = 0..8 << 20;
    let io = GuardedIo::open(file.path(), &meant, &all.clone().into(), &Ranges::default());
    let io = io.expect("it is free");
    for length in [0, 5000] {
        for what in ["stream", "chunks", "qcow2", "all"] {
            let content = if what == "chunks" { &packed } else { &image };
            let server = Server::start(content, &[Answer::Stall(length)]);
            let (cancel, begun) = at_next_stall(server.stalls());
            let origin = Origin { cancel, ..Origin::new(vec![server.url.clone()]) };
            let compression = Compression::None;
            let stream = Stream {
                origin: &origin,
                compression,
                size: None,
                digest: None,
                unpacked_digest: None,
            };
            let outcome = match what {
                "stream" => write(&stream, &io, all.clone(), &()).map(drop),
                "qcow2" => write_qcow2(&stream, &io, all.clone(), &()).map(drop),
                "chunks" => {
                    let keep_every = KEEP_EVERY;
                    let origin = &origin;
                    let manifest = &manifest;
                    let image = ChunkedImage { origin, manifest, reached: 0, keep_every };
                    write_chunks(&image, &io, all.clone(), &()).map(drop)
                }
                _ => origin.read_all(u64::MAX).map(drop).map_err(Into::into),
            };
            let error = outcome.expect_err("it never comes");
            assert!(begun.elapsed() < SOON, "{what}, {length}: {:?}", begun.elapsed());
            // The bytes before the cut may be enough to see that the file is not a qcow2 image.
            let is_qcow2 = what == "qcow2" && matches!(error, ImageError::Qcow2(_));
            assert!(matches!(error, ImageError::Stopped) || is_qcow2, "{what}, {length}: {error}");
        }
    }
}

struct Impatient(Cancel);

impl Listener for Impatient {
    fn begins(&self, _: &str) {}
    fn progress(&self, _: &hoist_provision::document::Id, _: hoist_device::images::Progress) {}

    fn cancel(&self) -> Cancel {
        self.0.clone()
    }
}

#[test]
fn cancelled_run_stops_waiting_for_servers() {
    let machine = FileMachine::new();
    machine.add("sda", 512, &vec![0; 12 * MIB]);
    let image = noise(2 * MIB);
    let mut packed = Vec::new();
    let list = pack(&image[..], &mut packed, 1).expect("it is memory");
    let list = serde_json::to_vec(&list).expect("a plain value");
    let images = Server::start(&packed, &[Answer::Stall(100)]);
    // The list is read before the disk is opened, and again afterwards.
    let once = Server::start(&list, &[Answer::Good, Answer::Stall(10)]);
    let often = Server::start(&list, &[Answer::Good]);
    for lists in [once, often] {
        let document = document(&format!(
            "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-000000000001\nsections:\n  node: {{id: \
             n1}}\n  disks: {{os: {{match: {{serial: S-sda}}, wipe: any}}}}\n  storage:\n  - part: \
             {{id: root, on: os, size: 4 MiB}}\n  images:\n    root: {{sources: ['{}'], manifest: \
             '{}', target: root}}\n",
            images.url, lists.url
        ));
        let decision = machine.decide(&document);
        let of_images = images.stalls();
        let of_lists = lists.stalls();
        let (cancel, begun) = at_next_stall(move || of_images() + of_lists());
        let listener = Arc::new(Impatient(cancel));
        let machine = machine.machine();
        let given = RunInputs::default();
        let error = apply::apply(&document, &decision, &machine, &given, None, listener);
        let error = error.expect_err("it never comes");
        assert!(begun.elapsed() < SOON, "{error}: {:?}", begun.elapsed());
        let is_it = match &error {
            ApplyError::Refused(found) => {
                found.iter().any(|it| it.diagnostic.message.contains("cancelled"))
            }
            error => matches!(error, ApplyError::Step { .. }),
        };
        assert!(is_it, "{error:?}");
    }
}
