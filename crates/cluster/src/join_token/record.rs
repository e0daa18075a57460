//! A token as the controller stores it, and the rules of its use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hoist_model::{Name, Role};
use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{TokenId, TokenKey};
use crate::id::NodeId;
use crate::role;

/// Most characters of a name pattern: those of a name, with room for `*`.
pub const MAX_NAME_PATTERN: usize = 127;

/// A token as the controller stores it. The secret is not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecord {
    pub id: TokenId,
    pub key: TokenKey,
    pub created: Timestamp,
    pub expires: Timestamp,
    /// How many nodes may use the token.
    pub max_uses: u32,
    /// The nodes that used it, with the time of the first use. A node that repeats its request,
    /// for instance because the answer was lost, does not use the token up.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub used_by: BTreeMap<NodeId, Timestamp>,
    #[serde(default)]
    pub scope: TokenScope,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Timestamp>,
}

/// The nodes that may use a token. The default permits every node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenScope {
    /// The roles that the node may ask for and get; empty: all.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub roles: BTreeSet<Role>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<NamePattern>,
    /// The networks that the request may come from; empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<IpNet>,
    /// The one enrollment of a machine that the token was made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_to: Option<Enrollment>,
    /// The node waits for an operator in spite of the token.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub manual: bool,
}

/// One installation of a machine of the inventory: each reinstallation raises the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Enrollment {
    pub machine: hoist_model::NodeId,
    pub generation: u64,
}

/// A request to use a token.
#[derive(Debug, Clone, Copy)]
pub struct TokenUse<'a> {
    pub node: NodeId,
    pub name: &'a Name,
    pub address: IpAddr,
    pub preferred_role: Option<&'a Role>,
    pub enrollment: Option<Enrollment>,
}

/// Why a token does not permit a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenRefusal {
    #[error("token {token} was revoked at {at}; create another token")]
    Revoked { token: TokenId, at: Timestamp },
    #[error(
        "token {token} was created at {created}, but the clock of the controller says {now}; \
         set the clock"
    )]
    ClockWentBack { token: TokenId, created: Timestamp, now: Timestamp },
    #[error("token {token} expired at {at}; create another token")]
    Expired { token: TokenId, at: Timestamp },
    #[error("token {token} permits {max_uses} nodes, all have joined; create another token")]
    UsedUp { token: TokenId, max_uses: u32 },
    #[error("token {token} does not permit role `{role}`; ask for one of: {allowed}")]
    Role { token: TokenId, role: Role, allowed: String },
    #[error(
        "token {token} does not permit name `{name}`, only `{pattern}`; rename the node or \
         create another token"
    )]
    Name { token: TokenId, name: Name, pattern: NamePattern },
    #[error(
        "token {token} does not permit address {address}, only {allowed}; join from there or \
         create another token"
    )]
    Network { token: TokenId, address: IpAddr, allowed: String },
    #[error(
        "token {token} is only for machine {machine} of the inventory; create a token for this \
         machine"
    )]
    Machine { token: TokenId, machine: hoist_model::NodeId },
    #[error(
        "token {token} is for installation {bound} of the machine, this one is {offered}; use \
         the token of the latest installation"
    )]
    Generation { token: TokenId, bound: u64, offered: u64 },
}

impl TokenRecord {
    pub fn uses_left(&self) -> u32 {
        let used = u32::try_from(self.used_by.len()).unwrap_or(u32::MAX);
        self.max_uses.saturating_sub(used)
    }

    /// Whether the token permits the request. The caller must have verified the proof.
    ///
    /// A node that used the token before may repeat its request after the end of the token: its
    /// first use was in time. A revoked token permits nothing.
    pub fn check(&self, now: Timestamp, request: &TokenUse<'_>) -> Result<(), TokenRefusal> {
        let token = self.id;
        if let Some(at) = self.revoked {
            return Err(TokenRefusal::Revoked { token, at });
        }
        if !self.used_by.contains_key(&request.node) {
            self.check_first_use(now)?;
        }
        self.scope.check(token, request)
    }

    /// The record after this use, to store together with the request of the node.
    pub fn with_use(&self, now: Timestamp, request: &TokenUse<'_>) -> Result<Self, TokenRefusal> {
        self.check(now, request)?;
        let mut record = self.clone();
        record.used_by.entry(request.node).or_insert(now);
        Ok(record)
    }

    fn check_first_use(&self, now: Timestamp) -> Result<(), TokenRefusal> {
        let token = self.id;
        if now < self.created {
            // With a clock that went back, an expired token would be valid again.
            return Err(TokenRefusal::ClockWentBack { token, created: self.created, now });
        }
        if now >= self.expires {
            return Err(TokenRefusal::Expired { token, at: self.expires });
        }
        if self.uses_left() == 0 {
            return Err(TokenRefusal::UsedUp { token, max_uses: self.max_uses });
        }
        Ok(())
    }
}

impl TokenScope {
    fn check(&self, token: TokenId, request: &TokenUse<'_>) -> Result<(), TokenRefusal> {
        if let Some(role) = request.preferred_role
            && !self.permits_role(role)
        {
            let allowed = list(&self.roles);
            return Err(TokenRefusal::Role { token, role: role.clone(), allowed });
        }
        if let Some(pattern) = &self.names
            && !pattern.matches(request.name)
        {
            let (name, pattern) = (request.name.clone(), pattern.clone());
            return Err(TokenRefusal::Name { token, name, pattern });
        }
        // An IPv4 peer of a socket for both versions has an IPv6 address.
        let address = request.address.to_canonical();
        if !self.networks.is_empty() && !self.networks.iter().any(|net| net.contains(&address)) {
            let allowed = list(&self.networks);
            return Err(TokenRefusal::Network { token, address, allowed });
        }
        let Some(bound) = self.bound_to else { return Ok(()) };
        match request.enrollment {
            Some(offered) if offered == bound => Ok(()),
            Some(offered) if offered.machine == bound.machine => Err(TokenRefusal::Generation {
                token,
                bound: bound.generation,
                offered: offered.generation,
            }),
            _ => Err(TokenRefusal::Machine { token, machine: bound.machine }),
        }
    }

    /// The roles that the planner must not give to a node with this token.
    pub fn forbidden_roles(&self) -> BTreeSet<role::Role> {
        let permits = |role: &role::Role| {
            self.roles.is_empty() || self.roles.iter().any(|allowed| allowed.is(role.as_str()))
        };
        // The only member of a cluster is its monolith, whatever its token permits.
        role::Role::SHARED.into_iter().filter(|role| !permits(role)).collect()
    }

    fn permits_role(&self, role: &Role) -> bool {
        self.roles.is_empty() || self.roles.iter().any(|allowed| allowed.is(role))
    }
}

fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(", ")
}

/// A pattern of node names, in which `*` stands for any characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamePattern(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not a pattern of names; use 1 to {MAX_NAME_PATTERN} letters, digits, dashes and `*`"
)]
pub struct ParseNamePatternError;

impl NamePattern {
    pub fn matches(&self, name: &Name) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        // The leftmost place of each part leaves the most room for the next ones.
        for part in parts {
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

impl FromStr for NamePattern {
    type Err = ParseNamePatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let permitted = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'*');
        if text.is_empty() || text.len() > MAX_NAME_PATTERN || !text.bytes().all(permitted) {
            return Err(ParseNamePatternError);
        }
        // Names are in lower case.
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl TryFrom<String> for NamePattern {
    type Error = ParseNamePatternError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<NamePattern> for String {
    fn from(pattern: NamePattern) -> Self {
        pattern.0
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::join_token::JoinSecret;

    const MACHINE: hoist_model::NodeId = hoist_model::NodeId::from_bits(7);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Valid from second 1000 to second 4600, for one node.
    fn record() -> TokenRecord {
        TokenRecord {
            id: TokenId::from_random([1; 8]),
            key: TokenKey::of(&JoinSecret::from_random([2; 20])),
            created: at(1000),
            expires: at(4600),
            max_uses: 1,
            used_by: BTreeMap::new(),
            scope: TokenScope::default(),
            revoked: None,
        }
    }

    fn check(record: &TokenRecord, now: i64, key: &[u8], change: fn(&mut TokenUse<'_>)) -> String {
        let name: Name = "web-1".parse().unwrap();
        let mut request = TokenUse {
            node: NodeId::of_key(key),
            name: &name,
            address: [10, 0, 1, 5].into(),
            preferred_role: None,
            enrollment: None,
        };
        change(&mut request);
        record.check(at(now), &request).map_or_else(|refusal| refusal.to_string(), |()| "ok".into())
    }

    fn unchanged(_: &mut TokenUse<'_>) {}

    #[test]
    fn token_is_valid_from_its_creation_to_its_end() {
        for (now, expected) in [
            (
                999,
                "token 0101010101010101 was created at 1970-01-01T00:16:40Z, but the clock of the controller says 1970-01-01T00:16:39Z; set the clock",
            ),
            (1000, "ok"),
            (4599, "ok"),
            (4600, "token 0101010101010101 expired at 1970-01-01T01:16:40Z; create another token"),
        ] {
            assert_eq!(check(&record(), now, b"a", unchanged), expected, "{now}");
        }
        let revoked = TokenRecord { revoked: Some(at(1500)), ..record() };
        assert!(check(&revoked, 2000, b"a", unchanged).contains("was revoked at"));
    }

    #[test]
    fn repeated_request_is_not_a_second_use() {
        let name: Name = "web-1".parse().unwrap();
        let request = TokenUse {
            node: NodeId::of_key(b"a"),
            name: &name,
            address: [10, 0, 1, 5].into(),
            preferred_role: None,
            enrollment: None,
        };
        let used = record().with_use(at(2000), &request).unwrap();
        assert_eq!((record().uses_left(), used.uses_left()), (1, 0));
        assert_eq!(used.with_use(at(9000), &request).unwrap(), used, "also after its end");
        assert!(check(&used, 2001, b"b", unchanged).contains("permits 1 nodes, all have joined"));
        let revoked = TokenRecord { revoked: Some(at(2500)), ..used };
        assert!(check(&revoked, 3000, b"a", unchanged).contains("was revoked"));
    }

    #[test]
    fn scope_refuses_each_other_node_with_its_remedy() {
        let mut record = record();
        record.scope = TokenScope {
            roles: ["compute".parse().unwrap(), "gpu".parse().unwrap()].into(),
            names: Some("web-*".parse().unwrap()),
            networks: vec!["10.0.1.0/24".parse().unwrap()],
            bound_to: Some(Enrollment { machine: MACHINE, generation: 3 }),
            manual: false,
        };
        let check = |change| check(&record, 2000, b"a", change);
        let bound = check(|request| {
            request.enrollment = Some(Enrollment { machine: MACHINE, generation: 3 });
            request.address = "::ffff:10.0.1.5".parse().unwrap();
        });
        assert_eq!(bound, "ok");
        assert!(check(unchanged).contains("only for machine"));
        let older = check(|request| {
            request.enrollment = Some(Enrollment { machine: MACHINE, generation: 2 });
        });
        assert!(older.contains("installation 3 of the machine, this one is 2"), "{older}");
        let outside = check(|request| request.address = [10, 0, 2, 5].into());
        assert!(outside.contains("address 10.0.2.5, only 10.0.1.0/24"), "{outside}");
    }

    #[test]
    fn scope_limits_roles_and_names() {
        let scope = TokenScope {
            roles: ["compute".parse().unwrap()].into(),
            names: Some("db-*".parse().unwrap()),
            ..TokenScope::default()
        };
        let (data, compute): (Role, Role) = ("data".parse().unwrap(), "Compute".parse().unwrap());
        assert!(scope.permits_role(&compute) && !scope.permits_role(&data));
        let forbidden = [role::Role::Edge, role::Role::Core, role::Role::Data];
        assert_eq!(scope.forbidden_roles(), forbidden.into());
        assert_eq!(TokenScope::default().forbidden_roles(), BTreeSet::new());
        let name: Name = "web-1".parse().unwrap();
        let token = record().id;
        let request = |role| TokenUse {
            node: NodeId::of_key(b"a"),
            name: &name,
            address: [10, 0, 1, 5].into(),
            preferred_role: role,
            enrollment: None,
        };
        let refusal = scope.check(token, &request(Some(&data))).unwrap_err().to_string();
        assert!(refusal.ends_with("role `data`; ask for one of: compute"), "{refusal}");
        let refusal = scope.check(token, &request(Some(&compute))).unwrap_err().to_string();
        assert!(refusal.contains("name `web-1`, only `db-*`"), "{refusal}");
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("web-1", "web-1", true),
            ("web", "web-1", false),
            ("web-*", "web-1", true),
            ("WEB-*", "web-1", true),
            ("*", "a", true),
            ("a*a", "a", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*-1", "web-1", true),
        ] {
            let matches = pattern.parse::<NamePattern>().unwrap().matches(&name.parse().unwrap());
            assert_eq!(matches, expected, "{pattern} {name}");
        }
        for wrong in ["", "a b", "a/b", "é", &"a".repeat(MAX_NAME_PATTERN + 1)] {
            assert_eq!(wrong.parse::<NamePattern>(), Err(ParseNamePatternError), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn pattern_made_of_a_name_matches_it(name in "[a-z0-9]{1,20}", cut in 0_usize..20) {
            let cut = cut.min(name.len());
            let (start, end) = name.split_at(cut);
            let name: Name = name.parse().unwrap();
            for pattern in [format!("{start}*{end}"), format!("*{end}"), format!("{start}**")] {
                prop_assert!(pattern.parse::<NamePattern>().unwrap().matches(&name));
            }
        }

        #[test]
        fn records_survive_their_json(max_uses: u32, keys: Vec<Vec<u8>>, revoked: bool) {
            let mut record = record();
            record.max_uses = max_uses;
            record.used_by = keys.iter().map(|key| (NodeId::of_key(key), at(1200))).collect();
            record.revoked = revoked.then(|| at(1300));
            let json = serde_json::to_string(&record).unwrap();
            prop_assert_eq!(serde_json::from_str::<TokenRecord>(&json).unwrap(), record);
        }
    }
}
