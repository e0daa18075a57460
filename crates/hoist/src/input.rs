//! Documents from files, directories and standard input, checked before anything is sent.
//!
//! Files are read as a whole and sent as JSON lines. Files of JSON lines may be as large as a site:
//! they are checked line by line and streamed from disk, each time they are needed.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use hoist_api::client::Body;
use hoist_diagnostic::Diagnostic;
use hoist_model::Document;
use hoist_model::document;
use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::io::ReaderStream;

use crate::failure::Failure;

/// Up to here a file is read as a whole; the same limit as that of `document::read`.
const WHOLE_BYTES: u64 = 64 * 1024 * 1024;
/// Longest line of JSON lines, far above the limits of a node.
const LINE_BYTES: u64 = 1024 * 1024;
/// Checking stops here: so many errors have one cause.
const MAX_DIAGNOSTICS: usize = 1000;
const CHUNK: usize = 64 * 1024;

/// Documents that were found to be well-formed.
#[derive(Debug, Default)]
pub(crate) struct Documents {
    /// As JSON lines.
    whole: Bytes,
    streamed: Vec<LineFile>,
    count: usize,
}

/// A file of JSON lines.
#[derive(Debug)]
struct LineFile {
    path: PathBuf,
    bytes: u64,
    /// Held until it is not needed any more: standard input that was too large for memory.
    _spooled: Option<tempfile::TempPath>,
}

impl Documents {
    pub(crate) fn of(documents: &[Document]) -> Result<Self, Failure> {
        let mut lines = Vec::new();
        for document in documents {
            serde_json::to_writer(&mut lines, document).map_err(Failure::Json)?;
            lines.push(b'\n');
        }
        Ok(Self { whole: lines.into(), streamed: Vec::new(), count: documents.len() })
    }

    /// The body of a request, with a progress bar on a terminal where it is long.
    pub(crate) fn body(&self, doing: &'static str) -> Result<Body, Failure> {
        if self.streamed.is_empty() {
            return Ok(self.whole.clone().into());
        }
        let progress = bar(doing, self.streamed.iter().map(|file| file.bytes).sum());
        let mut parts = vec![one(self.whole.clone())];
        for file in &self.streamed {
            let open = fs_err::File::open(&file.path).map_err(Failure::File)?;
            let file = tokio::fs::File::from_std(open.into_file());
            parts.push(ReaderStream::with_capacity(file, CHUNK).boxed());
            // The last line of a file may have no end.
            parts.push(one(Bytes::from_static(b"\n")));
        }
        let counted = stream::iter(parts).flatten().inspect(move |chunk| {
            if let Ok(chunk) = chunk {
                progress.inc(chunk.len() as u64);
            }
        });
        Ok(Body::wrap_stream(counted))
    }
}

/// All documents of these files and directories; `-` is standard input.
pub(crate) fn read(paths: &[PathBuf], recursive: bool) -> Result<Documents, Failure> {
    let mut documents = Vec::new();
    let mut streamed = Vec::new();
    let mut diagnostics = Vec::new();
    let mut count = 0;
    let mut take = |what: &str, text: &[u8], diagnostics: &mut Vec<Diagnostic>| match document::read(
        what, text,
    ) {
        Ok(found) => documents.extend(found),
        Err(found) => diagnostics.extend(found),
    };
    for path in paths {
        if path.as_os_str() == "-" {
            match standard_input()? {
                Stdin::Whole(text) => take("standard input", &text, &mut diagnostics),
                Stdin::Spooled(path, bytes) => {
                    let file = LineFile { path: path.to_path_buf(), bytes, _spooled: Some(path) };
                    count += check_lines("standard input", &file, &mut diagnostics)?;
                    streamed.push(file);
                }
            }
            continue;
        }
        for path in files(path, recursive)? {
            let what = path.display().to_string();
            let bytes = fs_err::metadata(&path).map_err(Failure::File)?.len();
            if is_lines(&path) || bytes > WHOLE_BYTES {
                let file = LineFile { path, bytes, _spooled: None };
                count += check_lines(&what, &file, &mut diagnostics)?;
                streamed.push(file);
            } else {
                take(&what, &read_whole(&path)?, &mut diagnostics);
            }
        }
    }
    if !diagnostics.is_empty() {
        return Err(Failure::Documents(diagnostics));
    }
    let mut all = Documents::of(&documents)?;
    all.count += count;
    all.streamed = streamed;
    if all.count == 0 {
        let names: Vec<_> = paths.iter().map(|path| format!("`{}`", path.display())).collect();
        return Err(Failure::usage(format!("no document in {}", names.join(", ")))
            .with_hint("see the format of documents with `hoist schema`"));
    }
    Ok(all)
}

/// The documents of files that are read as a whole.
pub(crate) fn read_whole(path: &Path) -> Result<Vec<u8>, Failure> {
    if path.as_os_str() == "-" {
        return match standard_input()? {
            Stdin::Whole(text) => Ok(text),
            Stdin::Spooled(..) => {
                Err(Failure::usage(format!("standard input is longer than {WHOLE_BYTES} bytes")))
            }
        };
    }
    read_up_to(path, WHOLE_BYTES)
}

/// Reads a file up to this length. A file without a length, such as a device, is not read further.
pub(crate) fn read_up_to(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let file = open(path)?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(Failure::File)?;
    if bytes.len() as u64 > most {
        let message = format!("`{}` is longer than {most} bytes", path.display());
        return Err(Failure::usage(message).with_hint("split it"));
    }
    Ok(bytes)
}

/// Opens a file of the path, but no FIFO: without a writer that would wait for ever. Pipes that a
/// shell opened (`/dev/fd/63`) have no name in a directory and are read.
fn open(path: &Path) -> Result<fs_err::File, Failure> {
    use std::os::unix::fs::FileTypeExt as _;
    let kind = fs_err::metadata(path).map_err(Failure::File)?.file_type();
    let is_named = fs_err::canonicalize(path).is_ok_and(|real| !real.starts_with("/proc"));
    if kind.is_fifo() && is_named {
        let message = format!("`{}` is a FIFO, not a file", path.display());
        let hint = "name a file, or `-` for standard input";
        return Err(Failure::usage(message).with_hint(hint));
    }
    fs_err::File::open(path).map_err(Failure::File)
}

enum Stdin {
    Whole(Vec<u8>),
    Spooled(tempfile::TempPath, u64),
}

fn standard_input() -> Result<Stdin, Failure> {
    let mut input = io::stdin().lock();
    let mut text = Vec::new();
    input.by_ref().take(WHOLE_BYTES + 1).read_to_end(&mut text).map_err(Failure::File)?;
    if text.len() as u64 <= WHOLE_BYTES {
        return Ok(Stdin::Whole(text));
    }
    let mut file = tempfile::NamedTempFile::new().map_err(Failure::File)?;
    file.write_all(&text).map_err(Failure::File)?;
    let rest = io::copy(&mut input, &mut file).map_err(Failure::File)?;
    Ok(Stdin::Spooled(file.into_temp_path(), text.len() as u64 + rest))
}

/// The file itself, or the documents in a directory, in the order of their names.
fn files(path: &Path, recursive: bool) -> Result<Vec<PathBuf>, Failure> {
    if !fs_err::metadata(path).map_err(Failure::File)?.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut entries = Vec::new();
    for entry in fs_err::read_dir(path).map_err(Failure::File)? {
        entries.push(entry.map_err(Failure::File)?.path());
    }
    entries.sort();
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with('.') {
            continue;
        }
        // A link to a directory is not followed: it could lead back to where we are.
        let kind = fs_err::symlink_metadata(&entry).map_err(Failure::File)?.file_type();
        if kind.is_dir() {
            if recursive {
                found.extend(files(&entry, true)?);
            }
        } else if is_document(&entry) {
            found.push(entry);
        }
    }
    Ok(found)
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

fn is_document(path: &Path) -> bool {
    is_lines(path) || matches!(extension(path), "yaml" | "yml" | "json")
}

fn is_lines(path: &Path) -> bool {
    matches!(extension(path), "ndjson" | "jsonl")
}

/// Counts the documents of a file and collects their errors.
fn check_lines(
    what: &str,
    file: &LineFile,
    diagnostics: &mut Vec<Diagnostic>,
) -> Result<usize, Failure> {
    let progress = bar("checking", file.bytes);
    let mut reader =
        BufReader::with_capacity(CHUNK, fs_err::File::open(&file.path).map_err(Failure::File)?);
    let mut count = 0;
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = reader.by_ref().take(LINE_BYTES + 1).read_until(b'\n', &mut line);
        let read = read.map_err(Failure::File)? as u64;
        progress.inc(read);
        if read == 0 || diagnostics.len() >= MAX_DIAGNOSTICS {
            break;
        }
        let diagnostic = |message| Diagnostic::new(format!("{what}:{number}:1"), message);
        if read > LINE_BYTES {
            let hint = "files of more than 64 MiB must have one JSON document per line";
            diagnostics.push(diagnostic("the line is too long").hint(hint));
            break;
        }
        let Ok(text) = std::str::from_utf8(&line) else {
            diagnostics.push(diagnostic("the line is not UTF-8").hint("save the file as UTF-8"));
            continue;
        };
        if text.trim().is_empty() {
            continue;
        }
        match document::from_json(what, number, text.trim_end()) {
            Ok(_) => count += 1,
            Err(found) => diagnostics.extend(found),
        }
    }
    progress.finish_and_clear();
    Ok(count)
}

fn one(bytes: Bytes) -> std::pin::Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>> {
    stream::once(std::future::ready(Ok(bytes))).boxed()
}

/// Draws on standard error, and only where that is a terminal.
pub(crate) fn bar(doing: &'static str, bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:32} {bytes}/{total_bytes} {eta}")
        .expect("a literal template");
    ProgressBar::new(bytes).with_style(style).with_message(doing)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "api: hoist/v1\nkind: Node\nname: n1\n";

    fn sent(documents: &Documents) -> String {
        let body = documents.body("sending").unwrap();
        String::from_utf8(body.as_bytes().expect("read as a whole").to_vec()).unwrap()
    }

    #[test]
    fn directories_are_read_in_order_and_only_documents_in_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs_err::write(at("b.yaml"), NODE.replace("n1", "b")).unwrap();
        fs_err::write(at("a.yml"), NODE.replace("n1", "a")).unwrap();
        fs_err::write(at(".hidden.yaml"), "nonsense").unwrap();
        fs_err::write(at("README.md"), "nonsense").unwrap();
        fs_err::create_dir(at("sub")).unwrap();
        fs_err::write(at("sub/c.json"), r#"{"api":"hoist/v1","kind":"Node","name":"c"}"#).unwrap();

        let paths = [dir.path().to_path_buf()];
        let flat = read(&paths, false).unwrap();
        let text = sent(&flat);
        let names: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].clone())
            .collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(read(&paths, true).unwrap().count, 3);
    }

    #[test]
    fn reading_reports_every_problem_of_every_file() {
        let dir = tempfile::tempdir().unwrap();
        let yaml = dir.path().join("a.yaml");
        let lines = dir.path().join("b.ndjson");
        fs_err::write(&yaml, "api: hoist/v1\nkind: Node\nname: n1\nspec: {rol: x}\n").unwrap();
        let good = r#"{"api":"hoist/v1","kind":"Node","name":"n1"}"#;
        fs_err::write(&lines, format!("{good}\n\n{{}}\n{good}\nkettle\n")).unwrap();
        let Failure::Documents(diagnostics) = read(&[yaml, lines], false).unwrap_err() else {
            panic!("these are problems of documents");
        };
        assert_eq!(diagnostics.len(), 3, "{diagnostics:?}");
        assert!(diagnostics[1].at.contains("b.ndjson:3:"), "{}", diagnostics[1]);
        assert!(diagnostics[2].at.contains("b.ndjson:5:"), "{}", diagnostics[2]);
        assert!(diagnostics[0].to_string().contains("role"), "{}", diagnostics[0]);
    }

    #[tokio::test]
    async fn lines_are_streamed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.jsonl");
        let good = r#"{"api":"hoist/v1","kind":"Node","name":"n1"}"#;
        fs_err::write(&path, format!("{good}\n{good}")).unwrap();
        let documents = read(&[path], false).unwrap();
        assert_eq!(documents.count, 2);
        assert!(documents.body("sending").unwrap().as_bytes().is_none());
    }

    #[test]
    fn input_without_length_is_bounded() {
        let failure = read_up_to(Path::new("/dev/zero"), 1024).unwrap_err();
        assert_eq!(failure.to_string(), "`/dev/zero` is longer than 1024 bytes");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs_err::write(&path, "1234").unwrap();
        assert_eq!(read_up_to(&path, 4).unwrap(), b"1234");
        assert!(read_up_to(&path, 3).is_err());
        let missing = read_whole(&dir.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("none") && missing.contains("No such file"), "{missing}");
    }

    #[test]
    fn empty_input_is_not_a_set_of_documents() {
        let dir = tempfile::tempdir().unwrap();
        let failure = read(&[dir.path().to_path_buf()], true).unwrap_err();
        assert!(matches!(failure, Failure::Usage { .. }), "{failure}");
        let missing = read(&[dir.path().join("none.yaml")], false).unwrap_err();
        assert!(missing.to_string().contains("none.yaml"), "{missing}");
    }
}
