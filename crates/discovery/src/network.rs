//! The interfaces, groups and port that both sides must agree on.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::interface::Selection;

/// Within the organisation-local scope of RFC 2365, so that no router of the internet forwards it.
const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 192, 46, 47);

/// Of link-local scope; the name of this program in ASCII.
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0x68, 0x6f69, 0x7374);

/// Below the ports that kernels give to clients.
const PORT: u16 = 14647;

/// Where queries are sent to and listened for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    pub interfaces: Selection,
    pub group_v4: Ipv4Addr,
    pub group_v6: Ipv6Addr,
    pub port: u16,
}

impl Default for Network {
    fn default() -> Self {
        let interfaces = Selection::Suitable;
        Self { interfaces, group_v4: GROUP_V4, group_v6: GROUP_V6, port: PORT }
    }
}
