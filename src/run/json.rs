//! JSON as agents and verifiers write it.
//!
//! Owns what is forgiven. Refuses to know what it is about.

use serde::de::DeserializeOwned;

/// Reads `bytes`. Half of a surrogate pair, in which Python writes a byte of a name that is no UTF-8,
/// and which a text leaves that JavaScript cut within an emoji, becomes U+FFFD: `serde_json` refuses
/// the whole document for it, and those who wrote it do not.
///
/// # Errors
/// It is no JSON, or not what is asked for.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(bytes).or_else(|error| {
        let halves = bytes
            .windows(3)
            .any(|at| matches!(at, [b'\\', b'u', b'd' | b'D']));
        if !halves {
            return Err(error);
        }
        serde_json::from_slice(&mended(bytes)).map_err(|_| error)
    })
}

/// Without halves of surrogate pairs.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let mut mended = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, second @ ..] = rest {
        let taken = match (first, unit(rest)) {
            (_, Some(0xD800..=0xDBFF)) if is_low(rest.get(ESCAPE..)) => 2 * ESCAPE,
            (_, Some(0xD800..=0xDFFF)) => {
                mended.extend_from_slice(b"\\ufffd");
                rest = rest.get(ESCAPE..).unwrap_or_default();
                continue;
            }
            // Not half of an escaped backslash.
            (b'\\', _) if !second.is_empty() => 2,
            _ => 1,
        };
        let (part, after) = rest.split_at(taken.min(rest.len()));
        mended.extend_from_slice(part);
        rest = after;
    }
    mended
}

/// Bytes of `\uXXXX`.
const ESCAPE: usize = 6;

/// The UTF-16 unit that is escaped at the beginning of `bytes`.
fn unit(bytes: &[u8]) -> Option<u16> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..ESCAPE - 2)?;
    let digits = std::str::from_utf8(digits).ok()?;
    u16::from_str_radix(digits, 16).ok()
}

fn is_low(bytes: Option<&[u8]>) -> bool {
    bytes
        .and_then(unit)
        .is_some_and(|unit| (0xDC00..=0xDFFF).contains(&unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_surrogate_pairs_are_forgiven() {
        for (text, wanted) in [
            (r#""a\udcffb""#, Some("a\u{fffd}b")),
            (r#""\ud83d""#, Some("\u{fffd}")),
            (r#""\ud83d\ud83d\ude00\u00e9""#, Some("\u{fffd}\u{1f600}é")),
            (r#""\\\udcff\\udcff""#, Some("\\\u{fffd}\\udcff")),
            (r#""\udcff"#, None),
            (r#""\ud"#, None),
            (r#""\"#, None),
        ] {
            let read = read::<String>(text.as_bytes()).ok();
            assert_eq!(read.as_deref(), wanted, "{text}");
        }
    }
}
