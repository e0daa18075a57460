#![no_main]

use hoist_provision::document::{Bytes, Size};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match text.parse::<Size>() {
        Ok(size) => assert_eq!(size.to_string().parse(), Ok(size)),
        Err(error) => drop(error.to_string()),
    }
    if let Ok(bytes) = text.parse::<Bytes>() {
        assert_eq!(text.parse(), Ok(Size::Exact(bytes)));
    }
});
