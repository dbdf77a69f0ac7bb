//! GPT-2's alphabet: every byte as one printable character, so that a BPE over characters works on bytes.

/// Bytes that stand for themselves; the others are numbered from U+0100 on.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const FIRST_SHIFTED: usize = 0x100;
const ALPHABET_END: usize = FIRST_SHIFTED + 68;

const CODE_OF_BYTE: [u16; 256] = {
    let mut codes = [0; 256];
    let mut next = FIRST_SHIFTED as u16;
    let mut byte = 0;
    while byte < 256 {
        if is_printable(byte as u8) {
            codes[byte] = byte as u16;
        } else {
            codes[byte] = next;
            next += 1;
        }
        byte += 1;
    }
    codes
};

/// 256 marks a code that stands for no byte.
const BYTE_OF_CODE: [u16; ALPHABET_END] = {
    let mut bytes = [256; ALPHABET_END];
    let mut byte = 0;
    while byte < 256 {
        bytes[CODE_OF_BYTE[byte] as usize] = byte as u16;
        byte += 1;
    }
    bytes
};

/// The bytes of `text`, each as its character of the alphabet.
pub(super) fn to_alphabet(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    out.extend(text.bytes().filter_map(|byte| char::from_u32(u32::from(CODE_OF_BYTE[usize::from(byte)]))));
    out
}

fn byte_of(c: char) -> Option<u8> {
    BYTE_OF_CODE.get(c as usize).and_then(|&byte| u8::try_from(byte).ok())
}

/// Appends the bytes that `token` spells; a token that leaves the alphabet stands for its own UTF-8.
pub(super) fn extend_bytes(bytes: &mut Vec<u8>, token: &str) {
    let before = bytes.len();
    for c in token.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => {
                bytes.truncate(before);
                bytes.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character_and_comes_back() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255_u8 {
            let c = char::from_u32(u32::from(CODE_OF_BYTE[usize::from(byte)])).unwrap();
            assert!(seen.insert(c));
            assert_eq!(byte_of(c), Some(byte));
        }
        assert_eq!(to_alphabet(" \n"), "ĠĊ");
    }

    #[test]
    fn a_token_outside_the_alphabet_stands_for_itself() {
        let mut bytes = b"x".to_vec();
        extend_bytes(&mut bytes, "Ġ你");
        assert_eq!(bytes, "xĠ你".as_bytes());
    }
}
