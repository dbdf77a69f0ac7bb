//! Text and markers → parts, however the text is cut.

use std::sync::Arc;

use super::Part;
use super::call::Body;
use super::format::{Marker, MarkerToken, OutputFormat};

/// What the text belongs to now.
enum Place {
    Text,
    Thinking {
        /// What is still missing of the label that the thought begins with.
        label: &'static str,
    },
    Call(Body),
}

/// Where the text goes, and what is held back of it.
pub(super) struct Splitter {
    format: Arc<OutputFormat>,
    place: Place,
    /// The end of the text that may be the beginning of a marker.
    pending: String,
    /// A marker came last: newlines that follow are left out.
    is_after_marker: bool,
    /// Newlines that are left out if a marker comes next.
    newlines: usize,
}

impl Splitter {
    /// Begins after `prompt`, the end of the prompt's text.
    pub(super) fn new(format: Arc<OutputFormat>, prompt: &str) -> Self {
        let prompt = prompt.trim_end();
        let (open, label) = (format.text(Marker::OpenThinking), format.label);
        let place = if open.is_empty() {
            Place::Text
        } else if prompt.ends_with(open) {
            Place::Thinking { label }
        } else if !label.is_empty()
            && prompt.strip_suffix(label.trim_end()).is_some_and(|rest| rest.ends_with(open))
        {
            Place::Thinking { label: "" }
        } else {
            Place::Text
        };
        let is_after_marker = !matches!(place, Place::Text);
        Self { format, place, pending: String::new(), is_after_marker, newlines: 0 }
    }

    /// Whether `marker` means something here; elsewhere it is a token like others.
    pub(super) fn accepts(&self, marker: Marker) -> bool {
        accepts(&self.place, marker)
    }

    /// Takes text in which markers without a token of their own are found.
    pub(super) fn push_text(&mut self, text: &str, parts: &mut Vec<Part>) {
        self.pending.push_str(text);
        while let Some((at, token)) = self.find() {
            let (marker, end) = (token.marker, at + token.text.len());
            let rest = self.pending.split_off(end);
            let mut text = std::mem::replace(&mut self.pending, rest);
            text.truncate(at);
            self.push_plain(&text, parts);
            self.turn(marker, parts);
        }
        let rest = self.pending.split_off(self.pending.len() - self.begun());
        let text = std::mem::replace(&mut self.pending, rest);
        self.push_plain(&text, parts);
    }

    /// Takes a marker that is a token.
    pub(super) fn push_marker(&mut self, marker: Marker, parts: &mut Vec<Part>) {
        self.release(parts);
        self.turn(marker, parts);
    }

    /// Ends the output.
    pub(super) fn finish(mut self, parts: &mut Vec<Part>) {
        self.release(parts);
        if let Place::Call(body) = &self.place {
            parts.push(body.parse(self.format.syntax));
        } else {
            self.end_thought(parts);
            let newlines = "\n".repeat(std::mem::take(&mut self.newlines));
            self.append(&newlines, parts);
        }
    }

    /// What was held back for a marker that did not come.
    fn release(&mut self, parts: &mut Vec<Part>) {
        let text = std::mem::take(&mut self.pending);
        self.push_plain(&text, parts);
    }

    /// The markers to look for in the text.
    fn spelled(&self) -> impl Iterator<Item = &MarkerToken> {
        let markers = self.format.markers.iter();
        markers.filter(|token| token.id.is_none() && accepts(&self.place, token.marker))
    }

    /// The first marker in what is pending, and where.
    fn find(&self) -> Option<(usize, &MarkerToken)> {
        let found = self.spelled().filter_map(|token| Some((self.pending.find(token.text)?, token)));
        found.min_by_key(|(at, _)| *at)
    }

    /// Bytes at the end of what is pending that may begin a marker.
    fn begun(&self) -> usize {
        let begun = |text: &str| {
            (1..text.len())
                .rev()
                .find(|&length| text.is_char_boundary(length) && self.pending.ends_with(&text[..length]))
        };
        self.spelled().filter_map(|token| begun(token.text)).max().unwrap_or(0)
    }

    /// Goes where an accepted marker leads.
    fn turn(&mut self, marker: Marker, parts: &mut Vec<Part>) {
        if let (Marker::Quote, Place::Call(body)) = (marker, &mut self.place) {
            body.push_quote(self.format.text(Marker::Quote));
            return;
        }
        self.end_thought(parts);
        let next = match marker {
            Marker::OpenThinking => Place::Thinking { label: self.format.label },
            Marker::OpenCall => Place::Call(Body::default()),
            Marker::CloseThinking | Marker::CloseCall | Marker::Quote => Place::Text,
        };
        if let Place::Call(body) = std::mem::replace(&mut self.place, next) {
            parts.push(body.parse(self.format.syntax));
        }
        self.is_after_marker = true;
        self.newlines = 0;
    }

    /// Takes text without markers.
    fn push_plain(&mut self, text: &str, parts: &mut Vec<Part>) {
        let mut text = text;
        match &mut self.place {
            Place::Call(body) => return body.push(text),
            Place::Thinking { label } => {
                let common = label.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
                let rest = &label[common..];
                if common < text.len() && !rest.is_empty() {
                    self.end_label(parts);
                } else {
                    *label = rest;
                    text = &text[common..];
                }
            }
            Place::Text => {}
        }
        self.append_trimmed(text, parts);
    }

    /// Gives what looked like the label of a thought and is not.
    fn end_label(&mut self, parts: &mut Vec<Part>) {
        let Place::Thinking { label } = &mut self.place else { return };
        let missing = std::mem::take(label);
        if !missing.is_empty() {
            let whole = self.format.label;
            self.append_trimmed(&whole[..whole.len() - missing.len()], parts);
        }
    }

    /// Ends a thought that may have nothing but its label, with or without the newline.
    fn end_thought(&mut self, parts: &mut Vec<Part>) {
        match &mut self.place {
            Place::Thinking { label } if label.trim_start().is_empty() => *label = "",
            _ => self.end_label(parts),
        }
    }

    /// Appends `text` without newlines after a marker, and holds back those at its end.
    fn append_trimmed(&mut self, text: &str, parts: &mut Vec<Part>) {
        let text = if self.is_after_marker { text.trim_start_matches('\n') } else { text };
        if text.is_empty() {
            return;
        }
        self.is_after_marker = false;
        if self.format.markers.is_empty() {
            return self.append(text, parts);
        }
        let body = text.trim_end_matches('\n');
        let newlines = text.len() - body.len();
        if body.is_empty() {
            self.newlines += newlines;
            return;
        }
        let before = "\n".repeat(std::mem::replace(&mut self.newlines, newlines));
        self.append(&(before + body), parts);
    }

    fn append(&self, text: &str, parts: &mut Vec<Part>) {
        if text.is_empty() {
            return;
        }
        match (&self.place, parts.last_mut()) {
            (Place::Text, Some(Part::Text(last))) => last.push_str(text),
            (Place::Thinking { .. }, Some(Part::Thinking(last))) => last.push_str(text),
            (Place::Text, _) => parts.push(Part::Text(text.to_owned())),
            (Place::Thinking { .. }, _) => parts.push(Part::Thinking(text.to_owned())),
            // The text of a call goes to its body.
            (Place::Call(_), _) => {}
        }
    }
}

fn accepts(place: &Place, marker: Marker) -> bool {
    match place {
        Place::Text => matches!(marker, Marker::OpenThinking | Marker::OpenCall),
        Place::Thinking { .. } => marker == Marker::CloseThinking,
        Place::Call(_) => matches!(marker, Marker::CloseCall | Marker::Quote),
    }
}
