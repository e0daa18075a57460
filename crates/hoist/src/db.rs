//! `hoist db`: hoist's own database.

mod join;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use hoist_api::admin::Database;
use hoist_model::Exit;
use hoist_server::backup::{self, BackupError, Output as File};
use hoist_server::data_dir::DataDir;
use hoist_server::database;
use hoist_server::site_key::{self, KeyComparison};
use hoist_server::upgrade;
use hoist_store::url;
use hoist_store::{Store, copy};
use indicatif::ProgressBar;
use jiff::Timestamp;
use serde_json::json;
use tokio::io::AsyncSeekExt;

use crate::commands::Shell;
use crate::edit;
use crate::failure::Failure;
use crate::offline::StoreArgs;
use crate::printer::Output;
use crate::table::Table;

/// hoist's own database
#[derive(Debug, Args)]
pub(crate) struct DbArgs {
    #[command(subcommand)]
    pub(crate) command: DbCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DbCommand {
    /// Show the database: its place, contents and users
    #[command(after_help = "Examples:\n  hoist db status\n  hoist db status --offline -o json")]
    Status(ReadArgs),
    /// Write every record, one per line
    ///
    /// Tokens are in it as hashes; the site's keys are not. For everything there is `hoist backup`.
    #[command(after_help = "Examples:\n  hoist db export --out site.jsonl\n  \
        hoist db export --offline > site.jsonl")]
    Export(ExportArgs),
    /// Fill the database with records that were exported
    ///
    /// The whole file is checked before the first record is written. No server may run on the
    /// database.
    #[command(after_help = "Examples:\n  hoist db import site.jsonl --data-dir /var/lib/hoist\n  \
        hoist db import site.jsonl --store etcd://h1:2379/hoist --overwrite")]
    Import(ImportArgs),
    /// Copy everything into another store, and check what arrived
    ///
    /// No server may run on either of them. The old one stays as it is.
    #[command(after_help = "Examples:\n  hoist db migrate --to etcd://h1:2379,h2:2379/hoist\n  \
        hoist db migrate --store etcd://h1:2379/hoist --to embedded --dry-run")]
    Migrate(MigrateArgs),
    /// Bring the records to the schema of this version, after a backup
    ///
    /// An embedded database is upgraded by `hoist serve` itself. On a shared one, all controllers
    /// are replaced first, and then one of them does this.
    #[command(after_help = "Examples:\n  hoist db upgrade\n  \
        hoist db upgrade --store etcd://h1:2379/hoist --wait")]
    Upgrade(UpgradeArgs),
    /// Let the tokens of nodes be made with the key in this data directory from now on
    ///
    /// All controllers of a store have the same `ca/site.key`. Where none has it any more, this
    /// makes the one that is here the store's. Tokens in boot scripts that were made with the other
    /// one are refused, until the nodes boot again. No server may run on the database.
    #[command(after_help = "Examples:\n  hoist db adopt-key --dry-run\n  \
        hoist db adopt-key --store etcd://h1:2379/hoist")]
    AdoptKey(AdoptKeyArgs),
    /// Prepare this machine for a further controller of the site
    ///
    /// Writes the key of the site into the data directory, and makes the directory if it is not
    /// there. The key is compared with the one of the store first. Other controllers may run.
    #[command(after_help = "Examples:
  \
        ssh h1 cat /var/lib/hoist/ca/site.key | hoist db join --site-key - --store etcd://h1:2379/hoist\n  \
        hoist db join --site-key /media/usb/site.key --store etcd://h1:2379/hoist --dry-run")]
    Join(join::JoinArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// Read the database itself, without a server
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The file; `-` for standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    read: ReadArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The file; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace the records that are there
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// The new store
    #[arg(long, value_name = "URL")]
    to: String,
    /// Replace the records that the new store holds
    #[arg(long)]
    overwrite: bool,
    /// Change nothing; exit with 20 if there is something to copy
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct AdoptKeyArgs {
    /// Change nothing; exit with 20 if there is something to change
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UpgradeArgs {
    /// Wait for controllers that could not read the new schema
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Interval of progress lines where no terminal is attached.
const RECORDS_PER_LINE: u64 = 100_000;

const WAIT: std::time::Duration = std::time::Duration::from_secs(5);

pub(crate) fn run(args: &DbArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    runtime.block_on(async {
        match &args.command {
            DbCommand::Status(args) => status(args, shell).await,
            DbCommand::Export(args) => export(args, shell).await,
            DbCommand::Import(args) => import(args, shell).await,
            DbCommand::Migrate(args) => migrate(args, shell).await,
            DbCommand::Upgrade(args) => upgrade(args, shell).await,
            DbCommand::AdoptKey(args) => adopt_key(args, shell).await,
            DbCommand::Join(args) => join::join(args, shell).await,
        }
    })
}

async fn status(args: &ReadArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    let found = if args.offline || args.store.store.is_some() {
        let opened = args.store.open(shell).await?;
        database::status(opened.store.as_ref(), Timestamp::now())
            .await
            .map_err(BackupError::from)?
    } else {
        shell.client()?.database().await?
    };
    match shell.printer.output() {
        Output::Json | Output::Yaml => shell.printer.value(&found)?,
        Output::Name => shell.printer.line(&found.backend)?,
        Output::Table | Output::Wide => print_status(&found, shell)?,
    }
    Ok(Exit::Done)
}

fn print_status(found: &Database, shell: &mut Shell) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    printer.line(format!("store      {} ({})", found.backend, found.detail))?;
    printer.line(format!("revision   {}", found.revision))?;
    if let Some(bytes) = found.size_bytes {
        printer.line(format!("size       {} KiB", bytes / 1024))?;
    }
    match &found.schema {
        None => printer.line("schema     none: the store is unused")?,
        Some(schema) => printer.line(format!(
            "schema     {} (written by hoist {}, incarnation {})",
            schema.version, schema.written_by, schema.incarnation
        ))?,
    }
    if found.schema.as_ref().is_some_and(|schema| schema.version < found.newest_schema) {
        printer.warn(&format!(
            "this version knows schema {}: `hoist db upgrade`",
            found.newest_schema
        ));
    }
    if found.unfinished_import {
        printer.warn("an import is incomplete; repeat it");
    }
    let mut records = Table::new(&["RECORDS", "COUNT"]);
    for (name, count) in &found.records {
        records.row(vec![name.clone(), count.to_string()]);
    }
    records.row(vec!["(all)".to_owned(), found.records.values().sum::<u64>().to_string()]);
    printer.line("")?;
    printer.table(&records)?;
    if found.controllers.is_empty() {
        return Ok(());
    }
    let mut controllers = Table::new(&["CONTROLLER", "VERSION", "SCHEMA", "SEEN", "STATE"]);
    for seen in &found.controllers {
        controllers.row(vec![
            seen.id.clone(),
            seen.version.clone(),
            seen.schema.to_string(),
            seen.at.clone(),
            if seen.live { "running" } else { "silent" }.to_owned(),
        ]);
    }
    printer.line("")?;
    printer.table(&controllers)
}

async fn export(args: &ExportArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    let to_file = args.out != Path::new("-");
    let mut file = to_file.then(|| File::create(&args.out, args.force)).transpose()?;
    let mut put = |bytes: &[u8], shell: &mut Shell| match &mut file {
        Some(file) => std::io::Write::write_all(file, bytes)
            .map_err(|error| Failure::from(BackupError::Output(error))),
        None => shell.printer.bytes(bytes),
    };
    if args.read.offline || args.read.store.store.is_some() {
        let opened = args.read.store.open(shell).await?;
        let (writer, reader) = tokio::io::duplex(1024 * 1024);
        let exporting = async {
            let writer = tokio::io::BufWriter::with_capacity(64 * 1024, writer);
            copy::export(opened.store.as_ref(), writer).await
        };
        let printing = async {
            let mut reader = reader;
            let mut buffer = vec![0; 64 * 1024];
            loop {
                let count = tokio::io::AsyncReadExt::read(&mut reader, &mut buffer)
                    .await
                    .map_err(Failure::Output)?;
                if count == 0 {
                    return Ok::<_, Failure>(());
                }
                put(&buffer[..count], shell)?;
            }
        };
        let (exported, printed) = tokio::join!(exporting, printing);
        printed?;
        exported.map_err(BackupError::from)?;
    } else {
        let mut chunks = shell.client()?.export_database().await?;
        while let Some(chunk) = chunks.next().await? {
            put(&chunk, shell)?;
        }
    }
    if let Some(file) = file {
        file.finish()?;
        shell.printer.note(&format!("written to {}", args.out.display()));
    }
    Ok(Exit::Done)
}

async fn import(args: &ImportArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    // Twice from the start: once to check all of it, once to use it.
    let mut file = if args.file == Path::new("-") {
        let mut spool = tempfile::tempfile().map_err(Failure::File)?;
        std::io::copy(&mut std::io::stdin().lock(), &mut spool).map_err(Failure::File)?;
        std::io::Seek::rewind(&mut spool).map_err(Failure::File)?;
        tokio::fs::File::from_std(spool)
    } else {
        let file = fs_err::File::open(&args.file).map_err(Failure::File)?;
        tokio::fs::File::from_std(file.into_parts().0)
    };
    let copied = copy::check_copy(&mut file).await.map_err(BackupError::from)?;
    file.rewind().await.map_err(Failure::File)?;
    let opened = args.store.create(shell).await?;
    if !args.overwrite {
        copy::check_empty(opened.store.as_ref()).await.map_err(BackupError::from)?;
    }
    let incarnation = backup::fill(opened.store, file, args.overwrite, "IMPORT").await?;
    let told =
        json!({"records": copied.records, "sha256": copied.sha256, "incarnation": incarnation});
    tell(shell, &told, &format!("{} records imported", copied.records))
}

async fn migrate(args: &MigrateArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    let from = args.store.open(shell).await?;
    let now = Timestamp::now();
    let address: url::Address = args.to.parse().map_err(BackupError::from)?;
    let places = args.store.location(shell)?;
    if matches!(address, url::Address::Embedded) && places.embedded {
        return Err(Failure::usage("the store is already the embedded one"));
    }
    if args.dry_run && matches!(address, url::Address::Embedded) {
        // Opening it would make it.
        let there = from.data_dir.join("hoist.redb").exists();
        if there && !args.overwrite {
            return Err(Failure::refused("an embedded database exists already")
                .with_hint("replace it with `--overwrite`"));
        }
        return would_copy(from.store.as_ref(), &address, shell).await;
    }
    // Registrations of killed controllers must not be copied.
    if places.embedded && !args.dry_run {
        let forgotten = hoist_site::controllers::forget_all(from.store.as_ref()).await;
        forgotten.map_err(BackupError::from)?;
    }
    let made = matches!(address, url::Address::Embedded) && !DataDir::is_there(&from.data_dir);
    let made = made.then(|| DataDir::open(&from.data_dir)).transpose();
    let _lock = made.map_err(BackupError::from)?;
    let to = url::open(&args.to, &from.data_dir).await.map_err(BackupError::from)?;
    backup::check_unused(to.as_ref(), now).await?;
    if !args.overwrite {
        copy::check_empty(to.as_ref()).await.map_err(BackupError::from)?;
    }
    if args.dry_run {
        return would_copy(from.store.as_ref(), &address, shell).await;
    }
    let bar = shell.printer.interactive().then(ProgressBar::new_spinner);
    let mut told = 0;
    let progress = |records: u64| match &bar {
        Some(bar) => {
            bar.set_message(format!("{records} records copied"));
            bar.tick();
        }
        None if records / RECORDS_PER_LINE > told => {
            told = records / RECORDS_PER_LINE;
            shell.printer.note(&format!("{records} records copied"));
        }
        None => {}
    };
    let copied =
        copy::migrate_watched(from.store.as_ref(), to.as_ref(), args.overwrite, progress).await;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let copied = copied.map_err(BackupError::from)?;
    let value = json!({"records": copied.records, "sha256": copied.sha256});
    let exit = tell(shell, &value, &format!("{copied} are in {address}"))?;
    shell.printer.note(
        "start `hoist serve` with the new address: `--store`, or `store = …` in hoist.toml\n\
         the old store is as it was; remove it when the new one has proved itself",
    );
    Ok(exit)
}

async fn would_copy(
    from: &dyn Store,
    to: &url::Address,
    shell: &mut Shell,
) -> Result<Exit, Failure> {
    let found = copy::checksum(from).await.map_err(BackupError::from)?;
    let value = json!({"records": found.records, "sha256": found.sha256, "dry_run": true});
    tell(shell, &value, &format!("{found} would be copied to {to}"))?;
    Ok(Exit::WouldChange)
}

async fn upgrade(args: &UpgradeArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    let places = args.store.location(shell)?;
    // A shared store is upgraded while its controllers run: the schema's own lease keeps others
    // out, and they say which schemas they can read.
    let (store, _alone) = if places.embedded {
        let opened = args.store.open(shell).await?;
        (std::sync::Arc::clone(&opened.store), Some(opened))
    } else {
        let store = url::open(&places.store, &places.data_dir).await.map_err(BackupError::from)?;
        (store, None)
    };
    if places.embedded {
        hoist_site::controllers::forget_all(store.as_ref()).await.map_err(BackupError::from)?;
    }
    loop {
        let store = std::sync::Arc::clone(&store);
        let done = upgrade::upgrade(store, &places.data_dir, Timestamp::now()).await;
        match done {
            Err(upgrade::UpgradeError::Behind { to, controllers }) if args.wait => {
                let names: Vec<_> = controllers.iter().map(|found| found.id.as_str()).collect();
                shell.printer.note(&format!(
                    "waiting for {}, which cannot read schema {to}",
                    names.join(", ")
                ));
                tokio::time::sleep(WAIT).await;
            }
            Err(error) => return Err(Failure::Upgrade(Box::new(error))),
            Ok(done) => {
                let from = done.migrated.from;
                let to = done.migrated.to;
                let value = json!({"from": from, "to": to, "backup": done.backup});
                let text = match &done.backup {
                    None => format!("schema {to} is the newest this version knows"),
                    Some(path) => {
                        format!("schema {from} became {to}; backup in {}", path.display())
                    }
                };
                return tell(shell, &value, &text);
            }
        }
    }
}

async fn adopt_key(args: &AdoptKeyArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    let places = args.store.location(shell)?;
    let path = places.data_dir.join("ca").join("site.key");
    if !path.exists() {
        return Err(Failure::missing(format!("key `{}`", path.display()))
            .with_hint("name another directory with `--data-dir`"));
    }
    let opened = args.store.open(shell).await?;
    let key = site_key::open(&opened.data_dir)
        .map_err(|error| Failure::start(Exit::Failed, error.into()))?;
    let store = opened.store.as_ref();
    let standing = site_key::look(store, &key).await.map_err(BackupError::from)?;
    let changes = standing != Some(KeyComparison::Same);
    if changes && args.dry_run {
        return edit::would(&mut shell.printer, "make this key the key of the store");
    }
    if changes {
        site_key::adopt(store, &key).await.map_err(BackupError::from)?;
    }
    let text = if changes {
        "this key is now the key of the store"
    } else {
        "this key already is the key of the store"
    };
    tell(shell, &json!({"changed": changes}), text)
}

/// One result, for programs or for people.
fn tell(shell: &mut Shell, value: &serde_json::Value, text: &str) -> Result<Exit, Failure> {
    match shell.printer.output() {
        Output::Json | Output::Yaml => shell.printer.value(value)?,
        Output::Table | Output::Wide | Output::Name => shell.printer.line(text)?,
    }
    Ok(Exit::Done)
}
