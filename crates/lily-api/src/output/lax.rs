//! JSON from what models write instead of it: Python's literals, single quotes, raw line ends in texts, commas before closers.

/// Strict JSON from lax JSON; `None` if that does not help either. It is one pass over tokens, so the work is linear.
pub(super) fn json(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        match first {
            '"' | '\'' => rest = &rest[string(rest, first, &mut out)?..],
            c if c.is_alphabetic() => {
                let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
                out.push_str(match &rest[..end] {
                    "True" | "true" => "true",
                    "False" | "false" => "false",
                    "None" | "null" => "null",
                    exponent if out.ends_with(|c: char| c.is_ascii_digit()) => exponent,
                    _ => return None,
                });
                rest = &rest[end..];
            }
            '}' | ']' => {
                let kept = out.trim_end();
                let kept = kept.strip_suffix(',').unwrap_or(kept).len();
                out.truncate(kept);
                out.push(first);
                rest = &rest[1..];
            }
            c => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    serde_json::from_str::<serde_json::Value>(&out).ok().map(|value| value.to_string())
}

/// Appends the string that `text` begins with, in double quotes; returns its length.
fn string(text: &str, quote: char, out: &mut String) -> Option<usize> {
    out.push('"');
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            // Python and JSON know the same escapes, but for the single quote's.
            '\'' if escaped => out.push('\''),
            c if escaped => out.extend(['\\', c]),
            '\\' => {}
            c if c == quote => {
                out.push('"');
                return Some(at + 1);
            }
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::json;

    #[test]
    fn python_and_careless_json_become_json() {
        let check = |text: &str, expected: Option<&str>| assert_eq!(json(text).as_deref(), expected, "{text}");
        check("{'a': True, 'b': None}", Some(r#"{"a":true,"b":null}"#));
        check(r#"{"a": "it's", 'b': 'say "hi"'}"#, Some(r#"{"a":"it's","b":"say \"hi\""}"#));
        check("[1, 2, ]", Some("[1,2]"));
        check("{\"a\": \"x\ny\",}", Some(r#"{"a":"x\ny"}"#));
        check(r"{'a': 'it\'s \n'}", Some(r#"{"a":"it's \n"}"#));
        check("[1.5e3]", Some("[1500.0]"));
        check("{a: 1}", None);
        check("{'a': 'open", None);
        check("[1", None);
    }
}
