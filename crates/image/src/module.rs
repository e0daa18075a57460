//! Modules of a kernel, each after those that it needs.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::tree;

/// Largest module; most have some ten kilobytes.
const MAX_MODULE: u64 = 64 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    #[error("cannot read the modules of the kernel")]
    Io(#[from] io::Error),
    #[error("the kernel has no module `{0}`, neither as a file nor built in; leave it out")]
    Missing(String),
    #[error("module `{0}` needs itself; it is damaged")]
    Circle(String),
    #[error("module `{name}` has more than {MAX_MODULE} bytes")]
    TooLarge { name: String },
    #[error(
        "module `{0}` is compressed, and busybox cannot load it; name a kernel whose modules are not"
    )]
    Compressed(String),
}

/// A module and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// The modules of these names below a directory, and those that they need, in the order in which
/// they can be loaded.
pub(crate) fn find(directory: &Path, wanted: &[String]) -> Result<Vec<Module>, ModuleError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let known = Known::below(directory)?;
    let mut found = Vec::new();
    for name in wanted {
        known.add(&spelled(name), &mut Vec::new(), &mut found)?;
    }
    Ok(found)
}

/// All modules of a kernel.
#[derive(Debug, Default)]
struct Known {
    files: BTreeMap<String, PathBuf>,
    built_in: Vec<String>,
}

impl Known {
    fn below(directory: &Path) -> Result<Self, ModuleError> {
        let mut known = Self::default();
        for path in tree::entries(directory)? {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(name) = file.split(".ko").next().filter(|name| name.len() < file.len()) {
                known.files.insert(spelled(name), path.clone());
            } else if file == "modules.builtin" {
                let text = fs_err::read_to_string(&path)?;
                let names = text.lines().filter_map(|line| line.rsplit('/').next());
                known.built_in.extend(names.map(|name| spelled(name.trim_end_matches(".ko"))));
            }
        }
        Ok(known)
    }

    /// `waiting` are those that need it.
    fn add(
        &self,
        name: &str,
        waiting: &mut Vec<String>,
        found: &mut Vec<Module>,
    ) -> Result<(), ModuleError> {
        if found.iter().any(|module| module.name == name) {
            return Ok(());
        }
        if waiting.iter().any(|before| before == name) {
            return Err(ModuleError::Circle(name.to_owned()));
        }
        let Some(path) = self.files.get(name) else {
            let built_in = self.built_in.iter().any(|known| known == name);
            return if built_in { Ok(()) } else { Err(ModuleError::Missing(name.to_owned())) };
        };
        if path.extension().is_none_or(|end| end != "ko") {
            return Err(ModuleError::Compressed(name.to_owned()));
        }
        if fs_err::metadata(path)?.len() > MAX_MODULE {
            return Err(ModuleError::TooLarge { name: name.to_owned() });
        }
        waiting.push(name.to_owned());
        for needed in needs(&fs_err::read(path)?) {
            self.add(&needed, waiting, found)?;
        }
        waiting.pop();
        found.push(Module { name: name.to_owned(), path: path.clone() });
        Ok(())
    }
}

/// The kernel takes both for the same.
fn spelled(name: &str) -> String {
    name.replace('-', "_")
}

/// What a module says that it needs: the text `depends=a,b` among its others.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"depends=";
    let mut texts = module.split(|byte| *byte == 0);
    let text = texts.find_map(|text| text.strip_prefix(KEY)).unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    text.split(',').filter(|name| !name.is_empty()).map(spelled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(directory: &Path, name: &str, needs: &str) {
        let bytes = format!("\x7fELF\0license=GPL\0depends={needs}\0name=x\0");
        fs_err::write(directory.join(name), bytes).unwrap();
    }

    #[test]
    fn each_module_comes_after_what_it_needs_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("kernel/fs");
        fs_err::create_dir_all(&below).unwrap();
        put(&below, "fat.ko", "");
        put(&below, "vfat.ko", "fat");
        put(&below, "msdos.ko", "fat,nls-x");
        put(&below, "nls_x.ko", "");
        fs_err::write(dir.path().join("modules.builtin"), "kernel/fs/ext4/ext4.ko\n").unwrap();
        let names = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            let found = find(dir.path(), &wanted)?;
            Ok::<_, ModuleError>(found.into_iter().map(|module| module.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["vfat", "msdos", "ext4"]).unwrap(), ["fat", "vfat", "nls_x", "msdos"]);
        let error = names(&["xfs"]).unwrap_err().to_string();
        assert!(error.contains("no module `xfs`"), "{error}");
        put(&below, "zram.ko.xz", "");
        assert!(names(&["zram"]).unwrap_err().to_string().contains("compressed"));
    }

    #[test]
    fn modules_that_need_each_other_end_in_an_error_and_not_in_a_circle() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "a.ko", "b");
        put(dir.path(), "b.ko", "a");
        let error = find(dir.path(), &["a".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("needs itself"), "{error}");
    }
}
