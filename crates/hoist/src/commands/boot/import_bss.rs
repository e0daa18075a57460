//! `hoist boot import-bss`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use hoist_api::bss::{ImportedParameters, LeftOut};
use hoist_api::client::{Access, Client, ClientError};
use hoist_model::Exit;
use serde_json::Value;

use super::Shell;
use crate::edit::WriteArgs;
use crate::failure::Failure;
use crate::printer::Output;
use crate::{connect, input};

/// Copy boot parameters from a running BSS, or from a dump of one
///
/// Everything that can be carried over is written in one transaction; what cannot is listed with
/// the reason. Records that are the same already stay as they are. Referral tokens are new, and
/// the times of past boots are not copied: BSS does not tell the first, and the second is its own.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("from").args(["url", "file"]).required(true),
    after_help = "Examples:\n  hoist boot import-bss --url http://bss:27778 --dry-run\n  \
        hoist boot import-bss --url https://gateway/apis/bss --bss-token-file bss.token --bss-ca ca.pem\n  \
        curl http://bss:27778/boot/v1/dumpstate | hoist boot import-bss --file -"
)]
pub(super) struct ImportBssArgs {
    /// Where BSS is; without a path, `/boot/v1` is meant
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

    #[command(flatten)]
    write: WriteArgs,
}

impl ImportBssArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let parameters = match (&self.url, &self.file) {
            (Some(url), _) => self.fetch(url).await?,
            (None, Some(file)) => listed(&input::read_whole(file)?)?,
            (None, None) => return Err(Failure::usage("name a BSS with --url, or a file")),
        };
        let client = shell.client()?;
        let count = parameters.len();
        let plan = client.import_parameters(parameters.clone(), true, None).await?;
        if self.write.dry_run {
            show(shell, &plan, count)?;
            let nothing = plan.created + plan.changed + plan.images == 0;
            return Ok(if nothing { Exit::Done } else { Exit::WouldChange });
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

    async fn fetch(&self, url: &str) -> Result<Vec<Value>, Failure> {
        let base = url.trim_end_matches('/');
        let base = base.strip_suffix("/boot/v1").unwrap_or(base);
        let token = self.bss_token_file.as_deref().map(connect::read_token).transpose()?;
        let authorities = self.bss_ca.as_ref().map(fs_err::read).transpose();
        let authorities = authorities.map_err(Failure::File)?;
        let bss = Client::new(connect::address(base)?, Access { token, authorities })?;
        bss.bss_parameters().await.map_err(|error| match status(&error) {
            Some(401 | 403) => Failure::refused("BSS asks for a token")
                .with_hint("name one: --bss-token-file FILE"),
            Some(404) => Failure::usage(format!("there is no BSS at `{base}`")),
            _ => error.into(),
        })
    }
}

/// What BSS answered, if it answered.
fn status(error: &ClientError) -> Option<u16> {
    match error {
        ClientError::Foreign { status, .. } => Some(*status),
        ClientError::Problem { problem, .. } => Some(problem.status),
        _ => None,
    }
}

/// A list, or the member `Params` of a dumpstate.
fn listed(text: &[u8]) -> Result<Vec<Value>, Failure> {
    let wrong = || {
        Failure::usage("this is neither a dumpstate nor a list of boot parameters")
            .with_hint("`curl BSS/boot/v1/dumpstate` and `hoist boot export` give such files")
    };
    let value: Value = serde_json::from_slice(text)
        .map_err(|error| Failure::usage(format!("the file is not JSON: {error}")))?;
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
        Value::Array(elements) => Ok(elements),
        Value::Null => Ok(Vec::new()),
        _ => Err(wrong()),
    }
}

/// hoist leaves them out for callers who may not read them.
fn without_parameters() -> Failure {
    Failure::usage("there are no boot parameters in this dump: it was made without a token")
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
    printer.line(format!("{affected} known nodes boot something else than before"))?;
    if told.dry_run && told.needs_affects {
        printer.line(format!("so many that they have to be named: --affects {affected}"))?;
    }
    if !told.left.is_empty() {
        printer.line(format!("{} not carried over:", told.left.len()))?;
    }
    for LeftOut { at, who, reason } in &told.left {
        let who = if who.is_empty() { String::new() } else { format!(" ({who})") };
        printer.line(format!("  element {at}{who}: {reason}"))?;
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
            assert_eq!(listed(text.as_bytes()).unwrap(), std::slice::from_ref(&one));
        }
        assert!(listed(br#"{"Params":null}"#).unwrap().is_empty());
        for text in ["{}", "1", "{\"Params\":3}", "[", ""] {
            assert!(matches!(listed(text.as_bytes()), Err(Failure::Usage { .. })), "{text}");
        }
    }
}
