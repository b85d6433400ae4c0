//! What JSON types a tool's schema allows for an argument, and the argument's text as a value of one of them.
//!
//! The family writes arguments as plain text, so `5` may be a number or a text; only the schema knows. Where it allows several, the
//! narrowest type whose notation the text has is taken, and text last. What fits nothing is kept as text rather than lost: the
//! client's own validation can tell the model.

use serde_json::Value;

/// Depth to which references and combinations of schemas are followed.
const DEPTH_MAX: usize = 16;

/// Types that an argument may have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Types {
    pub text: bool,
    number: bool,
    boolean: bool,
    null: bool,
    object: bool,
    list: bool,
    /// The only values, where the schema lists them.
    choices: Vec<Value>,
}

impl Types {
    /// Any type at all: the argument is not described.
    pub fn any() -> Self {
        Self { text: true, number: true, boolean: true, null: true, object: true, list: true, choices: Vec::new() }
    }

    /// The types of the argument `name` of a function whose arguments `parameters` describes.
    pub fn of(parameters: &Value, name: &str) -> Self {
        match property(parameters, parameters, name, 0) {
            Some(schema) => types(schema, parameters, 0),
            None => Self::any(),
        }
    }

    fn named(name: &str) -> Self {
        let mut types = Self::default();
        match name {
            "string" => types.text = true,
            "number" | "integer" => types.number = true,
            "boolean" => types.boolean = true,
            "null" => types.null = true,
            "object" => types.object = true,
            "array" => types.list = true,
            _ => return Self::any(),
        }
        types
    }

    fn none(&self) -> bool {
        !(self.text || self.number || self.boolean || self.null || self.object || self.list)
    }

    /// Types that either allows.
    fn or(mut self, other: Self) -> Self {
        self.text |= other.text;
        self.number |= other.number;
        self.boolean |= other.boolean;
        self.null |= other.null;
        self.object |= other.object;
        self.list |= other.list;
        self.choices.extend(other.choices);
        self
    }

    /// Types that both allow; contradictions allow what the first does.
    fn and(self, other: Self) -> Self {
        let both = Self {
            text: self.text && other.text,
            number: self.number && other.number,
            boolean: self.boolean && other.boolean,
            null: self.null && other.null,
            object: self.object && other.object,
            list: self.list && other.list,
            choices: if self.choices.is_empty() { other.choices } else { self.choices.clone() },
        };
        if both.none() { self } else { both }
    }

    /// True when the argument is text whatever follows `start`, its beginning, so that it can be shown as it is written.
    pub fn certainly_text(&self, start: &str) -> bool {
        if !self.text || !self.choices.is_empty() {
            return false;
        }
        if !(self.number || self.boolean || self.null || self.object || self.list) {
            return true;
        }
        let start = start.trim();
        let Some(first) = start.chars().next() else { return false };
        let numeric = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E');
        let may_become = |word: &str| word.starts_with(start);
        !(self.object && first == '{'
            || self.list && first == '['
            || self.number && start.chars().all(numeric)
            || self.null && may_become("null")
            || self.boolean && (may_become("true") || may_become("false")))
    }

    /// True when `start`, the beginning of the argument, begins an object or a list that cannot be meant as text.
    pub fn certainly_json(&self, start: &str) -> bool {
        let first = start.trim_start().chars().next();
        !self.text && self.choices.is_empty() && (self.object && first == Some('{') || self.list && first == Some('['))
    }

    /// The JSON text of the whole argument `raw`.
    pub fn json(&self, raw: &str) -> String {
        let text = || Value::String(raw.to_owned()).to_string();
        let trimmed = raw.trim();
        if let Some(choice) = self.choice(raw, trimmed) {
            return choice.to_string();
        }
        if self.text && !(self.number || self.boolean || self.null || self.object || self.list) {
            return text();
        }
        // Python's spellings are taken where they cannot be meant as text.
        if self.boolean && (trimmed == "true" || !self.text && trimmed == "True") {
            return "true".into();
        }
        if self.boolean && (trimmed == "false" || !self.text && trimmed == "False") {
            return "false".into();
        }
        if self.null && (trimmed == "null" || !self.text && matches!(trimmed, "None" | "")) {
            return "null".into();
        }
        if let Some(json) = self.parsed(trimmed) {
            return json;
        }
        if self.text {
            return text();
        }
        // A value in quotes; then anything that is JSON at all; at last the text.
        if let Ok(Value::String(inner)) = serde_json::from_str(trimmed)
            && let Some(json) = self.parsed(inner.trim())
        {
            return json;
        }
        if serde_json::from_str::<Value>(trimmed).is_ok() { one_line(trimmed) } else { text() }
    }

    /// `text` as it stands, if it is JSON of an allowed type other than text.
    fn parsed(&self, text: &str) -> Option<String> {
        match serde_json::from_str::<Value>(text).ok()? {
            Value::Number(_) if self.number => Some(text.to_owned()),
            Value::Bool(_) if self.boolean => Some(text.to_owned()),
            Value::Null if self.null => Some(text.to_owned()),
            Value::Object(_) if self.object => Some(one_line(text)),
            Value::Array(_) if self.list => Some(one_line(text)),
            _ => None,
        }
    }

    /// The listed value that the text spells: as text, as JSON, or with quotes around it.
    fn choice(&self, raw: &str, trimmed: &str) -> Option<&Value> {
        let spelled = |value: &&Value| match value {
            Value::String(text) => text == raw || text == trimmed,
            Value::Bool(true) => matches!(trimmed, "true" | "True"),
            Value::Bool(false) => matches!(trimmed, "false" | "False"),
            Value::Null => matches!(trimmed, "null" | "None"),
            other => serde_json::from_str(trimmed).is_ok_and(|spelled: Value| spelled == **other),
        };
        let quoted = || {
            let inner = serde_json::from_str::<Value>(trimmed).ok()?;
            self.choices.iter().find(|value| **value == inner)
        };
        self.choices.iter().find(spelled).or_else(quoted)
    }
}

/// JSON as it stands if it is on one line, else without its layout: in an event it must not matter where it is cut.
fn one_line(json: &str) -> String {
    if !json.contains('\n') {
        return json.to_owned();
    }
    serde_json::from_str::<Value>(json).map_or_else(|_| json.to_owned(), |value| value.to_string())
}

/// The schema of one property, through references and combinations.
fn property<'a>(schema: &'a Value, root: &'a Value, name: &str, depth: usize) -> Option<&'a Value> {
    if depth > DEPTH_MAX {
        return None;
    }
    if let Some(found) = schema.get("properties").and_then(|properties| properties.get(name)) {
        return Some(found);
    }
    if let Some(target) = reference(schema, root) {
        return property(target, root, name, depth + 1);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for part in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
            if let Some(found) = property(part, root, name, depth + 1) {
                return Some(found);
            }
        }
    }
    schema.get("additionalProperties").filter(|additional| additional.is_object())
}

/// What `$ref` names, if it lies in the same schema.
fn reference<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

fn types(schema: &Value, root: &Value, depth: usize) -> Types {
    let Some(object) = schema.as_object().filter(|_| depth <= DEPTH_MAX) else { return Types::any() };
    if let Some(target) = reference(schema, root) {
        return types(target, root, depth + 1);
    }
    let mut result = match object.get("type") {
        Some(Value::String(name)) => Types::named(name),
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).map(Types::named).fold(Types::default(), Types::or)
        }
        _ if object.contains_key("properties") => Types::named("object"),
        _ if object.contains_key("items") => Types::named("array"),
        _ => Types::any(),
    };
    let constant = object.get("const").map(std::slice::from_ref);
    if let Some(choices) = object.get("enum").and_then(Value::as_array).map(Vec::as_slice).or(constant) {
        result =
            result.and(choices.iter().map(|choice| Types::named(type_name(choice))).fold(Types::default(), Types::or));
        result.choices = choices.to_vec();
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(parts) = object.get(key).and_then(Value::as_array).filter(|parts| !parts.is_empty()) {
            let union = parts.iter().map(|part| types(part, root, depth + 1)).reduce(combine);
            result = result.and(union.unwrap_or_else(Types::any));
        }
    }
    for part in object.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        result = result.and(types(part, root, depth + 1));
    }
    if object.get("nullable") == Some(&Value::Bool(true)) {
        result.null = true;
    }
    if result.none() { Types::any() } else { result }
}

/// Either of two alternatives. Lists of choices only bind where every alternative is such a list.
fn combine(a: Types, b: Types) -> Types {
    let listed = |types: &Types| !types.choices.is_empty() || *types == Types::named("null");
    let keep = listed(&a) && listed(&b);
    let nullable = a.null || b.null;
    let mut both = a.or(b);
    if !keep {
        both.choices.clear();
    } else if nullable && !both.choices.is_empty() {
        both.choices.push(Value::Null);
    }
    both
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: Value, rows: &[(&str, &str)]) {
        let parameters = json!({
            "type": "object", "properties": {"x": schema},
            "$defs": {"Mode": {"enum": ["fast", "slow"]}, "Loop": {"$ref": "#/$defs/Loop"}},
        });
        let types = Types::of(&parameters, "x");
        for (raw, expected) in rows {
            assert_eq!(types.json(raw), *expected, "{raw:?} as {parameters}");
        }
    }

    #[test]
    fn field_report_o10_values_have_the_type_of_the_schema() {
        check(
            json!({"type": "string"}),
            &[("5", r#""5""#), ("true", r#""true""#), ("null", r#""null""#), ("", r#""""#)],
        );
        check(json!({"type": "string"}), &[(r#"{"a": 1}"#, r#""{\"a\": 1}""#), (r#""q""#, r#""\"q\"""#)]);
        check(json!({"type": "integer"}), &[("5", "5"), (" -7\n", "-7"), (r#""8""#, "8"), ("five", r#""five""#)]);
        check(
            json!({"type": "number"}),
            &[("5.50", "5.50"), ("1e3", "1e3"), ("123456789012345678901234567890", "123456789012345678901234567890")],
        );
        check(
            json!({"type": "boolean"}),
            &[("true", "true"), ("True", "true"), ("False", "false"), ("yes", r#""yes""#)],
        );
        check(json!({"type": "null"}), &[("null", "null"), ("None", "null"), ("", "null")]);
        check(
            json!({"type": "object"}),
            &[(r#"{"a": 1.50}"#, r#"{"a": 1.50}"#), ("{}", "{}"), ("{\"a\":\n[1]}", r#"{"a":[1]}"#)],
        );
        check(json!({"type": "array"}), &[("[1, \"a\"]", "[1, \"a\"]"), (r#""[1]""#, "[1]"), ("a, b", r#""a, b""#)]);
    }

    #[test]
    fn several_types_take_the_narrowest() {
        check(
            json!({"type": ["string", "null"]}),
            &[("null", "null"), ("None", r#""None""#), ("x", r#""x""#), ("5", r#""5""#)],
        );
        check(json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}), &[("5", "5"), ("5a", r#""5a""#)]);
        check(json!({"oneOf": [{"type": "array"}, {"type": "string"}]}), &[("[1]", "[1]"), ("[1", r#""[1""#)]);
        check(json!({"type": "integer", "nullable": true}), &[("null", "null"), ("3", "3")]);
        check(json!({"allOf": [{"type": ["string", "number"]}, {"type": "number"}]}), &[("3", "3")]);
        check(
            json!({}),
            &[("5", "5"), ("true", "true"), ("{\"a\":1}", "{\"a\":1}"), ("hello", r#""hello""#), ("True", r#""True""#)],
        );
        check(json!(true), &[("[1]", "[1]"), (r#""q""#, r#""\"q\"""#)]);
    }

    #[test]
    fn choices_are_found_by_what_they_look_like() {
        check(
            json!({"enum": ["a", "b"]}),
            &[("a", r#""a""#), (" b ", r#""b""#), (r#""a""#, r#""a""#), ("c", r#""c""#)],
        );
        check(json!({"enum": [1, "1", true]}), &[("1", "1"), ("True", "true")]);
        check(json!({"const": 3}), &[("3", "3")]);
        check(json!({"$ref": "#/$defs/Mode"}), &[("fast", r#""fast""#)]);
        check(json!({"anyOf": [{"enum": ["on"]}, {"type": "null"}]}), &[("null", "null"), ("on", r#""on""#)]);
        check(json!({"anyOf": [{"enum": ["on"]}, {"type": "integer"}]}), &[("7", "7"), ("on", r#""on""#)]);
    }

    #[test]
    fn schemas_that_lead_nowhere_allow_everything() {
        check(json!({"$ref": "#/$defs/Loop"}), &[("5", "5"), ("a", r#""a""#)]);
        check(json!({"type": "banana"}), &[("5", "5"), ("a", r#""a""#)]);
        check(json!({"type": []}), &[("a", r#""a""#)]);
        let nested = (0..40).fold(json!({"type": "integer"}), |schema, _| json!({"anyOf": [schema]}));
        check(nested, &[("5", "5")]);
        assert_eq!(Types::of(&json!({}), "y"), Types::any());
        assert_eq!(Types::of(&json!({"additionalProperties": {"type": "string"}}), "y").json("5"), r#""5""#);
    }

    #[test]
    fn what_is_certainly_text_stays_text() {
        let starts = ["", " ", "n", "nul", "nulls", "true", "trues", "5", "5 a", "-", "-a", "{", "[", "a", "e", "é"];
        let schemas = [
            json!({"type": "string"}),
            json!({"type": ["string", "null"]}),
            json!({"type": ["string", "number"]}),
            json!({}),
            json!({"type": ["string", "boolean", "array"]}),
        ];
        let ends = ["", "l", "l ", "e", "5", "\"}", "}", "]", " b", ".5"];
        for schema in schemas {
            let types = types(&schema, &schema, 0);
            for whole in starts.iter().flat_map(|start| ends.map(|end| (start, format!("{start}{end}")))) {
                if types.certainly_text(whole.0) {
                    assert_eq!(types.json(&whole.1), json!(whole.1).to_string(), "{:?} as {schema}", whole.0);
                }
            }
        }
    }
}
