//! Files that stand for disks in tests.

use std::path::Path;

/// In memory if possible, because these tests sync often.
pub(crate) fn file() -> tempfile::NamedTempFile {
    let memory = Path::new("/dev/shm");
    let elsewhere = std::env::temp_dir();
    let file = tempfile::NamedTempFile::new_in(if memory.is_dir() { memory } else { &elsewhere });
    file.expect("a temporary file")
}
