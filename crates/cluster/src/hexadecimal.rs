//! Bytes as hexadecimal digits, for ids, pins, keys and proofs.

use std::fmt;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Writes bytes as lower-case digits.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Appends bytes as lower-case digits. Secrets are written this way: no copy of them stays in the
/// buffers of a formatter.
pub(crate) fn append(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(DIGITS[usize::from(digit)]));
        }
    }
}

/// Reads exactly `N` bytes. Digits may be of either case.
pub(crate) fn read<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

fn digit(character: u8) -> Option<u8> {
    let value = char::from(character).to_digit(16)?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_of_either_case_are_read() {
        assert_eq!(read("00fFA0"), Some([0, 255, 160]));
        for wrong in ["", "00ff", "00ffa", "00ffa0a0", "00ffg0", "+0ffa0", "é0ff"] {
            assert_eq!(read::<3>(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn bytes_are_written_in_lower_case() {
        let mut text = String::new();
        append(&mut text, &[0, 255, 160]);
        assert_eq!(text, "00ffa0");
    }
}
