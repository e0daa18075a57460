//! The same programs, all kept by one process, and what is true only of that.

use std::ffi::OsString;

#[path = "programs/all.rs"]
mod all;

/// This program, as no more than the test below.
fn keeper() -> Option<Vec<OsString>> {
    let own = std::env::current_exe().expect("this program");
    Some([own.into(), "--ignored".into(), "--exact".into(), "keeps_programs".into()].to_vec())
}

/// No test of its own: the process that keeps programs. It is none without a socket to be asked by.
#[test]
#[ignore = "others start it"]
fn keeps_programs() {
    let _ = hoist_engine::execute::keeper::main();
}
