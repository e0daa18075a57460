//! `hoist deploy lint`: everything that is wrong with task files, before anything runs.

use clap::Args;
use hoist_api::deploy::Selection;
use hoist_deploy::compile::{self, Options};
use hoist_deploy::diagnostic::{Code, Severity, SourceDiagnostic};
use hoist_deploy::layer::Book;
use hoist_deploy::lint;
use hoist_deploy::spec::Sources;
use hoist_model::Exit;
use hoist_server::deploy::{book_of, templates_of};
use serde_json::{Value, json};

use super::offline::{self, BookArgs};
use crate::commands::Shell;
use crate::failure::Failure;
use crate::printer::{Output, Printer, Tone};

/// Report everything that is wrong with task files
///
/// Without `--nodes`, the files are checked alone: syntax, layers, names, and cycles on every
/// layout of their roles. With `--nodes`, they are compiled for those nodes. No controller is
/// needed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy lint site.yaml\n  \
    hoist deploy lint site.yaml --nodes nodes.yaml --layouts\n  \
    hoist deploy lint product.yaml site.yaml --strict -o json\n\n\
    Ends with 2 if there are errors, or with `--strict` also if there are warnings.")]
pub(super) struct LintArgs {
    #[command(flatten)]
    book: BookArgs,

    /// Look for circles on made-up nodes too: all roles on one, each on its own, each two together
    #[arg(long)]
    layouts: bool,

    /// Warnings count as errors
    #[arg(long)]
    strict: bool,
}

/// A diagnostic, with its layout and the number of such layouts if it depends on the layout.
struct LintDiagnostic {
    diagnostic: SourceDiagnostic,
    layout: Option<(String, usize)>,
}

impl From<SourceDiagnostic> for LintDiagnostic {
    fn from(diagnostic: SourceDiagnostic) -> Self {
        Self { diagnostic, layout: None }
    }
}

impl LintArgs {
    pub(super) fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        if self.book.files.is_empty() {
            return Err(Failure::usage("lint: no task file is given")
                .with_hint("`hoist deploy lint FILE…`; `-` is standard input"));
        }
        let mut sources = Sources::default();
        let (book, mut found) = self.look(shell, &mut sources)?;
        found.sort_by_key(|one| {
            let SourceDiagnostic { severity, place, code, .. } = one.diagnostic;
            (std::cmp::Reverse(severity), place, code)
        });
        let count =
            |severity| found.iter().filter(|one| one.diagnostic.severity == severity).count();
        let errors = count(Severity::Error);
        let warnings = count(Severity::Warning);
        let is_good = errors == 0 && !(self.strict && warnings > 0);
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&json!({
                "good": is_good,
                "errors": errors,
                "warnings": warnings,
                "roles": book.roles.len(),
                "tasks": book.tasks.len(),
                "barriers": book.barriers.len(),
                "diagnostics": found.iter().map(|one| one.to_json(&sources)).collect::<Vec<_>>(),
            }))?,
            Output::Name => {
                found.iter().try_for_each(|one| printer.line(one.diagnostic.show(&sources)))?;
            }
            Output::Table | Output::Wide => {
                for one in &found {
                    one.draw(printer, &sources)?;
                }
                let tone = if is_good { Tone::Added } else { Tone::Removed };
                printer.toned(tone, &summary(&book, errors, warnings))?;
            }
        }
        Ok(if is_good { Exit::Done } else { Exit::Usage })
    }

    fn look(
        &self,
        shell: &mut Shell,
        sources: &mut Sources,
    ) -> Result<(Book, Vec<LintDiagnostic>), Failure> {
        let request = self.book.request(Selection::default())?;
        let mut wrong = Vec::new();
        let book = book_of(&request.files, sources, &mut wrong);
        let is_readable = !wrong.iter().any(SourceDiagnostic::is_error);
        let mut found: Vec<LintDiagnostic> = wrong.into_iter().map(LintDiagnostic::from).collect();
        let site = self.book.nodes.site()?;
        let has_site = site.is_some();
        let actions = offline::catalog(shell)?;
        let options = Options {
            settings: request.settings,
            templates: templates_of(&request.files),
            actions: Some(&actions),
            untranslated: request.conditions.into(),
            is_strict: self.strict,
            ..Options::default()
        };
        if let Some(site) = site.filter(|_| is_readable) {
            let told = match compile::compile(&book, &site, &options) {
                Ok(compiled) => compiled.diagnostics,
                Err(told) => told,
            };
            found.extend(told.into_iter().map(LintDiagnostic::from));
        }
        if is_readable && (self.layouts || !has_site) {
            for lint::LayoutDiagnostic { layout, layouts, diagnostic } in
                lint::layouts(&book, &options)
            {
                let is_same = |one: &LintDiagnostic| {
                    (one.diagnostic.code, one.diagnostic.place)
                        == (diagnostic.code, diagnostic.place)
                };
                if !found.iter().any(is_same) {
                    // A reference that never binds does not depend on the layout.
                    let layout = (diagnostic.code == Code::Cycle).then_some((layout, layouts));
                    found.push(LintDiagnostic { diagnostic, layout });
                }
            }
        }
        Ok((book, found))
    }
}

impl LintDiagnostic {
    fn draw(&self, printer: &mut Printer, sources: &Sources) -> Result<(), Failure> {
        let drawing = self.diagnostic.draw(sources, printer.has_colour());
        printer.line(drawing.trim_end())?;
        if let Some((layout, layouts)) = &self.layout {
            let more = match layouts - 1 {
                0 => String::new(),
                1 => " and one more layout".to_owned(),
                more => format!(" and {more} more layouts"),
            };
            printer.line(format!("  = layout: {layout}{more}"))?;
        }
        printer.line("")
    }

    fn to_json(&self, sources: &Sources) -> Value {
        let mut value = self.diagnostic.to_json(sources);
        if let Some((layout, layouts)) = &self.layout {
            value["layout"] = layout.as_str().into();
            value["layouts"] = (*layouts).into();
        }
        value
    }
}

fn summary(book: &Book, errors: usize, warnings: usize) -> String {
    let several = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let size =
        [(book.roles.len(), "role"), (book.tasks.len(), "task"), (book.barriers.len(), "barrier")];
    let size: Vec<String> = size.into_iter().map(|(count, what)| several(count, what)).collect();
    format!("{}: {}, {}", size.join(", "), several(errors, "error"), several(warnings, "warning"))
}
