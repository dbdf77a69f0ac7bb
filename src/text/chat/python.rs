//! What templates expect of Python: `tojson` as transformers defines it, and `strftime`.

use std::io::{self, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Bytes that one `tojson` makes at most: nested lists of one list grow without bound.
const MAX_JSON: usize = 1 << 24;
const MAX_INDENT: usize = 16;

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`: `json.dumps`
/// without the escapes for HTML that Jinja's own filter adds.
pub(super) fn tojson(value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    let separators: Option<(String, String)> =
        kwargs.get::<Option<Vec<String>>>("separators")?.map(pair).transpose()?;
    kwargs.assert_all_used()?;
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        return Err(invalid(format!("tojson indents by at most {MAX_INDENT}")));
    }
    let default_comma = if indent.is_some() { "," } else { ", " };
    let (comma, colon) = separators.unwrap_or_else(|| (default_comma.into(), ": ".into()));
    let indent = indent.map(|indent| " ".repeat(indent));
    let python = || Python {
        ensure_ascii: ensure_ascii.unwrap_or(false),
        comma: comma.clone(),
        colon: colon.clone(),
        lines: indent.as_deref().map(|indent| PrettyFormatter::with_indent(indent.as_bytes())),
    };
    let json = match sort_keys {
        Some(true) => {
            let json: serde_json::Value =
                serde_json::from_str(&dumps(&value, python())?).map_err(json_error)?;
            dumps(&sorted(json), python())?
        }
        _ => dumps(&value, python())?,
    };
    Ok(Value::from_safe_string(json))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn json_error(error: serde_json::Error) -> Error {
    invalid("tojson cannot write this value").with_source(error)
}

fn pair(separators: Vec<String>) -> Result<(String, String), Error> {
    <[String; 2]>::try_from(separators)
        .map(|[comma, colon]| (comma, colon))
        .map_err(|_| invalid("separators are two strings"))
}

fn dumps(value: &impl Serialize, python: Python<'_>) -> Result<String, Error> {
    let mut out = Bounded(Vec::new());
    value.serialize(&mut Serializer::with_formatter(&mut out, python)).map_err(json_error)?;
    String::from_utf8(out.0).map_err(|e| invalid("tojson made no text").with_source(e))
}

fn sorted(value: serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::Object(fields) => {
            let mut fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            fields.into_iter().collect()
        }
        serde_json::Value::Array(items) => items.into_iter().map(sorted).collect(),
        other => other,
    }
}

/// A writer that refuses to grow without bound.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_JSON {
            return Err(io::Error::other(format!("more than {MAX_JSON} bytes of JSON")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// JSON in the manner of Python's `json.dumps`.
struct Python<'a> {
    ensure_ascii: bool,
    comma: String,
    colon: String,
    /// Breaks the lines, if they are to be broken.
    lines: Option<PrettyFormatter<'a>>,
}

impl Python<'_> {
    /// What stands before a value of an array or a key of an object.
    fn begin<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        if !is_first {
            writer.write_all(self.comma.as_bytes())?;
        }
        match &mut self.lines {
            // Of the first value the formatter breaks the line and no more.
            Some(lines) => lines.begin_array_value(writer, true),
            None => Ok(()),
        }
    }
}

impl Formatter for Python<'_> {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float_repr(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        if !self.ensure_ascii {
            return writer.write_all(text.as_bytes());
        }
        let mut units = [0; 2];
        for c in text.chars() {
            match c {
                ' '..='~' => writer.write_all(&[c as u8])?,
                _ => {
                    c.encode_utf16(&mut units).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?
                }
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match &mut self.lines {
            Some(lines) => lines.begin_array(writer),
            None => writer.write_all(b"["),
        }
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        self.begin(writer, is_first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match &mut self.lines {
            Some(lines) => lines.end_array_value(writer),
            None => Ok(()),
        }
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match &mut self.lines {
            Some(lines) => lines.end_array(writer),
            None => writer.write_all(b"]"),
        }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match &mut self.lines {
            Some(lines) => lines.begin_object(writer),
            None => writer.write_all(b"{"),
        }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        self.begin(writer, is_first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.colon.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match &mut self.lines {
            Some(lines) => lines.end_object_value(writer),
            None => Ok(()),
        }
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match &mut self.lines {
            Some(lines) => lines.end_object(writer),
            None => writer.write_all(b"}"),
        }
    }
}

/// A float as Python prints it: the shortest digits that read back, in exponents from 1e16 on and below
/// 1e-4, which have two digits at least.
fn float_repr(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{value:?}");
    }
    let scientific = format!("{value:e}");
    match scientific.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => scientific,
    }
}

/// A moment on the user's clock, for templates that print today's date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// 2026.
    pub year: i32,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
    /// 0 to 23.
    pub hour: u32,
    /// 0 to 59.
    pub minute: u32,
    /// 0 to 60.
    pub second: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl LocalTime {
    /// The time by a `strftime` format, in English.
    pub(super) fn format(&self, format: &str) -> Result<String, Error> {
        let mut out = String::with_capacity(format.len() * 2);
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            match c {
                '%' => out.push_str(&self.field(chars.next())?),
                _ => out.push(c),
            }
        }
        Ok(out)
    }

    fn field(&self, directive: Option<char>) -> Result<String, Error> {
        let month = MONTHS.get(self.month.wrapping_sub(1) as usize).copied().unwrap_or_default();
        let weekday = WEEKDAYS.get(self.weekday()).copied().unwrap_or_default();
        Ok(match directive {
            Some('Y') => self.year.to_string(),
            Some('y') => format!("{:02}", self.year.rem_euclid(100)),
            Some('m') => format!("{:02}", self.month),
            Some('d') => format!("{:02}", self.day),
            Some('e') => format!("{:2}", self.day),
            Some('B') => month.to_owned(),
            Some('b') => month.chars().take(3).collect(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday.chars().take(3).collect(),
            Some('H') => format!("{:02}", self.hour),
            Some('I') => format!("{:02}", (self.hour + 11) % 12 + 1),
            Some('M') => format!("{:02}", self.minute),
            Some('S') => format!("{:02}", self.second),
            Some('p') => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            Some('T') => format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            Some('%') => "%".to_owned(),
            Some(other) => return Err(invalid(format!("strftime_now does not know %{other}"))),
            None => return Err(invalid("strftime_now got a format that ends with %")),
        })
    }

    /// Days since Sunday, by Sakamoto's rule.
    fn weekday(&self) -> usize {
        const SHIFTS: [i64; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
        let year = i64::from(self.year) - i64::from(self.month < 3);
        let shift = SHIFTS.get(self.month.wrapping_sub(1) as usize).copied().unwrap_or_default();
        let days = year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        (days + shift + i64::from(self.day)).rem_euclid(7) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_look_like_pythons() {
        let cases = [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-1.25e-7, "-1.25e-07"),
        ];
        for (value, expected) in cases {
            assert_eq!(float_repr(value), expected);
        }
    }

    #[test]
    fn times_are_formatted_in_english() {
        let time = LocalTime { year: 2026, month: 2, day: 1, hour: 0, minute: 5, second: 9 };
        let format = "%d %b %Y, %A %a %B %m/%d/%y %H:%M:%S %I%p %e %F %T 100%%";
        let expected = "01 Feb 2026, Sunday Sun February 02/01/26 00:05:09 12AM  1 2026-02-01 00:05:09 100%";
        assert_eq!(time.format(format).unwrap(), expected);
        assert!(time.format("%Q").is_err());
        assert!(time.format("%").is_err());
        let odd = LocalTime { month: 0, day: u32::MAX, hour: u32::MAX - 11, ..time };
        assert!(odd.format("%A %B %H").is_ok());
    }
}
