//! Randomness of the system.

use aws_lc_rs::rand;

pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).expect("the system has randomness");
    bytes
}

/// 128 bits as hexadecimal digits.
pub(crate) fn random_text() -> String {
    format!("{:032x}", u128::from_be_bytes(random()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_texts_have_one_length_and_differ() {
        assert_eq!(random_text().len(), 32);
        assert_ne!(random_text(), random_text());
    }
}
