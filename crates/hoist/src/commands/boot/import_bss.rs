//! `hoist boot import-bss`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use hoist_api::bss::{ImportRemark, ImportedParameters};
use hoist_api::client::{Access, Client, ClientError};
use hoist_diagnostic::chain;
use hoist_model::{BootParameters, Exit};
use serde_json::Value;

use super::{Shell, answered_status, compare_bss};
use crate::edit::WriteArgs;
use crate::failure::Failure;
use crate::printer::Output;
use crate::{connect, input};

/// Copy boot parameters from a running BSS, or from a dump of one
///
/// All importable records are written in one transaction; the others are listed with the reason.
/// Identical records stay as they are. Cloud-init data that the source does not have is kept.
/// Referral tokens are new, because BSS does not export them; times of past boots are not copied.
///
/// `--compare` imports nothing. It requests the boot script of every node from BSS, compares it
/// with the one of this controller, and ends with 1 if they differ. Hosts that only BSS knows are
/// listed as not compared, also with 1. BSS adds these requests to its history.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("from").args(["url", "file"]).required(true),
    after_help = "Examples:\n  hoist boot import-bss --url http://bss:27778 --dry-run\n  \
        hoist boot import-bss --url https://gateway/apis/bss --bss-token-file bss.token --bss-ca ca.pem\n  \
        hoist boot import-bss --url http://bss:27778 --compare\n  \
        curl http://bss:27778/boot/v1/dumpstate | hoist boot import-bss --file -"
)]
pub(super) struct ImportBssArgs {
    /// URL of BSS; the default path is `/boot/v1`
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// A dumpstate, or a list of boot parameters, as JSON; `-` for standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// File with the token that BSS asks for
    #[arg(long, value_name = "FILE", requires = "url")]
    bss_token_file: Option<PathBuf>,

    /// The certificate authority of BSS in PEM
    #[arg(long, value_name = "FILE", requires = "url")]
    bss_ca: Option<PathBuf>,

    /// Compare the boot scripts of all nodes on both sides; import nothing
    #[arg(long, requires = "url", conflicts_with_all = ["dry_run", "affects", "yes"])]
    compare: bool,

    #[command(flatten)]
    write: WriteArgs,
}

impl ImportBssArgs {
    pub(super) fn compares(&self) -> bool {
        self.compare
    }

    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let (parameters, is_dump) = match (&self.url, &self.file) {
            (Some(url), _) if self.compare => {
                return compare_bss::run(shell, &self.client(url)?).await;
            }
            (Some(url), _) => (self.fetch(url).await?, false),
            (None, Some(file)) => listed(&input::read_whole(file)?)?,
            (None, None) => return Err(Failure::usage("name a BSS with --url, or a file")),
        };
        if is_dump && !parameters.iter().any(has_cloud_init) {
            let text = "a dump of BSS has no cloud-init data; --url copies the cloud-init data too";
            shell.printer.warn(text);
        }
        let client = shell.client()?;
        let count = parameters.len();
        let plan = client.import_parameters(parameters.clone(), true, None).await?;
        if self.write.dry_run {
            show(shell, &plan, count)?;
            let nothing = plan.created + plan.changed + plan.images == 0;
            // As the import itself would end.
            return Ok(if !plan.left.is_empty() {
                Exit::Degraded
            } else if nothing {
                Exit::Done
            } else {
                Exit::WouldChange
            });
        }
        if plan.changed > 0 && !self.write.yes && shell.printer.interactive() {
            let question = format!("{} records will be replaced. Go on?", plan.changed);
            if !shell.printer.ask(&question)? {
                return Err(Failure::Declined);
            }
        }
        let done = client.import_parameters(parameters, false, self.write.affects).await?;
        show(shell, &done, count)?;
        Ok(if done.left.is_empty() { Exit::Done } else { Exit::Degraded })
    }

    fn client(&self, url: &str) -> Result<Client, Failure> {
        let base = url.trim_end_matches('/');
        let base = base.strip_suffix("/boot/v1").unwrap_or(base);
        let token = self.bss_token_file.as_deref().map(connect::read_token).transpose()?;
        let authorities = self.bss_ca.as_ref().map(fs_err::read).transpose();
        let authorities = authorities.map_err(Failure::File)?;
        let client = Client::new(connect::address(base)?, Access { token, authorities });
        client.map_err(|error| of_bss(base, &error))
    }

    async fn fetch(&self, url: &str) -> Result<Vec<Value>, Failure> {
        let bss = self.client(url)?;
        let found = bss.bss_parameters().await;
        found.map_err(|error| of_bss(bss.base().as_str(), &error))
    }
}

/// An error of BSS, with the option of this command that helps. Hints about the controller would
/// mislead.
pub(super) fn of_bss(base: &str, error: &ClientError) -> Failure {
    let told = chain(error);
    match (answered_status(error), error) {
        (Some(401 | 403), _) => Failure::refused(format!("BSS at {base}: request refused: {told}"))
            .with_hint("give a token that BSS accepts: --bss-token-file FILE"),
        (Some(404), _) => Failure::usage(format!("BSS at {base}: boot parameters not found (404)"))
            .with_hint("give its URL with --url; behind a gateway it ends in /apis/bss"),
        (None, ClientError::Pem(_) | ClientError::NoAuthority | ClientError::Authority(_)) => {
            Failure::usage(format!("--bss-ca: cannot use the certificate authority: {told}"))
        }
        (None, ClientError::Connect { .. }) if told.contains("certificate") => {
            Failure::remote(format!("BSS at {base}: cannot connect: {told}"))
                .with_hint("give the certificate authority of BSS: --bss-ca FILE")
        }
        (None, ClientError::Connect { .. } | ClientError::Lost { .. }) => {
            Failure::remote(format!("BSS at {base}: cannot connect: {told}"))
                .with_hint("check that BSS runs there, and check --url")
        }
        _ => Failure::remote(format!("BSS at {base}: cannot read boot parameters: {told}")),
    }
}

fn has_cloud_init(element: &Value) -> bool {
    let read = BootParameters::from_value(element.clone());
    read.is_ok_and(|element| !element.cloud_init.is_empty())
}

/// A list, or the member `Params` of a dumpstate; whether it was a dumpstate.
fn listed(text: &[u8]) -> Result<(Vec<Value>, bool), Failure> {
    let wrong = || {
        Failure::usage("the file is neither a dumpstate nor a list of boot parameters")
            .with_hint("`curl BSS/boot/v1/dumpstate` and `hoist boot export` give such files")
    };
    let value: Value = serde_json::from_slice(text)
        .map_err(|error| Failure::usage(format!("the file is not JSON: {error}")))?;
    let is_dump = value.is_object();
    let list = match value {
        Value::Object(members) => {
            let is = |name: &str, known: &str| name.eq_ignore_ascii_case(known);
            let hidden = members.keys().any(|name| is(name, "Components"));
            let params = members.into_iter().find(|(name, _)| is(name, "Params"));
            params.ok_or_else(|| if hidden { without_parameters() } else { wrong() })?.1
        }
        other => other,
    };
    match list {
        Value::Array(elements) => Ok((elements, is_dump)),
        Value::Null => Ok((Vec::new(), is_dump)),
        _ => Err(wrong()),
    }
}

/// hoist leaves them out for callers who may not read them.
fn without_parameters() -> Failure {
    Failure::usage("the dump contains no boot parameters: it was made without a token")
        .with_hint("make it with a token that may read boot parameters, or use --url")
}

fn show(shell: &mut Shell, told: &ImportedParameters, elements: usize) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    if matches!(printer.output(), Output::Json | Output::Yaml) {
        return printer.value(told);
    }
    let ImportedParameters { created, changed, unchanged, images, affected, .. } = told;
    let would = if told.dry_run { "would be " } else { "" };
    printer.line(format!(
        "{elements} elements read: {created} records {would}created, {changed} {would}changed, \
         {unchanged} the same already, parameters of {images} images {would}set"
    ))?;
    printer.line(format!("{affected} known nodes boot differently"))?;
    if told.dry_run && told.needs_affects {
        printer.line(format!("confirm their number with --affects {affected}"))?;
    }
    for (remarks, title) in [
        (&told.left, "not imported"),
        (&told.revived, "not served by BSS, but by this controller"),
        (&told.kept, "keep their cloud-init data"),
    ] {
        if !remarks.is_empty() {
            printer.line(format!("{} {title}:", remarks.len()))?;
        }
        for ImportRemark { at, who, reason } in remarks {
            let who = if who.is_empty() { String::new() } else { format!(" ({who})") };
            printer.line(format!("  element {at}{who}: {reason}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_and_a_list_are_both_read() {
        let one = serde_json::json!({"hosts": ["x0c0s0b0n0"]});
        for text in [
            r#"{"Components":null,"Params":[{"hosts":["x0c0s0b0n0"]}]}"#,
            r#"[{"hosts":["x0c0s0b0n0"]}]"#,
        ] {
            let (elements, is_dump) = listed(text.as_bytes()).unwrap();
            assert_eq!(elements, std::slice::from_ref(&one));
            assert_eq!(is_dump, text.starts_with('{'));
        }
        assert!(listed(br#"{"Params":null}"#).unwrap().0.is_empty());
        for text in ["{}", "1", "{\"Params\":3}", "[", ""] {
            assert!(matches!(listed(text.as_bytes()), Err(Failure::Usage { .. })), "{text}");
        }
    }
}
