#![no_main]

use hoist_model::Xname;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(xname) = text.parse::<Xname>() {
        assert_eq!(xname.to_string().parse(), Ok(xname));
    }
});
