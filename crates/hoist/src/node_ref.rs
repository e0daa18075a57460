//! How people name one node: by its name, or by anything else that only one node has.

use hoist_api::client::{Client, NodeKey};
use hoist_api::inventory::Node;
use hoist_model::{Mac, Name, Nid, NodeId, Xname};

use crate::failure::Failure;

/// The possible meanings of a word, most likely first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Candidate {
    Id(NodeId),
    Key(NodeKey),
}

/// The node that `word` names: a name, id, xname, MAC, nid, address or system UUID, or one of
/// these said outright, such as `nid:48`.
pub(crate) async fn find(client: &Client, word: &str) -> Result<Node, Failure> {
    let (value, candidates) = candidates(word)?;
    for candidate in candidates {
        let found = match candidate {
            Candidate::Id(id) => client.node(id).await?,
            Candidate::Key(key) => client.node_by(key, value).await?,
        };
        if let Some(node) = found {
            return Ok(node);
        }
    }
    Err(Failure::missing(format!("node `{word}`")).with_hint("`hoist node list` shows all of them"))
}

/// The nodes that these words name, each once, in the order of the words.
pub(crate) async fn find_all(client: &Client, words: &[String]) -> Result<Vec<Node>, Failure> {
    let mut nodes: Vec<Node> = Vec::new();
    for word in words {
        let node = find(client, word).await?;
        if !nodes.iter().any(|known| known.id == node.id) {
            nodes.push(node);
        }
    }
    Ok(nodes)
}

/// The name of the node at the server.
pub(crate) fn name_of(node: &Node) -> Result<&Name, Failure> {
    node.name.as_ref().ok_or_else(|| Failure::Broken("a node has no name".into()))
}

pub(crate) fn id_of(node: &Node) -> Result<NodeId, Failure> {
    node.id.ok_or_else(|| Failure::Broken("a node has no id".into()))
}

fn candidates(word: &str) -> Result<(&str, Vec<Candidate>), Failure> {
    const KEYS: [NodeKey; 6] =
        [NodeKey::Name, NodeKey::Xname, NodeKey::Mac, NodeKey::Nid, NodeKey::Ip, NodeKey::Uuid];
    if let Some((prefix, value)) = word.split_once(':')
        && let Some(key) = KEYS.into_iter().find(|key| key.as_str() == prefix)
    {
        return Ok((value, vec![Candidate::Key(key)]));
    }
    let mut found: Vec<_> = word.parse().ok().map(Candidate::Id).into_iter().collect();
    let fits = |key: &NodeKey| match key {
        NodeKey::Name => word.parse::<Name>().is_ok(),
        NodeKey::Xname => word.parse::<Xname>().is_ok(),
        NodeKey::Mac => word.parse::<Mac>().is_ok(),
        NodeKey::Nid => word.parse::<Nid>().is_ok(),
        NodeKey::Ip => word.parse::<std::net::IpAddr>().is_ok(),
        NodeKey::Uuid => word.len() == 36 && word.bytes().filter(|b| *b == b'-').count() == 4,
    };
    found.extend(KEYS.into_iter().filter(fits).map(Candidate::Key));
    if found.is_empty() {
        let message = format!("`{word}` is not a node");
        let hint = "name one by its name, id, xname, MAC, nid or address; `hoist node list SELECTOR` finds several";
        return Err(Failure::usage(message).with_hint(hint));
    }
    Ok((word, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_tried_as_everything_it_may_be_and_as_a_name_first() {
        let keys = |word| {
            let (value, found) = candidates(word).unwrap();
            let name = |candidate: &Candidate| match candidate {
                Candidate::Id(_) => "id",
                Candidate::Key(key) => key.as_str(),
            };
            (value.to_owned(), found.iter().map(name).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(keys("n1").1, "name");
        assert_eq!(keys("48").1, "name nid");
        assert_eq!(keys("x1000c0s0b0n0").1, "name xname");
        assert_eq!(keys("52:54:00:00:00:01").1, "mac");
        assert_eq!(keys("fd00::1").1, "ip");
        assert_eq!(keys("10.0.0.7").1, "ip");
        assert_eq!(keys("01JD0000000000000000000000").1, "id name");
        assert_eq!(keys("nid:48"), ("48".into(), "nid".into()));
        assert_eq!(keys("ip:fd00::1"), ("fd00::1".into(), "ip".into()));
        assert!(candidates("not a node").is_err());
    }
}
