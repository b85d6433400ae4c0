//! The scoring rules of `models/lily-nano/eval/README.md`.

use serde::Deserialize;
use serde_json::{Map, Value};

/// One held-out case.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    /// What it is about.
    pub category: String,
    /// The chat.
    pub messages: Value,
    /// Tools offered.
    pub tools: Option<Value>,
    /// Whether the model is to think first.
    pub enable_thinking: bool,
    /// The right answer.
    pub expect: Expect,
}

/// What a right answer holds.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    /// One of these phrases.
    AnyOf(Vec<String>),
    /// This call.
    Tool {
        /// Of this tool.
        name: String,
        /// With these arguments.
        arguments: Map<String, Value>,
    },
}

impl Case {
    /// Whether `output`, which ended by itself, is right.
    pub fn is_right(&self, output: &str) -> bool {
        let answer = if self.enable_thinking {
            match output.split_once("\n</think>\n\n") {
                Some((thought, answer)) if !thought.trim().is_empty() => answer,
                _ => return false,
            }
        } else {
            output
        };
        if answer.contains("<think>") || answer.contains("</think>") {
            return false;
        }
        match &self.expect {
            Expect::AnyOf(phrases) => !answer.contains("<tool_call>") && phrases.iter().any(|p| contains(answer, p)),
            Expect::Tool { name, arguments } => self.call(answer).is_some_and(|(called, given)| {
                called == name
                    && given.len() == arguments.len()
                    && given.iter().all(|(key, value)| arguments.get(key).is_some_and(|a| equal(a, value)))
            }),
        }
    }

    /// The only tool call in `text`, if it is well formed and calls a given tool.
    fn call<'a>(&self, text: &'a str) -> Option<(&'a str, Map<String, Value>)> {
        if text.matches("<tool_call>").count() != 1 {
            return None;
        }
        let (_, call) = text.split_once("<tool_call>\n<function=")?;
        let (name, rest) = call.split_once(">\n").filter(|(name, _)| is_name(name))?;
        let (mut body, _) = rest.split_once("</function>\n</tool_call>")?;
        let tools = self.tools.as_ref()?.as_array()?;
        let tool = tools.iter().find(|t| t["function"]["name"] == name)?;
        let properties = &tool["function"]["parameters"]["properties"];
        let mut arguments = Map::new();
        while !body.is_empty() {
            let (key, rest) = body.strip_prefix("<parameter=")?.split_once(">\n").filter(|(key, _)| is_name(key))?;
            let (value, rest) = rest.split_once("\n</parameter>\n")?;
            let value = match properties[key]["type"].as_str() {
                Some("string") => Value::from(value),
                _ => serde_json::from_str(value).ok()?,
            };
            arguments.insert(key.to_owned(), value);
            body = rest;
        }
        Some((name, arguments))
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(['>', '\n'])
}

/// JSON equality in which 5 equals 5.0.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

/// Whether `text` contains `phrase` between characters that are neither letters nor digits, in any case and with any
/// white space.
fn contains(text: &str, phrase: &str) -> bool {
    let squash = |s: &str| s.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    let (text, phrase) = (squash(text), squash(phrase));
    text.match_indices(&phrase).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + phrase.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn case(thinking: bool, expect: Value) -> Case {
        let parameters = json!({"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
        serde_json::from_value(json!({
            "category": "test", "messages": [], "enable_thinking": thinking, "expect": expect,
            "tools": [{"function": {"name": "weather", "parameters": parameters}}],
        }))
        .unwrap()
    }

    #[test]
    fn phrases_count_as_whole_words() {
        let check = |text, expect| assert_eq!(contains(text, "San Marino"), expect, "{text:?}");
        check("It is san\n marino.", true);
        check("San Marino", true);
        check("San Marinos", false);
        check("xSan Marino", false);
        check("San Marinos, or San Marino", true);
        assert!(!contains("12", "2") && contains("1, 2", "2"));
    }

    #[test]
    fn answers_are_judged_by_the_rules() {
        let check = |thinking, output: &str, expect| {
            assert_eq!(case(thinking, json!({"any_of": ["Paris"]})).is_right(output), expect, "{output:?}");
        };
        check(false, "Paris.", true);
        check(false, "Rome.", false);
        check(false, "<think>\n</think>\n\nParis", false);
        check(false, "Paris <tool_call>", false);
        check(true, "France, so Paris.\n</think>\n\nParis.", true);
        check(true, " \n</think>\n\nParis.", false);
        check(true, "Paris.", false);
        check(true, "Paris\n</think>\n\nRome", false);
    }

    #[test]
    fn calls_are_judged_by_the_rules() {
        let check = |output: &str, expect| {
            let want = json!({"tool": {"name": "weather", "arguments": {"city": "5", "days": 5}}});
            assert_eq!(case(false, want).is_right(output), expect, "{output:?}");
        };
        let call = |name: &str, city: &str, days: &str| {
            format!(
                "<tool_call>\n<function={name}>\n<parameter=city>\n{city}\n</parameter>\n<parameter=days>\n{days}\n\
                 </parameter>\n</function>\n</tool_call>"
            )
        };
        check(&call("weather", "5", "5"), true);
        check(&call("weather", "5", "5.0"), true);
        check(&call("weather", "5", "6"), false);
        check(&call("weather", "5", "five"), false);
        check(&call("weather", "\n5", "5"), false);
        check(&call("other", "5", "5"), false);
        check(&(call("weather", "5", "5") + &call("weather", "5", "5")), false);
        check(&call("weather", "5", "5").replace("</function>\n", ""), false);
        check(&call("weather", "5", "5").replace("<parameter=days>", "days <parameter=days>"), false);
        check("5 5", false);
    }
}
