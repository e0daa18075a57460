//! Members as operators name them: by the name of their node, by id, or by the start of an id.

use hoist_api::client::Client;
use hoist_api::cluster::{ClusterMember, MemberState};

use crate::failure::Failure;

/// Digits of an id in tables and messages.
const SHORT_DIGITS: usize = 12;
/// Fewer digits are more likely a typing error than a choice.
const MIN_DIGITS: usize = 4;

/// The one member that `text` means.
pub(super) async fn find(client: &Client, text: &str) -> Result<ClusterMember, Failure> {
    let members = client.cluster_members().await?.items;
    choose(&members, text).cloned()
}

/// A member that is present has its name alone; records of former members may have the same one.
fn choose<'a>(members: &'a [ClusterMember], text: &str) -> Result<&'a ClusterMember, Failure> {
    let text = text.to_ascii_lowercase();
    let named = |member: &&ClusterMember| member.node.as_str() == text;
    let is_start =
        |member: &&ClusterMember| text.len() >= MIN_DIGITS && member.id.starts_with(&text);
    let present: Vec<_> =
        members.iter().filter(named).filter(|member| is_present(member.state)).collect();
    let found = [
        present,
        members.iter().filter(named).collect(),
        members.iter().filter(is_start).collect(),
    ];
    let found = found.into_iter().find(|found| !found.is_empty()).unwrap_or_default();
    match found.as_slice() {
        [] => Err(Failure::missing(format!("member `{text}`"))
            .with_hint("`hoist cluster nodes --all` shows their names and ids")),
        [member] => Ok(member),
        several => {
            let ids: Vec<_> = several.iter().map(|member| short(&member.id)).collect();
            let message = format!("`{text}` means several members: {}", ids.join(", "));
            Err(Failure::ambiguous(message).with_hint("give the start of an id"))
        }
    }
}

/// Whether the controller still lets a member connect.
pub(super) fn is_present(state: MemberState) -> bool {
    match state {
        MemberState::Accepted
        | MemberState::Stalled
        | MemberState::Member
        | MemberState::Draining => true,
        MemberState::Left | MemberState::Expelled | MemberState::Replaced => false,
    }
}

pub(super) fn state_word(state: MemberState) -> &'static str {
    match state {
        MemberState::Accepted => "accepted",
        MemberState::Stalled => "stalled",
        MemberState::Member => "member",
        MemberState::Draining => "draining",
        MemberState::Left => "left",
        MemberState::Expelled => "expelled",
        MemberState::Replaced => "replaced",
    }
}

pub(super) fn short(id: &str) -> &str {
    id.get(..SHORT_DIGITS).unwrap_or(id)
}

/// `n1 (3f9c2a7700b1)`.
pub(super) fn label(member: &ClusterMember) -> String {
    format!("{} ({})", member.node, short(&member.id))
}

#[cfg(test)]
pub(super) mod tests {
    use hoist_model::Exit;
    use serde_json::json;

    use super::*;

    pub(in super::super) fn member(node: &str, id: &str, state: &str) -> ClusterMember {
        let value = json!({
            "id": id, "node": node, "state": state, "join_order": 1, "resources": {},
            "accepted": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn member_is_found_by_name_and_by_start_of_id() {
        let members = [
            member("n1", "aaaa00000001ffff", "replaced"),
            member("n1", "aaaa00000002ffff", "member"),
            member("n2", "bbbb00000001ffff", "left"),
            member("n2", "bbbb00000002ffff", "expelled"),
        ];
        assert_eq!(choose(&members, "N1").unwrap().id, "aaaa00000002ffff");
        assert_eq!(choose(&members, "aaaa00000001").unwrap().id, "aaaa00000001ffff");
        assert_eq!(choose(&members, "n2").unwrap_err().exit(), Exit::Ambiguous);
        assert_eq!(choose(&members, "aaaa").unwrap_err().exit(), Exit::Ambiguous);
        for text in ["n3", "aaa", "", "cccc"] {
            assert_eq!(choose(&members, text).unwrap_err().exit(), Exit::Failed, "{text}");
        }
    }
}
