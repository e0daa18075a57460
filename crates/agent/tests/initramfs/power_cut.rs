//! Power that goes while an image is written: the disk never looks finished, and the next start goes
//! on where the last one was.

use std::ops::Range;
use std::os::unix::fs::FileExt;

use hoist_device::metadata_area::read_marker;
use hoist_provision::metadata_area::{Marker, MetadataArea};
use hoist_provision::partition_table as table;
use hoist_provision::partition_table::TableOnDisk;
use serde_json::json;

use crate::{Bench, DEADLINE, MIB, TXN};

/// Of the image, in MiB; in an emulated machine more would take minutes.
const SIZE: u64 = 32;

/// The part of it that is not zero.
const FULL: u64 = 22;

/// The first partition takes one MiB before it, and has eight.
const ROOT_START: u64 = 9 * MIB;

/// A number that a seed stands for.
fn scatter(seed: u64, range: Range<u64>) -> u64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    range.start + (mixed >> 17) % (range.end - range.start)
}

/// How many MiB of the image are on the disk, by a page of each.
fn written(bench: &Bench, image: &[u8]) -> u64 {
    const PAGE: usize = 4096;
    let disk = std::fs::File::open(bench.disk()).expect("there");
    let is_there = |number: &u64| {
        let at = number * MIB + MIB / 2;
        let mut now = [0; PAGE];
        disk.read_exact_at(&mut now, ROOT_START + at).expect("it is long enough");
        let at = usize::try_from(at).expect("small");
        now == image[at..at + PAGE] && now != [0; PAGE]
    };
    (0..SIZE).filter(is_there).count() as u64
}

fn marker(disk: &[u8]) -> Option<Marker> {
    read_marker(disk, &MetadataArea::before(None).expect("there is room")).expect("it is memory")
}

fn cut(seed: u64) {
    let bench = Bench::new();
    let image = bench.set_image_job(SIZE, FULL * MIB);
    // Not the last ones: it would be over before the power is gone.
    let at = scatter(seed, 1..FULL - 6);
    let mut machine = bench.power_on();
    let what = format!("{at} MiB of the image are written");
    machine.wait_until(&what, DEADLINE, || written(&bench, &image) >= at).expect(&what);
    machine.power_off();

    // The disk is marked, and holds nothing that firmware or a person could take for a system.
    let disk = fs_err::read(bench.disk()).expect("as it should be");
    let left = marker(&disk).expect("a marker");
    assert!(!left.is_complete && left.txn.to_string() == TXN, "{left:?}");
    let TableOnDisk::Gpt { table, .. } = table::read(&disk[..], 512).expect("as it should be")
    else {
        panic!("a table")
    };
    assert_eq!(table.txn_in_progress(), Some(left.txn), "{table:?}");
    let first = usize::try_from(ROOT_START).expect("as it should be")
        ..usize::try_from(ROOT_START + MIB).expect("as it should be");
    assert!(disk[first].iter().all(|byte| *byte == 0), "seed {seed}: the first MiB goes last");
    assert!(bench.server.reports().is_empty());

    let mut machine = bench.power_on();
    machine.wait_for("restarting the machine", DEADLINE).expect("as it should be");
    machine.wait_until_off(DEADLINE).expect("as it should be");
    bench.assert_installed(&image);
    let reports = bench.server.reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0]["outcome"], json!("done"), "{reports:?}");
    assert_eq!(reports[0]["resumed"], json!(true), "{reports:?}");
    assert!(
        marker(&fs_err::read(bench.disk()).expect("as it should be"))
            .expect("a marker")
            .is_complete
    );
}

#[test]
fn power_cut_during_an_image_is_survived() {
    cut(0);
    cut(1);
}

#[test]
fn power_cut_at_more_times_during_an_image_is_survived() {
    cut(2);
    cut(3);
}

#[test]
#[ignore = "half an hour; part of `make test-full`"]
fn power_cut_at_thirty_times_is_survived() {
    (4..34).for_each(cut);
}
