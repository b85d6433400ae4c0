//! Reading request bodies: tables of fields, and typed access that names the field at fault.
//!
//! Every API declares its fields in a table that says what each may hold and what becomes of it. [`Body::parse`] checks a body
//! against the table, so that the parsers that follow read values of the declared kind. Fields that no table has are ignored, as
//! every server's extensions are.

use serde_json::{Map, Value};

use crate::error::{ApiError, ErrorKind};

/// What a field may hold; null is the same as leaving it out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Bool,
    /// A number from the first to the second.
    Number(f64, f64),
    /// A whole number from the first to the second.
    Integer(i64, i64),
    Text,
    /// Text or a list of texts, so many at most.
    Texts(usize),
    /// Token ids.
    Ids,
    Object,
    List,
    Any,
}

/// What becomes of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handling {
    /// It is honoured.
    Read,
    /// It changes nothing that a client could notice in the answer, so it is not even looked at.
    Ignored,
    /// It would change the meaning of the request and cannot be honoured: only these values, as JSON, which ask for nothing.
    Only(&'static [&'static str]),
    /// The same, but only where one of these fields has another number than this, with which it asks for nothing: it says more of what they ask for.
    OnlyBeside(&'static [(&'static str, f64)], &'static [&'static str]),
}

/// One field of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub name: &'static str,
    pub kind: Kind,
    pub handling: Handling,
    /// What it does, in a few words.
    pub about: &'static str,
}

/// A field that is honoured.
pub(crate) const fn read(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { name, kind, handling: Handling::Read, about }
}

/// A field that is ignored.
pub(crate) const fn ignored(name: &'static str, about: &'static str) -> Field {
    Field { name, kind: Kind::Any, handling: Handling::Ignored, about }
}

/// A field that is refused, but for values that ask for nothing.
pub(crate) const fn only(name: &'static str, values: &'static [&'static str], about: &'static str) -> Field {
    Field { name, kind: Kind::Any, handling: Handling::Only(values), about }
}

/// A field that is refused, but for values that ask for nothing, beside fields that ask for what it would change.
pub(crate) const fn only_beside(
    name: &'static str,
    fields: &'static [(&'static str, f64)],
    values: &'static [&'static str],
    about: &'static str,
) -> Field {
    Field { name, kind: Kind::Any, handling: Handling::OnlyBeside(fields, values), about }
}

/// A checked body.
#[derive(Debug)]
pub(crate) struct Body {
    fields: Map<String, Value>,
    /// Put before names in errors, for objects inside others: empty or ending in a dot.
    place: String,
}

impl Body {
    /// Parses and checks a request's body.
    pub fn parse(bytes: &[u8], tables: &[&[Field]]) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| ApiError::new(ErrorKind::Invalid, format!("The body is not JSON: {error}.")))?;
        let found = kind_of(&value);
        let Value::Object(fields) = value else {
            return Err(ApiError::new(ErrorKind::Invalid, format!("The body is {found}, expected a JSON object.")));
        };
        Self::check(fields, String::new(), tables)
    }

    fn check(mut fields: Map<String, Value>, place: String, tables: &[&[Field]]) -> Result<Self, ApiError> {
        fields.retain(|_, value| !value.is_null());
        for field in tables.iter().copied().flatten() {
            let Some(value) = fields.get(field.name) else { continue };
            check_field(field, value, format!("{place}{}", field.name), &fields)?;
        }
        Ok(Self { fields, place })
    }

    /// The full name of a field, for errors.
    pub fn name(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name)
    }

    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name)
    }

    pub fn bool(&self, name: &str) -> Option<bool> {
        self.get(name)?.as_bool()
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    pub fn f32(&self, name: &str) -> Option<f32> {
        self.get(name)?.as_f64().map(|number| number as f32)
    }

    pub fn integer(&self, name: &str) -> Option<i64> {
        integer(self.get(name)?)
    }

    pub fn count(&self, name: &str) -> Option<usize> {
        self.integer(name).and_then(|number| usize::try_from(number).ok())
    }

    /// A list of texts, also where a single text was sent.
    pub fn texts(&self, name: &str) -> Vec<String> {
        match self.get(name) {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        let ids = self.get(name).and_then(Value::as_array).into_iter().flatten();
        ids.filter_map(integer).filter_map(|id| u32::try_from(id).ok()).collect()
    }

    /// A field that must be there.
    pub fn required(&mut self, name: &str, expected: &str) -> Result<Value, ApiError> {
        self.take(name).ok_or_else(|| missing(self.name(name), expected))
    }
}

/// A field that is not there.
pub(crate) fn missing(place: impl Into<String>, expected: &str) -> ApiError {
    let place = place.into();
    let message = format!("`{place}` is missing; expected {expected}.");
    ApiError { code: Some("missing_required_parameter"), ..ApiError::field(place, message) }
}

/// A field that holds something else.
pub(crate) fn wrong(place: impl Into<String>, found: &Value, expected: &str) -> ApiError {
    let place = place.into();
    let message = format!("`{place}` is {}, expected {expected}.", kind_of(found));
    ApiError { code: Some("invalid_type"), ..ApiError::field(place, message) }
}

/// The text of a field that must hold one.
pub(crate) fn text_at(object: &Map<String, Value>, name: &str, place: &str) -> Result<String, ApiError> {
    let full = format!("{place}.{name}");
    match object.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        None | Some(Value::Null) => Err(missing(full, "text")),
        Some(other) => Err(wrong(full, other, "text")),
    }
}

fn check_field(field: &Field, value: &Value, place: String, beside: &Map<String, Value>) -> Result<(), ApiError> {
    match field.handling {
        Handling::Ignored => return Ok(()),
        Handling::OnlyBeside(others, _) if !others.iter().any(|(name, nothing)| asks(beside, name, *nothing)) => {
            return Ok(());
        }
        Handling::Only(values) | Handling::OnlyBeside(_, values) => {
            // As text, and numbers by value: 1 and 1.0 are the same.
            let same = |allowed: &&str| {
                let allowed: Value = serde_json::from_str(allowed).unwrap_or_default();
                allowed == *value || (allowed.is_number() && allowed.as_f64() == value.as_f64())
            };
            if values.iter().any(same) {
                return Ok(());
            }
            let instead = if values.is_empty() { String::new() } else { format!(", or send {}", values.join(" or ")) };
            let message = format!("`{place}` cannot be honoured: {}. Leave it out{instead}.", field.about);
            return Err(ApiError::unsupported(place, message));
        }
        Handling::Read => {}
    }
    let fail = |expected: &str| Err(wrong(place.clone(), value, expected));
    match field.kind {
        Kind::Any => Ok(()),
        Kind::Bool if !value.is_boolean() => fail("true or false"),
        Kind::Text if !value.is_string() => fail("text"),
        Kind::Object if !value.is_object() => fail("an object"),
        Kind::List if !value.is_array() => fail("a list"),
        Kind::Number(low, high) => match value.as_f64() {
            None => fail("a number"),
            Some(number) if (low..=high).contains(&number) => Ok(()),
            Some(number) => Err(out_of_range(place, &number.to_string(), &low.to_string(), &high.to_string())),
        },
        Kind::Integer(low, high) => match integer(value) {
            None => fail("a whole number"),
            Some(number) if (low..=high).contains(&number) => Ok(()),
            Some(number) => Err(out_of_range(place, &number.to_string(), &low.to_string(), &high.to_string())),
        },
        Kind::Texts(most) => check_texts(value, most, place),
        Kind::Ids => {
            let id = |id: &Value| integer(id).is_some_and(|id| u32::try_from(id).is_ok());
            if value.as_array().is_some_and(|ids| ids.iter().all(id)) { Ok(()) } else { fail("a list of token ids") }
        }
        Kind::Bool | Kind::Text | Kind::Object | Kind::List => Ok(()),
    }
}

/// Whether a field has another number than the one that asks for nothing.
fn asks(fields: &Map<String, Value>, name: &str, nothing: f64) -> bool {
    fields.get(name).is_some_and(|value| value.as_f64() != Some(nothing))
}

fn check_texts(value: &Value, most: usize, place: String) -> Result<(), ApiError> {
    let texts = match value {
        Value::String(_) => std::slice::from_ref(value),
        Value::Array(texts) => texts,
        other => return Err(wrong(place, other, "text or a list of texts")),
    };
    if texts.len() > most {
        let message = format!("`{place}` has {} texts; {most} are the most.", texts.len());
        return Err(ApiError::field(place, message));
    }
    for (index, text) in texts.iter().enumerate() {
        match text.as_str() {
            None => return Err(wrong(format!("{place}[{index}]"), text, "text")),
            Some("") => {
                let message = format!("`{place}[{index}]` is empty; leave it out or give at least one character.");
                return Err(ApiError::field(format!("{place}[{index}]"), message));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn out_of_range(place: String, found: &str, low: &str, high: &str) -> ApiError {
    let message = format!("`{place}` is {found}; it must be between {low} and {high}.");
    ApiError::field(place, message)
}

/// A whole number, also one written as `5.0`.
pub(crate) fn integer(value: &Value) -> Option<i64> {
    let exact = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    value.as_i64().or_else(|| value.as_u64().map(|n| n.cast_signed())).or_else(|| value.as_f64().and_then(exact))
}

/// What a value is, for errors.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
