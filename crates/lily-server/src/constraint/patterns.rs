//! Texts that a schema restricts, as terminals of a grammar.
//!
//! A schema's pattern may match anywhere in a text while a terminal's matches all of it; lengths count characters.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value};

/// What no text holds behind `<`: it could end the value or the call.
const TAGS: [&str; 6] = ["/tool_call", "/function", "/parameter", "tool_call", "function", "parameter"];
/// Texts that are numbers.
const NUMBER: &str = r"\s*-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?\s*";
/// Texts that do not begin as a list or an object does.
const NO_PARTS: &str = r"\s*([^\s\[{](?s:.*))?";
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
        Some(length) => match length.as_u64().and_then(|length| u32::try_from(length).ok()) {
            Some(length) => Ok(Some(length)),
            None => Err(format!("{word:?} {length}")),
        },
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

/// The terminal of the texts that match all of `patterns` and hold no tag of the form; nor are they whole `numbers`, nor begin
/// they as `parts` do, where those are told apart from them.
///
/// # Errors
/// If no text does.
pub(super) fn terminal(patterns: &[String], numbers: bool, parts: bool) -> Result<String, String> {
    // What can be said without a complement is: then a text that is over is seen to be at once, however long it might be.
    let no_tags = format!("[^<]*(<{})*", behind(&TAGS));
    let mut all: Vec<&str> = patterns.iter().map(String::as_str).chain([no_tags.as_str()]).collect();
    all.extend(parts.then_some(NO_PARTS));
    let regex = |text: &str| RegexAst::Regex(text.to_owned());
    let none = numbers.then(|| RegexAst::Not(Box::new(regex(NUMBER))));
    let mut builder = RegexBuilder::new();
    let both = RegexAst::And(all.iter().map(|text| regex(text)).chain(none).collect());
    let whole = builder.mk(&both).map_err(|error| error.to_string())?;
    if builder.to_regex_limited(whole, STEPS_MAX).is_ok_and(|mut regex| regex.always_empty()) {
        return Err("\"pattern\", \"format\" and lengths that no text has".into());
    }
    let all = all.iter().map(|text| format!("/{}/", regex_to_lark(text, "")));
    let none = numbers.then(|| format!("~/{}/", regex_to_lark(NUMBER, "")));
    Ok(all.chain(none).collect::<Vec<_>>().join(" & "))
}

/// Texts without `<` that begin with none of `words`.
fn behind(words: &[&str]) -> String {
    let mut firsts: Vec<char> = words.iter().filter_map(|word| word.chars().next()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let mut ways = vec![format!("[^<{}][^<]*", firsts.iter().collect::<String>())];
    for first in firsts {
        let rest: Vec<&str> = words.iter().filter_map(|word| word.strip_prefix(first)).collect();
        if !rest.contains(&"") {
            ways.push(format!("{first}{}", behind(&rest)));
        }
    }
    format!("({})?", ways.join("|"))
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
