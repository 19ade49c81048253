//! SHA-256 digests as types: printed one way, parsed strictly, computed while bytes pass by.
//!
//! Owns the text form `sha256:<64 lower-case hex>`. Refuses to know what is hashed.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// The SHA-256 of some content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A text that is not `sha256:` and 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a digest: it must be 'sha256:' and 64 lower-case hex digits")]
pub struct DigestError;

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The 64 lower-case hex digits.
    pub fn hex(&self) -> String {
        // Proof: hex digits are ASCII.
        str::from_utf8(&self.hex_digits())
            .unwrap_or_default()
            .to_owned()
    }

    /// The same as bytes, without an allocation.
    pub fn hex_digits(&self) -> [u8; 64] {
        // Without a table, so that the compiler can do many at a time.
        let digit = |half: u8| half + if half < 10 { b'0' } else { b'a' - 10 };
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            pair[0] = digit(byte >> 4);
            pair[1] = digit(byte & 15);
        }
        digits
    }

    /// Parses 64 lower-case hex digits.
    ///
    /// # Errors
    /// For any other text; upper case too, so that one content has one name.
    pub fn from_hex(text: &str) -> Result<Self, DigestError> {
        let nibble = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(DigestError),
        };
        let text = text.as_bytes();
        if text.len() != 64 {
            return Err(DigestError);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(bytes))
    }

    /// The raw 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}…", &self.hex()[..12])
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        Self::from_hex(text.strip_prefix("sha256:").ok_or(DigestError)?)
    }
}

/// The identity of a tree: see `tree` for what goes into it (bundle-format, "Digests").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TreeId(pub Digest);

impl fmt::Display for TreeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The identity of one action of a build: of all that an output is made from, and nothing else.
/// Two actions with one key give the same output (see `plan`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ActionKey(pub Digest);

impl fmt::Display for ActionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Computes a digest from pieces.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Nothing hashed yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all that was added.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

/// Reads `reader` to its end in pieces of 128 KiB; returns the digest and the number of bytes.
///
/// # Errors
/// What reading gave.
pub fn hash_reader(reader: &mut impl Read) -> io::Result<(Digest, u64)> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 128 * 1024];
    let mut size = 0;
    loop {
        let read = match reader.read(&mut buffer) {
            Ok(0) => return Ok((hasher.finish(), size)),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&buffer[..read]);
        size += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_one_text_form() {
        let digest = Digest::of(b"");
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
        assert_eq!(text.to_uppercase().parse::<Digest>(), Err(DigestError));
        assert_eq!(text.replace('e', "E").parse::<Digest>(), Err(DigestError));
        assert_eq!(text[..70].parse::<Digest>(), Err(DigestError));
        assert_eq!(
            hash_reader(&mut &b"abc"[..]).unwrap(),
            (Digest::of(b"abc"), 3)
        );
    }
}
