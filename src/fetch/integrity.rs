//! Hashes that a page demands of files, in the notation of Subresource Integrity: `sha256-` and base64.

use base64ct::{Base64, Encoding};
use sha2::{Digest, Sha256};

use crate::error::{Code, Error, Result};

const PREFIX: &str = "sha256-";

/// The hash that a whole file must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Integrity {
    text: String,
    hash: [u8; 32],
}

impl Integrity {
    /// The hash that `text` names, such as `sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=`.
    pub fn parse(text: &str) -> Result<Self> {
        let mut hash = [0; 32];
        let decoded = text.strip_prefix(PREFIX).and_then(|base64| Base64::decode(base64, &mut hash).ok());
        match decoded.map(<[u8]>::len) {
            Some(32) => Ok(Self { text: text.to_owned(), hash }),
            _ => Err(Error::new(Code::InvalidArgument, "read the option integrity")
                .expected("sha256- and the base64 of 32 bytes")
                .got(format!("{text:?}"))),
        }
    }

    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The check of one file, whose blocks must come in order.
pub(super) struct Check {
    hasher: Sha256,
    /// The number of the block that is hashed next.
    pub(super) next: u64,
}

impl Check {
    pub(super) fn new() -> Self {
        Self { hasher: Sha256::new(), next: 0 }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.next += 1;
    }

    /// Compares the hash of all that came with the one demanded.
    pub(super) fn finish(self, file: &str, demanded: &Integrity) -> Result<()> {
        let hash = self.hasher.finalize();
        if hash[..] == demanded.hash {
            return Ok(());
        }
        Err(Error::new(Code::Checkpoint, format!("trust {file}"))
            .expected(format!("integrity {}", demanded.text))
            .got(format!("{PREFIX}{}", Base64::encode_string(&hash)))
            .remedy("The file was changed, or damaged on its way: load the model again, or correct the option integrity."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_ABC: &str = "sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=";

    #[test]
    fn hashes_are_compared() {
        let demanded = Integrity::parse(OF_ABC).unwrap();
        let check = |parts: &[&str]| {
            let mut check = Check::new();
            parts.iter().for_each(|part| check.update(part.as_bytes()));
            check.finish("model.safetensors", &demanded)
        };
        check(&["a", "", "bc"]).unwrap();
        let error = check(&["abd"]).unwrap_err().to_string();
        assert!(error.contains(OF_ABC) && error.contains("trust model.safetensors"), "{error}");
    }

    #[test]
    fn other_notations_are_refused() {
        for text in [
            "",
            "sha256-",
            "sha384-ungWv48Bz",
            "sha256-ungW",
            &OF_ABC[7..],
            "sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0",
        ] {
            assert_eq!(Integrity::parse(text).unwrap_err().code(), Code::InvalidArgument, "{text}");
        }
    }
}
