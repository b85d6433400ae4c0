//! Values as Python prints them: `str`, `repr` and `json.dumps`, byte for byte.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Most items of a list that a template may print, join or collect: `[0] * n` is no work until then.
const MAX_ITEMS: usize = 1_000_000;

/// The items of anything iterable.
///
/// # Errors
/// It is not iterable, or has more than [`MAX_ITEMS`] items.
pub fn items(value: &Value) -> Result<Vec<Value>, Error> {
    let items: Vec<Value> = value.try_iter()?.take(MAX_ITEMS + 1).collect();
    if items.len() > MAX_ITEMS {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("more than {MAX_ITEMS} items")));
    }
    Ok(items)
}

/// White space by Python's `str.isspace`: Unicode's, and the four information separators.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str(value)`; undefined prints nothing, as Jinja has it.
pub fn write_str(out: &mut impl Write, value: &Value) -> std::fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value),
    }
}

/// [`write_str`] as a string; cut short where a list is absurdly long.
pub fn to_str(value: &Value) -> String {
    let mut text = String::new();
    let _ = write_str(&mut text, value);
    text
}

/// `repr(value)`.
fn write_repr(out: &mut impl Write, value: &Value) -> std::fmt::Result {
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::None => out.write_str("None"),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if value.is_integer() => write!(out, "{value}"),
        ValueKind::Number => out.write_str(&float(f64::try_from(value.clone()).unwrap_or(f64::NAN), "inf", "nan")),
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            out.write_char('[')?;
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                if index >= MAX_ITEMS {
                    return Err(std::fmt::Error);
                }
                out.write_str(if index > 0 { ", " } else { "" })?;
                write_repr(out, &item)?;
            }
            out.write_char(']')
        }
        ValueKind::Map => {
            out.write_char('{')?;
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
            for (index, (key, item)) in pairs.into_iter().flatten().enumerate() {
                out.write_str(if index > 0 { ", " } else { "" })?;
                write_repr(out, &key)?;
                out.write_str(": ")?;
                write_repr(out, &item)?;
            }
            out.write_char('}')
        }
        _ => write!(out, "{value}"),
    }
}

/// `repr` of a float: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
fn float(value: f64, infinity: &str, nan: &str) -> String {
    if value.is_nan() {
        return nan.to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { infinity.to_owned() } else { format!("-{infinity}") };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').expect("this format has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a small number");
    if (-4..16).contains(&exponent) {
        let plain = value.to_string();
        if plain.contains('.') { plain } else { plain + ".0" }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

/// `repr` of a string: single quotes unless only those occur inside.
fn write_quoted(out: &mut impl Write, text: &str) -> std::fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if is_printable(c) => out.write_char(c)?,
            c if (c as u32) < 0x100 => write!(out, "\\x{:02x}", c as u32)?,
            c if (c as u32) < 0x1_0000 => write!(out, "\\u{:04x}", c as u32)?,
            c => write!(out, "\\U{:08x}", c as u32)?,
        }
    }
    out.write_char(quote)
}

/// `str.isprintable`. The standard library has the same table behind its debug escapes, which it applies to a combining
/// mark only at the beginning of a string.
fn is_printable(c: char) -> bool {
    let mut buffer = [b'a'; 5];
    let length = 1 + c.encode_utf8(&mut buffer[1..]).len();
    let text = std::str::from_utf8(&buffer[..length]).expect("an a and a character");
    matches!(c, '"' | '\'' | '\\') || text.escape_debug().eq(text.chars())
}

/// How `json.dumps` lays out its text.
pub struct JsonStyle {
    pub ensure_ascii: bool,
    pub sort_keys: bool,
    /// What one level is indented by; none keeps everything on one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
}

/// `json.dumps(value)`.
///
/// # Errors
/// A value without a JSON form: undefined, or an object of the template engine.
pub fn json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(&mut out, value, style, 0)?;
    Ok(out)
}

fn write_json(out: &mut String, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => {
            out.push_str(&float(f64::try_from(value.clone()).unwrap_or(f64::NAN), "Infinity", "NaN"));
        }
        ValueKind::String => write_json_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = items(value)?;
            write_json_block(out, ['[', ']'], items.len(), style, depth, |out, index| {
                write_json(out, &items[index], style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
            let mut pairs: Vec<(String, Value)> = pairs.into_iter().flatten().map(|(k, v)| (json_key(&k), v)).collect();
            if style.sort_keys {
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
            }
            write_json_block(out, ['{', '}'], pairs.len(), style, depth, |out, index| {
                write_json_string(out, &pairs[index].0, style.ensure_ascii);
                out.push_str(&style.key_separator);
                write_json(out, &pairs[index].1, style, depth + 1)
            })?;
        }
        kind => {
            return Err(Error::new(ErrorKind::BadSerialization, format!("a value of type {kind} has no JSON form")));
        }
    }
    Ok(())
}

/// A key that is no string, as `json.dumps` turns it into one.
fn json_key(key: &Value) -> String {
    match key.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => key.is_true().to_string(),
        _ => to_str(key),
    }
}

/// Brackets, separators and indentation around `count` items.
fn write_json_block(
    out: &mut String,
    [open, close]: [char; 2],
    count: usize,
    style: &JsonStyle,
    depth: usize,
    mut item: impl FnMut(&mut String, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(open);
    for index in 0..count {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, depth + 1);
        item(out, index)?;
    }
    if count > 0 {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn write_json_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
