//! Servers that say nothing any more: whoever does not want to wait for them does not have to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_engine::action::Cancel;
use hoist_provision::device::{GuardedIo, Identity, Ranges};
use hoist_provision::document::Compression;
use hoist_provision::images::{
    Chunked, ImageError, KEEP_EVERY, Origin, Stream, pack, write, write_chunks, write_qcow2,
};
use hoist_provision::pipeline::{self, ApplyError, Given, Listener};

use crate::machine::{FileMachine, document};
use crate::server::{Answer, Server};

const MIB: usize = 1 << 20;

/// All that nobody shall have to wait for.
const SOON: Duration = Duration::from_secs(5);

/// What is as long when it is packed.
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

/// Cancels after a while.
fn later() -> (Cancel, Instant) {
    let cancel = Cancel::default();
    let from_here = cancel.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        from_here.cancel();
    });
    (cancel, Instant::now())
}

#[test]
fn whatever_is_fetched_it_ends_soon_after_somebody_says_so() {
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
            let (cancel, begun) = later();
            let origin = Origin { cancel, ..Origin::new(vec![server.url.clone()]) };
            let compression = Compression::None;
            let stream = Stream { origin: &origin, compression, size: None, digest: None };
            let outcome = match what {
                "stream" => write(&stream, &io, all.clone(), &()).map(drop),
                "qcow2" => write_qcow2(&stream, &io, all.clone(), &()).map(drop),
                "chunks" => {
                    let keep_every = KEEP_EVERY;
                    let (origin, manifest) = (&origin, &manifest);
                    let image = Chunked { origin, manifest, reached: 0, keep_every };
                    write_chunks(&image, &io, all.clone(), &()).map(drop)
                }
                _ => origin.read_all(u64::MAX).map(drop).map_err(Into::into),
            };
            let error = outcome.expect_err("it never comes");
            assert!(begun.elapsed() < SOON, "{what}, {length}: {:?}", begun.elapsed());
            // What came before it ended may be enough to see that it is no image of QEMU.
            let is_qcow2 = what == "qcow2" && matches!(error, ImageError::Qcow2(_));
            assert!(matches!(error, ImageError::Stopped) || is_qcow2, "{what}, {length}: {error}");
        }
    }
}

struct Impatient(Cancel);

impl Listener for Impatient {
    fn begins(&self, _: &str) {}
    fn progress(&self, _: &hoist_provision::document::Id, _: hoist_provision::images::Progress) {}

    fn cancel(&self) -> Cancel {
        self.0.clone()
    }
}

#[test]
fn a_run_that_waits_for_an_image_or_for_a_list_of_chunks_ends_soon() {
    let machine = FileMachine::new();
    machine.add("sda", 512, &vec![0; 12 * MIB]);
    let image = noise(2 * MIB);
    let mut packed = Vec::new();
    let list = pack(&image[..], &mut packed, 1).expect("it is memory");
    let list = serde_json::to_vec(&list).expect("a plain value");
    let images = Server::start(&packed, &[Answer::Stall(100)]);
    // Read before the disk is taken, and again when it is.
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
        let (cancel, begun) = later();
        let listener = Arc::new(Impatient(cancel));
        let (machine, given) = (machine.machine(), Given::default());
        let error = pipeline::apply(&document, &decision, &machine, &given, None, listener);
        let error = error.expect_err("it never comes");
        assert!(begun.elapsed() < SOON, "{error}: {:?}", begun.elapsed());
        let is_it = match &error {
            ApplyError::Refused(found) => found.iter().any(|it| it.what.contains("stopped")),
            error => matches!(error, ApplyError::Step { .. }),
        };
        assert!(is_it, "{error:?}");
    }
}
