//! What a server's answer to a ranged request means. Apart from the fetching, so that it is tested natively.

use std::ops::Range;

use crate::error::{Code, Error, Result};

/// The parts of a response's head that matter here, header fields as the server sent them. A server of
/// another origin must expose `Content-Range` and `ETag` to the page.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) content_range: Option<String>,
    pub(super) content_length: Option<String>,
    pub(super) content_encoding: Option<String>,
    pub(super) etag: Option<String>,
    pub(super) last_modified: Option<String>,
}

/// What the body of a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// There is no such file.
    Missing,
    /// Exactly the range asked for, of a file of `size` bytes.
    Part { size: u64 },
    /// The whole file of `size` bytes: the server ignores ranges.
    Whole { size: u64 },
    /// Nothing, since the file is empty.
    Empty,
}

impl Head {
    /// What the answer to a request of `range` of `url` holds, or the error that it cannot be used.
    pub(super) fn body(&self, url: &str, range: &Range<u64>) -> Result<Body> {
        match self.status {
            404 | 410 => Ok(Body::Missing),
            206 => self.part(url, range),
            200 => self.whole(url, range),
            416 if self.content_range.as_deref() == Some("bytes */0") => Ok(Body::Empty),
            401 | 403 => Err(refused(url, range)
                .expected("status 206 or 200")
                .got(self.status.to_string())
                .remedy("Check that the file is public, or serve a copy of it yourself.")),
            status => Err(refused(url, range)
                .expected("status 206 or 200")
                .got(status.to_string())
                .remedy("Try again later, or check the URL.")),
        }
    }

    /// Tells one version of the file from another: the ETag, else date and size.
    pub(super) fn validator(&self, size: u64) -> Option<String> {
        let dated = || self.last_modified.as_ref().map(|date| format!("{size} {date}"));
        self.etag.clone().or_else(dated)
    }

    fn part(&self, url: &str, range: &Range<u64>) -> Result<Body> {
        let (start, end, size) =
            self.content_range.as_deref().and_then(parse_content_range).ok_or_else(|| {
                refused(url, range)
                    .expected("a Content-Range that names the file's size")
                    .got(format!("{:?}", self.content_range))
                    .remedy("Let the server send Access-Control-Expose-Headers: Content-Range, ETag.")
            })?;
        let length = range.end - range.start;
        let right_length = self.length().is_none_or(|sent| sent == length);
        if (start, end) == (range.start, range.end) && end <= size && right_length {
            return Ok(Body::Part { size });
        }
        Err(refused(url, range)
            .expected(format!("Content-Range: bytes {}-{}/size", range.start, range.end.saturating_sub(1)))
            .got(format!("{:?} with Content-Length {:?}", self.content_range, self.content_length))
            .remedy("Check the server or the proxy in front of it."))
    }

    fn whole(&self, url: &str, range: &Range<u64>) -> Result<Body> {
        let encoding = self.content_encoding.as_deref().unwrap_or("identity");
        match self.length() {
            Some(size) if encoding == "identity" => Ok(Body::Whole { size }),
            _ => Err(refused(url, range)
                .expected("status 206, or 200 with the file's size as Content-Length")
                .got(format!(
                    "200 with Content-Length {:?} and Content-Encoding {encoding:?}",
                    self.content_length
                ))
                .remedy("Let the server answer Range requests, and leave model files uncompressed.")),
        }
    }

    fn length(&self) -> Option<u64> {
        self.content_length.as_deref()?.trim().parse().ok()
    }
}

/// `bytes 0-99/1234` as start, end (past the last byte) and size.
fn parse_content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let end = last.trim().parse::<u64>().ok()?.checked_add(1)?;
    Some((first.trim().parse().ok()?, end, size.trim().parse().ok()?))
}

pub(super) fn refused(url: &str, range: &Range<u64>) -> Error {
    Error::new(Code::Network, format!("fetch bytes {}..{} of {url}", range.start, range.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "https://example.org/m/model.safetensors";

    fn head(status: u16, content_range: &str, content_length: &str) -> Head {
        let field = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Head {
            status,
            content_range: field(content_range),
            content_length: field(content_length),
            ..Head::default()
        }
    }

    #[test]
    fn answers_that_can_be_used() {
        for (head, range, body) in [
            (head(206, "bytes 0-0/1234", "1"), 0..1, Body::Part { size: 1234 }),
            (head(206, "bytes 100-199/200", ""), 100..200, Body::Part { size: 200 }),
            (head(200, "", "1234"), 100..200, Body::Whole { size: 1234 }),
            (head(416, "bytes */0", "0"), 0..1, Body::Empty),
            (head(404, "", "9"), 0..1, Body::Missing),
            (head(410, "", "9"), 0..1, Body::Missing),
        ] {
            assert_eq!(head.body(URL, &range).unwrap(), body, "{head:?}");
        }
    }

    #[test]
    fn answers_that_cannot_be_used_name_url_and_status() {
        let compressed = Head { content_encoding: Some("gzip".into()), ..head(200, "", "90") };
        for (head, expected) in [
            (head(206, "", "100"), "Expose-Headers"),
            (head(206, "bytes 0-99/*", "100"), "names the file's size"),
            (head(206, "bytes 0-99/1234", "100"), "bytes 100-199/size"),
            (head(206, "bytes 100-149/1234", "50"), "bytes 100-199/size"),
            (head(206, "bytes 100-199/1234", "99"), "Content-Length"),
            (head(206, "bytes 100-199/150", "100"), "bytes 100-199/size"),
            (head(206, "bytes 100-18446744073709551615/1234", "100"), "names the file's size"),
            (head(200, "", ""), "answer Range requests"),
            (compressed, "uncompressed"),
            (head(403, "", "9"), "403"),
            (head(416, "bytes */150", "0"), "416"),
            (head(500, "", "9"), "500"),
            (head(302, "", "9"), "302"),
        ] {
            let error = head.body(URL, &(100..200)).unwrap_err();
            assert_eq!(error.code(), Code::Network);
            let text = error.to_string();
            assert!(text.contains(expected) && text.contains(URL), "{head:?}: {text}");
        }
    }

    #[test]
    fn validator_is_the_etag_or_size_and_date() {
        let dated = Head { last_modified: Some("Tue, 01 Dec 2026".into()), ..Head::default() };
        assert_eq!(Head::default().validator(5), None);
        assert_eq!(dated.validator(5).as_deref(), Some("5 Tue, 01 Dec 2026"));
        let tagged = Head { etag: Some("\"abc\"".into()), ..dated };
        assert_eq!(tagged.validator(5).as_deref(), Some("\"abc\""));
    }
}
