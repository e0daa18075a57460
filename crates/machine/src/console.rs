//! A serial console as text.

/// The text without what moves cursors and sets colours. Firmware writes as if to a terminal.
pub fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            // `ESC [ parameters letter`, or `ESC` and one character.
            '\u{1b}' => {
                if rest.next_if_eq(&'[').is_some() {
                    while rest.next_if(|c| !c.is_ascii_alphabetic() && !c.is_control()).is_some() {}
                }
                rest.next_if(|c| !c.is_control());
            }
            // A countdown erases its last number.
            '\u{8}' => {
                if plain.ends_with(|last| last != '\n') {
                    plain.pop();
                }
            }
            '\n' | '\t' => plain.push(c),
            c if c.is_control() => {}
            c => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn terminal_sequences_are_removed() {
        let said =
            b"\x1bc\x1b[?7l\x1b[2J\x1b[0mSeaBIOS\r\n\x1b[0;1miPXE\x1b[0m -- wait 2\x081\x08\r\n";
        assert_eq!(plain(said), "SeaBIOS\niPXE -- wait \n");
    }

    proptest! {
        #[test]
        fn no_bytes_leave_control_characters(bytes: Vec<u8>) {
            prop_assert!(plain(&bytes).chars().all(|c| c == '\n' || c == '\t' || !c.is_control()));
        }
    }
}
