//! What happens to text before it is cut: Unicode forms, replacements, prefixes.

use std::borrow::Cow;

use serde::Deserialize;

use super::pattern::Pattern;
use crate::error::Result;

/// The `normalizer` of `tokenizer.json`.
#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum Normalizer {
    #[serde(rename = "NFC")]
    Nfc,
    #[serde(rename = "NFD")]
    Nfd,
    #[serde(rename = "NFKC")]
    Nfkc,
    #[serde(rename = "NFKD")]
    Nfkd,
    Lowercase,
    Strip {
        strip_left: bool,
        strip_right: bool,
    },
    Prepend {
        prepend: String,
    },
    Replace {
        pattern: Pattern,
        content: String,
    },
    Sequence {
        normalizers: Vec<Normalizer>,
    },
}

impl Normalizer {
    /// The normalized text. No chain of honest normalizers makes a text more than 18 times longer (NFKC
    /// does that to U+FDFA), so a chain that does is an error.
    pub(super) fn normalize<'a>(&self, text: &'a str) -> Result<Cow<'a, str>> {
        self.apply(Cow::Borrowed(text), text.len().saturating_mul(18).saturating_add(1 << 16))
    }

    /// Whether white space at the beginning is cut off.
    pub(super) fn strips_left(&self) -> bool {
        match self {
            Normalizer::Strip { strip_left, .. } => *strip_left,
            Normalizer::Sequence { normalizers } => normalizers.iter().any(Normalizer::strips_left),
            _ => false,
        }
    }

    fn apply<'a>(&self, text: Cow<'a, str>, limit: usize) -> Result<Cow<'a, str>> {
        Ok(match self {
            Normalizer::Nfc => normal_form(text, Form::Nfc),
            Normalizer::Nfd => normal_form(text, Form::Nfd),
            Normalizer::Nfkc => normal_form(text, Form::Nfkc),
            Normalizer::Nfkd => normal_form(text, Form::Nfkd),
            // Character by character: the reference knows no final sigma.
            Normalizer::Lowercase => Cow::Owned(text.chars().flat_map(char::to_lowercase).collect()),
            Normalizer::Strip { strip_left, strip_right } => {
                let mut kept: &str = &text;
                if *strip_left {
                    kept = kept.trim_start();
                }
                if *strip_right {
                    kept = kept.trim_end();
                }
                Cow::Owned(kept.to_owned())
            }
            Normalizer::Prepend { .. } if text.is_empty() => text,
            Normalizer::Prepend { prepend } => Cow::Owned(format!("{prepend}{text}")),
            Normalizer::Replace { pattern, content } => match pattern.replace(&text, content, limit)? {
                Cow::Owned(replaced) => Cow::Owned(replaced),
                Cow::Borrowed(_) => text,
            },
            Normalizer::Sequence { normalizers } => {
                normalizers.iter().try_fold(text, |text, normalizer| normalizer.apply(text, limit))?
            }
        })
    }
}

/// Unicode's normal forms.
#[derive(Clone, Copy)]
enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

fn normal_form(text: Cow<'_, str>, form: Form) -> Cow<'_, str> {
    if text.is_ascii() { text } else { Cow::Owned(form.of(&text)) }
}

impl Form {
    #[cfg(not(target_arch = "wasm32"))]
    fn of(self, text: &str) -> String {
        use unicode_normalization::UnicodeNormalization;

        match self {
            Form::Nfc => text.nfc().collect(),
            Form::Nfd => text.nfd().collect(),
            Form::Nfkc => text.nfkc().collect(),
            Form::Nfkd => text.nfkd().collect(),
        }
    }

    /// By the browser, which has the tables: they would make the package larger.
    #[cfg(target_arch = "wasm32")]
    fn of(self, text: &str) -> String {
        let name = match self {
            Form::Nfc => "NFC",
            Form::Nfd => "NFD",
            Form::Nfkc => "NFKC",
            Form::Nfkd => "NFKD",
        };
        js_sys::JsString::from(text).normalize(name).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalize(json: &str, text: &str) -> Result<String> {
        let normalizer: Normalizer = serde_json::from_str(json).unwrap();
        normalizer.normalize(text).map(Cow::into_owned)
    }

    #[test]
    fn a_sequence_applies_in_order() {
        let json = r#"{"type":"Sequence","normalizers":[
            {"type":"Strip","strip_left":true,"strip_right":false},
            {"type":"NFKC"},{"type":"Lowercase"},{"type":"Prepend","prepend":"▁"},
            {"type":"Replace","pattern":{"String":" "},"content":"▁"}]}"#;
        assert_eq!(normalize(json, "  Ａ B ﬁ ").unwrap(), "▁a▁b▁fi▁");
        assert_eq!(normalize(json, "  ").unwrap(), "");
    }

    #[test]
    fn a_chain_that_explodes_is_an_error() {
        let double = r#"{"type":"Replace","pattern":{"String":"a"},"content":"aa"}"#;
        let json = format!(r#"{{"type":"Sequence","normalizers":[{}]}}"#, vec![double; 60].join(","));
        assert!(normalize(&json, "a").is_err());
    }
}
