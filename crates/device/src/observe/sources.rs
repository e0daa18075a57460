//! The sources of images and boot files: what they offer, and which of them do not answer. Nothing
//! may be written to a disk before every image and every boot file has a source that answered.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hoist_diagnostic::chain;
use hoist_engine::action::{Cancel, Secrets as _};
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::digest::Digest;
use hoist_provision::document::{Document, Id, Image, ImageFormat};
use hoist_provision::manifest::{MAX_MANIFEST, Manifest};
use hoist_provision::plan::{ObservedImages, ObservedMachine, images_to_write};

use crate::RunInputs;
use crate::images::{
    FetchLimits, ImageError, Notices, Origin, SourceError, StreamProbe, beginning, probe_chunks,
    probe_stream, virtual_size,
};

/// Longest wait for the sources before the first write.
pub const SOURCES_TIMEOUT: Duration = Duration::from_mins(2);

/// How to wait for sources. By default each source is asked twice at most.
#[derive(Debug, Clone, Default)]
pub struct SourceTimeout {
    /// Waits until each image has a source that answers, or until this time has passed.
    pub timeout: Option<Duration>,
    /// Ends all waiting. Sources that did not answer by then count as unreachable.
    pub cancel: Cancel,
    /// Receives a notice while a source sends nothing.
    pub notices: Notices,
}

/// The inputs of the run, and the requests for its sources.
#[derive(Clone, Copy)]
pub(super) struct SourceRequests<'a> {
    pub(super) given: &'a RunInputs,
    timeout: &'a SourceTimeout,
    deadline: Option<Instant>,
}

impl<'a> SourceRequests<'a> {
    pub(super) fn new(given: &'a RunInputs, timeout: &'a SourceTimeout) -> Self {
        let deadline = timeout.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { given, timeout, deadline }
    }

    pub(super) fn origin(&self, urls: Vec<String>) -> Origin {
        let limits = FetchLimits { deadline: self.deadline, ..FetchLimits::default().for_probe() };
        let trust = self.given.trust.clone();
        let cancel = self.timeout.cancel.clone();
        let notices = self.timeout.notices.clone();
        Origin { trust, limits, cancel, notices, ..Origin::new(urls) }
    }

    fn origin_of(&self, image: &Image, urls: Vec<String>) -> Origin {
        let token =
            image.token.as_ref().and_then(|token| self.given.secrets.get(token.name()).ok());
        Origin { token: token.map(Into::into), ..self.origin(urls) }
    }

    /// The sources to ask: one after the other until one answers, or each of them if there is no
    /// time to wait.
    fn groups(&self, image: &Image) -> Vec<Origin> {
        let all = &image.sources;
        let groups: Vec<Vec<String>> = match self.deadline {
            Some(_) => vec![all.clone()],
            None => all.iter().map(|url| vec![url.clone()]).collect(),
        };
        groups.into_iter().map(|urls| self.origin_of(image, urls)).collect()
    }
}

/// Reads manifests and qcow2 headers, and asks the sources of all images that are to be written.
pub(super) fn images(
    document: &Document,
    seen: &mut ObservedMachine,
    fetching: SourceRequests<'_>,
) {
    let all: Vec<_> = document.sections.images.iter().collect();
    let described = each(&all, |image| describe(image, fetching));
    for ((id, _), description) in all.iter().zip(described) {
        let id = (*id).clone();
        match description {
            Ok(Description::Chunks(manifest)) => drop(seen.images.manifests.insert(id, manifest)),
            Ok(Description::Qcow2(size)) => drop(seen.images.virtual_sizes.insert(id, size)),
            Ok(Description::Stream) => {}
            Err((field, code, reason)) => {
                let place = format!("images.{id}{field}");
                let told = ProvisionDiagnostic::new(code, place, reason);
                seen.diagnostics.push(told.hint("nothing was written"));
            }
        }
    }
    let wanted: BTreeSet<Id> = images_to_write(document, seen).unwrap_or_else(|| {
        all.iter()
            .filter(|(_, image)| image.made_by.is_none())
            .map(|(id, _)| (*id).clone())
            .collect()
    });
    let wanted: Vec<_> = all.into_iter().filter(|(id, _)| wanted.contains(*id)).collect();
    let manifests = &seen.images.manifests;
    let answers = each(&wanted, |(id, image)| {
        let manifest = manifests.get(id).map(|(_, manifest)| manifest);
        let is_of_disk = document.sections.disks.get(&image.target).is_some();
        ask(image, manifest, is_of_disk, fetching)
    });
    for ((id, image), answers) in wanted.iter().zip(answers) {
        seen.diagnostics.extend(answers.diagnostics(id, image));
        answers.store(id, &mut seen.images);
    }
}

/// Threads that ask servers at the same time.
const WORKERS: usize = 8;

/// Calls `work` for each image, several at a time.
fn each<'a, T: Send>(
    images: &[(&'a Id, &'a Image)],
    work: impl Fn((&'a Id, &'a Image)) -> T + Sync,
) -> Vec<T> {
    let mut done = Vec::with_capacity(images.len());
    for some in images.chunks(WORKERS) {
        std::thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|image| scope.spawn(|| work(*image))).collect();
            done.extend(running.into_iter().map(|one| one.join().expect("it does not panic")));
        });
    }
    done
}

/// The tables of an image that a plan depends on.
enum Description {
    Stream,
    Chunks((Digest, Manifest)),
    Qcow2(u64),
}

/// Reads the manifest or the header of an image. An error has the field that it belongs to.
fn describe(
    (_, image): (&Id, &Image),
    fetching: SourceRequests<'_>,
) -> Result<Description, (&'static str, Code, String)> {
    if let Some(url) = &image.manifest {
        let origin = fetching.origin_of(image, vec![url.clone()]);
        let read = origin.read_all(MAX_MANIFEST);
        let bytes = read.map_err(|error| (".manifest", source_code(&error), chain(&error)))?;
        // The digest in the document is that of the manifest, which has the digest of every chunk.
        let wanted = image.digest.as_ref().and_then(|digest| digest.parse().ok());
        let manifest = Manifest::parse(&bytes, wanted)
            .map_err(|error| (".manifest", Code::BadValue, chain(&error)))?;
        return Ok(Description::Chunks((Digest::of(&bytes), manifest)));
    }
    if image.format == ImageFormat::Qcow2 {
        let size = virtual_size(&fetching.origin_of(image, image.sources.clone()));
        return size.map(Description::Qcow2).map_err(|error| {
            let code = match error {
                ImageError::Qcow2(_) => Code::Unsupported,
                _ => Code::Unreachable,
            };
            ("", code, chain(&error))
        });
    }
    Ok(Description::Stream)
}

fn source_code(error: &SourceError) -> Code {
    match error {
        SourceError::TooLong { .. } => Code::TooLarge,
        _ => Code::Unreachable,
    }
}

/// The answers of the sources of one image.
#[derive(Default)]
struct Answers {
    /// The first good answer.
    good: Option<StreamProbe>,
    /// Sources that do not have the image.
    refused: Vec<String>,
    /// Sources that did not answer.
    silent: Vec<String>,
    /// The image cannot be written.
    unusable: Option<ImageError>,
    beginning: Option<Vec<u8>>,
}

fn ask(
    image: &Image,
    manifest: Option<&Manifest>,
    is_of_disk: bool,
    fetching: SourceRequests<'_>,
) -> Answers {
    let mut answers = Answers::default();
    if image.manifest.is_some() && manifest.is_none() {
        return answers;
    }
    for origin in fetching.groups(image) {
        let probed = match manifest {
            _ if image.format == ImageFormat::Qcow2 => Ok(StreamProbe::default()),
            Some(manifest) => probe_chunks(&origin, manifest).map(|()| StreamProbe::default()),
            None => probe_stream(&origin, image.compression),
        };
        match probed {
            Ok(probe) => drop(answers.good.get_or_insert(probe)),
            Err(ImageError::Source(error @ SourceError::GivenUp { .. })) => {
                answers.silent.push(chain(&error));
            }
            Err(error @ (ImageError::Source(_) | ImageError::Stopped)) => {
                answers.refused.push(chain(&error));
            }
            Err(error) => answers.unusable = Some(error),
        }
    }
    if is_of_disk && answers.good.is_some() && answers.unusable.is_none() {
        let origin = fetching.origin_of(image, image.sources.clone());
        match beginning(&origin, image.format, image.compression, manifest) {
            Ok(first) => answers.beginning = first,
            // These errors are already reported.
            Err(ImageError::Qcow2(_) | ImageError::Source(_) | ImageError::Stopped) => {}
            Err(error) => answers.unusable = Some(error),
        }
    }
    answers
}

impl Answers {
    fn diagnostics(&self, id: &Id, image: &Image) -> Vec<ProvisionDiagnostic> {
        let unusable = self.unusable.iter().map(|error| {
            let code = error.code().unwrap_or(Code::Unreachable);
            let told = ProvisionDiagnostic::new(code, format!("images.{id}"), chain(error));
            told.hint("nothing was written")
        });
        let is_known =
            image.size.is_some() || image.digest.is_some() || image.unpacked_digest.is_some();
        let is_endless = self.good.is_some_and(|good| good.is_endless) && !is_known;
        let endless = is_endless.then(|| {
            let error = ImageError::Endless;
            let what = error.to_string();
            let what = what.strip_suffix("; set `size` or `digest`").unwrap_or(&what);
            ProvisionDiagnostic::new(Code::Missing, format!("images.{id}"), what)
                .hint("set `size` or `digest`")
        });
        unusable.chain(endless).collect()
    }

    fn store(self, id: &Id, images: &mut ObservedImages) {
        let Self { good, refused, silent, unusable, beginning } = self;
        if unusable.is_some() {
            return;
        }
        match good {
            Some(good) => {
                images.plain_sizes.extend(good.plain_size.map(|size| (id.clone(), size)));
                images.beginnings.extend(beginning.map(|first| (id.clone(), first)));
                let others = refused.into_iter().chain(silent);
                images.silent.extend(others.map(|reason| (id.clone(), reason)));
            }
            None if silent.is_empty() => {
                let reason = refused.join("; ");
                images.unreachable.extend((!reason.is_empty()).then(|| (id.clone(), reason)));
            }
            None => drop(images.unanswered.insert(id.clone(), silent.join("; "))),
        }
    }
}
