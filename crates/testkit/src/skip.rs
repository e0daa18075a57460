//! Tests that cannot run on this machine.

use std::io::Write;

/// Says that the test is skipped, and why; the test must return afterwards. `make test` lists these
/// tests in its summary. A missing program is no reason to skip: `make setup-test` installs it.
///
/// The line goes to standard error itself, because the output of a test that passes is captured.
pub fn skip(reason: &str) {
    let mut stderr = std::io::stderr().lock();
    // One write, so that lines of other tests do not come in between.
    let _ = stderr.write_all(format!("\nSKIPPED: {reason}\n").as_bytes());
}
