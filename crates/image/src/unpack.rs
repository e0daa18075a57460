//! Unpacks an image into a file, and verifies it with what its build wrote beside it: the chunk
//! manifest, and the digest in the index.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hoist_device::images::{ImageError, UnpackedImage, unpack};
use hoist_model::image::{INDEX_FILE, MAX_INDEX, UnpackedContent};
use hoist_model::{Digest, ImageIndex};
use hoist_provision::manifest::{MAX_MANIFEST, Manifest, ManifestError};

/// Suffixes of packed files.
const PACKED: [&str; 3] = ["zst", "xz", "gz"];

/// Errors of unpacking. The output file then does not exist.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    #[error("cannot read `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` is not a chunk manifest", path.display())]
    Manifest { path: PathBuf, source: ManifestError },
    #[error("`{}` exists; name another file with --out", .0.display())]
    Occupied(PathBuf),
    #[error("`{}` has no suffix of a packed file; name the output with --out", .0.display())]
    NoName(PathBuf),
    #[error("cannot unpack `{}`", path.display())]
    Image { path: PathBuf, source: ImageError },
    #[error(
        "the unpacked image has {} bytes and the digest {} instead of {} bytes and {}; build it again",
        is.size, is.sha256, wanted.size, wanted.sha256
    )]
    Differs { wanted: UnpackedContent, is: UnpackedContent },
    #[error("cannot write `{}`", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// An image to unpack.
#[derive(Debug)]
pub struct PackedImage<'a> {
    pub file: &'a Path,
    /// The default is the manifest beside the file.
    pub manifest: Option<&'a Path>,
}

impl PackedImage<'_> {
    /// The file without the suffix of its compression.
    pub fn default_output(&self) -> Result<PathBuf, UnpackError> {
        let suffix = self.file.extension().and_then(|suffix| suffix.to_str());
        match suffix {
            Some(suffix) if PACKED.contains(&suffix) => Ok(self.file.with_extension("")),
            _ => Err(UnpackError::NoName(self.file.to_owned())),
        }
    }

    /// Unpacks the image to `out`, which must not exist.
    pub fn unpack(&self, out: &Path) -> Result<UnpackedContent, UnpackError> {
        let manifest = self.manifest()?;
        if fs_err::symlink_metadata(out).is_ok() {
            return Err(UnpackError::Occupied(out.to_owned()));
        }
        let path = self.file.to_owned();
        let packed = File::open(&path).map_err(|source| UnpackError::Read { path, source })?;
        let directory = out.parent().filter(|parent| !parent.as_os_str().is_empty());
        let write = |source| UnpackError::Write { path: out.to_owned(), source };
        let partial = Partial::create(directory.unwrap_or(Path::new(".")), out).map_err(write)?;
        let unpacked = unpack(&packed, manifest.as_ref(), &partial.file);
        let path = self.file.to_owned();
        let UnpackedImage { bytes, sha256 } =
            unpacked.map_err(|source| UnpackError::Image { path, source })?;
        let is = UnpackedContent { size: bytes, sha256: Digest::from_bytes(sha256) };
        if let Some(wanted) = self.declared()?.filter(|wanted| *wanted != is) {
            return Err(UnpackError::Differs { wanted, is });
        }
        partial.keep(out).map_err(write)?;
        Ok(is)
    }

    fn manifest(&self) -> Result<Option<Manifest>, UnpackError> {
        let path = match self.manifest {
            Some(path) => path.to_owned(),
            None => match self.manifest_beside() {
                Some(path) => path,
                None => return Ok(None),
            },
        };
        let text = read(&path, MAX_MANIFEST)?;
        let manifest = Manifest::parse(&text, None);
        manifest.map(Some).map_err(|source| UnpackError::Manifest { path, source })
    }

    /// `root.manifest.json` beside `root.ext4.zst`.
    fn manifest_beside(&self) -> Option<PathBuf> {
        let name = self.file.file_name()?.to_str()?;
        let (stem, _) = name.split_once('.')?;
        let path = self.file.with_file_name(format!("{stem}.manifest.json"));
        path.is_file().then_some(path)
    }

    /// The content that the index beside the file declares.
    fn declared(&self) -> Result<Option<UnpackedContent>, UnpackError> {
        let path = self.file.with_file_name(INDEX_FILE);
        if !path.is_file() {
            return Ok(None);
        }
        // Another program may have written a file of this name.
        let index = serde_json::from_slice::<ImageIndex>(&read(&path, MAX_INDEX)?);
        let files = index.map(|index| index.files).unwrap_or_default();
        let name = self.file.file_name().and_then(|name| name.to_str());
        let entry = files.into_iter().find(|entry| Some(entry.file.as_str()) == name);
        Ok(entry.and_then(|entry| entry.unpacked))
    }
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, UnpackError> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut text));
    let read = read.and_then(|length| {
        let is_long = length as u64 > most;
        if is_long { Err(io::Error::other(format!("more than {most} bytes"))) } else { Ok(()) }
    });
    read.map_err(|source| UnpackError::Read { path: path.to_owned(), source })?;
    Ok(text)
}

/// The file until it is complete. Dropping it removes it.
struct Partial {
    file: File,
    path: PathBuf,
}

impl Partial {
    fn create(directory: &Path, out: &Path) -> io::Result<Self> {
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        let path = directory.join(format!(".{name}.{}.partial", std::process::id()));
        let file = File::create_new(&path)?;
        Ok(Self { file, path })
    }

    /// Never replaces a file that appeared meanwhile.
    fn keep(self, out: &Path) -> io::Result<()> {
        fs_err::hard_link(&self.path, out)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Nothing more can be done about a file that cannot be removed.
        let _ = fs_err::remove_file(&self.path);
    }
}
