//! What stands between the markers of a tool call.

use serde_json::{Map, Value};

use super::format::CallSyntax;
use super::{Part, ToolCall};

/// Objects and arrays within each other.
const MAX_DEPTH: usize = 64;

/// The text of a call as it comes.
#[derive(Default)]
pub(super) struct Body {
    text: String,
    /// Where quotes stand in the text that are markers, ascending, and their length.
    quotes: Vec<usize>,
    quote_length: usize,
}

type Parsed<T> = Result<T, String>;

impl Body {
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    pub(super) fn push_quote(&mut self, quote: &str) {
        self.quotes.push(self.text.len());
        self.quote_length = quote.len();
        self.text.push_str(quote);
    }

    /// The call, or the text with what is wrong with it.
    pub(super) fn parse(&self, syntax: CallSyntax) -> Part {
        let call = match syntax {
            CallSyntax::Bare => self.parse_bare(),
            CallSyntax::Json => parse_json(&self.text),
        };
        match call {
            Ok(call) => Part::ToolCall(call),
            Err(problem) => Part::MalformedToolCall { raw: self.text.clone(), problem },
        }
    }

    fn parse_bare(&self) -> Parsed<ToolCall> {
        let mut cursor = Cursor { body: self, at: 0 };
        cursor.skip_space();
        cursor.expect("call:")?;
        let name = cursor.until(&['{'])?.trim().to_owned();
        if name.is_empty() {
            return Err("it names no function".into());
        }
        let arguments = cursor.fields(MAX_DEPTH)?;
        cursor.skip_space();
        if cursor.at < self.text.len() {
            return Err(format!("something follows its arguments at byte {}", cursor.at));
        }
        Ok(ToolCall { name, arguments })
    }
}

/// A place in a body.
struct Cursor<'a> {
    body: &'a Body,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        &self.body.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at = self.body.text.len() - self.rest().trim_start().len();
    }

    fn is_at_quote(&self) -> bool {
        self.body.quotes.binary_search(&self.at).is_ok()
    }

    fn take(&mut self, text: &str) -> bool {
        let is_there = !self.is_at_quote() && self.rest().starts_with(text);
        if is_there {
            self.at += text.len();
        }
        is_there
    }

    fn expect(&mut self, text: &str) -> Parsed<()> {
        if self.take(text) { Ok(()) } else { Err(format!("{text:?} is missing at byte {}", self.at)) }
    }

    /// The text before the next of `ends`, which is not taken. A quote ends it too.
    fn until(&mut self, ends: &[char]) -> Parsed<&'a str> {
        let rest = self.rest();
        let quotes = &self.body.quotes;
        let quote = quotes.get(quotes.partition_point(|&at| at < self.at)).map(|at| at - self.at);
        let end = rest.find(ends).into_iter().chain(quote).min();
        let length = end.ok_or_else(|| format!("it ends within a name or value at byte {}", self.at))?;
        self.at += length;
        Ok(&rest[..length])
    }

    /// `{key:value,…}`
    fn fields(&mut self, depth_left: usize) -> Parsed<Map<String, Value>> {
        let mut fields = Map::new();
        self.list("{", "}", depth_left, |cursor, depth_left| {
            let key = match cursor.is_at_quote() {
                true => cursor.quoted()?,
                false => cursor.until(&[':', '{', '}', ','])?.trim(),
            };
            let key = key.to_owned();
            cursor.skip_space();
            cursor.expect(":")?;
            let value = cursor.value(depth_left)?;
            fields.insert(key, value);
            Ok(())
        })?;
        Ok(fields)
    }

    fn items(&mut self, depth_left: usize) -> Parsed<Vec<Value>> {
        let mut items = Vec::new();
        self.list("[", "]", depth_left, |cursor, depth_left| {
            items.push(cursor.value(depth_left)?);
            Ok(())
        })?;
        Ok(items)
    }

    /// What `item` reads, between commas, from `open` to `close`.
    fn list(
        &mut self,
        open: &str,
        close: &str,
        depth_left: usize,
        mut item: impl FnMut(&mut Self, usize) -> Parsed<()>,
    ) -> Parsed<()> {
        let depth_left = depth_left.checked_sub(1).ok_or("its arguments are nested too deep")?;
        self.expect(open)?;
        self.skip_space();
        if self.take(close) {
            return Ok(());
        }
        loop {
            self.skip_space();
            item(self, depth_left)?;
            self.skip_space();
            if self.take(close) {
                return Ok(());
            }
            self.expect(",")?;
        }
    }

    fn value(&mut self, depth_left: usize) -> Parsed<Value> {
        self.skip_space();
        if self.is_at_quote() {
            return self.quoted().map(Value::from);
        }
        match self.rest().chars().next() {
            Some('{') => self.fields(depth_left).map(Value::Object),
            Some('[') => self.items(depth_left).map(Value::Array),
            _ => Ok(bare(self.until(&[',', '}', ']'])?.trim_end())),
        }
    }

    /// The text between two quotes, the first of which is here.
    fn quoted(&mut self) -> Parsed<&'a str> {
        let from = self.at + self.body.quote_length;
        let quotes = &self.body.quotes;
        let end = quotes.get(quotes.partition_point(|&at| at < from));
        let end = *end.ok_or_else(|| format!("the string at byte {} has no end", self.at))?;
        self.at = end + self.body.quote_length;
        Ok(&self.body.text[from..end])
    }
}

/// A number, true, false or null; other words are strings that lack their quotes.
fn bare(word: &str) -> Value {
    match serde_json::from_str(word) {
        Ok(value @ (Value::Null | Value::Bool(_) | Value::Number(_))) => value,
        _ => Value::from(word),
    }
}

fn parse_json(text: &str) -> Parsed<ToolCall> {
    let mut call: Map<String, Value> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Some(Value::String(name)) = call.remove("name") else { return Err("it names no function".into()) };
    let arguments = match call.remove("arguments").or_else(|| call.remove("parameters")) {
        None => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        // As OpenAI's API writes them: JSON within JSON.
        Some(Value::String(json)) => serde_json::from_str(&json).map_err(|error| error.to_string())?,
        Some(_) => return Err("its arguments are no object".into()),
    };
    Ok(ToolCall { name, arguments })
}
