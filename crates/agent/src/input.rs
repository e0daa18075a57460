//! Reads the document of a manual run with the driver that knows its format, and loads the plug-ins
//! and secrets it needs.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hoist_compat::driver::{Curtin, Ironic, Nailgun};
use hoist_device::RunInputs;
use hoist_device::images::Trust;
use hoist_diagnostic::chain;
use hoist_engine::action::Catalog;
use hoist_engine::plugin::{self, Driver, DriverResult, Isolation, Plugin};
use hoist_model::provision_profile::OWN_ACTIONS as OWN;
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document::{
    Boot, Document, MAX_BYTES, SecretRef, Secrets, StorageNode, Wipe, read,
};
use hoist_provision::driver::{self, DataDriver, Drivers, Native, Options};
use hoist_provision::facts::{Facts, MAX_FACTS};
use hoist_provision::plan;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::cli::{DocumentArgs, Foreign};
use crate::failure::Failure;
use crate::provision::authorities;

/// The drivers of this program, in the order in which messages list them.
const DRIVERS: Drivers = Drivers::new(&[&Native, &Ironic, &Nailgun, &Curtin]);

/// Node name of a document that has none.
const NO_NODE: &str = "by-hand";

/// Longest secret.
const MAX_SECRET: u64 = 64 * 1024;

/// The trusted authorities of the system, on distributions that keep them in one file.
const SYSTEM_CA: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The document of the command line, with the secrets and plug-ins that it needs.
pub(crate) fn load(args: &DocumentArgs) -> Result<(Document, RunInputs), Failure> {
    let text = text(&args.file, MAX_BYTES)?;
    let document = document(args, &text)?;
    let document = plan::with_actions(document, &args.only);
    let (plugins, unusable) = plugins(&document, &args.plugins, args.secrets.clone())?;
    for reason in &unusable {
        eprintln!("warning: {reason}");
    }
    let secrets = secrets(&document, args.secrets.as_deref())?;
    Ok((document, RunInputs { plugins, unusable, secrets, trust: trust(args.ca.as_deref())? }))
}

fn document(args: &DocumentArgs, text: &[u8]) -> Result<Document, Failure> {
    let name = args.file.display().to_string();
    let own = match args.driver.as_deref() {
        // An unrecognized format is read as a native document, so that its errors are reported.
        None if !DRIVERS.recognise(text) => Some(&Native as &dyn DataDriver),
        None => Some(DRIVERS.choose(text).map_err(|found| Failure::Found(vec![found]))?),
        Some(named) => DRIVERS.by_name(named),
    };
    match own {
        // This reader reports line numbers.
        Some(driver) if driver.describe().name == "hoist" => {
            read(&name, text).map_err(Failure::Found)
        }
        Some(driver) => {
            let about = driver.describe();
            eprintln!("document read by driver `{}`: {}", about.name, about.about);
            let document =
                driver.parse(text, &options(&args.foreign, text)?).map_err(Failure::Found)?;
            if document.sections.boot.is_none() && has_root(&document) {
                eprintln!(
                    "warning: nothing will start the installed system: `{}` documents name no boot \
                     files, and their kernel arguments are not used; name the files with --boot",
                    about.name
                );
            }
            Ok(document)
        }
        None => by_plugin(args, text),
    }
}

/// The values that foreign documents lack.
fn options(foreign: &Foreign, text: &[u8]) -> Result<Options, Failure> {
    Ok(Options {
        txn: foreign.txn.unwrap_or_else(|| Uuid::new_v5(&Uuid::NAMESPACE_OID, text)),
        node: foreign.node.clone().unwrap_or_else(|| NO_NODE.to_owned()),
        allow_kernel_names: foreign.allow_kernel_names,
        wipe: wipe(&foreign.wipe)?,
        boot: foreign.boot.as_deref().map(boot).transpose()?,
    })
}

/// The section `boot` of a file of its own.
fn boot(path: &Path) -> Result<Boot, Failure> {
    driver::typed(&path.display().to_string(), &text(path, MAX_BYTES)?).map_err(Failure::Found)
}

fn has_root(document: &Document) -> bool {
    let mut fss = document.sections.storage.iter().filter_map(StorageNode::as_fs);
    fss.any(|fs| fs.mount.as_deref() == Some("/"))
}

fn wipe(words: &[String]) -> Result<Wipe, Failure> {
    let value = if words == ["any"] { json!("any") } else { json!(words) };
    serde_json::from_value(value).map_err(|error| {
        let found = ProvisionDiagnostic::new(Code::BadValue, "--wipe", error.to_string());
        Failure::Found(vec![found])
    })
}

/// Reads the document with an external driver, a file of its own.
fn by_plugin(args: &DocumentArgs, text: &[u8]) -> Result<Document, Failure> {
    let name = args.driver.as_deref().unwrap_or_default();
    let wrong = |what: String| {
        let hint = format!(
            "use one of {}, or a file `hoist-driver-NAME` in `{}`",
            DRIVERS.names().join(", "),
            args.plugins.display()
        );
        Failure::Found(vec![
            ProvisionDiagnostic::new(Code::NoSuchThing, "--driver", what).hint(hint),
        ])
    };
    if !plugin::is_name(name) {
        return Err(wrong(format!("`{name}` is not a valid driver name")));
    }
    let isolation = Arc::new(Isolation::required(args.secrets.clone()));
    let driver =
        Driver::open(&args.plugins, name, &isolation).map_err(|error| wrong(error.to_string()))?;
    eprintln!(
        "document read by driver `{name}` {}: {}",
        driver.about().version,
        driver.about().about
    );
    let Options { txn, node, allow_kernel_names, wipe, boot: _ } = options(&args.foreign, text)?;
    let options = json!({
        "txn": txn, "node": node, "allow_kernel_names": allow_kernel_names, "wipe": wipe,
    });
    match driver.parse(text, &options).map_err(|error| wrong(error.to_string()))? {
        // The driver's output passes the same checks as a handwritten document.
        DriverResult::Document(document) => {
            read(&format!("document of driver `{name}`"), document.to_string().as_bytes())
                .map_err(Failure::Found)
        }
        DriverResult::Invalid(diagnostics) => {
            let found = diagnostics
                .into_iter()
                .map(|diagnostic| ProvisionDiagnostic::of(Code::BadValue, diagnostic));
            Err(Failure::Found(found.collect()))
        }
    }
}

/// The plug-ins of the directory, if the document needs an action that is not built in, and the
/// reasons why others are unusable.
pub(crate) fn plugins(
    document: &Document,
    directory: &Path,
    secrets: Option<PathBuf>,
) -> Result<(Vec<Arc<Plugin>>, Vec<String>), Failure> {
    let left_out = document.sections.flow.as_ref().map_or(&[][..], |flow| &flow.left_out);
    let mut named = document.actions().unwrap_or_default().iter().chain(left_out);
    let names_others = named.any(|name| !OWN.contains(&name.as_str()));
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
            let what =
                format!("plug-in `{}` has the name of a built-in action", plugin.path().display());
            taken.push(ProvisionDiagnostic::new(Code::Twice, "--plugins", what).hint("rename it"));
        }
    }
    if taken.is_empty() {
        Ok((plugins.into_iter().map(Arc::new).collect(), unusable))
    } else {
        Err(Failure::Found(taken))
    }
}

/// The referenced secrets that exist in the directory. A missing one is reported by the action that
/// needs it.
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

/// Reads a secret without the final line break that editors add.
fn secret(path: &Path) -> Result<Option<String>, Failure> {
    let wrong = |hint, source| Failure::Secret { path: path.to_owned(), hint, source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong("", Some(error))),
    };
    let about = file.metadata().map_err(|error| wrong("", Some(error)))?;
    if about.permissions().mode() & 0o077 != 0 {
        return Err(wrong(": its mode allows others to read it; run `chmod 600`", None));
    }
    let mut text = String::new();
    let read = file.take(MAX_SECRET + 1).read_to_string(&mut text);
    read.map_err(|error| wrong("", Some(error)))?;
    if text.len() as u64 > MAX_SECRET {
        return Err(wrong(": longer than 64 KiB", None));
    }
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(Some(text))
}

/// The named authorities, or those of the system.
fn trust(named: Option<&Path>) -> Result<Trust, Failure> {
    let roots = match named {
        Some(path) => authorities(&path.display().to_string())?,
        None => authorities(SYSTEM_CA).unwrap_or_default(),
    };
    Ok(Trust { roots })
}

/// The facts of a machine that is elsewhere.
pub(crate) fn facts(path: &Path, document: &Path) -> Result<Facts, Failure> {
    if path == Path::new("-") && document == path {
        let what = "standard input cannot be the document and the facts";
        let found = ProvisionDiagnostic::new(Code::Twice, "--facts", what);
        return Err(Failure::Found(vec![found.hint("name a file for one of them")]));
    }
    let text = text(path, MAX_FACTS)?;
    Facts::read(&path.display().to_string(), &text).map_err(Failure::Found)
}

/// Reads at most one byte more than the limit, so that the parser can refuse a large file.
fn text(path: &Path, most: usize) -> Result<Vec<u8>, Failure> {
    let most = most as u64 + 1;
    let mut text = Vec::new();
    let outcome = if path == Path::new("-") {
        std::io::stdin().lock().take(most).read_to_end(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut text))
    };
    outcome.map_err(|source| Failure::Read { path: path.to_owned(), source })?;
    Ok(text)
}
