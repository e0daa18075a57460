//! Programs of steps outlive the controller and are found again; what they leave behind is ended
//! when they are. All of them are real processes, and none is left when a test ends. Here each has a
//! shell that keeps it.

use std::ffi::OsString;

#[path = "programs/all.rs"]
mod all;

fn keeper() -> Option<Vec<OsString>> {
    None
}
