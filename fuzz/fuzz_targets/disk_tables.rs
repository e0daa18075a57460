#![no_main]

use hoist_provision::partition_table::read;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|disk: &[u8]| {
    for sector in [512, 4096] {
        let found = read(disk, sector).expect("it is memory");
        for partition in found.facts().into_iter().flat_map(|facts| facts.partitions) {
            assert!(partition.range().start <= partition.range().end);
        }
    }
});
