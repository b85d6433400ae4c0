//! What a message says, however it is spelled: for finding it again and for telling whether it is the same.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use crate::fold::Block;
use crate::request::Tool;

/// Where to look for an answer. Different answers may share one; [`Said::same_as`] decides.
pub(super) type Key = u64;

/// What an answer said.
#[derive(Debug)]
pub(super) struct Said {
    /// None where a message says nothing about it.
    reasoning: Option<String>,
    content: String,
    /// Name and arguments of each call.
    calls: Vec<(String, Value)>,
}

impl Said {
    /// What the model said.
    pub fn of_blocks(blocks: &[Block]) -> Self {
        let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
        for block in blocks {
            match block {
                Block::Reasoning(text) => reasoning.push_str(text),
                Block::Content(text) => content.push_str(text),
                Block::ToolCall { name, arguments, .. } => {
                    calls.push((name.clone(), serde_json::from_str(arguments).unwrap_or_default()));
                }
            }
        }
        Self { reasoning: Some(reasoning.trim().to_owned()), content: content.trim().to_owned(), calls }
    }

    /// What a message of a conversation says.
    pub fn of_message(message: &Value) -> Self {
        let text = |name: &str| message.get(name).and_then(Value::as_str).map(|text| text.trim().to_owned());
        let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten().map(|call| {
            let function = &call["function"];
            (function["name"].as_str().unwrap_or_default().to_owned(), function["arguments"].clone())
        });
        Self {
            reasoning: text("reasoning_content").filter(|text| !text.is_empty()),
            content: text("content").unwrap_or_default(),
            calls: calls.collect(),
        }
    }

    /// Whether this message, from a client, is what the model said. Clients may leave out reasoning, and fill in arguments with
    /// the value that the function's schema has for them where they are left out.
    pub fn same_as(&self, written: &Self, tools: &[Tool]) -> bool {
        let reasoning = self.reasoning.is_none() || self.reasoning == written.reasoning;
        let same = |((name, arguments), (meant, written)): (&(String, Value), &(String, Value))| {
            let tool = tools.iter().find(|tool| tool.name == *name);
            let arguments = tool.map_or_else(|| arguments.clone(), |tool| as_written(arguments, written, tool));
            name == meant && canonical(&arguments) == canonical(written)
        };
        let calls = self.calls.len() == written.calls.len() && self.calls.iter().zip(&written.calls).all(same);
        reasoning && self.content == written.content && calls
    }

    /// The key of this answer to a conversation that has the hash `before`: short answers are often the same, but not to the
    /// same conversation.
    pub fn key(&self, before: u64) -> Key {
        let mut hasher = DefaultHasher::new();
        before.hash(&mut hasher);
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// All but the reasoning.
    fn hash(&self, hasher: &mut DefaultHasher) {
        self.content.hash(hasher);
        for (name, arguments) in &self.calls {
            (name, canonical(arguments)).hash(hasher);
        }
    }

    pub fn bytes(&self) -> usize {
        let calls: usize = self.calls.iter().map(|(name, arguments)| name.len() + canonical(arguments).len()).sum();
        self.reasoning.as_ref().map_or(0, String::len) + self.content.len() + calls
    }
}

/// A call's arguments without those that were not written and have their default.
fn as_written(arguments: &Value, written: &Value, tool: &Tool) -> Value {
    let Value::Object(arguments) = arguments else { return arguments.clone() };
    let properties = &tool.parameters["properties"];
    let filled_in = |name: &str, value: &Value| {
        written.get(name).is_none() && properties.get(name).and_then(|property| property.get("default")) == Some(value)
    };
    arguments.iter().filter(|(name, value)| !filled_in(name, value)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

/// Hash of the conversation before each of its messages, and of all of it at the end. Reasoning, which clients may leave out, and
/// system messages, which templates move, do not count; nor do ids of calls, which are the client's to change.
pub(super) fn hashes(messages: &[Value]) -> Vec<u64> {
    let mut hash = 0;
    let mut hashes = vec![hash];
    for message in messages {
        if message["role"] != "system" {
            let mut hasher = DefaultHasher::new();
            (hash, message["role"].as_str()).hash(&mut hasher);
            Said::of_message(message).hash(&mut hasher);
            hash = hasher.finish();
        }
        hashes.push(hash);
    }
    hashes
}

/// JSON in one spelling: keys in order, no white space, whole numbers without a point.
fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            out.push('{');
            for key in keys {
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write(&map[key], out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(list) => {
            out.push('[');
            for item in list {
                write(item, out);
                out.push(',');
            }
            out.push(']');
        }
        Value::Number(number) => match number.as_f64() {
            // JavaScript has one kind of number and prints 5.0 as 5.
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => {
                out.push_str(&(float as i64).to_string());
            }
            _ => out.push_str(&number.to_string()),
        },
        other => out.push_str(&other.to_string()),
    }
}
