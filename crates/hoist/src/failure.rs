//! Failures of commands: their exit codes and their messages.
//!
//! Does not belong here: texts of single commands.

use std::io;

use hoist_api::client::ClientError;
use hoist_api::{Code, Problem};
use hoist_diagnostic::{Diagnostic, chain};
use hoist_model::Exit;
use hoist_model::selector::ParseSelectorError;
use hoist_server::backup::BackupError;
use hoist_server::controller::ControllerError;
use hoist_server::data_dir::DataDirError;
use hoist_server::upgrade::UpgradeError;
use hoist_store::StoreError;
use hoist_store::copy::CopyError;

use crate::settings::SettingError;

/// Limit of printed document errors.
const DIAGNOSTICS_SHOWN: usize = 50;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Failure {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the selector is not valid")]
    Selector(#[from] ParseSelectorError),
    #[error("{}", diagnostics(.0.len()))]
    Documents(Vec<Diagnostic>),
    #[error("{}", input_errors(.input, .problems.len()))]
    Input { input: String, problems: Vec<Diagnostic> },
    /// Invalid input on the command line.
    #[error("{message}")]
    Usage { message: String, hint: Option<String> },
    /// Refused by a rule; nothing was changed.
    #[error("{message}")]
    Refused { message: String, hint: Option<String> },
    /// Another server than the controller failed.
    #[error("{message}")]
    Remote { message: String, hint: Option<String> },
    #[error("{what} not found")]
    Missing { what: String, hint: Option<String> },
    #[error("{message}")]
    Ambiguous { message: String, hint: Option<String> },
    #[error("this site has no cluster")]
    NoCluster,
    /// A command of the node's side of a cluster, with its own exit code.
    #[error("{message}")]
    Member { message: String, exit: Exit, hint: Option<&'static str> },
    #[error("the site changed meanwhile, and the change would differ; nothing was changed")]
    Moved,
    #[error("not confirmed; nothing was changed")]
    Declined,
    #[error("invalid answer of the server: {0}")]
    Broken(String),
    /// The error names the file.
    #[error(transparent)]
    File(io::Error),
    #[error("`{path}` is not valid")]
    Record { path: std::path::PathBuf, source: serde_json::Error },
    /// The controller did not start; the caller decides the exit code.
    #[error("the controller did not start")]
    Start { exit: Exit, source: ControllerError },
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error(transparent)]
    Backup(Box<BackupError>),
    #[error(transparent)]
    Upgrade(Box<UpgradeError>),
    #[error("cannot write the output")]
    Output(#[source] io::Error),
    #[error("cannot write the value as JSON")]
    Json(#[source] serde_json::Error),
    #[error("cannot write the value as YAML: {0}")]
    Yaml(String),
    #[error("cannot start")]
    Runtime(#[source] io::Error),
}

/// A failure as it is printed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RenderedFailure {
    pub(crate) message: String,
    /// Indented below the message.
    pub(crate) details: Vec<String>,
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: None }
    }

    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::Refused { message: message.into(), hint: None }
    }

    pub(crate) fn start(exit: Exit, source: ControllerError) -> Self {
        Self::Start { exit, source }
    }

    pub(crate) fn remote(message: impl Into<String>) -> Self {
        Self::Remote { message: message.into(), hint: None }
    }

    pub(crate) fn missing(what: impl Into<String>) -> Self {
        Self::Missing { what: what.into(), hint: None }
    }

    pub(crate) fn ambiguous(message: impl Into<String>) -> Self {
        Self::Ambiguous { message: message.into(), hint: None }
    }

    pub(crate) fn member(
        error: &dyn std::error::Error,
        exit: Exit,
        hint: Option<&'static str>,
    ) -> Self {
        Self::Member { message: chain(error), exit, hint }
    }

    #[must_use]
    pub(crate) fn with_hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Usage { hint, .. }
        | Self::Refused { hint, .. }
        | Self::Remote { hint, .. }
        | Self::Missing { hint, .. }
        | Self::Ambiguous { hint, .. } = &mut self
        {
            *hint = Some(text.into());
        }
        self
    }

    #[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
    pub(crate) fn yaml(error: impl ToString) -> Self {
        Self::Yaml(error.to_string())
    }

    /// The reader closed the pipe because it needs no more output.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Client(error) => client_exit(error),
            Self::Selector(_)
            | Self::Documents(_)
            | Self::Input { .. }
            | Self::Usage { .. }
            | Self::Setting(_) => Exit::Usage,
            Self::Start { exit, .. } | Self::Member { exit, .. } => *exit,
            Self::Backup(error) => backup_exit(error),
            Self::Upgrade(error) => upgrade_exit(error),
            Self::Refused { .. } => Exit::Refused,
            Self::Declined => Exit::Stopped,
            Self::Ambiguous { .. } => Exit::Ambiguous,
            Self::NoCluster => Exit::NoCluster,
            Self::Missing { .. }
            | Self::Remote { .. }
            | Self::Moved
            | Self::Broken(_)
            | Self::File(_)
            | Self::Record { .. }
            | Self::Output(_)
            | Self::Json(_)
            | Self::Yaml(_)
            | Self::Runtime(_) => Exit::Failed,
        }
    }

    pub(crate) fn render(&self) -> RenderedFailure {
        let mut rendered =
            RenderedFailure { message: chain(self), details: Vec::new(), hint: self.hint() };
        match self {
            Self::Selector(error) => {
                rendered.message = self.to_string();
                rendered.details.push(error.drawing());
            }
            Self::Documents(errors) => {
                rendered.details = shortened(errors);
            }
            Self::Input { problems, .. } => rendered.details = shortened(problems),
            Self::Client(ClientError::Problem { problem, .. }) => {
                rendered.details = problem_details(problem);
                // A single diagnostic may already be the message.
                rendered.details.retain(|line| *line != rendered.message);
            }
            _ => {}
        }
        rendered
    }

    pub(crate) fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Usage { hint, .. }
            | Self::Refused { hint, .. }
            | Self::Remote { hint, .. }
            | Self::Missing { hint, .. }
            | Self::Ambiguous { hint, .. } => return hint.clone(),
            Self::Client(error) => return client_hint(error),
            Self::Backup(error) => return backup_hint(error).map(str::to_owned),
            Self::Selector(_) => {
                "`compute & !label:rack=7`, `nid:1-64` and `default/gpu` are selectors"
            }
            Self::Member { hint, .. } => return hint.map(str::to_owned),
            Self::NoCluster => "found one with `hoist cluster found --name NAME`",
            Self::Moved => "run the command again to see the current change",
            Self::Record { .. } => {
                "remove the file and start `hoist serve` again, or give `--server`"
            }
            _ => return None,
        };
        Some(text.to_owned())
    }
}

/// The first lines of a list, and the number of the others.
fn shortened(errors: &[impl ToString]) -> Vec<String> {
    let mut lines: Vec<String> =
        errors.iter().take(DIAGNOSTICS_SHOWN).map(ToString::to_string).collect();
    if errors.len() > DIAGNOSTICS_SHOWN {
        lines.push(format!("… and {} more", errors.len() - DIAGNOSTICS_SHOWN));
    }
    lines
}

fn input_errors(input: &str, count: usize) -> String {
    match count {
        1 => format!("{input} has 1 error"),
        _ => format!("{input} has {count} errors"),
    }
}

fn diagnostics(count: usize) -> String {
    match count {
        1 => "the documents have 1 error; nothing was sent".to_owned(),
        _ => format!("the documents have {count} errors; nothing was sent"),
    }
}

fn client_exit(error: &ClientError) -> Exit {
    if error.outcome_unknown() {
        return Exit::Unknown;
    }
    match error {
        ClientError::Problem { problem, .. } => problem_exit(problem),
        ClientError::Address { .. } | ClientError::Pem(_) | ClientError::NoAuthority => Exit::Usage,
        _ => Exit::Failed,
    }
}

/// A store that another process holds, an existing target, an invalid file: in all of these nothing
/// was changed.
fn backup_exit(error: &BackupError) -> Exit {
    match error {
        BackupError::InUse(_)
        | BackupError::DataDir(DataDirError::InUse { .. })
        | BackupError::Store(StoreError::InUse { .. }) => Exit::Locked,
        BackupError::Exists(_)
        | BackupError::NotEmpty(_)
        | BackupError::Copy(CopyError::NotEmpty { .. }) => Exit::Refused,
        BackupError::NotABackup
        | BackupError::Newer { .. }
        | BackupError::Truncated
        | BackupError::Entry { .. }
        | BackupError::Checksum { .. }
        | BackupError::Contents { .. }
        | BackupError::WrongKey
        | BackupError::NeedsPassphrase
        | BackupError::NeedsIdentity
        | BackupError::DataDir(_)
        | BackupError::Copy(CopyError::Line { .. } | CopyError::Mismatch { .. }) => Exit::Usage,
        _ => Exit::Failed,
    }
}

fn backup_hint(error: &BackupError) -> Option<&'static str> {
    Some(match error {
        BackupError::InUse(_) => "`hoist db status` shows the controllers",
        BackupError::DataDir(DataDirError::InUse { .. })
        | BackupError::Store(StoreError::InUse { .. }) => {
            "stop `hoist serve`; or leave out `--offline`, where the server can do it"
        }
        BackupError::Copy(CopyError::NotEmpty { .. }) => {
            "`--overwrite` (for `backup restore`: `--force`) replaces them"
        }
        BackupError::NeedsPassphrase => "give it with `--passphrase-file FILE`, or at a terminal",
        _ => return None,
    })
}

fn upgrade_exit(error: &UpgradeError) -> Exit {
    match error {
        UpgradeError::Behind { .. } => Exit::Waiting,
        UpgradeError::Busy => Exit::Locked,
        _ => Exit::Failed,
    }
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        Self::Backup(Box::new(error))
    }
}

/// For problems whose outcome is known.
fn problem_exit(problem: &Problem) -> Exit {
    match &problem.code {
        Code::BadRequest
        | Code::UnknownParameter
        | Code::BadParameter
        | Code::MalformedBody
        | Code::InvalidBody
        | Code::BodyTooLarge
        | Code::UnsupportedMediaType => Exit::Usage,
        Code::Unauthenticated
        | Code::Forbidden
        | Code::PlainAdmin
        | Code::AttemptOver
        | Code::PlainSecret
        | Code::WrongHost
        | Code::MemberExpelled
        | Code::MemberLeft
        | Code::MemberReplaced
        | Code::JoinRefused
        | Code::ClockSkew
        | Code::ProtocolVersion
        | Code::ClonedIdentity
        | Code::Conflict
        | Code::Protected
        | Code::NoAddress
        | Code::KeyNotNamed
        | Code::Managed
        | Code::AffectsTooMany => Exit::Refused,
        Code::Ambiguous => Exit::Ambiguous,
        Code::Unknown(_) => match problem.status {
            400 | 413 | 415 | 422 => Exit::Usage,
            401 | 403 | 409 => Exit::Refused,
            _ => Exit::Failed,
        },
        Code::NotFound
        | Code::UnknownRoute
        | Code::MethodNotAllowed
        | Code::NotAcceptable
        | Code::Busy
        | Code::Gone
        | Code::PreconditionFailed
        | Code::TooManyFailures
        | Code::TooManyRequests
        | Code::SourceFailed
        | Code::Internal
        | Code::ReadOnly
        | Code::StoreUnavailable
        | Code::OutcomeUnknown
        | Code::Held
        | Code::NotAuthority
        | Code::Timeout
        | Code::Stopping
        | Code::StoreFull => Exit::Failed,
    }
}

fn problem_details(problem: &Problem) -> Vec<String> {
    let mut details = Vec::new();
    for diagnostic in problem.errors.iter().take(DIAGNOSTICS_SHOWN) {
        let at =
            if diagnostic.at.is_empty() { String::new() } else { format!("{}: ", diagnostic.at) };
        let hint = diagnostic.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
        details.push(format!("{at}{}{hint}", diagnostic.message));
    }
    if problem.errors.len() > DIAGNOSTICS_SHOWN {
        details.push(format!("… and {} more", problem.errors.len() - DIAGNOSTICS_SHOWN));
    }
    for conflict in &problem.conflicts {
        details
            .push(format!("{} {} belongs to {}", conflict.field, conflict.value, conflict.holder));
    }
    if let Some(id) = problem.request_id.as_ref().filter(|_| problem.status >= 500) {
        details.push(format!("request {id}"));
    }
    details
}

fn client_hint(error: &ClientError) -> Option<String> {
    let text = match error {
        ClientError::Problem { problem, .. } => {
            let known = match problem.code {
                Code::Unauthenticated => {
                    Some("name a token with `--token-file`, `HOIST_TOKEN_FILE` or `HOIST_TOKEN`")
                }
                Code::PlainAdmin => Some("use the server's https address, with `--ca FILE`"),
                Code::Busy => Some("try again"),
                Code::PreconditionFailed => Some("read the object again, then try again"),
                _ => None,
            };
            return problem.remedy.clone().or_else(|| known.map(str::to_owned));
        }
        ClientError::Connect { source, .. } if chain(source).contains("certificate") => {
            "the server's certificate is not of a trusted site; give its authority with `--ca FILE`"
        }
        ClientError::Connect { .. } => {
            "start it with `hoist serve`, or name another one with `--server URL` or `HOIST_SERVER`"
        }
        ClientError::Lost { write: true, .. } | ClientError::Answer { write: true, .. } => {
            "the change may have been made; check before trying again"
        }
        ClientError::Foreign { .. } => "check the address: this may be another service or a proxy",
        ClientError::Answer { .. } => "the server may be of another version: see `hoist status`",
        ClientError::Pem(_) | ClientError::NoAuthority | ClientError::Authority(_) => {
            "use a file of PEM certificates, such as `<data-dir>/ca/root.pem`"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hoist_api::Conflict;
    use hoist_diagnostic::Diagnostic;

    use crate::printer::{Output, tests::printer};

    fn problem(code: Code, write: bool) -> Failure {
        let problem = Box::new(Problem::new(code, "detail"));
        Failure::Client(ClientError::Problem { write, problem })
    }

    #[test]
    fn every_problem_has_its_exit_code() {
        let table = [
            ("bad-request", 2, 2),
            ("unknown-parameter", 2, 2),
            ("bad-parameter", 2, 2),
            ("malformed-body", 2, 2),
            ("invalid-body", 2, 2),
            ("unauthenticated", 3, 3),
            ("forbidden", 3, 3),
            ("attempt-over", 3, 3),
            ("member-expelled", 3, 3),
            ("member-left", 3, 3),
            ("member-replaced", 3, 3),
            ("join-refused", 3, 3),
            ("plain-admin", 3, 3),
            ("plain-secret", 3, 3),
            ("wrong-host", 3, 3),
            ("not-found", 1, 1),
            ("unknown-route", 1, 1),
            ("method-not-allowed", 1, 1),
            ("not-acceptable", 1, 1),
            ("conflict", 3, 3),
            ("clock-skew", 3, 3),
            ("protocol-version", 3, 3),
            ("cloned-identity", 3, 3),
            ("ambiguous", 10, 10),
            ("busy", 1, 1),
            ("protected", 3, 3),
            ("no-address", 3, 3),
            ("key-not-named", 3, 3),
            ("managed", 3, 3),
            ("affects-too-many", 3, 3),
            ("gone", 1, 1),
            ("precondition-failed", 1, 1),
            ("body-too-large", 2, 2),
            ("unsupported-media-type", 2, 2),
            ("too-many-failures", 1, 1),
            ("too-many-requests", 1, 1),
            ("source-failed", 1, 1),
            ("internal", 1, 1),
            ("read-only", 1, 1),
            ("store-unavailable", 1, 5),
            ("outcome-unknown", 1, 5),
            ("held", 1, 1),
            ("not-authority", 1, 1),
            ("timeout", 1, 5),
            ("stopping", 1, 1),
            ("store-full", 1, 1),
        ];
        let known: Vec<_> = Code::ALL.iter().map(Code::as_str).collect();
        assert_eq!(known, table.map(|(code, ..)| code), "a new code needs a line here");
        for (code, (name, read, write)) in Code::ALL.iter().zip(table) {
            assert_eq!(problem(code.clone(), false).exit().code(), read, "reading: {name}");
            assert_eq!(problem(code.clone(), true).exit().code(), write, "writing: {name}");
        }
    }

    #[test]
    fn problems_of_a_newer_server_are_judged_by_their_status() {
        for (status, write, exit) in [
            (422, true, Exit::Usage),
            (409, true, Exit::Refused),
            (500, false, Exit::Failed),
            (500, true, Exit::Unknown),
            (404, true, Exit::Failed),
        ] {
            let mut problem = Problem::new(Code::Unknown("flux".into()), "");
            problem.status = status;
            let error = ClientError::Problem { write, problem: Box::new(problem) };
            assert_eq!(Failure::Client(error).exit(), exit, "{status}");
        }
    }

    #[test]
    fn local_failures_have_theirs() {
        let selector = "a &".parse::<hoist_model::Selector>().unwrap_err();
        for (failure, exit) in [
            (Failure::usage("x"), Exit::Usage),
            (Failure::Selector(selector), Exit::Usage),
            (Failure::Documents(vec![]), Exit::Usage),
            (Failure::refused("x"), Exit::Refused),
            (Failure::missing("x"), Exit::Failed),
            (Failure::Declined, Exit::Stopped),
            (Failure::Moved, Exit::Failed),
        ] {
            assert_eq!(failure.exit(), exit, "{failure}");
        }
    }

    #[test]
    fn a_problem_is_printed_with_all_it_says() {
        let problem = Problem::new(Code::Conflict, "two nodes with one MAC")
            .with_remedy("remove one of them")
            .with_diagnostic(Diagnostic::new("Node n2: interfaces[0].mac", "taken").hint("see n1"))
            .with_conflict(Conflict {
                field: "mac".into(),
                value: "52:54:00:00:00:01".into(),
                holder: "node/n1".into(),
            });
        let error = ClientError::Problem { write: true, problem: Box::new(problem) };
        let (mut printer, out, err) = printer(Output::Json);
        printer.failure(&Failure::Client(error));
        assert_eq!(out.text(), "");
        assert_eq!(
            err.text(),
            "error: two nodes with one MAC\n  Node n2: interfaces[0].mac: taken; see n1\n  \
             mac 52:54:00:00:00:01 belongs to node/n1\nhint: remove one of them\n"
        );
    }

    #[test]
    fn the_cause_of_a_failure_is_printed_too() {
        let source = io::Error::other("no space left");
        let (mut printer, _, err) = printer(Output::Table);
        printer.failure(&Failure::Output(source));
        assert_eq!(err.text(), "error: cannot write the output: no space left\n");
    }

    #[test]
    fn a_wrong_selector_is_drawn_with_an_arrow() {
        let error = "compute & & x".parse::<hoist_model::Selector>().unwrap_err();
        let (mut printer, _, err) = printer(Output::Table);
        printer.failure(&Failure::Selector(error));
        let text = err.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "error: the selector is not valid");
        assert_eq!(lines[1], "  compute & & x");
        assert!(lines[2].starts_with("            ^ "), "{text}");
        assert!(lines[3].starts_with("hint: "), "{text}");
    }

    #[test]
    fn printed_problems_are_bounded() {
        let text = "api: hoist/v1\nkind: Node\nname: -\n---\n".repeat(60);
        let errors = hoist_model::document::read("f.yaml", text.as_bytes()).unwrap_err();
        let rendered = Failure::Documents(errors).render();
        assert_eq!(rendered.details.len(), DIAGNOSTICS_SHOWN + 1);
        assert_eq!(rendered.details[DIAGNOSTICS_SHOWN], "… and 10 more");
    }
}
