//! `hoist cluster token`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use hoist_api::cluster::{JoinTokenEntry, JoinTokenRequest};
use hoist_cluster::join_token::NamePattern;
use hoist_model::{Exit, Role};
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

use super::Shell;
use super::lookup::short;
use crate::edit;
use crate::failure::Failure;
use crate::printer::Output;
use crate::secret_file::{SecretFile, check_new};
use crate::table::Table;
use crate::when;

/// Join tokens: the permission of machines to join
#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a join token; it is shown only now
    ///
    /// The token has the pin of the site's root certificate and a secret. A node checks the pin
    /// before it sends anything, and the secret never leaves the node.
    #[command(after_help = "Examples:\n  hoist cluster token create --out join.token\n  \
        hoist cluster token create --ttl 8h --uses 64 --names 'n*' --network 10.1.0.0/16 --out rack7.token\n  \
        hoist cluster token create --roles compute --manual")]
    Create(CreateArgs),
    /// List join tokens, without their secrets
    #[command(after_help = "Examples:\n  hoist cluster token list -o wide")]
    List,
    /// Revoke join tokens at once; members that joined with them stay
    #[command(after_help = "Examples:\n  hoist cluster token revoke 9c5a41d0e2b7f813")]
    Revoke {
        /// The id, or its start, as `hoist cluster token list` shows it
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
        /// Show the change without making it
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// How long it is valid, such as `30m` or `7d`
    #[arg(long, value_name = "TIME", default_value = "1h")]
    ttl: String,

    /// How many nodes may join with it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    uses: u32,

    /// Roles that a node may ask for and get; every role if left out
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    roles: Vec<Role>,

    /// Names that a node may have, with `*` for any characters
    #[arg(long, value_name = "PATTERN")]
    names: Option<NamePattern>,

    /// A network that nodes may join from; may be given several times
    #[arg(long, value_name = "CIDR")]
    network: Vec<IpNet>,

    /// Nodes wait for `hoist cluster accept` in spite of the token
    #[arg(long)]
    manual: bool,

    /// Write the token into this new file (mode 0600) instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Show the change without making it
    #[arg(long)]
    dry_run: bool,
}

impl TokenArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            TokenCommand::Create(args) => args.run(shell).await,
            TokenCommand::List => list(shell).await,
            TokenCommand::Revoke { ids, dry_run } => revoke(shell, &ids, dry_run).await,
        }
    }
}

impl CreateArgs {
    async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let request = self.request()?;
        let client = shell.client()?;
        if self.dry_run {
            self.out.as_deref().map(check_new).transpose()?;
            client.cluster().await?.ok_or(Failure::NoCluster)?;
            let manual = if self.manual { ", each accepted by an operator" } else { "" };
            let what =
                format!("make a join token for {} for {}{manual}", nodes(self.uses), self.ttl);
            return edit::would(&mut shell.printer, &what);
        }
        let file = self.out.as_deref().map(SecretFile::create).transpose()?;
        let made = client.create_join_token(&request).await?;
        let entry = &made.entry;
        let told =
            format!("for {}, until {}", nodes(entry.uses_left), when::to_the_second(entry.expires));
        let printer = &mut shell.printer;
        let is_value = matches!(printer.output(), Output::Json | Output::Yaml);
        match file {
            Some(file) => {
                file.keep(&made.token)?;
                let path = self.out.unwrap_or_default();
                if is_value {
                    printer.value(entry)?;
                }
                printer.note(&format!("join token {} is in {}, {told}", entry.id, path.display()));
            }
            None if is_value => printer.value(&made)?,
            None => {
                printer.line(&made.token)?;
                printer.flush()?;
                printer.note(&format!(
                    "this is join token {}, {told}; it is not shown again",
                    entry.id
                ));
            }
        }
        Ok(Exit::Done)
    }

    fn request(&self) -> Result<JoinTokenRequest, Failure> {
        let roles: BTreeSet<_> = self.roles.iter().map(ToString::to_string).collect();
        Ok(JoinTokenRequest {
            ttl_seconds: Some(seconds(&self.ttl)?),
            uses: Some(self.uses),
            roles,
            names: self.names.as_ref().map(ToString::to_string),
            networks: self.network.iter().map(ToString::to_string).collect(),
            manual: self.manual,
        })
    }
}

fn seconds(ttl: &str) -> Result<u64, Failure> {
    let start = Timestamp::UNIX_EPOCH;
    // A moment is no duration, although both are times for `when`.
    let is_moment = ttl.parse::<Timestamp>().is_ok();
    let end = when::parse(ttl, start).ok().filter(|_| !is_moment);
    let seconds =
        end.map(|end| end.duration_since(start)).map(|span: SignedDuration| span.as_secs());
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|s| *s > 0);
    seconds.ok_or_else(|| {
        Failure::usage(format!("`{ttl}` is not a duration"))
            .with_hint("write it as `30m`, `1h` or `7d`")
    })
}

fn nodes(count: u32) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

async fn list(shell: &mut Shell) -> Result<Exit, Failure> {
    let tokens = shell.client()?.join_tokens().await?.items;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Json | Output::Yaml => printer.value(&tokens)?,
        Output::Name => tokens.iter().try_for_each(|token| printer.line(&token.id))?,
        Output::Table | Output::Wide if tokens.is_empty() => printer.note("no join tokens"),
        Output::Table | Output::Wide => printer.table(&table(&tokens, Timestamp::now()))?,
    }
    Ok(Exit::Done)
}

fn table(tokens: &[JoinTokenEntry], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "STATE", "EXPIRES", "USES LEFT", "LIMITS"])
        .wide(&["CREATED", "USED BY"]);
    for token in tokens {
        let used_by: Vec<_> = token.used_by.iter().map(|id| short(id)).collect();
        table.row(vec![
            token.id.clone(),
            state(token, now).to_owned(),
            when::to_the_second(token.expires),
            token.uses_left.to_string(),
            limits(token),
            when::to_the_second(token.created),
            used_by.join(","),
        ]);
    }
    table
}

fn state(token: &JoinTokenEntry, now: Timestamp) -> &'static str {
    match token {
        _ if token.revoked => "revoked",
        _ if token.uses_left == 0 => "used",
        _ if token.expires <= now => "expired",
        _ => "valid",
    }
}

/// `role compute, name n*, from 10.1.0.0/16, manual`.
fn limits(token: &JoinTokenEntry) -> String {
    let roles = token.roles.iter().map(|role| format!("role {role}"));
    let names = token.names.iter().map(|pattern| format!("name {pattern}"));
    let networks = token.networks.iter().map(|network| format!("from {network}"));
    let manual = token.manual.then(|| "manual".to_owned());
    let texts: Vec<_> = roles.chain(names).chain(networks).chain(manual).collect();
    texts.join(", ")
}

async fn revoke(shell: &mut Shell, ids: &[String], dry_run: bool) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let known = client.join_tokens().await?.items;
    // All are looked up first, so that a typing error revokes none.
    let tokens = ids.iter().map(|id| find(&known, id)).collect::<Result<Vec<_>, _>>()?;
    let mut exit = Exit::Done;
    for JoinTokenEntry { id, revoked, .. } in tokens {
        if *revoked {
            shell.printer.note(&format!("join token {id} is revoked already"));
        } else if dry_run {
            exit = edit::would(&mut shell.printer, &format!("revoke join token {id}"))?;
        } else {
            client.revoke_join_token(id).await?;
            shell.printer.note(&format!("join token {id} is revoked"));
        }
    }
    Ok(exit)
}

fn find<'a>(known: &'a [JoinTokenEntry], id: &str) -> Result<&'a JoinTokenEntry, Failure> {
    let start = id.to_ascii_lowercase();
    let mut fitting = known.iter().filter(|token| token.id.starts_with(&start));
    match (fitting.next().filter(|_| !start.is_empty()), fitting.next()) {
        (Some(token), None) => Ok(token),
        (Some(_), Some(_)) => {
            Err(Failure::ambiguous(format!("several join tokens start with `{id}`"))
                .with_hint("give more of the id"))
        }
        (None, _) => Err(Failure::missing(format!("join token `{id}`"))
            .with_hint("`hoist cluster token list` shows their ids")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(id: &str, more: &serde_json::Value) -> JoinTokenEntry {
        let mut value = json!({
            "id": id, "created": "2026-01-01T00:00:00Z", "expires": "2026-01-01T01:00:00Z",
            "uses_left": 1, "manual": false, "revoked": false,
        });
        for (key, field) in more.as_object().unwrap() {
            value[key] = field.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn tokens_are_listed_with_state_and_limits() {
        let tokens = [
            token("aa01", &json!({})),
            token("aa02", &json!({"revoked": true, "uses_left": 0})),
            token("aa03", &json!({"uses_left": 0, "used_by": ["3f9c2a7700b1d4e8"]})),
            token(
                "aa04",
                &json!({"roles": ["compute"], "names": "n*", "networks": ["10.1.0.0/16"],
                    "manual": true, "uses_left": 5}),
            ),
        ];
        let now = "2026-01-01T00:30:00Z".parse().unwrap();
        assert_eq!(
            table(&tokens, now).render(false),
            "ID    STATE    EXPIRES               USES LEFT  LIMITS\n\
             aa01  valid    2026-01-01T01:00:00Z  1          -\n\
             aa02  revoked  2026-01-01T01:00:00Z  0          -\n\
             aa03  used     2026-01-01T01:00:00Z  0          -\n\
             aa04  valid    2026-01-01T01:00:00Z  5          role compute, name n*, from 10.1.0.0/16, manual\n"
        );
        assert_eq!(state(&tokens[0], "2026-01-01T01:00:00Z".parse().unwrap()), "expired");
    }

    #[test]
    fn token_is_found_by_the_start_of_its_id() {
        let tokens = [token("aa01", &json!({})), token("aa02", &json!({}))];
        assert_eq!(find(&tokens, "AA02").unwrap().id, "aa02");
        assert_eq!(find(&tokens, "aa").unwrap_err().exit(), Exit::Ambiguous);
        for id in ["", "bb"] {
            assert_eq!(find(&tokens, id).unwrap_err().exit(), Exit::Failed, "{id}");
        }
    }

    #[test]
    fn validity_is_a_duration() {
        assert_eq!(seconds("1h").unwrap(), 3600);
        assert_eq!(seconds("7d").unwrap(), 7 * 24 * 3600);
        for text in ["", "soon", "0s", "-1h", "500ms", "2026-08-01T12:00:00Z"] {
            assert_eq!(seconds(text).unwrap_err().exit(), Exit::Usage, "{text}");
        }
    }
}
