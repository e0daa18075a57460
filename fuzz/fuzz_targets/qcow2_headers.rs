#![no_main]

use hoist_device::images::Qcow2Header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|start: &[u8]| {
    if let Err(error) = Qcow2Header::parse(start) {
        drop(error.to_string());
    }
});
