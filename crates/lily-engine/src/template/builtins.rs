//! What jinja2 and Python offer a chat template and minijinja lacks or does otherwise: filters, tests, string methods.

use std::borrow::Cow;

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::python::{self, JsonStyle, is_space, to_str};

/// Installs everything of this module.
pub fn install(env: &mut Environment<'_>) {
    env.set_formatter(|out, _, value| python::write_str(out, value).map_err(Error::from));
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", to_json);
    env.add_filter("string", |value: &Value| to_str(value));
    env.add_filter("trim", trim);
    env.add_filter("join", join);
    env.add_filter("items", items);
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("round", round);
    env.add_filter("list", |value: &Value| python::items(value).map(Value::from));
    env.add_filter("first", |value: &Value| Ok::<_, Error>(value.try_iter()?.next().unwrap_or_default()));
    env.add_filter("last", |value: &Value| Ok::<_, Error>(python::items(value)?.pop().unwrap_or_default()));
    // A string, a mapping and even undefined have a length and items in Python's eyes.
    env.add_test("sequence", |value: &Value| is_sized(value.kind()));
    env.add_test("iterable", |value: &Value| is_sized(value.kind()) || value.kind() == ValueKind::Iterable);
    env.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
}

fn is_sized(kind: ValueKind) -> bool {
    matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
}

fn invalid(detail: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
fn to_json(args: &[Value]) -> Result<String, Error> {
    let (positional, kwargs): (&[Value], Kwargs) = from_args(args)?;
    let (value, positional) = positional.split_first().ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    let argument = |index: usize, name| -> Result<Option<Value>, Error> {
        let given = positional.get(index).cloned();
        Ok(given.or(kwargs.get::<Option<Value>>(name)?).filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let is_true = |given: Option<Value>| given.is_some_and(|v| v.is_true());
    let indent = argument(1, "indent")?
        .map(|v| match (v.as_str(), i64::try_from(v.clone())) {
            (Some(text), _) => Ok(text.to_owned()),
            (None, Ok(width)) if width <= 64 => Ok(" ".repeat(width.max(0) as usize)),
            _ => Err(invalid("indent must be a string or a number up to 64")),
        })
        .transpose()?;
    let separators = match argument(2, "separators")? {
        Some(pair) => pair.try_iter()?.map(|v| to_str(&v)).collect(),
        None if indent.is_some() => vec![",".to_owned(), ": ".to_owned()],
        None => vec![", ".to_owned(), ": ".to_owned()],
    };
    let [item_separator, key_separator] =
        <[String; 2]>::try_from(separators).map_err(|_| invalid("separators must be two strings"))?;
    let ensure_ascii = is_true(argument(0, "ensure_ascii")?);
    let sort_keys = is_true(argument(3, "sort_keys")?);
    kwargs.assert_all_used()?;
    python::json(value, &JsonStyle { ensure_ascii, sort_keys, indent, item_separator, key_separator })
}

fn trim(value: &Value, chars: Option<Cow<'_, str>>) -> String {
    let text = to_str(value);
    text.trim_matches(stripped(chars.as_deref())).to_owned()
}

/// What `strip(chars)` strips.
fn stripped(chars: Option<&str>) -> impl Fn(char) -> bool + Copy + '_ {
    move |c| chars.map_or_else(|| is_space(c), |chars| chars.contains(c))
}

fn join(value: &Value, separator: Option<Cow<'_, str>>, kwargs: Kwargs) -> Result<String, Error> {
    let attribute: Option<String> = kwargs.get("attribute")?;
    let separator = separator.or(kwargs.get::<Option<String>>("d")?.map(Cow::Owned)).unwrap_or_default();
    kwargs.assert_all_used()?;
    let text = |item: Value| match &attribute {
        Some(name) => item.get_attr(name).map(|v| to_str(&v)),
        None => Ok(to_str(&item)),
    };
    Ok(python::items(value)?.into_iter().map(text).collect::<Result<Vec<_>, _>>()?.join(&separator))
}

fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    let object = value.as_object().filter(|_| value.kind() == ValueKind::Map);
    let object = object.ok_or_else(|| invalid("items needs a mapping"))?;
    let pairs = object.try_iter_pairs().into_iter().flatten();
    Ok(pairs.map(|(key, item)| Value::from(vec![key, item])).collect())
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| invalid(format!("a value of type {} has no length", value.kind())))
}

/// `round(precision=0, method="common")`: to even where the value is exactly between two.
fn round(value: &Value, precision: Option<usize>, kwargs: Kwargs) -> Result<Value, Error> {
    let precision = precision.or(kwargs.get("precision")?).unwrap_or(0).min(20);
    let method: Option<String> = kwargs.get("method")?;
    kwargs.assert_all_used()?;
    if value.is_integer() {
        return Ok(value.clone());
    }
    let number = f64::try_from(value.clone()).map_err(|_| invalid("round needs a number"))?;
    let scale = 10f64.powi(precision as i32);
    Ok(Value::from(match method.as_deref() {
        // Formatting rounds the exact binary value, as Python's round does.
        None | Some("common") => format!("{number:.precision$}").parse().unwrap_or(number),
        Some("ceil") => (number * scale).ceil() / scale,
        Some("floor") => (number * scale).floor() / scale,
        Some(other) => return Err(invalid(format!("round has no method {other:?}"))),
    }))
}

/// Python's methods: the ones below, then those of minijinja's own collection.
fn method(state: &State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match name {
            "strip" | "lstrip" | "rstrip" => return strip(text, name, args),
            "split" | "rsplit" => return split(text, name, args),
            "find" | "rfind" | "count" => return search(text, name, args),
            "removeprefix" | "removesuffix" => {
                let (affix,): (&str,) = from_args(args)?;
                let rest = if name == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
                return Ok(Value::from(rest.unwrap_or(text)));
            }
            "splitlines" => return split_lines(text, args),
            "isspace" => {
                let () = from_args(args)?;
                return Ok(Value::from(!text.is_empty() && text.chars().all(is_space)));
            }
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

fn strip(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let strip = stripped(chars);
    Ok(Value::from(match name {
        "lstrip" => text.trim_start_matches(strip),
        "rstrip" => text.trim_end_matches(strip),
        _ => text.trim_matches(strip),
    }))
}

/// `split` and `rsplit`, with a separator or by white space, all of it or at most so many times.
fn split(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (positional, kwargs): (&[Value], Kwargs) = from_args(args)?;
    let (separator, limit): (Option<&str>, Option<i64>) = from_args(positional)?;
    let separator = separator.or(kwargs.get("sep")?);
    let limit = limit.or(kwargs.get("maxsplit")?).and_then(|limit| usize::try_from(limit).ok());
    kwargs.assert_all_used()?;
    let limit = limit.unwrap_or(usize::MAX);
    let from_right = name == "rsplit";
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) if from_right => text.rsplitn(limit.saturating_add(1), separator).collect(),
        Some(separator) => text.splitn(limit.saturating_add(1), separator).collect(),
        None => split_space(text, limit, from_right),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Words; from the right in reverse order. After `limit` of them the rest is one part.
fn split_space(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            return parts;
        }
        let border = if from_right {
            rest.char_indices().rfind(|&(_, c)| is_space(c)).map(|(at, c)| at + c.len_utf8())
        } else {
            rest.find(is_space)
        };
        let Some(border) = border.filter(|_| parts.len() < limit) else {
            parts.push(rest);
            return parts;
        };
        let (left, right) = rest.split_at(border);
        parts.push(if from_right { right } else { left });
        rest = if from_right { left } else { right };
    }
}

/// `find` and `rfind` in characters, and `count`.
fn search(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (what,): (&str,) = from_args(args)?;
    if name == "count" {
        return Ok(Value::from(text.matches(what).count()));
    }
    let at = if name == "find" { text.find(what) } else { text.rfind(what) };
    Ok(Value::from(at.map_or(-1, |at| text[..at].chars().count() as i64)))
}

fn split_lines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (positional, kwargs): (&[Value], Kwargs) = from_args(args)?;
    let (keep,): (Option<bool>,) = from_args(positional)?;
    let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let is_end = |c| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.find(is_end) {
        let width =
            if rest[end..].starts_with("\r\n") { 2 } else { rest[end..].chars().next().map_or(0, char::len_utf8) };
        lines.push(Value::from(&rest[..if keep { end + width } else { end }]));
        rest = &rest[end + width..];
    }
    if !rest.is_empty() {
        lines.push(Value::from(rest));
    }
    Ok(Value::from(lines))
}
