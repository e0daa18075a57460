#![no_main]

use hoist_model::Mac;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(mac) = text.parse::<Mac>() {
        assert_eq!(mac.to_string().parse(), Ok(mac));
    }
});
