#![no_main]

use hoist_boot::BootRequest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|query: &str| {
    match BootRequest::parse(query) {
        Ok(asked) => {
            // It goes into scripts.
            let again = asked.who.query();
            assert!(again.chars().all(|c| c.is_ascii_graphic()), "{again}");
            assert_eq!(BootRequest::parse(&again).map(|asked| asked.who.query()), Ok(again));
        }
        Err(error) => drop(error.to_string()),
    }
});
