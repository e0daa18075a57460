//! Datagram sockets that reach only the local network, and the wait for several of them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use crate::interface::Interface;
use crate::network::Network;

/// Routers drop such packets.
const HOPS: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// A socket that asks over IPv4 from an address of an interface.
///
/// It is not bound to the interface: the answer of a responder on this machine comes over loopback.
pub(crate) fn asking_v4(address: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = new(Family::V4)?;
    socket.set_multicast_if_v4(&address)?;
    socket.set_broadcast(true)?;
    bind(socket, address.into(), 0)
}

/// A socket that asks over IPv6 through an interface.
pub(crate) fn asking_v6(interface: &Interface) -> io::Result<UdpSocket> {
    let socket = new(Family::V6)?;
    socket.set_multicast_if_v6(interface.index)?;
    bind(socket, Ipv6Addr::UNSPECIFIED.into(), 0)
}

/// A socket that hears what arrives at an interface, and the group.
///
/// It is bound to the interface, so that the sender of a query is known to be on its network.
pub(crate) fn listening(
    network: &Network,
    interface: &Interface,
    family: Family,
) -> io::Result<UdpSocket> {
    let socket = new(family)?;
    // Several controllers on one machine hear the same queries.
    socket.set_reuse_address(true)?;
    socket.bind_device(Some(interface.name.as_bytes()))?;
    let any: IpAddr = match family {
        Family::V4 => {
            let index = InterfaceIndexOrAddress::Index(interface.index);
            socket.join_multicast_v4_n(&network.group_v4, &index)?;
            Ipv4Addr::UNSPECIFIED.into()
        }
        Family::V6 => {
            socket.join_multicast_v6(&network.group_v6, interface.index)?;
            Ipv6Addr::UNSPECIFIED.into()
        }
    };
    bind(socket, any, network.port)
}

fn new(family: Family) -> io::Result<Socket> {
    let domain = match family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    match family {
        Family::V4 => {
            socket.set_ttl_v4(HOPS)?;
            socket.set_multicast_ttl_v4(HOPS)?;
            // Groups that other sockets of this machine joined are not for this one.
            socket.set_multicast_all_v4(false)?;
        }
        Family::V6 => {
            socket.set_only_v6(true)?;
            socket.set_unicast_hops_v6(HOPS)?;
            socket.set_multicast_hops_v6(HOPS)?;
            socket.set_multicast_all_v6(false)?;
        }
    }
    Ok(socket)
}

fn bind(socket: Socket, address: IpAddr, port: u16) -> io::Result<UdpSocket> {
    socket.bind(&SocketAddr::new(address, port).into())?;
    Ok(socket.into())
}

/// Waits until one of the descriptors can be read or the time is over. Returns which can be read.
pub(crate) fn wait(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<bool>> {
    let poll_fds = descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let mut polled: Vec<PollFd<'_>> = poll_fds.collect();
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match rustix::event::poll(&mut polled, Some(&timeout)) {
        // The caller waits again for the time that is left.
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    // A socket with an error can be read too: the read returns the error and clears it.
    Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect())
}

/// The descriptors of sockets, for [`wait`].
pub(crate) fn descriptors<'a>(sockets: impl Iterator<Item = &'a UdpSocket>) -> Vec<BorrowedFd<'a>> {
    sockets.map(AsFd::as_fd).collect()
}
