//! Files that stand for disks in tests.

use std::path::Path;

/// In memory where there is such a place: these tests make durable what nobody will miss.
pub(crate) fn file() -> tempfile::NamedTempFile {
    let memory = Path::new("/dev/shm");
    let file = match memory.is_dir() {
        true => tempfile::NamedTempFile::new_in(memory),
        false => tempfile::NamedTempFile::new(),
    };
    file.expect("a temporary file")
}
