//! The value of one parameter of a call, behind its opening tag, as a grammar.
//!
//! Texts are written as they are and all other values as JSON, so a schema is taken apart into the texts and the JSON that it
//! allows. A keyword that cannot be told of a text is an error: nothing of a schema is left out silently. What reads the
//! arguments takes `5` for a number and `{..` for an object where the schema allows those beside text; here texts that look so
//! are left out, so that what is read follows the schema too.

use super::grammar::bounded;
use super::patterns;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Behind a value.
pub(super) const CLOSER: &str = r#""\n</parameter>\n""#;
/// Depth to which references and combinations are followed.
const DEPTH_MAX: usize = 16;
/// Keywords that restrict a schema, whatever the type.
const OF_ALL: [&str; 13] = [
    "type",
    "enum",
    "const",
    "$ref",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "$dynamicRef",
    "$recursiveRef",
];
/// Those that restrict texts.
const OF_TEXTS: [&str; 4] = ["pattern", "minLength", "maxLength", "format"];
/// Those that restrict numbers.
const OF_NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// Those that restrict lists and objects.
const OF_PARTS: [&str; 21] = [
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "properties",
    "additionalProperties",
    "patternProperties",
    "required",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
];

/// The expression of a value and its closer; rules that it needs, named after `rule`, go to `grammar`. References in `schema`
/// lead to definitions in `whole`.
///
/// # Errors
/// What of the schema cannot be enforced, in words.
pub(super) fn value(rule: &str, schema: &Value, whole: &Value, grammar: &mut String) -> Result<String, String> {
    if !may_be_text(schema, whole, 0) {
        return Ok(json_value(rule, schema, whole, grammar));
    }
    let mut ways = Ways::default();
    ways.gather(schema, whole, 0)?;
    ways.write(rule, whole, grammar)
}

/// The keywords of a schema that restrict it.
pub(super) fn restricting(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let known = |word: &&str| {
        OF_ALL.contains(word) || OF_TEXTS.contains(word) || OF_NUMBERS.contains(word) || OF_PARTS.contains(word)
    };
    schema.keys().map(String::as_str).filter(known)
}

/// What `$ref` names, if it lies in the same schema.
pub(super) fn target<'a>(schema: &Map<String, Value>, whole: &'a Value) -> Option<&'a Value> {
    whole.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

fn json_value(rule: &str, schema: &Value, whole: &Value, grammar: &mut String) -> String {
    let _ = writeln!(grammar, "{rule}_value: %json {}", bounded(&with_definitions(schema, whole)));
    format!("{rule}_value {CLOSER}")
}

/// A part of a schema that can be read without the whole: references go to definitions, which come along.
fn with_definitions(schema: &Value, whole: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(map) = &mut schema {
        for word in ["$defs", "definitions"] {
            if let Some(definitions) = whole.get(word) {
                map.entry(word).or_insert_with(|| definitions.clone());
            }
        }
    }
    schema
}

/// Whether a schema may allow a text; false only where it surely does not.
fn may_be_text(schema: &Value, whole: &Value, depth: usize) -> bool {
    let Some(object) = schema.as_object().filter(|_| depth <= DEPTH_MAX) else { return schema != &Value::Bool(false) };
    let kinds = kinds(object);
    let parts = |word| object.get(word).and_then(Value::as_array);
    let part = |part: &Value| may_be_text(part, whole, depth + 1);
    (kinds.is_empty() || kinds.contains(&"string"))
        && parts("enum").is_none_or(|values| values.iter().any(Value::is_string))
        && object.get("const").is_none_or(Value::is_string)
        && target(object, whole).is_none_or(part)
        && ["anyOf", "oneOf"].into_iter().filter_map(parts).all(|parts| parts.iter().any(part))
        && parts("allOf").is_none_or(|parts| parts.iter().all(part))
}

/// The types that a schema names.
fn kinds(schema: &Map<String, Value>) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        Some(kind) => kind.as_str().into_iter().collect(),
        None => Vec::new(),
    }
}

/// The ways in which a value may be written.
#[derive(Default)]
struct Ways {
    /// Texts that match all of some patterns; every text where there are none.
    texts: Vec<Vec<String>>,
    /// These.
    literals: Vec<String>,
    /// Types of values without parts, without more said of them.
    scalars: Vec<&'static str>,
    /// JSON of these schemas.
    json: Vec<Value>,
}

impl Ways {
    fn gather(&mut self, schema: &Value, whole: &Value, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err("\"$ref\" that leads back to itself, or too deep".into());
        }
        let Some(object) = schema.as_object() else {
            // `true` and `false` are schemas too.
            if schema == &Value::Bool(true) {
                self.texts.push(Vec::new());
            } else {
                self.json.push(schema.clone());
            }
            return Ok(());
        };
        let alone = |word: &str, beside: &str| {
            let other = restricting(object).find(|other| *other != word && *other != beside);
            other.map_or(Ok(()), |other| Err(format!("{other:?} beside {word:?}")))
        };
        let combined = ["$ref", "anyOf", "oneOf", "allOf", "enum", "const"];
        let Some(word) = combined.into_iter().find(|word| object.contains_key(*word)) else {
            return self.gather_types(object);
        };
        alone(word, if matches!(word, "enum" | "const") { "type" } else { word })?;
        let parts = object[word].as_array().map(Vec::as_slice);
        match (word, parts) {
            ("$ref", _) => {
                let target = target(object, whole).ok_or_else(|| format!("\"$ref\" to {}", object[word]))?;
                self.gather(target, whole, depth + 1)
            }
            ("anyOf", Some(parts)) => parts.iter().try_for_each(|part| self.gather(part, whole, depth + 1)),
            ("oneOf", Some(parts)) => parts.iter().try_for_each(|part| {
                let mut one = Self::default();
                one.gather(part, whole, depth + 1)?;
                self.join(one)
            }),
            ("allOf", Some([part])) => self.gather(part, whole, depth + 1),
            ("enum", Some(values)) if !values.is_empty() => {
                values.iter().for_each(|value| self.choice(value, &kinds(object)));
                Ok(())
            }
            ("const", _) => {
                self.choice(&object[word], &kinds(object));
                Ok(())
            }
            _ => Err(format!("{word:?} as it stands there")),
        }
    }

    /// One of the values that a schema lists, if it has one of the types.
    fn choice(&mut self, value: &Value, kinds: &[&str]) {
        let typed = match value {
            Value::Null => kinds.contains(&"null"),
            Value::Bool(_) => kinds.contains(&"boolean"),
            Value::Number(number) => kinds.contains(&"number") || (kinds.contains(&"integer") && !number.is_f64()),
            Value::String(_) => kinds.contains(&"string"),
            Value::Array(_) => kinds.contains(&"array"),
            Value::Object(_) => kinds.contains(&"object"),
        };
        match value {
            _ if !(typed || kinds.is_empty()) => {}
            Value::String(text) => self.literals.push(text.clone()),
            Value::Array(_) | Value::Object(_) => self.json.push(json!({"const": value})),
            scalar => self.literals.push(scalar.to_string()),
        }
    }

    fn gather_types(&mut self, schema: &Map<String, Value>) -> Result<(), String> {
        let kinds = kinds(schema);
        let first = restricting(schema).next();
        match (first, kinds.is_empty()) {
            (None, _) => self.texts.push(Vec::new()), // everything is allowed
            (Some(word), true) => return Err(format!("{word:?} without a type")),
            (Some(_), false) => {}
        }
        for kind in kinds {
            let as_json = || Value::Object(schema.clone().into_iter().chain([("type".into(), kind.into())]).collect());
            match kind {
                "string" => {
                    let told = |word: &&str| OF_ALL.contains(word) && *word != "type";
                    if let Some(word) = restricting(schema).find(told) {
                        return Err(format!("{word:?} of a text"));
                    }
                    self.texts.push(patterns::of(schema)?);
                }
                "integer" | "number" if restricting(schema).any(|word| OF_NUMBERS.contains(&word)) => {
                    self.json.push(as_json());
                }
                "integer" => self.scalars.push("integer"),
                "number" => self.scalars.push("number"),
                "boolean" => self.scalars.push("boolean"),
                "null" => self.scalars.push("null"),
                "object" | "array" => self.json.push(as_json()),
                other => return Err(format!("type {other:?}")),
            }
        }
        Ok(())
    }

    /// Takes the ways of another branch, of which only one may be met.
    fn join(&mut self, other: Self) -> Result<(), String> {
        let texts = |ways: &Self| !ways.texts.is_empty() || !ways.literals.is_empty();
        let number = |ways: &Self| ways.scalars.iter().any(|kind| matches!(*kind, "integer" | "number"));
        let clash = (texts(self) && texts(&other))
            || (number(self) && number(&other))
            || (!self.json.is_empty() && !other.json.is_empty())
            || self.scalars.iter().any(|kind| other.scalars.contains(kind));
        if clash {
            return Err("\"oneOf\" with branches that one value may meet".into());
        }
        self.texts.extend(other.texts);
        self.literals.extend(other.literals);
        self.scalars.extend(other.scalars);
        self.json.extend(other.json);
        Ok(())
    }

    fn write(self, rule: &str, whole: &Value, grammar: &mut String) -> Result<String, String> {
        let whole_numbers = self.scalars.contains(&"integer") && !self.scalars.contains(&"number");
        if self.texts.iter().any(Vec::is_empty) && self.json.is_empty() && !whole_numbers {
            return Ok("free_text".into()); // whatever it is taken for is allowed
        }
        if let Some(part) = self.json.iter().find(|part| !self.texts.is_empty() && !has_parts(part, whole, 0)) {
            let word = part.as_object().and_then(|part| restricting(part).find(|word| *word != "type"));
            return Err(format!("{:?} beside text", word.unwrap_or("false")));
        }
        let upper = rule.to_uppercase();
        let mut ways: Vec<String> = Vec::new();
        for (index, patterns) in self.texts.iter().enumerate() {
            let text = patterns::terminal(patterns, whole_numbers, !self.json.is_empty())?;
            let _ = writeln!(grammar, "{upper}_TEXT_{index}: ({text}) {CLOSER}");
            ways.push(format!("{upper}_TEXT_{index}"));
        }
        for literal in &self.literals {
            ways.push(Value::from(format!("{literal}\n</parameter>\n")).to_string());
        }
        for kind in &self.scalars {
            let name = format!("{upper}_{}", kind.to_uppercase());
            let _ = writeln!(grammar, "{name}: {} {CLOSER}", patterns::scalar(kind));
            ways.push(name);
        }
        if !self.json.is_empty() {
            ways.push(json_value(rule, &json!({"anyOf": self.json}), whole, grammar));
        }
        Ok(format!("({})", ways.join(" | ")))
    }
}

/// Whether JSON of this schema surely begins with a bracket.
fn has_parts(schema: &Value, whole: &Value, depth: usize) -> bool {
    let Some(object) = schema.as_object().filter(|_| depth <= DEPTH_MAX) else { return false };
    let kinds = kinds(object);
    let by_type = !kinds.is_empty() && kinds.iter().all(|kind| matches!(*kind, "object" | "array"));
    let by_value = object.get("const").is_some_and(|value| value.is_object() || value.is_array());
    by_type || by_value || target(object, whole).is_some_and(|target| has_parts(target, whole, depth + 1))
}
