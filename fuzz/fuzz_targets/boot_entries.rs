#![no_main]

use hoist_provision::boot_entries::LoadOption;
use libfuzzer_sys::fuzz_target;

// Boot entries in firmware variables.
fuzz_target!(|bytes: &[u8]| {
    if let Some(option) = LoadOption::decode(bytes) {
        assert_eq!(LoadOption::decode(&option.encode()), Some(option));
    }
});
