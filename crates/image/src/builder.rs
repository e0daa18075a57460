//! Who fills the directory that becomes the root.

mod debian;
mod plugin;
mod tiny;

use std::io;
use std::path::{Path, PathBuf};

use hoist_initramfs::modules::ModulesError;

use crate::build::BuildProgress;
use crate::document::{Builder, File, Image, parse_mode};
use crate::package::PackageError;
use crate::tool::ToolError;
use crate::tree::Tree;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FillError {
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error("builder.tiny.modules: the kernel has no module {}, neither as a file nor built in; remove it", .0.join(", "))]
    NoModules(Vec<String>),
    #[error(
        "builder.tiny.modules: the kernel has no module directory; write `modules: DIRECTORY` beside its `file`"
    )]
    NoModulesDirectory,
    #[error("builder.tiny.modules")]
    Modules(#[from] ModulesError),
    #[error("{place}: cannot put `{path}` into the image")]
    Put { place: String, path: String, source: io::Error },
    #[error("builder.debian: only root can unpack a distribution; run it with sudo")]
    NotRoot,
    #[error("builder.plugin: {0}")]
    Plugin(String),
    #[error("cannot write the tree")]
    Io(#[from] io::Error),
}

/// Inputs and directories of a builder.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    pub(crate) tree: &'a Tree,
    /// Where the paths of the document begin.
    pub(crate) beside: &'a Path,
    /// Directory for temporary files.
    pub(crate) work: &'a Path,
    pub(crate) plugins: &'a Path,
    pub(crate) epoch: u32,
}

impl Site<'_> {
    fn log(&self) -> PathBuf {
        self.work.join("builder.log")
    }

    fn here(&self, path: &str) -> PathBuf {
        self.beside.join(path)
    }
}

/// Fills the tree and returns the sources that the document only names.
pub(crate) fn fill(
    image: &Image,
    site: &Site<'_>,
    progress: &dyn BuildProgress,
) -> Result<Vec<String>, FillError> {
    let made_from = match &image.spec.builder {
        Builder::Tiny(tiny) => tiny::fill(tiny, image, site, progress)?,
        Builder::Debian(debian) => debian::fill(debian, site, progress)?,
        Builder::Plugin(plugin) => plugin::fill(plugin, site, progress)?,
    };
    put_files(&image.spec.files, site)?;
    Ok(made_from)
}

/// Checks the prerequisites before anything is built.
pub(crate) fn check(image: &Image, beside: &Path, plugins: &Path) -> Result<(), FillError> {
    match &image.spec.builder {
        Builder::Tiny(tiny) => tiny::check(tiny, beside)?,
        Builder::Debian(_) => debian::check()?,
        Builder::Plugin(plugin) => plugin::check(plugin, plugins)?,
    }
    for (number, file) in image.spec.files.iter().enumerate() {
        if let Some(from) = &file.file {
            check_file(&beside.join(from), &format!("files[{number}]"))?;
        }
    }
    Ok(())
}

/// Whether a file can be read that is to be put into the image.
fn check_file(path: &Path, place: &str) -> Result<(), FillError> {
    let wrong = |source| {
        let place = place.to_owned();
        let path = path.display().to_string();
        FillError::Put { place, path, source }
    };
    // Checked first: opening a pipe would wait for a writer.
    if !fs_err::metadata(path).map_err(wrong)?.is_file() {
        return Err(wrong(io::Error::other("not a regular file")));
    }
    fs_err::File::open(path).map(drop).map_err(wrong)
}

fn put_files(files: &[File], site: &Site<'_>) -> Result<(), FillError> {
    for (number, file) in files.iter().enumerate() {
        let mode = file.mode.as_deref().and_then(parse_mode).unwrap_or(0o644);
        let put = match (&file.text, &file.file) {
            (Some(text), _) => site.tree.file(&file.path, text.as_bytes(), mode),
            (None, Some(from)) => site.tree.copy(&file.path, &site.here(from), mode),
            (None, None) => Ok(()),
        };
        put.map_err(|source| {
            let place = format!("files[{number}]");
            let path = file.path.clone();
            FillError::Put { place, path, source }
        })?;
    }
    Ok(())
}
