//! The kernel's command line, word by word, each with where it came from.

use std::fmt::Write as _;

use hoist_model::boot_config::ARTIFACT_SCHEME;
use hoist_model::{BootConfig, BssImageKey, BssKey, BssRecord, ImageKind};
use hoist_site::Roster;

/// One part of a command line: one word or several that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub text: String,
    pub origin: Origin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The parameters of the record or configuration.
    Params,
    KernelImage,
    InitrdImage,
    /// Names of the script's initrds.
    Initrd,
    Node,
    /// The record's referral token.
    Referral,
    /// The MAC the machine asked with.
    BootRequest,
    /// Where cloud-init gets its documents.
    CloudInit,
}

impl Origin {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Params => "params",
            Self::KernelImage => "kernel-image",
            Self::InitrdImage => "initrd-image",
            Self::Initrd => "initrd",
            Self::Node => "node",
            Self::Referral => "referral",
            Self::BootRequest => "asked",
            Self::CloudInit => "cloud-init",
        }
    }
}

/// The inputs of the line besides the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// Of the node, if there is one.
    pub names: Option<Names<'a>>,
    /// Whether the machine boots a record of its own or of its tags, not the image for unknown
    /// machines. Without a node it is then a machine that the inventory lacks.
    pub is_own: bool,
    /// `01-a4-bf-…`, when the machine asked with a MAC.
    pub bootif: Option<&'a str>,
    /// The whole `ds=…` argument, or none.
    pub ds: Option<&'a str>,
}

/// The names of a node on its command line.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    pub host: &'a str,
    pub nid: Option<&'a str>,
}

#[derive(Debug, Default)]
pub struct Line {
    pub parts: Vec<Part>,
}

impl Line {
    pub(crate) fn push(&mut self, text: impl Into<String>, origin: Origin) {
        let text = text.into();
        if !text.is_empty() {
            self.parts.push(Part { text, origin });
        }
    }

    /// Adds the argument unless one with this prefix is present.
    fn push_new(&mut self, prefix: &str, value: &dyn std::fmt::Display, origin: Origin) {
        if !self.arguments().any(|word| word.starts_with(prefix)) {
            self.push(format!("{prefix}{value}"), origin);
        }
    }

    pub fn arguments(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().flat_map(|part| part.text.split_whitespace())
    }

    pub fn text(&self) -> String {
        let length = self.parts.iter().map(|part| part.text.len() + 1).sum();
        self.parts.iter().fold(String::with_capacity(length), |mut line, part| {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&part.text);
            line
        })
    }
}

/// The line as BSS builds it: the stored arguments, then the missing ones, with `initrd=initrd` in
/// front.
pub fn of_record(roster: &Roster, record: &BssRecord, around: Surroundings<'_>) -> Line {
    let mut line = Line::default();
    let has_initrd = !record.initrd.is_empty();
    let stored = |text: &str| {
        // The word is ours to set; others that only look like it stay.
        if has_initrd && text.contains("initrd=") {
            let kept = text.split_whitespace().filter(|word| !word.starts_with("initrd="));
            kept.collect::<Vec<_>>().join(" ")
        } else {
            text.to_owned()
        }
    };
    if has_initrd {
        line.push("initrd=initrd", Origin::Initrd);
    }
    line.push(stored(record.params.trim()), Origin::Params);
    let image = |kind, path: &str, line: &mut Line, origin| {
        let key = BssImageKey { kind, path: path.to_owned() };
        if let Some(image) = roster.bss_image(&key) {
            line.push(stored(image.params.trim()), origin);
        }
    };
    if roster.bss_images().next().is_some() {
        image(ImageKind::Kernel, &record.kernel, &mut line, Origin::KernelImage);
        image(ImageKind::Initrd, &record.initrd, &mut line, Origin::InitrdImage);
    }
    let xname = match (around.names, &record.key) {
        (Some(names), _) => Some(names.host.to_owned()),
        (None, BssKey::Xname(xname)) if around.is_own => Some(xname.to_string()),
        (None, _) => None,
    };
    if let Some(xname) = xname {
        line.push_new("xname=", &xname, Origin::Node);
    }
    if let Some(nid) = around.names.and_then(|names| names.nid) {
        line.push_new("nid=", &nid, Origin::Node);
    }
    if let Some(token) = record.referral_token.as_ref().filter(|_| around.is_own) {
        line.push_new("bss_referral_token=", token, Origin::Referral);
    }
    if let Some(bootif) = around.bootif {
        line.push_new("BOOTIF=", &bootif, Origin::BootRequest);
    }
    if let Some(ds) = around.ds.and_then(|ds| ds.strip_prefix("ds=")) {
        line.push_new("ds=", &ds, Origin::CloudInit);
    }
    line
}

/// Everything that was written for a script of the record, besides the node's names.
pub(crate) fn texts_of_record<'a>(roster: &'a Roster, record: &'a BssRecord) -> Vec<&'a str> {
    let BssRecord { kernel, initrd, params, referral_token, .. } = record;
    let images = [(ImageKind::Kernel, kernel), (ImageKind::Initrd, initrd)];
    let params_of = |(kind, path): (ImageKind, &String)| {
        let image = roster.bss_image(&BssImageKey { kind, path: path.clone() })?;
        Some(image.params.as_str())
    };
    let own = [kernel.as_str(), initrd, params].into_iter().chain(referral_token.as_deref());
    own.chain(images.into_iter().filter_map(params_of)).collect()
}

/// Hoist's arguments come first, so that those of the configuration win.
pub fn of_config(config: &BootConfig, around: Surroundings<'_>) -> Line {
    let mut line = Line::default();
    let params = config.spec.params.trim();
    let given = |prefix: &str| params.split_whitespace().any(|word| word.starts_with(prefix));
    if !given("initrd=") {
        let mut words = String::new();
        for i in 0..config.spec.initrd.len() {
            let blank = if i == 0 { "" } else { " " };
            write!(words, "{blank}initrd={}", initrd_name(i)).expect("writing to a string");
        }
        line.push(words, Origin::Initrd);
    }
    if let Some(bootif) = around.bootif.filter(|_| !given("BOOTIF=")) {
        line.push(format!("BOOTIF={bootif}"), Origin::BootRequest);
    }
    if let Some(ds) = around.ds.filter(|_| !given("ds=")) {
        line.push(ds, Origin::CloudInit);
    }
    line.push(params, Origin::Params);
    line
}

/// The name of an initrd in the script; the kernel argument must be the same.
pub fn initrd_name(at: usize) -> String {
    if at == 0 { "initrd".to_owned() } else { format!("initrd{at}") }
}

/// A URL, or an artifact of the site under `base`. An artifact that is gone stays as it is written:
/// the machine's error then names it.
pub fn resolve(roster: &Roster, base: &str, url: &str) -> String {
    let artifact = url.strip_prefix(ARTIFACT_SCHEME).and_then(|name| roster.artifact(name));
    match artifact {
        Some(artifact) => {
            format!("{base}/artifacts/{}/{}", artifact.spec.sha256, artifact.name)
        }
        None => url.to_owned(),
    }
}

/// The same inside of a line: `root=live:artifact:image.squashfs`.
pub fn resolve_in(roster: &Roster, base: &str, line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(ARTIFACT_SCHEME) {
        let name_from = at + ARTIFACT_SCHEME.len();
        let name_length = hoist_model::boot_config::artifact_name_length(&rest[name_from..]);
        let end = name_from + name_length;
        out.push_str(&rest[..at]);
        out.push_str(&resolve(roster, base, &rest[at..end]));
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}
