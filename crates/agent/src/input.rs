//! From a file to a document, by whoever knows such files, and the plug-ins that it needs.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hoist_engine::action::Catalog;
use hoist_engine::plugin::{self, Driver, Isolation, Parsed, Plugin};
use hoist_model::provision_profile::OWN_ACTIONS as OWN;
use hoist_provision::diagnostic::{Code, Diagnostic};
use hoist_provision::document::{Document, MAX_BYTES, SecretRef, Secrets, Wipe, read};
use hoist_provision::driver::{Confidence, DRIVERS, DataDriver, Native, Options, choose};
use hoist_provision::images::Trust;
use hoist_provision::pipeline::{self, Given};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::cli::{Foreign, Wanted};
use crate::failure::{Failure, chain};
use crate::provision::authorities;

/// Of a node that nobody named.
const NO_NODE: &str = "by-hand";

/// Longest secret.
const MAX_SECRET: u64 = 64 * 1024;

/// Whom Linux systems trust, where they keep it in one file.
const SYSTEM_CA: &str = "/etc/ssl/certs/ca-certificates.crt";

/// What is wanted, and what there is for it beside this program.
pub(crate) fn wanted(wanted: &Wanted) -> Result<(Document, Given), Failure> {
    let text = text(&wanted.file)?;
    let document = document(wanted, &text)?;
    let document = pipeline::only(document, &wanted.only);
    let (plugins, unusable) = plugins(&document, &wanted.plugins, wanted.secrets.clone())?;
    for reason in &unusable {
        eprintln!("warning: {reason}");
    }
    let secrets = secrets(&document, wanted.secrets.as_deref())?;
    Ok((document, Given { plugins, unusable, secrets, trust: trust(wanted.ca.as_deref())? }))
}

fn document(wanted: &Wanted, text: &[u8]) -> Result<Document, Failure> {
    let name = wanted.file.display().to_string();
    let is_known = DRIVERS.iter().any(|driver| driver.sniff(text) > Confidence::No);
    let own = match wanted.driver.as_deref() {
        // What nobody knows is taken for one of our own with faults.
        None if !is_known => Some(&Native as &dyn DataDriver),
        None => Some(choose(text).map_err(|found| Failure::Found(vec![found]))?),
        Some(named) => DRIVERS.into_iter().find(|driver| driver.describe().name == named),
    };
    match own {
        // It says in which line something is wrong.
        Some(driver) if driver.describe().name == "hoist" => {
            read(&name, text).map_err(Failure::Found)
        }
        Some(driver) => {
            let about = driver.describe();
            eprintln!("read by driver `{}`: {}", about.name, about.about);
            driver.parse(text, &options(&wanted.foreign, text)?).map_err(Failure::Found)
        }
        None => by_plugin(wanted, text),
    }
}

/// What such inputs do not say themselves.
fn options(foreign: &Foreign, text: &[u8]) -> Result<Options, Failure> {
    Ok(Options {
        txn: foreign.txn.unwrap_or_else(|| Uuid::new_v5(&Uuid::NAMESPACE_OID, text)),
        node: foreign.node.clone().unwrap_or_else(|| NO_NODE.to_owned()),
        allow_kernel_names: foreign.allow_kernel_names,
        wipe: wipe(&foreign.wipe)?,
    })
}

fn wipe(words: &[String]) -> Result<Wipe, Failure> {
    let value = if words == ["any"] { json!("any") } else { json!(words) };
    serde_json::from_value(value).map_err(|error| {
        let found = Diagnostic::new(Code::BadValue, "--wipe", error.to_string());
        Failure::Found(vec![found])
    })
}

/// A driver of somebody else, which has a file of its own.
fn by_plugin(wanted: &Wanted, text: &[u8]) -> Result<Document, Failure> {
    let name = wanted.driver.as_deref().unwrap_or_default();
    let wrong = |what: String| {
        let own: Vec<&str> = DRIVERS.iter().map(|driver| driver.describe().name).collect();
        let hint = format!(
            "there are {}, and files `hoist-driver-NAME` in `{}`",
            own.join(", "),
            wanted.plugins.display()
        );
        Failure::Found(vec![Diagnostic::new(Code::NoSuchThing, "--driver", what).hint(hint)])
    };
    if !plugin::is_name(name) {
        return Err(wrong(format!("`{name}` is no name of a driver")));
    }
    let isolation = Arc::new(Isolation::required(wanted.secrets.clone()));
    let driver = Driver::open(&wanted.plugins, name, &isolation)
        .map_err(|error| wrong(error.to_string()))?;
    eprintln!("read by driver `{name}` {}: {}", driver.about().version, driver.about().about);
    let Options { txn, node, allow_kernel_names, wipe } = options(&wanted.foreign, text)?;
    let options = json!({
        "txn": txn, "node": node, "allow_kernel_names": allow_kernel_names, "wipe": wipe,
    });
    match driver.parse(text, &options).map_err(|error| wrong(error.to_string()))? {
        // What it made is looked at like what a person wrote.
        Parsed::Document(document) => {
            read(&format!("document of driver `{name}`"), document.to_string().as_bytes())
                .map_err(Failure::Found)
        }
        Parsed::Faults(faults) => {
            let found = faults.into_iter().map(|fault| Diagnostic {
                hint: fault.hint,
                ..Diagnostic::new(Code::BadValue, fault.at, fault.message)
            });
            Err(Failure::Found(found.collect()))
        }
    }
}

/// Those of the directory, if the document wants something that hoist itself does not do; and why
/// others of it cannot be used.
pub(crate) fn plugins(
    document: &Document,
    directory: &Path,
    secrets: Option<PathBuf>,
) -> Result<(Vec<Arc<Plugin>>, Vec<String>), Failure> {
    let flow = document.sections.flow.as_ref().map_or(&[][..], |flow| &flow.actions);
    let names_others = flow.iter().any(|name| !OWN.contains(&name.as_str()));
    if document.sections.third_party.is_empty() && !names_others {
        return Ok(Default::default());
    }
    let isolation = Arc::new(Isolation::required(secrets));
    let (plugins, refused) = plugin::load(directory, &isolation, &Catalog::default());
    let unusable = refused.iter().map(|error| chain(error)).collect();
    let mut taken = Vec::new();
    for plugin in &plugins {
        let name = hoist_engine::action::Action::describe(plugin).name;
        if OWN.contains(&name.as_str()) {
            let what = format!("`{}` is called as an action of hoist is", plugin.path().display());
            taken.push(Diagnostic::new(Code::Twice, "--plugins", what).hint("rename it"));
        }
    }
    if taken.is_empty() {
        Ok((plugins.into_iter().map(Arc::new).collect(), unusable))
    } else {
        Err(Failure::Found(taken))
    }
}

/// What the document refers to, as far as it is there; what is not is told by who needs it.
fn secrets(document: &Document, directory: Option<&Path>) -> Result<Secrets, Failure> {
    let Some(directory) = directory else { return Ok(Secrets::default()) };
    let mut names = BTreeSet::new();
    references(&serde_json::to_value(document).expect("a plain value"), &mut names);
    let mut known = Vec::new();
    for name in names {
        let path = directory.join(&name);
        if let Some(secret) = secret(&path)? {
            known.push((name, secret));
        }
    }
    Ok(known.into_iter().collect())
}

fn references(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            names.extend(text.parse::<SecretRef>().ok().map(|secret| secret.name().to_owned()));
        }
        Value::Array(all) => all.iter().for_each(|value| references(value, names)),
        Value::Object(all) => all.values().for_each(|value| references(value, names)),
        _ => {}
    }
}

/// Without the end of its last line, which editors put there.
fn secret(path: &Path) -> Result<Option<String>, Failure> {
    let wrong = |hint, source| Failure::Secret { path: path.to_owned(), hint, source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong("", Some(error))),
    };
    let about = file.metadata().map_err(|error| wrong("", Some(error)))?;
    if about.permissions().mode() & 0o077 != 0 {
        return Err(wrong(": others may read it; `chmod 600` it", None));
    }
    let mut text = String::new();
    let read = file.take(MAX_SECRET + 1).read_to_string(&mut text);
    read.map_err(|error| wrong("", Some(error)))?;
    if text.len() as u64 > MAX_SECRET {
        return Err(wrong(": it has more than 64 KiB", None));
    }
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(Some(text))
}

/// Those that are named, or whom this system trusts, if it says so.
fn trust(named: Option<&Path>) -> Result<Trust, Failure> {
    let roots = match named {
        Some(path) => authorities(&path.display().to_string())?,
        None => authorities(SYSTEM_CA).unwrap_or_default(),
    };
    Ok(Trust { roots })
}

/// Of a file that is too large just enough to say so.
fn text(path: &Path) -> Result<Vec<u8>, Failure> {
    let most = MAX_BYTES as u64 + 1;
    let mut text = Vec::new();
    let outcome = if path == Path::new("-") {
        std::io::stdin().lock().take(most).read_to_end(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut text))
    };
    outcome.map_err(|source| Failure::Read { path: path.to_owned(), source })?;
    Ok(text)
}
