//! What is done to messages before a template sees them, and how a conversation falls into turns.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::{Map, Value, json};

use super::{ChatTemplate, RenderOptions};

/// Names under which templates look for what a model thought.
const REASONING: [&str; 2] = ["reasoning_content", "reasoning"];

/// Types of content parts that are no text.
const MEDIA: [&str; 3] = ["image", "audio", "video"];

/// The messages as a template expects them:
/// - what the model thought before the last user message is left out, since models are not trained to see it;
///   what it thought after that, between tool calls, stands under every name that templates know;
/// - arguments of tool calls that are JSON in a string become an object;
/// - the content of a tool's result becomes JSON in a string where the template would not print its fields.
pub(super) fn prepare(template: &ChatTemplate, messages: &Value) -> Value {
    let Value::Array(list) = messages else { return messages.clone() };
    let last_user = list.iter().rposition(|message| role(message) == "user").unwrap_or(0);
    let is_structured =
        |message: &Value| role(message) == "tool" && matches!(message.get("content"), Some(Value::Object(_)));
    let writes_results = !list.iter().any(is_structured) || prints_tool_results(template);
    let prepared = list.iter().enumerate().map(|(index, message)| {
        let mut message = message.clone();
        if let Value::Object(fields) = &mut message {
            prepare_reasoning(fields, index > last_user);
            parse_arguments(fields);
        }
        if let (false, true, Some(content)) =
            (writes_results, is_structured(&message), message.get_mut("content"))
        {
            *content = Value::from(content.to_string());
        }
        message
    });
    prepared.collect()
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

fn prepare_reasoning(fields: &mut Map<String, Value>, is_kept: bool) {
    let found =
        REASONING.iter().find_map(|name| fields.get(*name).filter(|value| value.is_string())).cloned();
    for name in REASONING {
        match &found {
            Some(reasoning) if is_kept => drop(fields.insert(name.to_owned(), reasoning.clone())),
            _ => drop(fields.shift_remove(name)),
        }
    }
}

fn parse_arguments(fields: &mut Map<String, Value>) {
    let calls = fields.get_mut("tool_calls").and_then(Value::as_array_mut);
    for arguments in calls.into_iter().flatten().filter_map(|call| call.pointer_mut("/function/arguments")) {
        if let Some(parsed @ Value::Object(_)) =
            arguments.as_str().and_then(|json| serde_json::from_str(json).ok())
        {
            *arguments = parsed;
        }
    }
}

/// Whether the template prints the fields of a tool's result, found out by trying.
fn prints_tool_results(template: &ChatTemplate) -> bool {
    const WORD: &str = "jird";
    let call = json!({"type": "function", "function": {"name": "f", "arguments": {}}});
    let trial = json!([
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "f", "content": {"value": WORD}},
    ]);
    template.render(&trial, &RenderOptions::default()).is_ok_and(|text| text.contains(WORD))
}

/// Whether some message has an image or another part that is no text.
pub fn has_media(messages: &Value) -> bool {
    let messages = messages.as_array().into_iter().flatten();
    let parts = messages.filter_map(|message| message.get("content")?.as_array()).flatten();
    parts.filter_map(|part| part.get("type")?.as_str()).any(|kind| MEDIA.contains(&kind))
}

/// The turns of a conversation: a turn is a user message with all that follows it before the next. What stands
/// before the first (the system message) belongs to none.
fn turns(messages: &[Value]) -> Vec<Range<usize>> {
    let starts: Vec<usize> = (0..messages.len()).filter(|&at| role(&messages[at]) == "user").collect();
    let ends = starts.iter().skip(1).copied().chain([messages.len()]);
    starts.iter().zip(ends).map(|(&start, end)| start..end).collect()
}

/// How many turns can be left out: all but the last.
pub fn droppable_turns(messages: &Value) -> usize {
    messages.as_array().map_or(0, |list| turns(list).len().saturating_sub(1))
}

/// The messages without their `count` oldest turns.
pub fn without_oldest_turns(messages: &Value, count: usize) -> Cow<'_, Value> {
    let Value::Array(list) = messages else { return Cow::Borrowed(messages) };
    let turns = turns(list);
    match (turns.first(), turns.get(count)) {
        (Some(first), Some(kept)) if count > 0 => {
            Cow::Owned(list[..first.start].iter().chain(&list[kept.start..]).cloned().collect())
        }
        _ => Cow::Borrowed(messages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, content: &str) -> Value {
        json!({"role": role, "content": content})
    }

    #[test]
    fn whole_turns_are_dropped_and_the_system_message_stays() {
        let messages: Value = [
            message("system", "s"),
            message("user", "1"),
            message("assistant", "a"),
            message("tool", "t"),
            message("assistant", "b"),
            message("user", "2"),
            message("assistant", "c"),
            message("user", "3"),
        ]
        .into_iter()
        .collect();
        let contents = |count| -> String {
            let kept = without_oldest_turns(&messages, count);
            kept.as_array().unwrap().iter().filter_map(|message| message["content"].as_str()).collect()
        };
        assert_eq!(droppable_turns(&messages), 2);
        assert_eq!([contents(0), contents(1), contents(2)], ["s1atb2c3", "s2c3", "s3"]);
        assert_eq!(droppable_turns(&json!([message("system", "s")])), 0);
        assert_eq!(droppable_turns(&json!("text")), 0);
    }

    #[test]
    fn images_and_sounds_are_found() {
        let part = |kind: &str| json!([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": kind}]}]);
        assert!(has_media(&part("image")) && has_media(&part("audio")));
        assert!(!has_media(&part("text")) && !has_media(&json!([message("user", "image")])));
    }
}
