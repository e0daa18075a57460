//! Problems of task files: [`SourceDiagnostic`] adds a code, a severity and places in [`Sources`] to
//! a [`Diagnostic`].

use std::fmt::{self, Write as _};

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use hoist_diagnostic::Diagnostic;
use serde_json::{Value, json};

use crate::spec::{Place, Sources};

/// Kinds of problems, one for each way to correct them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    NotYaml,
    WrongValue,
    UnknownKey,
    TooLarge,
    Missing,
    Twice,
    TwoPlugins,
    PatchesNothing,
    BadTarget,
    NoNode,
    NothingSelected,
    Contradiction,
    Prerequisites,
    EmptyRole,
    NoSuchTask,
    NeverSameNode,
    BarrierOnNode,
    NotInRun,
    Cycle,
    ToleranceDefeated,
    UndoGap,
    NeverRepeated,
    NeedlessSetting,
    Condition,
    Undecided,
    Template,
    Action,
    NotOnNode,
}

impl Code {
    pub const ALL: [Self; 28] = [
        Self::NotYaml,
        Self::WrongValue,
        Self::UnknownKey,
        Self::TooLarge,
        Self::Missing,
        Self::Twice,
        Self::TwoPlugins,
        Self::PatchesNothing,
        Self::BadTarget,
        Self::NoNode,
        Self::NothingSelected,
        Self::Contradiction,
        Self::Prerequisites,
        Self::EmptyRole,
        Self::NoSuchTask,
        Self::NeverSameNode,
        Self::BarrierOnNode,
        Self::NotInRun,
        Self::Cycle,
        Self::ToleranceDefeated,
        Self::UndoGap,
        Self::NeverRepeated,
        Self::NeedlessSetting,
        Self::Condition,
        Self::Undecided,
        Self::Template,
        Self::Action,
        Self::NotOnNode,
    ];

    /// Its first letter is how serious it usually is.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotYaml => "E100",
            Self::WrongValue => "E101",
            Self::UnknownKey => "E102",
            Self::TooLarge => "E103",
            Self::Missing => "E104",
            Self::Twice => "E105",
            Self::TwoPlugins => "E110",
            Self::PatchesNothing => "E111",
            Self::BadTarget => "E200",
            Self::NoNode => "W201",
            Self::NothingSelected => "E202",
            Self::Contradiction => "E203",
            Self::Prerequisites => "W204",
            Self::EmptyRole => "E205",
            Self::NoSuchTask => "E301",
            Self::NeverSameNode => "E302",
            Self::BarrierOnNode => "E303",
            Self::NotInRun => "I304",
            Self::Cycle => "E401",
            Self::ToleranceDefeated => "W501",
            Self::UndoGap => "W502",
            Self::NeverRepeated => "W503",
            Self::NeedlessSetting => "W504",
            Self::Condition => "E601",
            Self::Undecided => "E602",
            Self::Template => "E603",
            Self::Action => "E604",
            Self::NotOnNode => "W605",
        }
    }

    fn severity(self) -> Severity {
        match self.as_str().as_bytes()[0] {
            b'E' => Severity::Error,
            b'W' => Severity::Warning,
            _ => Severity::Info,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Info,
    Warning,
    /// There is no plan.
    Error,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One problem of task files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceDiagnostic {
    pub code: Code,
    pub severity: Severity,
    pub place: Option<Place>,
    /// Message and hint. `at` is empty here; [`Self::located`] fills it from the place.
    pub diagnostic: Diagnostic,
    /// Other places that belong to it, each with its meaning.
    pub notes: Vec<(Place, String)>,
}

impl SourceDiagnostic {
    pub fn new(code: Code, place: Place, message: impl Into<String>) -> Self {
        Self { place: Some(place), ..Self::without_place(code, message) }
    }

    pub fn without_place(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            severity: code.severity(),
            place: None,
            diagnostic: Diagnostic::new("", message),
            notes: Vec::new(),
        }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.diagnostic.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn suggest(self, close: Option<&str>) -> Self {
        match close {
            Some(close) => self.hint(format!("did you mean `{close}`?")),
            None => self,
        }
    }

    #[must_use]
    pub fn note(mut self, place: Place, text: impl Into<String>) -> Self {
        self.notes.push((place, text.into()));
        self
    }

    /// No error any more, if it was one.
    #[must_use]
    pub fn mild(mut self) -> Self {
        self.severity = self.severity.min(Severity::Warning);
        self
    }

    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// The diagnostic with its place in words: `tasks.yaml:14:3`.
    pub fn located(&self, sources: &Sources) -> Diagnostic {
        let at = self.place.map(|place| sources.show(place)).unwrap_or_default();
        Diagnostic { at, ..self.diagnostic.clone() }
    }

    /// In one line: `tasks.yaml:14:3: E102 unknown key …; did you mean …?`.
    pub fn show(&self, sources: &Sources) -> String {
        let Diagnostic { at, message, hint } = self.located(sources);
        let message = format!("{} {message}", self.code);
        let mut line = Diagnostic { at, message, hint }.to_string();
        for (place, text) in &self.notes {
            write!(line, " ({text}: {})", sources.show(*place)).expect("writing to memory");
        }
        line
    }

    /// With the lines it speaks of, for a terminal.
    pub fn draw(&self, sources: &Sources, with_colour: bool) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
            Severity::Info => Level::INFO,
        };
        let title = level.primary_title(self.diagnostic.message.as_str()).id(self.code.as_str());
        let mut group = annotate_snippets::Group::with_title(title);
        // A note about the place itself is its label.
        let (here, notes): (Vec<_>, Vec<_>) =
            self.notes.iter().partition(|(at, _)| Some(*at) == self.place);
        let label = here.first().map_or("", |(_, text)| text.as_str());
        let places = self.place.map(|place| (place, AnnotationKind::Primary, label)).into_iter();
        let notes = here.into_iter().skip(1).chain(notes);
        let notes = notes.map(|(at, text)| (*at, AnnotationKind::Context, text.as_str()));
        let mut unseen = Vec::new();
        for (place, kind, label) in places.chain(notes) {
            match excerpt(sources, place, kind, label) {
                Some(snippet) => group = group.element(snippet),
                None => unseen.push(format!("{} {label}", sources.show(place))),
            }
        }
        for line in &unseen {
            group = group.element(Level::NOTE.message(line.trim_end()));
        }
        if let Some(hint) = &self.diagnostic.hint {
            group = group.element(Level::HELP.message(hint.as_str()));
        }
        let renderer = if with_colour { Renderer::styled() } else { Renderer::plain() };
        renderer.render(&[group])
    }

    pub fn to_json(&self, sources: &Sources) -> Value {
        let mut value = json!({
            "code": self.code.as_str(),
            "severity": self.severity.as_str(),
            "message": self.diagnostic.message,
        });
        if let Some(place) = self.place {
            value["place"] = sources.show(place).into();
        }
        if let Some(hint) = &self.diagnostic.hint {
            value["remedy"] = hint.as_str().into();
        }
        if !self.notes.is_empty() {
            let note =
                |(at, text): &(Place, String)| json!({"place": sources.show(*at), "text": text});
            value["notes"] = self.notes.iter().map(note).collect();
        }
        value
    }
}

/// The word at the place, in its line. Only the lines around it are given to the renderer: a file
/// may be large.
fn excerpt<'a>(
    sources: &'a Sources,
    place: Place,
    kind: AnnotationKind,
    label: &'a str,
) -> Option<Snippet<'a, annotate_snippets::Annotation<'a>>> {
    let source = sources.get(place.file)?;
    let number = (place.line as usize).checked_sub(1)?;
    let line = source.text.lines().nth(number)?;
    let skipped = (place.column as usize).saturating_sub(1);
    let start = line.char_indices().nth(skipped).map_or(line.len(), |(at, _)| at);
    let word = line[start..].find([' ', ',', ']', '}', ':']).filter(|length| *length > 0);
    let end = word.map_or(line.len(), |length| start + length);
    let mark = kind.span(start..end);
    let mark = if label.is_empty() { mark } else { mark.label(label) };
    let snippet = Snippet::source(line).line_start(number + 1).path(source.name.as_str());
    Some(snippet.annotation(mark))
}

/// Errors first, then by place.
pub(crate) fn sort(found: &mut [SourceDiagnostic]) {
    found.sort_by_key(|one| (std::cmp::Reverse(one.severity), one.place, one.code));
}
