//! Drivers of a kernel that was unpacked and not installed: `depmod` has not run, so dependencies
//! and supported hardware are read from the modules themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fs_err as fs;

use crate::elf::{Elf, ElfError};
use crate::{Tree, TreeError};

/// All modules of one kernel.
#[derive(Debug)]
pub struct Modules {
    release: String,
    /// By name, with `_` for `-` as the kernel has it.
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

/// Modules with their dependencies, each after those it needs.
#[derive(Debug, Default)]
pub struct SelectedModules {
    pub modules: Vec<Module>,
    /// Asked for, and part of the kernel itself.
    pub built_in: Vec<String>,
    /// Asked for, and not there.
    pub absent: Vec<String>,
}

#[derive(Debug)]
pub struct Module {
    pub name: String,
    /// Not packed.
    pub content: Vec<u8>,
    /// All it needs, nearest last.
    pub needs: Vec<String>,
    /// Patterns of the hardware that it is for, and other names.
    pub aliases: Vec<String>,
    /// Firmware files that it may ask for, below `/lib/firmware`.
    pub firmware: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModulesError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(
        "`{0}` has no `modules.builtin`; name the directory of one kernel, such as `lib/modules/6.1.0-9-amd64`"
    )]
    NoKernel(PathBuf),
    #[error("module `{path}`: {source}")]
    Elf { path: PathBuf, source: ElfError },
    #[error("cannot unpack `{path}`: {reason}; check that `xz` is installed")]
    Unpack { path: PathBuf, reason: String },
    #[error("module `{module}` needs `{missing}`, which this kernel lacks")]
    Missing { module: String, missing: String },
}

/// A module has no more bytes than this when it is unpacked.
const MAX_MODULE: u64 = 256 * 1024 * 1024;

/// Directories below each other; a link that leads in circles has more.
const MAX_DEPTH: usize = 32;

impl Modules {
    /// Of a directory such as `lib/modules/6.1.0-9-amd64`.
    pub fn of(dir: &Path) -> Result<Self, ModulesError> {
        let no_kernel = || ModulesError::NoKernel(dir.to_owned());
        let release = dir.file_name().and_then(|name| name.to_str()).ok_or_else(no_kernel)?;
        let list = fs::read_to_string(dir.join("modules.builtin")).map_err(|_| no_kernel())?;
        let built_in = list.lines().filter_map(|line| name_of(Path::new(line))).collect();
        let mut files = BTreeMap::new();
        collect(&dir.join("kernel"), MAX_DEPTH, &mut files)?;
        Ok(Self { release: release.to_owned(), files, built_in })
    }

    pub fn release(&self) -> &str {
        &self.release
    }

    /// These and all they need.
    pub fn choose<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<SelectedModules, ModulesError> {
        let mut choosing =
            ModuleSelection { modules: self, seen: BTreeMap::new(), order: Vec::new() };
        let mut chosen = SelectedModules::default();
        for name in names {
            let name = plain(name);
            if self.files.contains_key(&name) {
                choosing.take(&name)?;
            } else if self.built_in.contains(&name) {
                chosen.built_in.push(name);
            } else {
                chosen.absent.push(name);
            }
        }
        chosen.modules = choosing.order;
        Ok(chosen)
    }
}

struct ModuleSelection<'a> {
    modules: &'a Modules,
    /// Dependencies of each module; empty while the module is being visited.
    seen: BTreeMap<String, Vec<String>>,
    order: Vec<Module>,
}

impl ModuleSelection<'_> {
    fn take(&mut self, name: &str) -> Result<(), ModulesError> {
        if self.seen.contains_key(name) {
            return Ok(());
        }
        self.seen.insert(name.to_owned(), Vec::new());
        let path = &self.modules.files[name];
        let content = unpacked(path)?;
        let elf_error = |source| ModulesError::Elf { path: path.clone(), source };
        let elf = Elf::new(&content).map_err(elf_error)?;
        let info = elf.section(".modinfo").map_err(elf_error)?.unwrap_or_default();
        let info = String::from_utf8_lossy(info);
        let values = |key: &'static str| {
            let line =
                move |line: &str| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned());
            info.split('\0').filter_map(line)
        };
        let direct: Vec<String> = values("depends")
            .flat_map(|names| names.split(',').map(plain).collect::<Vec<_>>())
            .filter(|name| !name.is_empty())
            .collect();
        // What shall be there before it, and may be missing.
        let before = values("softdep").filter_map(|text| soft(&text)).flatten();
        let before: Vec<String> =
            before.filter(|name| self.modules.files.contains_key(name)).collect();
        let mut needs: Vec<String> = Vec::new();
        for need in before.iter().chain(&direct) {
            if self.modules.built_in.contains(need) {
                continue;
            }
            if !self.modules.files.contains_key(need) {
                let module = name.to_owned();
                let missing = need.clone();
                return Err(ModulesError::Missing { module, missing });
            }
            self.take(need)?;
            for name in self.seen[need].iter().chain([need]) {
                if !needs.contains(name) {
                    needs.push(name.clone());
                }
            }
        }
        let mut aliases: Vec<String> = values("alias").collect();
        aliases.sort();
        self.seen.insert(name.to_owned(), needs.clone());
        let firmware = values("firmware").collect();
        self.order.push(Module { name: name.to_owned(), content, needs, aliases, firmware });
        Ok(())
    }
}

/// The names behind `pre:`, up to `post:`.
fn soft(text: &str) -> Option<Vec<String>> {
    let (_, pre) = text.split_once("pre:")?;
    let pre = pre.split("post:").next().unwrap_or_default();
    Some(pre.split_whitespace().map(plain).collect())
}

impl SelectedModules {
    pub fn size(&self) -> u64 {
        self.modules.iter().map(|module| module.content.len() as u64).sum()
    }

    /// Puts them where modules are looked for, with `modules.dep` and `modules.alias` as `depmod`
    /// writes them.
    pub fn put(&self, tree: &mut Tree, release: &str) -> Result<(), TreeError> {
        let dir = format!("lib/modules/{release}");
        let mut needs = String::new();
        let mut aliases = String::new();
        for module in &self.modules {
            tree.file(&format!("{dir}/{}.ko", module.name), module.content.clone())?;
            let nearest_first = module.needs.iter().rev().map(|need| format!(" {need}.ko"));
            let nearest_first: String = nearest_first.collect();
            writeln!(needs, "{}.ko:{nearest_first}", module.name).expect("into memory");
            for alias in &module.aliases {
                writeln!(aliases, "alias {alias} {}", module.name).expect("into memory");
            }
        }
        tree.file(&format!("{dir}/modules.dep"), needs.into_bytes())?;
        tree.file(&format!("{dir}/modules.alias"), aliases.into_bytes())
    }
}

fn plain(name: &str) -> String {
    name.trim().replace('-', "_")
}

/// `kernel/fs/fat/vfat.ko.xz` is `vfat`.
fn name_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = [".ko", ".ko.xz", ".ko.zst"].iter().find_map(|end| name.strip_suffix(end))?;
    Some(plain(name))
}

fn collect(
    dir: &Path,
    depth: usize,
    files: &mut BTreeMap<String, PathBuf>,
) -> Result<(), ModulesError> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(io::Error::other(format!("`{}` is nested too deeply", dir.display())).into());
    };
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), depth, files)?;
        } else if kind.is_file()
            && let Some(name) = name_of(&entry.path())
        {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

fn unpacked(path: &Path) -> Result<Vec<u8>, ModulesError> {
    let file = fs::File::open(path)?;
    let failed = |reason: String| ModulesError::Unpack { path: path.to_owned(), reason };
    let mut content = Vec::new();
    match path.extension().and_then(|end| end.to_str()) {
        Some("xz") => {
            let mut xz = Command::new("xz");
            xz.args(["-dc"]).stdin(file.into_file()).stdout(Stdio::piped());
            let mut xz = xz.spawn().map_err(|error| failed(error.to_string()))?;
            let stdout = xz.stdout.take().expect("asked for");
            stdout.take(MAX_MODULE).read_to_end(&mut content)?;
            let status = xz.wait()?;
            if !status.success() {
                return Err(failed(status.to_string()));
            }
        }
        Some("zst") => {
            let packed = zstd::Decoder::new(file).map_err(|error| failed(error.to_string()))?;
            packed.take(MAX_MODULE).read_to_end(&mut content)?;
        }
        _ => {
            file.take(MAX_MODULE).read_to_end(&mut content)?;
        }
    }
    Ok(content)
}
