//! The commands with which an NVMe disk erases itself, and their detection.
//!
//! A disk is a namespace of a controller here. The controller may have more namespaces with foreign
//! data, so a command that affects all namespaces is offered only if there is no other one.

mod call;

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use hoist_provision::facts::EraseCommand;

use self::call::Admin;

/// Bytes of the response to an identify command.
const PAGE: usize = 4096;

/// Bytes of the sanitize status log that are read.
const LOG: usize = 32;

const EVERY_NAMESPACE: u32 = 0xffff_ffff;

/// Interval between two status requests.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Timeout of the format command, which returns when the disk has finished. Disks take seconds. The
/// kernel resets the disk after the timeout.
const FORMAT_WITHIN_MS: u32 = 2 * 60 * 60 * 1000;

/// The unit of progress in the sanitize log.
pub const PARTS: u32 = 1 << 16;

/// The reason why a disk did not erase itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    #[error("the disk no longer offers `{0}`; nothing was sent to the disk")]
    NotOffered(EraseCommand),
    #[error("cannot send the command to the disk")]
    Send(#[source] io::Error),
    #[error("the disk refused the command with status {0:#05x}")]
    Refused(u16),
    #[error("the disk failed to erase itself: its sanitize status is {0:#06x}")]
    Failed(u16),
    #[error("waiting for the erase command was cancelled; the disk continues to erase itself")]
    Stopped,
}

/// The responses that determine which commands a disk supports.
struct Answers {
    controller: Vec<u8>,
    /// Namespace numbers, if the controller can list all of them.
    namespaces: Option<Vec<u8>>,
    number: u32,
}

/// The supported commands, strongest first. Empty if the responses cannot be read.
fn offers(answers: &Answers) -> Vec<EraseCommand> {
    let Answers { controller, namespaces, number } = answers;
    let Some(can) = Capabilities::read(controller) else { return Vec::new() };
    let is_alone = can.most == 1
        || namespaces.as_ref().is_some_and(|list| numbers(list).eq(std::iter::once(*number)));
    let can_format = can.formats && (is_alone || !can.formats_all);
    let is_offered = |command: &EraseCommand| match command {
        EraseCommand::SanitizeCrypto => can.sanitize & 1 != 0 && is_alone,
        EraseCommand::SanitizeBlock => can.sanitize & 2 != 0 && is_alone,
        EraseCommand::SanitizeOverwrite => can.sanitize & 4 != 0 && is_alone,
        EraseCommand::FormatCrypto => can_format && can.formats_crypto,
        EraseCommand::FormatUserData => can_format,
    };
    EraseCommand::ALL.into_iter().filter(is_offered).collect()
}

/// Capabilities of a controller.
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of its own")]
struct Capabilities {
    sanitize: u32,
    formats: bool,
    /// Formatting one namespace formats all of them.
    formats_all: bool,
    formats_crypto: bool,
    manages_namespaces: bool,
    has_others: bool,
    /// Largest number of namespaces.
    most: u32,
}

impl Capabilities {
    fn read(controller: &[u8]) -> Option<Self> {
        let page: &[u8; PAGE] = controller.try_into().ok()?;
        let number =
            |at: usize| page[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
        let optional = number(256);
        let format = page[524];
        Some(Self {
            sanitize: number(328),
            formats: optional & 1 << 1 != 0,
            manages_namespaces: optional & 1 << 3 != 0,
            // One bit is for formatting, the other for secure erase with it.
            formats_all: format & 0b11 != 0,
            formats_crypto: format & 0b100 != 0,
            has_others: page[76] & 1 << 1 != 0,
            most: number(516),
        })
    }

    /// The identify list that contains all namespaces. Without it there may be namespaces that only
    /// other controllers of the disk can see.
    fn list(&self) -> Option<u8> {
        const ACTIVE: u8 = 0x02;
        const ALLOCATED: u8 = 0x10;
        if self.manages_namespaces {
            return Some(ALLOCATED);
        }
        (!self.has_others).then_some(ACTIVE)
    }
}

fn numbers(list: &[u8]) -> impl Iterator<Item = u32> {
    let all = list.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    all.take_while(|number| *number != 0)
}

/// Command word that formats a namespace with its current format. `erases` selects the kind of
/// secure erase.
fn format_word(namespace: &[u8], erases: u32) -> Option<u32> {
    let page: &[u8; PAGE] = namespace.try_into().ok()?;
    let now = u32::from(page[26]);
    let protection = u32::from(page[29]);
    let low = now & 0xf;
    let high = now >> 5 & 0b11;
    let metadata = now >> 4 & 1;
    let kind = protection & 0b111;
    let place = protection >> 3 & 1;
    Some(low | metadata << 4 | kind << 5 | place << 8 | erases << 9 | high << 12)
}

/// Progress of the last sanitize operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sanitize {
    /// Progress in units of 1 / [`PARTS`].
    GoesOn(u16),
    Done(u16),
    Failed(u16),
}

fn sanitize(log: &[u8; LOG]) -> Sanitize {
    let done = u16::from_le_bytes([log[0], log[1]]);
    let status = u16::from_le_bytes([log[2], log[3]]);
    match status & 0b111 {
        2 => Sanitize::GoesOn(done),
        // Status 4 also means that the disk has deallocated its blocks.
        1 | 4 => Sanitize::Done(status),
        _ => Sanitize::Failed(status),
    }
}

/// The commands that the disk at this path supports. A disk that cannot be asked supports none.
pub(super) fn supported_commands(device: &Path) -> Vec<EraseCommand> {
    let answers = File::open(device).map_err(CommandError::Send).and_then(|disk| ask(&disk));
    answers.map(|answers| offers(&answers)).unwrap_or_default()
}

fn ask(disk: &File) -> Result<Answers, CommandError> {
    let number = call::namespace(disk).map_err(CommandError::Send)?;
    let controller = identify(disk, 0x01, 0)?;
    let list = Capabilities::read(&controller).and_then(|can| can.list());
    // Old disks have no namespace lists.
    let namespaces = list.and_then(|list| identify(disk, list, 0).ok());
    Ok(Answers { controller, namespaces, number })
}

fn identify(disk: &File, what: u8, namespace: u32) -> Result<Vec<u8>, CommandError> {
    let mut page = vec![0; PAGE];
    let words = [u32::from(what), 0];
    send(disk, Admin { opcode: 0x06, namespace, words, within_ms: 0 }, &mut page)?;
    Ok(page)
}

fn send(disk: &File, command: Admin, data: &mut [u8]) -> Result<(), CommandError> {
    match call::admin(disk, command, data).map_err(CommandError::Send)? {
        0 => Ok(()),
        status => Err(CommandError::Refused(status)),
    }
}

/// Makes the disk erase itself and returns its final status. `goes_on` gets the progress in units
/// of 1 / [`PARTS`] and returns `false` to stop waiting.
pub(super) fn erase(
    disk: &File,
    command: EraseCommand,
    goes_on: &mut dyn FnMut(u16) -> bool,
) -> Result<String, CommandError> {
    let answers = ask(disk)?;
    // Another namespace may have been created since planning.
    if !offers(&answers).contains(&command) {
        return Err(CommandError::NotOffered(command));
    }
    match command {
        EraseCommand::SanitizeCrypto => sanitize_by(disk, 4, goes_on),
        EraseCommand::SanitizeBlock => sanitize_by(disk, 2, goes_on),
        // One pass, with zeros.
        EraseCommand::SanitizeOverwrite => sanitize_by(disk, 3 | 1 << 4, goes_on),
        EraseCommand::FormatCrypto => format_by(disk, answers.number, 2, command),
        EraseCommand::FormatUserData => format_by(disk, answers.number, 1, command),
    }
}

/// The command never allows an unrestricted exit after a failure, so that a failed disk returns no
/// data.
fn sanitize_by(
    disk: &File,
    word: u32,
    goes_on: &mut dyn FnMut(u16) -> bool,
) -> Result<String, CommandError> {
    let command = Admin { opcode: 0x84, namespace: 0, words: [word, 0], within_ms: 0 };
    send(disk, command, &mut [])?;
    loop {
        let mut log = [0; LOG];
        let dwords = u32::try_from(LOG / 4 - 1).expect("it is small");
        let words = [0x81 | dwords << 16, 0];
        let command = Admin { opcode: 0x02, namespace: EVERY_NAMESPACE, words, within_ms: 0 };
        send(disk, command, &mut log)?;
        match sanitize(&log) {
            Sanitize::GoesOn(done) if goes_on(done) => std::thread::sleep(ASK_EVERY),
            Sanitize::GoesOn(_) => return Err(CommandError::Stopped),
            Sanitize::Done(status) => return Ok(format!("sanitize status {status:#06x}")),
            Sanitize::Failed(status) => return Err(CommandError::Failed(status)),
        }
    }
}

fn format_by(
    disk: &File,
    namespace: u32,
    erases: u32,
    command: EraseCommand,
) -> Result<String, CommandError> {
    let word = format_word(&identify(disk, 0x00, namespace)?, erases);
    let word = word.ok_or(CommandError::NotOffered(command))?;
    let within_ms = FORMAT_WITHIN_MS;
    send(disk, Admin { opcode: 0x80, namespace, words: [word, 0], within_ms }, &mut [])?;
    Ok("format status 0x000".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use EraseCommand::{
        FormatCrypto, FormatUserData, SanitizeBlock, SanitizeCrypto, SanitizeOverwrite,
    };

    /// A controller that formats and manages namespaces, and supports all sanitize commands.
    fn controller(format: u8, sanitize: u8) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        (page[256], page[328], page[524]) = (0b1010, sanitize, format);
        page[516..520].copy_from_slice(&256_u32.to_le_bytes());
        page
    }

    fn list(of: &[u32]) -> Vec<u8> {
        let mut page: Vec<u8> = of.iter().flat_map(|number| number.to_le_bytes()).collect();
        page.resize(PAGE, 0);
        page
    }

    fn of(controller: Vec<u8>, namespaces: impl Into<Option<Vec<u8>>>) -> Vec<EraseCommand> {
        offers(&Answers { controller, namespaces: namespaces.into(), number: 1 })
    }

    #[test]
    fn erase_methods_are_offered_strongest_first() {
        assert_eq!(of(controller(0b100, 0b111), list(&[1])), EraseCommand::ALL);
        assert_eq!(of(controller(0, 0b010), list(&[1])), [SanitizeBlock, FormatUserData]);
        let none = vec![0; PAGE];
        assert_eq!(of(none, list(&[1])), []);
    }

    #[test]
    fn erase_methods_beyond_the_namespace_are_not_offered() {
        let both = list(&[1, 2]);
        assert_eq!(of(controller(0b100, 0b111), both.clone()), [FormatCrypto, FormatUserData]);
        for all in [0b101, 0b110, 0b111] {
            assert_eq!(of(controller(all, 0b111), both.clone()), [], "{all:b}");
            assert_eq!(of(controller(all, 0b111), list(&[1])).len(), 5, "{all:b}");
        }
        assert_eq!(of(controller(0b110, 0b111), list(&[2])), [], "the list is of somebody else");
        assert_eq!(of(controller(0b110, 0b111), None), [], "nobody knows who else is there");
        let mut one = controller(0b010, 0b001);
        one[516..520].copy_from_slice(&1_u32.to_le_bytes());
        assert_eq!(of(one, None), [SanitizeCrypto, FormatUserData], "there cannot be another");
    }

    #[test]
    fn namespace_list_includes_hidden_namespaces() {
        let mut page = controller(0, 0);
        let list = |page: &[u8]| Capabilities::read(page).expect("whole").list();
        assert_eq!(list(&page), Some(0x10));
        page[256] = 0b0010;
        assert_eq!(list(&page), Some(0x02));
        page[76] = 0b10;
        assert_eq!(list(&page), None, "another controller may have more");
    }

    #[test]
    fn format_command_keeps_the_current_format() {
        let mut page = vec![0; PAGE];
        assert_eq!(format_word(&page, 1), Some(1 << 9));
        // Format 0x25 with metadata behind each block, and protection of type 3 in its first bytes.
        (page[26], page[29]) = (0b0101_0101, 0b1011);
        assert_eq!(format_word(&page, 2), Some(0b10_0101_0111_0101));
        assert_eq!(format_word(&page[..100], 2), None);
    }

    #[test]
    fn sanitize_succeeds_only_with_a_success_status() {
        let log = |done: u16, status: u16| {
            let mut log = [0; LOG];
            log[..2].copy_from_slice(&done.to_le_bytes());
            log[2..4].copy_from_slice(&status.to_le_bytes());
            sanitize(&log)
        };
        assert_eq!(log(0x8000, 0x002), Sanitize::GoesOn(0x8000));
        assert_eq!(log(0xffff, 0x101), Sanitize::Done(0x101));
        assert_eq!(log(0xffff, 0x104), Sanitize::Done(0x104));
        for status in [0x000, 0x003, 0x005, 0x006, 0x007] {
            assert_eq!(log(0xffff, status), Sanitize::Failed(status));
        }
    }

    #[test]
    fn other_devices_offer_and_accept_no_nvme_erase() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(supported_commands(file.path()), []);
        let mut never = |_| panic!("it has not begun");
        let refused = erase(file.as_file(), SanitizeOverwrite, &mut never);
        assert!(matches!(refused, Err(CommandError::Send(_))), "{refused:?}");
    }

    proptest! {
        #[test]
        fn no_answer_makes_other_namespaces_erasable(
            controller in prop_oneof![
                prop::collection::vec(any::<u8>(), PAGE),
                prop::collection::vec(any::<u8>(), 0..2 * PAGE),
            ],
            namespaces in prop::option::of(prop::collection::vec(any::<u8>(), 0..PAGE)),
            number: u32,
        ) {
            let is_alone = namespaces.as_ref()
                .is_some_and(|list| numbers(list).collect::<Vec<_>>() == [number]);
            let most = Capabilities::read(&controller).map(|can| can.most);
            let all = controller.get(524).is_some_and(|format| format & 0b11 != 0);
            let found = offers(&Answers { controller, namespaces, number });
            prop_assert!(found.is_sorted());
            if !is_alone && most != Some(1) {
                prop_assert!(found.iter().all(|command| *command >= FormatCrypto));
                prop_assert!(!all || found.is_empty());
            }
        }
    }
}
