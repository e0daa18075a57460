#![no_main]

use hoist_model::BootParameters;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    match BootParameters::parse(body) {
        Ok(Some(parameters)) => {
            let text = serde_json::to_vec(&parameters).expect("a plain value");
            assert_eq!(BootParameters::parse(&text), Ok(Some(parameters)));
        }
        Ok(None) => {}
        Err(error) => drop(error.to_string()),
    }
});
