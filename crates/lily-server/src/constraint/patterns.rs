//! Texts that a schema restricts, as terminals of a grammar.
//!
//! A schema's pattern may match anywhere in a text while a terminal's matches all of it; lengths count characters.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value};

/// Texts with a tag that could end the value or the call.
pub(super) const TAG: &str = r"(?s:.*)</?(tool_call|function|parameter)(?s:.*)";
/// Texts that are numbers.
pub(super) const NUMBER: &str = r"\s*-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?\s*";
/// Texts that begin as a list or an object does.
pub(super) const PARTS: &str = r"\s*[\[{](?s:.*)";
/// Steps after which it is left to the answer whether any text matches.
const STEPS_MAX: u64 = 10_000;

const DATE: &str =
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-9]))";
const BYTE: &str = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const TIME: &str = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([zZ]|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])";

/// Patterns that all of a text must match, by the schema's words for texts.
///
/// # Errors
/// What cannot be enforced, in words.
pub(super) fn of(schema: &Map<String, Value>) -> Result<Vec<String>, String> {
    let mut patterns = Vec::new();
    if let Some(pattern) = schema.get("pattern") {
        let pattern = pattern.as_str().ok_or("\"pattern\" that is no text")?;
        let anchored = anchored(pattern);
        RegexBuilder::new().mk_regex(&anchored).map_err(|_| format!("\"pattern\" {pattern:?}"))?;
        patterns.push(anchored);
    }
    if let Some(format) = schema.get("format") {
        patterns.push(format.as_str().and_then(of_format).ok_or_else(|| format!("\"format\" {format}"))?);
    }
    let length = |word: &str| match schema.get(word) {
        None => Ok(None),
        Some(length) => length.as_u64().map(Some).ok_or_else(|| format!("{word:?} {length}")),
    };
    let (least, most) = (length("minLength")?.unwrap_or(0), length("maxLength")?);
    if most.is_some_and(|most| most < least) {
        return Err("\"maxLength\" below \"minLength\"".into());
    }
    if least > 0 || most.is_some() {
        patterns.push(format!("(?s:.{{{least},{}}})", most.map_or(String::new(), |most| most.to_string())));
    }
    Ok(patterns)
}

/// The terminal of the texts that match all of `patterns` and none of `unlike`.
///
/// # Errors
/// If no text does.
pub(super) fn terminal(patterns: &[String], unlike: &[&str]) -> Result<String, String> {
    let regex = |text: &str| RegexAst::Regex(text.to_owned());
    let any = patterns.is_empty().then(|| "(?s:.*)".to_owned());
    let patterns: Vec<&String> = patterns.iter().chain(&any).collect();
    let all = patterns.iter().map(|text| regex(text));
    let none = unlike.iter().map(|text| RegexAst::Not(Box::new(regex(text))));
    let mut builder = RegexBuilder::new();
    let whole = builder.mk(&RegexAst::And(all.chain(none).collect())).map_err(|error| error.to_string())?;
    if builder.to_regex_limited(whole, STEPS_MAX).is_ok_and(|mut regex| regex.always_empty()) {
        return Err("\"pattern\", \"format\" and lengths that no text has".into());
    }
    let all = patterns.iter().map(|text| format!("/{}/", regex_to_lark(text, "")));
    let none = unlike.iter().map(|text| format!("~/{}/", regex_to_lark(text, "")));
    Ok(all.chain(none).collect::<Vec<_>>().join(" & "))
}

/// The terminal of the values of a type without parts.
pub(super) fn scalar(kind: &str) -> &'static str {
    match kind {
        "integer" => "/-?(0|[1-9][0-9]*)/",
        "number" => r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?/",
        "boolean" => r#"("true" | "false")"#,
        _ => r#""null""#,
    }
}

/// A pattern that is searched for, as one that all of a text matches. `\d` and `\w` mean what they mean in JavaScript.
fn anchored(pattern: &str) -> String {
    let one = |branch: &str| {
        let (front, branch) = branch.strip_prefix('^').map_or(("(?s:.*)", branch), |rest| ("", rest));
        let escapes = |text: &str| text.len() - text.trim_end_matches('\\').len();
        let (branch, back) = match branch.strip_suffix('$') {
            Some(rest) if escapes(rest).is_multiple_of(2) => (rest, ""),
            _ => (branch, "(?s:.*)"),
        };
        format!("{front}(?:{}){back}", regex_to_lark(branch, "dw").replace("\\/", "/"))
    };
    branches(pattern).into_iter().map(one).collect::<Vec<_>>().join("|")
}

/// A pattern at its outermost `|`.
fn branches(pattern: &str) -> Vec<&str> {
    let (mut depth, mut class, mut escaped, mut start) = (0, false, false, 0);
    let mut branches = Vec::new();
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => class = true,
            ']' => class = false,
            _ if class => {}
            '(' => depth += 1,
            ')' => depth -= 1,
            '|' if depth == 0 => {
                branches.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    branches.push(&pattern[start..]);
    branches
}

fn of_format(name: &str) -> Option<String> {
    Some(match name {
        "date" => DATE.into(),
        "time" => TIME.into(),
        "date-time" => format!("{DATE}[tT]{TIME}"),
        "uuid" => "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".into(),
        "ipv4" => format!(r"({BYTE}\.){{3}}{BYTE}"),
        "email" => {
            r"[a-zA-Z0-9_+\-]+(\.[a-zA-Z0-9_+\-]+)*@[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*(\.[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*)*"
                .into()
        }
        "uri" => {
            let part = r"([a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})";
            let rest = r"([a-zA-Z0-9\-._~!$&'()*+,;=:@/?]|%[0-9a-fA-F]{2})*";
            let host = r"//[a-zA-Z0-9\-._~]*(:[0-9]*)?";
            format!(r"[a-zA-Z][a-zA-Z0-9+\-.]*:({host}(/{part}*)*|/?{part}+(/{part}*)*)(\?{rest})?(#{rest})?")
        }
        _ => return None,
    })
}
