#![no_main]

use hoist_provision::manifest::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match Manifest::parse(bytes, None) {
        Ok(list) => {
            let json = serde_json::to_vec(&list).expect("a plain value");
            assert_eq!(Manifest::parse(&json, None).expect("it was one"), list);
            // Chunks lie side by side and are all of the image.
            let mut at = 0;
            for chunk in &list.chunks {
                assert_eq!(chunk.offset, at);
                at += u64::from(chunk.length);
            }
            assert_eq!(at, list.size);
        }
        Err(error) => drop(error.to_string()),
    }
});
