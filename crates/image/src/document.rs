//! `image.yaml`: the content of an image, and the shapes to build.
//!
//! Does not belong here: building (`build`).

use hoist_diagnostic::Diagnostic;
use hoist_model::Name;
use hoist_model::document::{API, read_one};
use hoist_provision::document::{Bytes, FsKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Largest text of a document.
pub const MAX_BYTES: usize = 4 * 1024 * 1024;

/// So that the longest name of an artifact still fits.
pub const MAX_NAME: usize = 40;

pub const MAX_FILES: usize = 1024;
pub const MAX_PACKAGES: usize = 4096;
pub const MAX_MODULES: usize = 256;
pub const MAX_RUN: usize = 256;
/// Words of one command.
pub const MAX_WORDS: usize = 256;
pub const MAX_KERNEL_ARGS: usize = 128;
/// Bytes of all kernel arguments; the kernel takes 2 KiB including the generated ones.
pub const MAX_COMMAND_LINE: usize = 1536;
/// Longest word of a document that becomes the word of a command.
pub const MAX_WORD: usize = 4096;

/// Smallest and largest file system.
pub const MIN_SIZE: u64 = 8 << 20;
pub const MAX_SIZE: u64 = 1 << 40;

/// The label of an ext4 has this many bytes.
const MAX_LABEL: usize = 16;

/// Default time of all files in an image: 2026-01-01.
const EPOCH: u32 = 1_767_225_600;

/// The only kind there is.
const KIND: &str = "Image";

/// An image with its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "hoist image")]
pub struct Image {
    /// `hoist/v1`.
    #[schemars(extend("const" = API))]
    pub api: String,
    /// `Image`.
    #[schemars(extend("const" = KIND))]
    pub kind: String,
    pub name: Name,
    pub spec: Spec,
}

/// What shall be in it, and in which shapes it is wanted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub builder: Builder,
    /// Put in after the builder, whatever was there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<File>,
    /// Words for the kernel, beside those that say where the root is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_args: Vec<String>,
    /// When everything in it was made, in seconds since 1970: nothing in it is newer. The variable
    /// `SOURCE_DATE_EPOCH` counts where this is left out, and then the beginning of 2026.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
    pub outputs: Outputs,
}

/// Who fills the directory that becomes the root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Builder {
    Tiny(Tiny),
    Debian(Debian),
    Plugin(Plugin),
}

/// A kernel, busybox and an init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tiny {
    pub kernel: Kernel,
    pub busybox: Source,
    /// Kernel modules, with their dependencies; built-in modules are accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// A script that begins with `#!/bin/busybox sh`, instead of the one that hoist has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<String>,
}

/// Where a kernel comes from: a package, or a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// A package of this machine's Debian; of one that only names another, that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The directory of its modules, like `lib/modules/6.1.0-9-amd64`, that belongs to `file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modules: Option<String>,
}

/// Where a program comes from. Paths begin where the document is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A package of this machine's Debian.
    Package(String),
    File(String),
}

/// How the address of a mirror begins.
pub(crate) const MIRRORS: [&str; 3] = ["http://", "https://", "file:///"];

/// Debian, by mmdebstrap. As root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Debian {
    /// `bookworm`, `trixie`.
    pub suite: String,
    /// The mirror; by default that of the building machine's apt, or else Debian's own. A mirror of
    /// snapshot.debian.org never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    #[serde(default)]
    pub variant: Variant,
    /// Beside those that the variant has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
    /// Commands that run in the tree, word by word, without a shell and without a network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run: Vec<Vec<String>>,
}

/// The initial package set of a Debian.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    Essential,
    #[default]
    Minbase,
    Important,
    Standard,
}

impl Variant {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Essential => "essential",
            Self::Minbase => "minbase",
            Self::Important => "important",
            Self::Standard => "standard",
        }
    }
}

/// An external program: the plug-in `hoist-action-NAME`, started in the directory to fill.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plugin {
    pub name: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub input: Map<String, Value>,
}

/// A file of the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// From the root of the image.
    pub path: String,
    /// The content; alternative to `file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// A file that is copied; its path begins where the document is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// In octal; `0644` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// The shapes that are wanted; at least one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Outputs {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskOutput>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveOutput>,
    /// Made of `disk`, which must be wanted, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_disk: Option<WholeDisk>,
}

/// The file system of a partition, and what boots it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskOutput {
    /// Of the file system; on a disk it can be grown.
    pub size: Bytes,
    /// `ext4`.
    #[serde(default = "ext4")]
    pub fs: FsKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The boot loaders to make; all of them by default.
    #[serde(default = "all_loaders")]
    pub loaders: Vec<Loader>,
}

fn ext4() -> FsKind {
    FsKind::Ext4
}

fn all_loaders() -> Vec<Loader> {
    vec![Loader::SystemdBoot, Loader::Uki, Loader::Grub]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Loader {
    SystemdBoot,
    Uki,
    /// For UEFI and for BIOS.
    Grub,
}

/// A disk with partitions that boots by itself, for virtual machines and for copying.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WholeDisk {
    pub size: Bytes,
    #[serde(default)]
    pub firmware: Firmware,
    /// What UEFI starts; BIOS starts GRUB.
    #[serde(default = "systemd_boot")]
    pub loader: Loader,
    /// Size of the volume that the firmware reads, with the kernel; 512 MiB by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub esp_size: Option<Bytes>,
}

fn systemd_boot() -> Loader {
    Loader::SystemdBoot
}

/// What starts a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Firmware {
    Bios,
    Uefi,
    #[default]
    Both,
}

impl Loader {
    fn as_str(self) -> &'static str {
        match self {
            Self::SystemdBoot => "systemd_boot",
            Self::Uki => "uki",
            Self::Grub => "grub",
        }
    }
}

impl WholeDisk {
    /// The loaders this output requires. A unified kernel image does not know its root, so
    /// systemd-boot must pass it.
    fn loaders(&self) -> Vec<Loader> {
        let mut loaders = Vec::new();
        if self.firmware.is_uefi() {
            loaders.push(self.loader);
            if self.loader == Loader::Uki {
                loaders.push(Loader::SystemdBoot);
            }
        }
        if self.firmware.is_bios() {
            loaders.push(Loader::Grub);
        }
        loaders
    }
}

impl Firmware {
    pub(crate) fn is_bios(self) -> bool {
        self != Self::Uefi
    }

    pub(crate) fn is_uefi(self) -> bool {
        self != Self::Bios
    }
}

/// One file that a machine without a disk runs from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LiveOutput {
    pub format: LiveFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LiveFormat {
    Squashfs,
    /// An initial RAM disk, packed with zstd, that is the whole system.
    Cpio,
}

/// Why there is no image to build.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    #[error(
        "`{source_name}` has {bytes} bytes; at most {MAX_BYTES} are read, so put large contents into files of their own"
    )]
    TooLarge { source_name: String, bytes: usize },
    #[error("the document has {} error(s)", .0.len())]
    Invalid(Vec<Diagnostic>),
}

/// Reads a document, or a spec by itself, which is then called `fallback`.
pub fn read(source: &str, text: &[u8], fallback: &str) -> Result<Image, DocumentError> {
    if text.len() > MAX_BYTES {
        let source_name = source.to_owned();
        let bytes = text.len();
        return Err(DocumentError::TooLarge { source_name, bytes });
    }
    let any: Map<String, Value> = read_one(source, text).map_err(DocumentError::Invalid)?;
    let image = if any.contains_key("api") || any.contains_key("kind") {
        read_one::<Image>(source, text).map_err(DocumentError::Invalid)?
    } else {
        let spec = read_one(source, text).map_err(DocumentError::Invalid)?;
        let name = fallback.parse().map_err(|error| {
            let hint = "write it as a document with `api`, `kind`, `name` and `spec`";
            DocumentError::Invalid(vec![Diagnostic::new("name", format!("{error}")).hint(hint)])
        })?;
        Image { api: API.to_owned(), kind: KIND.to_owned(), name, spec }
    };
    let found = image.check();
    if found.is_empty() { Ok(image) } else { Err(DocumentError::Invalid(found)) }
}

impl Image {
    /// The JSON Schema of it, for editors and other tools.
    pub fn schema() -> Value {
        schemars::schema_for!(Self).to_value()
    }

    /// Seconds since 1970; `variable` is what `SOURCE_DATE_EPOCH` says.
    pub fn epoch(&self, variable: Option<u32>) -> u32 {
        self.spec.epoch.or(variable).unwrap_or(EPOCH)
    }

    fn check(&self) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::new();
        if self.api != API {
            diagnostics.push(
                Diagnostic::new("api", unknown(&self.api)).hint(format!("write `api: {API}`")),
            );
        }
        if self.kind != KIND {
            let hint = format!("write `kind: {KIND}`");
            diagnostics.push(Diagnostic::new("kind", unknown(&self.kind)).hint(hint));
        }
        if self.name.len() > MAX_NAME {
            let what = format!("the name has more than {MAX_NAME} characters");
            diagnostics.push(Diagnostic::new("name", what));
        }
        check_builder(&self.spec.builder, &mut diagnostics);
        check_files(&self.spec.files, &mut diagnostics);
        check_kernel_args(&self.spec.kernel_args, &mut diagnostics);
        check_outputs(&self.spec.outputs, &mut diagnostics);
        diagnostics
    }
}

fn unknown(word: &str) -> String {
    format!("`{word}` is not supported")
}

fn check_builder(builder: &Builder, diagnostics: &mut Vec<Diagnostic>) {
    match builder {
        Builder::Tiny(tiny) => check_tiny(tiny, diagnostics),
        Builder::Debian(debian) => check_debian(debian, diagnostics),
        Builder::Plugin(plugin) => {
            if !hoist_engine::plugin::is_name(&plugin.name) {
                let what = format!("`{}` is not a plug-in name", plugin.name);
                let hint = "use the part of its file name after `hoist-action-`";
                diagnostics.push(Diagnostic::new("builder.plugin.name", what).hint(hint));
            }
        }
    }
}

fn check_tiny(tiny: &Tiny, diagnostics: &mut Vec<Diagnostic>) {
    let at = "builder.tiny.kernel";
    match &tiny.kernel {
        Kernel { package: Some(package), file: None, modules: None } => {
            check_package(package, &format!("{at}.package"), diagnostics);
        }
        Kernel { package: None, file: Some(_), .. } => {}
        _ => diagnostics.push(
            Diagnostic::new(at, "names neither a package nor a file")
                .hint("write `{package: NAME}`, or `{file: PATH, modules: DIRECTORY}`"),
        ),
    }
    if let Source::Package(package) = &tiny.busybox {
        check_package(package, "builder.tiny.busybox.package", diagnostics);
    }
    check_count("builder.tiny.modules", tiny.modules.len(), MAX_MODULES, diagnostics);
    for (number, module) in tiny.modules.iter().enumerate() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if module.is_empty() || module.len() > MAX_NAME || !module.chars().all(is_name) {
            let what = format!("`{module}` is not a module name");
            diagnostics.push(Diagnostic::new(format!("builder.tiny.modules[{number}]"), what));
        }
    }
    if tiny.init.as_ref().is_some_and(|init| !init.starts_with("#!/")) {
        let hint = "begin with `#!/bin/busybox sh`";
        diagnostics.push(Diagnostic::new("builder.tiny.init", "not a script").hint(hint));
    }
}

fn check_debian(debian: &Debian, diagnostics: &mut Vec<Diagnostic>) {
    check_package(&debian.suite, "builder.debian.suite", diagnostics);
    if let Some(mirror) = &debian.mirror {
        let is_url = MIRRORS.iter().any(|way| mirror.starts_with(way));
        let is_word = mirror.len() <= MAX_WORD && mirror.bytes().all(|b| b.is_ascii_graphic());
        if !is_url || !is_word {
            let what = format!("`{mirror}` is not a mirror URL");
            let hint = "write it like `http://deb.debian.org/debian`";
            diagnostics.push(Diagnostic::new("builder.debian.mirror", what).hint(hint));
        }
    }
    check_count("builder.debian.packages", debian.packages.len(), MAX_PACKAGES, diagnostics);
    for (number, package) in debian.packages.iter().enumerate() {
        check_package(package, &format!("builder.debian.packages[{number}]"), diagnostics);
    }
    check_count("builder.debian.run", debian.run.len(), MAX_RUN, diagnostics);
    for (number, words) in debian.run.iter().enumerate() {
        let at = format!("builder.debian.run[{number}]");
        check_count(&at, words.len(), MAX_WORDS, diagnostics);
        if words.first().is_none_or(String::is_empty) {
            diagnostics.push(Diagnostic::new(at, "names no program"));
        } else if words.iter().any(|word| word.contains('\0') || word.len() > MAX_WORD) {
            let what = format!("an argument contains a zero byte or more than {MAX_WORD} bytes");
            diagnostics.push(Diagnostic::new(at, what));
        }
    }
}

/// Refuses names that could be taken for an option or for several packages.
fn check_package(name: &str, at: &str, diagnostics: &mut Vec<Diagnostic>) {
    let known = |c: char| c.is_ascii_alphanumeric() || "+-.:=~_".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !begins || name.len() > 128 || !name.chars().all(known) {
        let what = format!("`{name}` is not a Debian name");
        diagnostics
            .push(Diagnostic::new(at, what).hint("write one name, and a version behind `=`"));
    }
}

fn check_files(files: &[File], diagnostics: &mut Vec<Diagnostic>) {
    check_count("files", files.len(), MAX_FILES, diagnostics);
    for (number, file) in files.iter().enumerate() {
        let at = |field: &str| format!("files[{number}]{field}");
        if parts(&file.path).is_none() {
            let what = format!("`{}` is not an absolute path", file.path);
            let hint = "write the path from the root, without `.` and `..`";
            diagnostics.push(Diagnostic::new(at(".path"), what).hint(hint));
        }
        if file.text.is_some() == file.file.is_some() {
            let hint = "write `text`, or `file` with a path beside the document";
            diagnostics.push(
                Diagnostic::new(at(""), "the content of the file is missing or ambiguous")
                    .hint(hint),
            );
        }
        if let Some(mode) = file.mode.as_deref().filter(|mode| parse_mode(mode).is_none()) {
            let what = format!("`{mode}` is not a file mode");
            diagnostics
                .push(Diagnostic::new(at(".mode"), what).hint("write it in octal, like `0644`"));
        }
    }
}

/// The names that a path of the image leads through.
pub(crate) fn parts(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    let is_name =
        |part: &&str| !matches!(*part, "" | "." | "..") && part.len() < 256 && !part.contains('\0');
    (path.len() <= MAX_WORD && parts.iter().all(is_name)).then_some(parts)
}

pub(crate) fn parse_mode(mode: &str) -> Option<u32> {
    let is_octal = (3..=4).contains(&mode.len()) && mode.bytes().all(|b| matches!(b, b'0'..=b'7'));
    is_octal.then(|| u32::from_str_radix(mode, 8).ok()).flatten()
}

fn check_kernel_args(words: &[String], diagnostics: &mut Vec<Diagnostic>) {
    check_count("kernel_args", words.len(), MAX_KERNEL_ARGS, diagnostics);
    let bytes: usize = words.iter().map(|word| word.len() + 1).sum();
    if bytes > MAX_COMMAND_LINE {
        let what =
            format!("the kernel arguments have {bytes} bytes; the limit is {MAX_COMMAND_LINE}");
        diagnostics.push(Diagnostic::new("kernel_args", what));
    }
    for (number, word) in words.iter().enumerate() {
        let is_word = !word.is_empty() && word.bytes().all(|b| b.is_ascii_graphic());
        if !is_word {
            let what = format!("`{word}` is not one word");
            diagnostics.push(Diagnostic::new(format!("kernel_args[{number}]"), what));
        }
    }
}

fn check_outputs(outputs: &Outputs, diagnostics: &mut Vec<Diagnostic>) {
    if outputs.disk.is_none() && outputs.live.is_none() && outputs.whole_disk.is_none() {
        let hint = "write `disk`, `live` or both";
        diagnostics.push(Diagnostic::new("outputs", "no output is requested").hint(hint));
    }
    if let Some(whole) = &outputs.whole_disk {
        check_whole_disk(whole, outputs.disk.as_ref(), diagnostics);
    }
    let Some(disk) = &outputs.disk else { return };
    if disk.fs != FsKind::Ext4 {
        let name = serde_json::to_value(disk.fs).unwrap_or_default();
        let what = format!("images cannot be made as `{}`", name.as_str().unwrap_or_default());
        diagnostics
            .push(Diagnostic::new("outputs.disk.fs", what).hint("write `ext4`, or leave it out"));
    }
    check_size(disk.size, "outputs.disk.size", diagnostics);
    if let Some(label) = &disk.label {
        let is_label = |b: u8| b.is_ascii_graphic() && b != b'"' && b != b'\\';
        if label.is_empty() || label.len() > MAX_LABEL || !label.bytes().all(is_label) {
            let what = format!("`{label}` is not a label");
            let hint = format!("write 1 to {MAX_LABEL} letters, digits and signs");
            diagnostics.push(Diagnostic::new("outputs.disk.label", what).hint(hint));
        }
    }
}

fn check_size(size: Bytes, at: &str, diagnostics: &mut Vec<Diagnostic>) {
    if !(MIN_SIZE..=MAX_SIZE).contains(&size.0) || !size.0.is_multiple_of(4096) {
        let least = Bytes(MIN_SIZE);
        let most = Bytes(MAX_SIZE);
        let hint = format!("write a size of {least} to {most}, in steps of 4 KiB");
        diagnostics.push(Diagnostic::new(at, format!("`{size}` is not a valid size")).hint(hint));
    }
}

fn check_whole_disk(
    whole: &WholeDisk,
    disk: Option<&DiskOutput>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let at = "outputs.whole_disk";
    check_size(whole.size, &format!("{at}.size"), diagnostics);
    let Some(disk) = disk else {
        let hint = "write `disk`, too, with its loaders";
        diagnostics.push(Diagnostic::new(at, "the disk has no content").hint(hint));
        return;
    };
    for loader in whole.loaders() {
        if !disk.loaders.contains(&loader) {
            let what = format!("needs the loader `{}`", loader.as_str());
            let hint = "name it in `outputs.disk.loaders`";
            diagnostics.push(Diagnostic::new(at, what).hint(hint));
        }
    }
}

fn check_count(at: &str, is: usize, most: usize, diagnostics: &mut Vec<Diagnostic>) {
    if is > most {
        diagnostics.push(Diagnostic::new(at, format!("{is} entries; at most {most} are allowed")));
    }
}

#[cfg(test)]
mod tests;
