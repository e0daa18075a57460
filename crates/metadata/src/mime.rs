//! Several parts as one MIME message, as cloud-init takes them apart.

use std::fmt::Write as _;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub(crate) struct Part<'a> {
    pub(crate) form: PartForm,
    pub(crate) kind: &'a str,
    pub(crate) name: String,
    pub(crate) text: &'a str,
}

/// How the text of a part becomes a part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartForm {
    Text,
    /// Base64 of anything.
    Encoded,
    /// A message with headers of its own.
    Message,
}

/// `layers` becomes a header.
pub(crate) fn message(parts: &[Part<'_>], layers: &str) -> String {
    let boundary = boundary(parts);
    let mut message = format!(
        "Content-Type: multipart/mixed; boundary=\"{boundary}\"\nMIME-Version: 1.0\n\
         X-Hoist-Layers: {layers}\n\n"
    );
    for part in parts {
        let (encoding, text) = match part.form {
            PartForm::Text => encoded(part.text),
            PartForm::Encoded => ("base64", part.text.trim().to_owned()),
            PartForm::Message => {
                let text = part.text.trim_start();
                write!(message, "--{boundary}\n{text}\n").expect("writing to a string");
                continue;
            }
        };
        write!(
            message,
            "--{boundary}\nContent-Type: {}; charset=\"utf-8\"\nMIME-Version: 1.0\n\
             Content-Transfer-Encoding: {encoding}\n\
             Content-Disposition: attachment; filename=\"{}\"\n\n{text}\n",
            part.kind, part.name,
        )
        .expect("writing to a string");
    }
    writeln!(message, "--{boundary}--").expect("writing to a string");
    message
}

/// Made of the parts: the same whenever they are the same, and in none of them, because a text
/// cannot hold its own hash.
fn boundary(parts: &[Part<'_>]) -> String {
    let mut hash = digest::Context::new(&digest::SHA256);
    for part in parts {
        hash.update(part.text.as_bytes());
    }
    let hash = hash.finish();
    hash.as_ref()[..16].iter().fold("==hoist-".to_owned(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string");
        text
    })
}

/// Plain letters stay readable; the client's mail parser keeps nothing else as it is.
fn encoded(text: &str) -> (&'static str, String) {
    if text.bytes().all(|b| matches!(b, b'\n' | b'\t' | b' '..=b'~')) {
        return ("7bit", text.to_owned());
    }
    let lines = STANDARD.encode(text).into_bytes();
    let lines = lines.chunks(76).map(|line| String::from_utf8_lossy(line).into_owned());
    ("base64", lines.collect::<Vec<_>>().join("\n"))
}
