//! Programs of steps outlive the controller and are found again; their remains end with them. All
//! of them are real processes, and none is left when a test ends. Here each has a shell that
//! supervises it.

use std::ffi::OsString;

mod all;

fn supervisor() -> Option<Vec<OsString>> {
    None
}
