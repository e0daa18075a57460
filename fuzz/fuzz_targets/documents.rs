#![no_main]

use hoist_model::document::{from_json, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let documents = match read("fuzz", text) {
        Ok(documents) => documents,
        Err(errors) => return errors.iter().for_each(|error| drop(error.to_string())),
    };
    for document in documents {
        let yaml = document.to_yaml();
        assert_eq!(read("yaml", yaml.as_bytes()).as_deref(), Ok(&[document.clone()][..]), "{yaml}");
        let json = serde_json::to_string(&document).expect("documents are plain values");
        assert_eq!(from_json("json", 1, &json), Ok(document), "{json}");
    }
});
