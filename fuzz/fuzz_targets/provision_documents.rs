#![no_main]

use hoist_compat::driver::{Curtin, Ironic, Nailgun};
use hoist_provision::document::{Wipe, read};
use hoist_provision::driver::{Confidence, DataDriver, Native, Options};
use libfuzzer_sys::fuzz_target;
use uuid::Uuid;

const DRIVERS: [&dyn DataDriver; 4] = [&Native, &Ironic, &Nailgun, &Curtin];

fuzz_target!(|text: &[u8]| {
    let options = Options {
        txn: Uuid::from_u128(1),
        node: "n1".to_owned(),
        allow_kernel_names: false,
        wipe: Wipe::default(),
    };
    for driver in DRIVERS {
        let document = match driver.parse(text, &options) {
            Ok(document) => document,
            Err(found) => {
                found.iter().for_each(|found| drop(found.to_string()));
                continue;
            }
        };
        assert_ne!(driver.sniff(text), Confidence::No, "{}", driver.describe().name);
        // Whatever it was read from, it is a document like those that people write.
        let json = serde_json::to_string(&document).expect("a plain value");
        assert_eq!(read("json", json.as_bytes()), Ok(document), "{json}");
    }
});
