//! Principals and their rights. Deny by default: an action that no scope grants is refused.

use std::fmt;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use hoist_api::admin::{Context, Scope, Verb};
use hoist_model::Selector;
use http::request::Parts;
use jiff::Timestamp;

/// The one a request acts for: a request extension, and an extractor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    who: Caller,
    grants: Arc<[Grant]>,
    /// When the token or certificate ends by itself.
    expires: Option<Timestamp>,
}

/// A response extension: the answer is for the holder of a token, or for a member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerToToken;

/// The identity that a request is authenticated as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// No credentials, on an open route.
    Anonymous,
    /// The holder of `admin.token`.
    Admin,
    Token {
        id: String,
        name: String,
    },
    Jwt {
        subject: String,
    },
    /// A machine with a certificate of the cluster.
    Member {
        cluster: String,
        node: String,
    },
}

/// A [`Scope`] whose selector has been parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub verbs: Vec<Verb>,
    pub contexts: Vec<Context>,
    pub selector: Option<Selector>,
}

/// On which nodes a principal may do something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach<'a> {
    None,
    /// Only on nodes that at least one of these selects.
    Some(Vec<&'a Selector>),
    /// All nodes, and resources that belong to no node.
    All,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError {
    #[error("a scope without verbs allows nothing; name `read` or `write`")]
    NoVerb,
    #[error("a scope without contexts allows nothing; name some, or `*`")]
    NoContext,
    #[error("`{text}` is not a selector: {reason}")]
    Selector { text: String, reason: String },
}

impl Principal {
    pub fn new(who: Caller, grants: impl Into<Arc<[Grant]>>) -> Self {
        Self { who, grants: grants.into(), expires: None }
    }

    pub fn anonymous() -> Self {
        Self::new(Caller::Anonymous, [])
    }

    /// May do everything, everywhere.
    pub fn admin() -> Self {
        let all = Grant {
            verbs: vec![Verb::Read, Verb::Write],
            contexts: vec![Context::All],
            selector: None,
        };
        Self::new(Caller::Admin, [all])
    }

    /// The same, with one grant more.
    #[must_use]
    pub fn with(self, grant: Grant) -> Self {
        let grants: Vec<_> = self.grants.iter().cloned().chain([grant]).collect();
        Self { grants: grants.into(), ..self }
    }

    /// The same, by a token or certificate that ends then.
    #[must_use]
    pub fn until(self, expires: Option<Timestamp>) -> Self {
        Self { expires, ..self }
    }

    pub fn expires(&self) -> Option<Timestamp> {
        self.expires
    }

    pub fn who(&self) -> &Caller {
        &self.who
    }

    /// True when some scope grants it, be it only on some nodes: ask [`Principal::reach`] which.
    pub fn allows(&self, verb: Verb, context: Context) -> bool {
        self.reach(verb, context) != Reach::None
    }

    /// On which nodes the principal may do this.
    pub fn reach(&self, verb: Verb, context: Context) -> Reach<'_> {
        let mut selectors = Vec::new();
        for grant in self.grants.iter().filter(|grant| grant.covers(verb, context)) {
            match &grant.selector {
                None => return Reach::All,
                Some(selector) => selectors.push(selector),
            }
        }
        if selectors.is_empty() { Reach::None } else { Reach::Some(selectors) }
    }

    /// True when everything that `grant` allows is allowed to this principal as well, so that it
    /// may hand it on. Selectors are compared as they are: whether one contains another is not
    /// guessed at.
    pub fn may_delegate(&self, grant: &Grant) -> bool {
        grant.verbs.iter().all(|verb| {
            grant.contexts.iter().all(|context| match self.reach(*verb, *context) {
                Reach::All => true,
                Reach::None => false,
                Reach::Some(held) => grant.selector.as_ref().is_some_and(|s| held.contains(&s)),
            })
        })
    }
}

impl Grant {
    fn covers(&self, verb: Verb, context: Context) -> bool {
        self.verbs.contains(&verb)
            && self.contexts.iter().any(|held| *held == context || *held == Context::All)
    }
}

impl TryFrom<&Scope> for Grant {
    type Error = ScopeError;

    fn try_from(scope: &Scope) -> Result<Self, ScopeError> {
        if scope.verbs.is_empty() {
            return Err(ScopeError::NoVerb);
        }
        if scope.contexts.is_empty() {
            return Err(ScopeError::NoContext);
        }
        let selector = match &scope.selector {
            None => None,
            Some(text) => Some(text.parse::<Selector>().map_err(|error| ScopeError::Selector {
                text: text.clone(),
                reason: error.to_string(),
            })?),
        };
        // `*` is how people write "no limit".
        let selector = selector.filter(|selector| !selector.is_everything());
        Ok(Self { verbs: scope.verbs.clone(), contexts: scope.contexts.clone(), selector })
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::Admin => f.write_str("admin"),
            Self::Token { id, .. } => write!(f, "token/{id}"),
            Self::Jwt { subject } => write!(f, "jwt/{subject}"),
            Self::Member { node, .. } => write!(f, "member/{node}"),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_else(Self::anonymous))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(verbs: &[Verb], contexts: &[Context], selector: Option<&str>) -> Grant {
        let scope = Scope {
            verbs: verbs.to_vec(),
            contexts: contexts.to_vec(),
            selector: selector.map(str::to_owned),
        };
        Grant::try_from(&scope).unwrap()
    }

    #[test]
    fn only_granted_scopes_are_allowed() {
        let nobody = Principal::anonymous();
        let reader =
            Principal::new(Caller::Admin, [grant(&[Verb::Read], &[Context::Inventory], None)]);
        for context in [Context::Inventory, Context::Admin, Context::All] {
            assert!(!nobody.allows(Verb::Read, context));
            assert!(!reader.allows(Verb::Write, context));
        }
        assert!(reader.allows(Verb::Read, Context::Inventory));
        assert!(!reader.allows(Verb::Read, Context::Boot));
        assert!(Principal::admin().allows(Verb::Write, Context::Etcd));
    }

    #[test]
    fn reach_is_the_union_of_scopes() {
        let one = grant(&[Verb::Write], &[Context::Inventory], Some("partition:a"));
        let two = grant(&[Verb::Write], &[Context::All], Some("partition:b"));
        let limited = Principal::new(Caller::Admin, [one.clone(), two]);
        let Reach::Some(selectors) = limited.reach(Verb::Write, Context::Inventory) else {
            panic!("reach is limited")
        };
        assert_eq!(selectors.len(), 2);
        let wide =
            Principal::new(Caller::Admin, [one, grant(&[Verb::Write], &[Context::All], None)]);
        assert_eq!(wide.reach(Verb::Write, Context::Inventory), Reach::All);
    }

    #[test]
    fn delegated_scopes_stay_within_the_own_ones() {
        let a = grant(&[Verb::Write], &[Context::Inventory], Some("partition:a"));
        let holder = Principal::new(Caller::Admin, [a.clone()]);
        assert!(holder.may_delegate(&a));
        assert!(!holder.may_delegate(&grant(&[Verb::Write], &[Context::Inventory], None)));
        assert!(!holder.may_delegate(&grant(
            &[Verb::Write],
            &[Context::Inventory],
            Some("partition:b")
        )));
        assert!(!holder.may_delegate(&grant(
            &[Verb::Read],
            &[Context::Inventory],
            Some("partition:a")
        )));
        assert!(!holder.may_delegate(&grant(&[Verb::Write], &[Context::All], Some("partition:a"))));
        assert!(Principal::admin().may_delegate(&grant(&[Verb::Write], &[Context::All], None)));
    }

    #[test]
    fn an_empty_scope_is_an_error_not_a_silent_nothing() {
        let none = Scope { verbs: vec![], contexts: vec![Context::All], selector: None };
        assert_eq!(Grant::try_from(&none), Err(ScopeError::NoVerb));
        let none = Scope { verbs: vec![Verb::Read], contexts: vec![], selector: None };
        assert_eq!(Grant::try_from(&none), Err(ScopeError::NoContext));
    }
}
