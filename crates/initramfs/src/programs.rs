//! Programs of this machine with the shared libraries they need.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::elf::{Elf, ElfError};
use crate::{Tree, TreeError};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("program `{path}`: {source}")]
    Elf { path: PathBuf, source: ElfError },
    #[error("program `{0}` is not installed; install it, or leave it out")]
    NoProgram(String),
    #[error("`{program}` needs the library `{library}`, which is not installed")]
    NoLibrary { program: PathBuf, library: String },
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// Where programs are that only root calls.
const PROGRAMS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Where the loader looks on systems with and without directories for architectures.
const LIBRARIES: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// A program by its name.
pub fn find(name: &str) -> Result<PathBuf, ProgramError> {
    let places = PROGRAMS.iter().map(|dir| Path::new(dir).join(name));
    let is_name = !name.is_empty() && !name.contains('/');
    places
        .filter(|_| is_name)
        .find(|place| place.is_file())
        .ok_or_else(|| ProgramError::NoProgram(name.to_owned()))
}

/// Puts a program at a path and its libraries where its loader searches. Returns the number of
/// added bytes.
pub fn put(tree: &mut Tree, program: &Path, at: &str) -> Result<u64, ProgramError> {
    let content = fs::read(program)?;
    let mut added = content.len() as u64;
    let mut waiting = libraries(program, &content)?;
    tree.program(at, content)?;
    let mut seen = BTreeSet::new();
    while let Some((at, file)) = waiting.pop() {
        if !seen.insert(at.clone()) || tree.get(at.trim_start_matches('/')).is_some() {
            continue;
        }
        let content = fs::read(&file)?;
        waiting.extend(libraries(&file, &content)?);
        added += content.len() as u64;
        tree.program(&at, content)?;
    }
    Ok(added)
}

/// Where the libraries and the loader of a program are looked for, and which files they are.
fn libraries(program: &Path, content: &[u8]) -> Result<Vec<(String, PathBuf)>, ProgramError> {
    let elf_error = |source| ProgramError::Elf { path: program.to_owned(), source };
    let needs = Elf::new(content).and_then(|elf| elf.needs()).map_err(elf_error)?;
    let origin = program.parent().unwrap_or(Path::new("/")).display().to_string();
    let own = needs.places.iter().map(|place| place.replace("$ORIGIN", &origin));
    let places: Vec<String> = own.chain(LIBRARIES.map(str::to_owned)).collect();
    let find = |library: &String| {
        let file =
            places.iter().map(|dir| Path::new(dir).join(library)).find(|file| file.is_file());
        let missing =
            || ProgramError::NoLibrary { program: program.to_owned(), library: library.clone() };
        let file = file.ok_or_else(missing)?;
        // Where every loader looks, wherever it was found.
        Ok::<_, ProgramError>((format!("/lib/{library}"), fs::canonicalize(file)?))
    };
    let mut found: Vec<_> = needs.libraries.iter().map(find).collect::<Result<_, _>>()?;
    if let Some(loader) = needs.interpreter {
        let file = fs::canonicalize(&loader)?;
        found.push((loader, file));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_runs_with_nothing_but_what_was_put_beside_it() {
        let mut tree = Tree::new();
        let added = put(&mut tree, &find("mke2fs").unwrap(), "/sbin/mke2fs").unwrap();
        let paths: Vec<&str> = tree.paths().collect();
        assert!(paths.contains(&"sbin/mke2fs") && paths.contains(&"lib/libc.so.6"), "{paths:?}");
        assert!(paths.iter().any(|path| path.contains("ld-linux")), "{paths:?}");
        // A second program adds only itself and missing libraries.
        let more = put(&mut tree, &find("tune2fs").unwrap(), "/sbin/tune2fs").unwrap();
        assert!(more < added, "{more} {added}");
    }

    #[test]
    fn missing_programs_are_named() {
        for name in ["", "no-such-program", "../bin/sh"] {
            let refused = find(name).unwrap_err().to_string();
            assert!(
                refused.starts_with(&format!("program `{name}` is not installed")),
                "{refused}"
            );
        }
    }
}
