#![no_main]

use hoist_model::Selector;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match text.parse::<Selector>() {
        Ok(selector) => {
            let printed = selector.to_string();
            assert_eq!(printed.parse().as_ref(), Ok(&selector), "`{text}` became `{printed}`");
        }
        // The arrow of an error points into the text.
        Err(error) => drop(error.to_string()),
    }
});
