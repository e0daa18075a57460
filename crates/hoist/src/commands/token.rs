//! `hoist token`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hoist_api::Code;
use hoist_api::admin::{Context, Scope, Token, TokenRequest, Verb};
use hoist_api::client::{Client, ClientError, NodeQuery};
use hoist_model::{Exit, Selector};
use jiff::Timestamp;

use super::Shell;
use super::network::joined;
use crate::edit;
use crate::failure::Failure;
use crate::printer::Output;
use crate::secret_file::{SecretFile, check_new};
use crate::table::Table;
use crate::when;

/// Tokens and their permissions
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token; its secret is shown only now
    #[command(
        after_help = "Examples:\n  hoist token create ci --scope read:inventory,boot --expires 30d --out ci.token\n  \
        hoist token create p1-admins --scope 'read,write:inventory:partition:p1'\n  \
        hoist token create installers --scope read,write:inventory,metadata,provision --scope write:secrets\n  \
        hoist token create backup --scope 'read:*'"
    )]
    Create(CreateArgs),
    /// List all tokens, without their secrets
    #[command(after_help = "Examples:\n  hoist token list -o wide")]
    List,
    /// Revoke tokens at once
    #[command(after_help = "Examples:\n  hoist token revoke 01jd3k8q")]
    Revoke {
        /// The id, as `hoist token list` shows it
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
        /// Show the change without making it
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Holder of the token
    #[arg(value_name = "NAME")]
    name: String,

    /// Permissions: verbs (read, write), contexts (inventory, boot, …, `*`) and, if not all nodes,
    /// a selector; may be given several times. Naming a secret in a layer, a profile or a task
    /// needs `write:secrets`
    #[arg(long, required = true, value_name = "VERBS:CONTEXTS[:SELECTOR]")]
    scope: Vec<String>,

    /// When it ends: a time in RFC 3339, or from now such as `30d`; never if left out
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,

    /// Write the secret into this new file (mode 0600) instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Show the change without making it
    #[arg(long)]
    dry_run: bool,
}

impl TokenArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            TokenCommand::Create(args) => args.run(shell).await,
            TokenCommand::List => list(shell).await,
            TokenCommand::Revoke { ids, dry_run } => revoke(shell, &ids, dry_run).await,
        }
    }
}

impl CreateArgs {
    async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let scopes = self.scope.iter().map(|text| scope(text)).collect::<Result<Vec<_>, _>>()?;
        let expires = self
            .expires
            .map(|text| when::parse(&text, Timestamp::now()).map_err(Failure::usage))
            .transpose()?;
        if self.dry_run {
            self.out.as_deref().map(check_new).transpose()?;
            let what =
                format!("make a token for {}: {}", self.name, joined(scopes.iter().map(brief)));
            return edit::would(&mut shell.printer, &what);
        }
        let expires = expires.map(|expires| expires.to_string());
        let request = TokenRequest { name: self.name, scopes, expires };
        let file = self.out.as_deref().map(SecretFile::create).transpose()?;
        let client = shell.client()?;
        let made = client.create_token(&request).await?;
        match file {
            Some(file) => {
                let path = self.out.unwrap_or_default();
                file.keep(&made.secret)?;
                if matches!(shell.printer.output(), Output::Json | Output::Yaml) {
                    shell.printer.value(&made.token)?;
                }
                shell.printer.note(&format!("token {} is in {}", made.token.id, path.display()));
            }
            None if matches!(shell.printer.output(), Output::Json | Output::Yaml) => {
                shell.printer.value(&made)?;
            }
            None => {
                shell.printer.line(&made.secret)?;
                shell.printer.flush()?;
                shell.printer.note(&format!(
                    "this is the secret of token {}; it is not shown again",
                    made.token.id
                ));
            }
        }
        warn_of_unknown_names(shell, &client, &request.scopes).await;
        Ok(Exit::Done)
    }
}

/// Warns about groups and partitions that the site does not have: a token may precede its
/// partition. A caller who may not read the inventory gets no warning.
async fn warn_of_unknown_names(shell: &mut Shell, client: &Client, scopes: &[Scope]) {
    for selector in scopes.iter().filter_map(|scope| scope.selector.clone()) {
        let query = NodeQuery { selector: Some(selector), limit: Some(1), ..NodeQuery::default() };
        if let Err(ClientError::Problem { problem, .. }) = client.nodes(&query).await
            && problem.code == Code::BadParameter
        {
            shell.printer.warn(&problem.detail);
        }
    }
}

/// `read,write:inventory,boot:partition:p1`; the text after the second colon is a selector.
fn scope(text: &str) -> Result<Scope, Failure> {
    let wrong = |what: String| {
        Failure::usage(format!("scope `{text}`: {what}")).with_hint(
            "write VERBS:CONTEXTS[:SELECTOR], such as `read,write:inventory:partition:p1`",
        )
    };
    let mut parts = text.splitn(3, ':');
    let verbs = parts.next().unwrap_or_default();
    let contexts = parts.next().unwrap_or_default();
    let verbs: Vec<Verb> = parsed_list(verbs).map_err(&wrong)?;
    let contexts: Vec<Context> = parsed_list(contexts).map_err(&wrong)?;
    let selector = match parts.next() {
        Some(selector) => Some(selector.parse::<Selector>()?.to_string()),
        None => None,
    };
    Ok(Scope { verbs, contexts, selector })
}

fn parsed_list<T: serde::de::DeserializeOwned>(text: &str) -> Result<Vec<T>, String> {
    let parse = |word: &str| {
        let value = serde_json::Value::String(word.trim().to_ascii_lowercase());
        serde_json::from_value(value).map_err(|error| error.to_string())
    };
    text.split(',').map(parse).collect()
}

fn brief(scope: &Scope) -> String {
    let selector = scope.selector.as_ref().map(|text| format!(":{text}")).unwrap_or_default();
    format!("{}:{}{selector}", joined(scope.verbs.iter()), joined(scope.contexts.iter()))
}

fn table(tokens: &[Token]) -> Table {
    let mut table = Table::new(&["ID", "NAME", "SCOPES", "EXPIRES", "REVOKED"]).wide(&["CREATED"]);
    for token in tokens {
        let scopes: Vec<_> = token.scopes.iter().map(brief).collect();
        table.row(vec![
            token.id.clone(),
            token.name.clone(),
            scopes.join(" "),
            token.expires.clone().unwrap_or_default(),
            token.revoked.clone().unwrap_or_default(),
            token.created.clone(),
        ]);
    }
    table
}

async fn list(shell: &mut Shell) -> Result<Exit, Failure> {
    let tokens = shell.client()?.tokens().await?.tokens;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => printer.table(&table(&tokens))?,
        Output::Name => tokens.iter().try_for_each(|token| printer.line(&token.id))?,
        Output::Json | Output::Yaml => printer.value(&tokens)?,
    }
    Ok(Exit::Done)
}

async fn revoke(shell: &mut Shell, ids: &[String], dry_run: bool) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let known = client.tokens().await?.tokens;
    let mut exit = Exit::Done;
    for id in ids {
        let token = known.iter().find(|token| token.id == *id).ok_or_else(|| {
            Failure::missing(format!("token `{id}`"))
                .with_hint("`hoist token list` shows their ids")
        })?;
        if token.revoked.is_some() {
            shell.printer.note(&format!("token {id} is revoked already"));
        } else if dry_run {
            let what = format!("revoke token {id} of {}", token.name);
            exit = edit::would(&mut shell.printer, &what)?;
        } else {
            client.revoke_token(id).await?;
            shell.printer.note(&format!("token {id} of {} is revoked", token.name));
        }
    }
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_written_in_one_word() {
        let one = scope("read,write:inventory,boot:partition:p1 & !role:login").unwrap();
        assert_eq!(one.verbs, [Verb::Read, Verb::Write]);
        assert_eq!(one.contexts, [Context::Inventory, Context::Boot]);
        assert_eq!(one.selector.as_deref(), Some("partition:p1 & !role:login"));
        assert_eq!(brief(&scope("read:*").unwrap()), "read:*");
        for text in ["", "read", "read:", "fly:inventory", "read:kitchen"] {
            assert!(matches!(scope(text), Err(Failure::Usage { .. })), "{text}");
        }
        assert!(matches!(scope("read:boot:("), Err(Failure::Selector(_))));
    }
}
