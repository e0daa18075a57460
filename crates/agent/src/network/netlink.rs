//! The few messages that give an interface an address, as `linux/rtnetlink.h` has them.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto};

const ERROR: u16 = 2;
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;

/// Request flags: acknowledged; acknowledged, creating or replacing an entry.
const CHANGE: u16 = 0x1 | 0x4;
const MAKE: u16 = CHANGE | 0x400 | 0x100;

const INET: u8 = 2;
const HEADER: usize = 16;

/// No answer to the requests of this module is longer.
const MAX_ANSWER: usize = 8192;

pub(super) struct Route {
    socket: OwnedFd,
    sequence: u32,
}

impl Route {
    pub(super) fn open() -> io::Result<Self> {
        let family = AddressFamily::NETLINK;
        let kind = SocketType::RAW;
        // The first of its protocols, and so the one without a number, is that of routes.
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, sequence: 0 })
    }

    pub(super) fn up(&mut self, index: u32) -> io::Result<()> {
        const UP: u32 = 1;
        let mut body = vec![0; 4];
        body.extend(index.to_ne_bytes());
        body.extend(UP.to_ne_bytes());
        body.extend(UP.to_ne_bytes());
        self.ask(NEW_LINK, CHANGE, &body)
    }

    pub(super) fn address(&mut self, index: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let flags = 0;
        let scope = 0;
        let mut body = vec![INET, prefix, flags, scope];
        body.extend(index.to_ne_bytes());
        // The local address and the peer address are the same.
        for attribute in [2, 1] {
            put(&mut body, attribute, &address.octets());
        }
        self.ask(NEW_ADDRESS, MAKE, &body)
    }

    pub(super) fn default_route(&mut self, index: u32, gateway: Ipv4Addr) -> io::Result<()> {
        const MAIN: u8 = 254;
        const BOOT: u8 = 3;
        const UNICAST: u8 = 1;
        let to_bits = 0;
        let from_bits = 0;
        let service = 0;
        let scope = 0;
        let mut body = vec![INET, to_bits, from_bits, service, MAIN, BOOT, scope, UNICAST];
        body.extend(0_u32.to_ne_bytes());
        put(&mut body, 5, &gateway.octets());
        put(&mut body, 4, &index.to_ne_bytes());
        self.ask(NEW_ROUTE, MAKE, &body)
    }

    fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let message = message(kind, flags, self.sequence, body);
        sendto(&self.socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut answer = vec![0; MAX_ANSWER];
        loop {
            let (_, length) = recv(&self.socket, &mut answer[..], RecvFlags::empty())?;
            if let Some(ended) = ended(&answer[..length.min(MAX_ANSWER)], self.sequence) {
                return ended;
            }
        }
    }
}

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).expect("messages are short");
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    message.extend(body);
    message
}

/// An attribute, which ends on a multiple of four bytes.
fn put(body: &mut Vec<u8>, attribute: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).expect("values are short");
    body.extend(length.to_ne_bytes());
    body.extend(attribute.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The result of the request with this number, if the answer contains it.
fn ended(answer: &[u8], sequence: u32) -> Option<io::Result<()>> {
    let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if kind != ERROR || number(8)? != sequence {
        return None;
    }
    let code = number(HEADER)?.cast_signed();
    Some(if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netlink_answers_and_errors_are_read() {
        let mut kernel = Route::open().unwrap();
        let error = kernel.up(0x7fff_fff0).unwrap_err();
        let is_told = [io::ErrorKind::PermissionDenied, io::ErrorKind::InvalidInput];
        let no_device = error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error());
        assert!(no_device || is_told.contains(&error.kind()), "{error}");
    }

    #[test]
    fn foreign_and_truncated_netlink_answers_are_ignored() {
        let mut answer = message(ERROR, 0, 7, &(-19_i32).to_ne_bytes());
        assert!(ended(&answer, 8).is_none());
        assert_eq!(ended(&answer, 7).unwrap().unwrap_err().raw_os_error(), Some(19));
        for length in 0..answer.len() {
            assert!(ended(&answer[..length], 7).is_none());
        }
        answer[HEADER..].fill(0);
        assert!(ended(&answer, 7).unwrap().is_ok());
    }
}
