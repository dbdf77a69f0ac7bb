//! What a server's answer to a ranged request means. Apart from the fetching, so that it is tested natively.

use std::ops::Range;
use std::time::Duration;

use super::{Fault, Metadata};
use crate::error::{Code, Error};

/// The parts of a response's head that matter here, header fields as the server sent them. Of another origin
/// a page sees `Content-Range`, `ETag`, `Content-Encoding` and `Retry-After` only where the server exposes
/// them.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) content_range: Option<String>,
    pub(super) content_length: Option<String>,
    pub(super) content_encoding: Option<String>,
    pub(super) etag: Option<String>,
    pub(super) last_modified: Option<String>,
    pub(super) retry_after: Option<Duration>,
}

/// What the body of a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// There is no such file.
    Missing,
    /// Exactly the range asked for, of a file of `size` bytes, or of a size that the server hides.
    Part { size: Option<u64> },
    /// The whole file of `size` bytes: the server ignores ranges.
    Whole { size: u64 },
    /// Nothing, since the file is empty.
    Empty,
}

impl Head {
    /// What the answer to a request of `range` of `url` holds, or why it cannot be used.
    pub(super) fn body(&self, url: &str, range: &Range<u64>) -> Result<Body, Fault> {
        let refused = || refused(url, range).expected("status 206 or 200").got(self.status.to_string());
        match self.status {
            404 | 410 => Ok(Body::Missing),
            200 | 206 => self.content(url, range),
            416 if self.content_range.as_deref() == Some("bytes */0") => Ok(Body::Empty),
            401 | 403 => Err(refused().remedy(ACCESS_REMEDY).into()),
            408 | 425 | 429 | 500.. => Err(Fault::Passing {
                error: refused().remedy("Try again later, or check the URL."),
                retry_after: self.retry_after,
            }),
            _ => Err(refused().remedy("Check the URL.").into()),
        }
    }

    /// The same for a file that is known to be there, whose answers must all be of one version.
    pub(super) fn body_of(&self, url: &str, range: &Range<u64>, version: &Metadata) -> Result<Body, Fault> {
        if self.status == 416 {
            return Err(changed(url, range, version, &self.content_range));
        }
        let body = self.body(url, range)?;
        let size = match body {
            Body::Part { size: None } => version.size,
            Body::Part { size: Some(size) } | Body::Whole { size } => size,
            Body::Missing | Body::Empty => {
                return Err(refused(url, range).got(format!("status {}: it is gone", self.status)).into());
            }
        };
        let now = Metadata { size, validator: self.validator(size) };
        if now == *version { Ok(body) } else { Err(changed(url, range, version, &now)) }
    }

    /// Tells one version of the file from another: the ETag, else date and size. A weak ETag will do, since it
    /// is only compared.
    pub(super) fn validator(&self, size: u64) -> Option<String> {
        let dated = || self.last_modified.as_ref().map(|date| format!("{size} {date}"));
        self.etag.clone().or_else(dated)
    }

    /// `Content-Length`, if it is one.
    pub(super) fn length(&self) -> Option<u64> {
        self.content_length.as_deref()?.trim().parse().ok()
    }

    fn content(&self, url: &str, range: &Range<u64>) -> Result<Body, Fault> {
        match self.content_encoding.as_deref() {
            None | Some("" | "identity") => {}
            Some(encoding) => {
                return Err(refused(url, range)
                    .expected("no Content-Encoding")
                    .got(format!("{encoding:?}"))
                    .remedy("Let the server leave model files uncompressed.")
                    .into());
            }
        }
        if self.status == 206 { self.part(url, range) } else { self.whole(url, range) }
    }

    fn part(&self, url: &str, range: &Range<u64>) -> Result<Body, Fault> {
        let length = range.end - range.start;
        let right_length = self.length().is_none_or(|sent| sent == length);
        let body = match &self.content_range {
            None => Some(Body::Part { size: None }),
            Some(text) => parse_content_range(text)
                .filter(|(start, end, size)| (*start, *end) == (range.start, range.end) && end <= size)
                .map(|(_, _, size)| Body::Part { size: Some(size) }),
        };
        body.filter(|_| right_length).ok_or_else(|| {
            refused(url, range)
                .expected(format!(
                    "Content-Range: bytes {}-{}/size",
                    range.start,
                    range.end.saturating_sub(1)
                ))
                .got(format!("{:?} with Content-Length {:?}", self.content_range, self.content_length))
                .remedy("Check the server or the proxy in front of it.")
                .into()
        })
    }

    fn whole(&self, url: &str, range: &Range<u64>) -> Result<Body, Fault> {
        self.length().map(|size| Body::Whole { size }).ok_or_else(|| {
            refused(url, range)
                .expected("status 206, or 200 with the file's size as Content-Length")
                .got(format!("200 with Content-Length {:?}", self.content_length))
                .remedy("Let the server answer Range requests.")
                .into()
        })
    }
}

const ACCESS_REMEDY: &str = "The model may be gated: accept its licence on its page, and load it with the option fetch, a \
     function that adds your access token to each request; or serve a copy of the files yourself.";

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

/// Blocks of two versions of a file must not mix.
fn changed(url: &str, range: &Range<u64>, before: &Metadata, now: &dyn std::fmt::Debug) -> Fault {
    let error = refused(url, range)
        .expected(format!("{} bytes of version {:?} as before", before.size, before.validator))
        .got(format!("{now:?}"))
        .remedy(
            "The file changes on the server, or several servers disagree about it: load the model again.",
        );
    Fault::Changed(error)
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
            (head(206, "bytes 0-0/1234", "1"), 0..1, Body::Part { size: Some(1234) }),
            (head(206, "bytes 100-199/200", ""), 100..200, Body::Part { size: Some(200) }),
            (head(206, "", "100"), 100..200, Body::Part { size: None }),
            (head(206, "", ""), 100..200, Body::Part { size: None }),
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
        let compressed_part =
            Head { content_encoding: Some("br".into()), ..head(206, "bytes 100-199/1234", "100") };
        for (head, expected) in [
            (head(206, "", "99"), "Content-Length"),
            (head(206, "bytes 0-99/*", "100"), "bytes 100-199/size"),
            (head(206, "bytes 0-99/1234", "100"), "bytes 100-199/size"),
            (head(206, "bytes 100-149/1234", "50"), "bytes 100-199/size"),
            (head(206, "bytes 100-199/1234", "99"), "Content-Length"),
            (head(206, "bytes 100-199/150", "100"), "bytes 100-199/size"),
            (head(206, "bytes 100-18446744073709551615/1234", "100"), "bytes 100-199/size"),
            (head(200, "", ""), "answer Range requests"),
            (compressed, "uncompressed"),
            (compressed_part, "uncompressed"),
            (head(401, "", "9"), "accept its licence"),
            (head(403, "", "9"), "403"),
            (head(416, "bytes */150", "0"), "416"),
            (head(500, "", "9"), "500"),
            (head(302, "", "9"), "302"),
        ] {
            let error = head.body(URL, &(100..200)).unwrap_err().into_error();
            assert_eq!(error.code(), Code::Network);
            let text = error.to_string();
            assert!(text.contains(expected) && text.contains(URL), "{head:?}: {text}");
        }
    }

    #[test]
    fn some_failures_pass_and_others_last() {
        for (status, passes) in
            [(429, true), (500, true), (503, true), (408, true), (403, false), (400, false)]
        {
            let head = Head { retry_after: Some(Duration::from_secs(3)), ..head(status, "", "9") };
            match head.body(URL, &(0..1)).unwrap_err() {
                Fault::Passing { retry_after, .. } => assert!(passes && retry_after == head.retry_after),
                fault => assert!(!passes, "{status}: {fault:?}"),
            }
        }
    }

    #[test]
    fn answers_of_another_version_are_told() {
        let version = Metadata { size: 1234, validator: Some("\"a\"".into()) };
        let tagged = |etag: &str, head| Head { etag: Some(etag.into()), ..head };
        let part = || head(206, "bytes 100-199/1234", "100");
        let read = |head: Head| head.body_of(URL, &(100..200), &version);
        assert_eq!(read(tagged("\"a\"", part())).unwrap(), Body::Part { size: Some(1234) });
        assert_eq!(read(tagged("\"a\"", head(206, "", ""))).unwrap(), Body::Part { size: None });
        assert_eq!(read(tagged("\"a\"", head(200, "", "1234"))).unwrap(), Body::Whole { size: 1234 });
        for other in [
            tagged("\"b\"", part()),
            tagged("W/\"a\"", part()),
            part(),
            tagged("\"a\"", head(206, "bytes 100-199/1235", "100")),
            tagged("\"a\"", head(200, "", "1235")),
            head(416, "bytes */50", "0"),
        ] {
            let fault = read(other).unwrap_err();
            assert!(matches!(fault, Fault::Changed(_)), "{fault:?}");
        }
        assert!(matches!(read(head(404, "", "")), Err(Fault::Lasting(_))));
        assert!(matches!(read(head(503, "", "")), Err(Fault::Passing { .. })));
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
