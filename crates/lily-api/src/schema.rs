//! The fields of requests, described for machines (`/openapi.json`) and for people (docs/api.md), from the tables that the parsers
//! read.

use serde_json::{Map, Value, json};

use crate::error::Api;
use crate::fields::{Field, Handling, Kind};
use crate::{chat, completions, messages, responses};

/// The JSON schema of the body of a request to `api`.
pub fn schema(api: Api) -> Value {
    let (tables, required) = described(api);
    object(tables, required)
}

/// The tables of an API, and the fields that a body must have.
fn described(api: Api) -> (&'static [&'static [Field]], &'static [&'static str]) {
    match api {
        Api::Chat => (chat::TABLES, &["messages"]),
        Api::Completions => (completions::TABLES, &["prompt"]),
        Api::Responses => (responses::TABLES, &["input"]),
        Api::Messages => (messages::TABLES, &["messages"]),
    }
}

/// The schema of an object with these fields.
fn object(tables: &[&[Field]], required: &[&str]) -> Value {
    let mut properties = Map::new();
    for field in tables.iter().copied().flatten() {
        let mut property = match field.kind {
            Kind::Bool => json!({"type": "boolean"}),
            Kind::Number(low, high) => json!({"type": "number", "minimum": low, "maximum": high}),
            Kind::Integer(low, high) => json!({"type": "integer", "minimum": low, "maximum": high}),
            Kind::Text => json!({"type": "string"}),
            Kind::Texts(most) => {
                let text = json!({"type": "string", "minLength": 1});
                json!({"anyOf": [text, {"type": "array", "items": text, "maxItems": most}]})
            }
            Kind::Ids => json!({"type": "array", "items": {"type": "integer", "minimum": 0}}),
            Kind::Object => json!({"type": "object"}),
            Kind::List => json!({"type": "array", "items": {}}),
            Kind::Any => json!({}),
        };
        let about = match field.handling {
            Handling::Read => field.about.to_owned(),
            Handling::Ignored => format!("Accepted and ignored: {}", field.about),
            Handling::Only([]) => {
                property["type"] = json!("null");
                format!("Not supported: {}", field.about)
            }
            Handling::Only(values) => {
                let values: Vec<Value> = values.iter().map(|v| serde_json::from_str(v).unwrap_or_default()).collect();
                property["enum"] = Value::Array(values);
                format!("Not supported: {}", field.about)
            }
            Handling::OnlyBeside(..) => format!("Not supported beside a penalty: {}", field.about),
        };
        property["description"] = json!(about);
        properties.insert(field.name.into(), property);
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// The fields of an API as a table in Markdown.
#[cfg(test)]
pub(crate) fn markdown(api: Api) -> String {
    let mut out = "| Field | Holds | What becomes of it |\n|---|---|---|\n".to_owned();
    for field in described(api).0.iter().copied().flatten() {
        let kind = match field.kind {
            Kind::Bool => "true or false".into(),
            Kind::Number(low, high) => format!("number, {low} to {high}"),
            // Bounds that say no more than that it is a number of the machine.
            Kind::Integer(i64::MIN, _) => "whole number".into(),
            Kind::Integer(low, high) if high >= 1 << 31 => format!("whole number from {low}"),
            Kind::Integer(low, high) => format!("whole number, {low} to {high}"),
            Kind::Text => "text".into(),
            Kind::Texts(most) => format!("text, or up to {most}"),
            Kind::Ids => "token ids".into(),
            Kind::Object => "object".into(),
            Kind::List => "list".into(),
            Kind::Any => String::new(),
        };
        let about = match field.handling {
            Handling::Read => field.about.to_owned(),
            Handling::Ignored => format!("ignored: {}", field.about),
            Handling::Only([]) => format!("refused: {}", field.about),
            Handling::Only(values) => format!("refused unless `{}`: {}", values.join("` or `"), field.about),
            Handling::OnlyBeside(fields, values) => {
                let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
                let unless =
                    if values.is_empty() { String::new() } else { format!(", unless `{}`", values.join("` or `")) };
                format!("refused where `{}` asks for something{unless}: {}", names.join("` or `"), field.about)
            }
        };
        out += &format!("| `{}` | {kind} | {about} |\n", field.name);
    }
    out
}
