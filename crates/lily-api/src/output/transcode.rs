//! JSON out of what models write for it, while they write.
//!
//! [`Transcoder`] takes an object or a list character by character and writes strict JSON: the same values where the text is JSON
//! already, and the likely ones where it is not. It knows Python's literals and quotes, bare words, raw line ends, quotes
//! inside texts, commas and closers that are missing or too many. What it has written joins to valid JSON whenever
//! [`Transcoder::finish`] is called. White space between values is left out.

use serde_json::Number;

/// Deepest nesting that is written; readers of JSON have limits too. What is deeper becomes null.
const DEPTH_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Object,
    List,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Before a value, or the end of a list.
    Value,
    /// Before a key, or the end of an object.
    Key,
    /// After a key.
    Colon,
    /// After a value.
    After,
    /// Inside a text.
    Text(Text),
    /// After a quote that may end a text, and white space.
    MaybeEnd(Text, String),
    /// Inside something without quotes.
    Word(String),
    /// Inside something too deep: brackets that are open there.
    TooDeep(usize),
    /// After the end.
    Done,
}

/// A text that is being read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Text {
    quote: char,
    is_key: bool,
    /// A backslash and what followed it; empty outside of escapes.
    escape: String,
    /// The first half of a pair of escapes for one character.
    surrogate: Option<String>,
}

/// Incremental writer of strict JSON.
#[derive(Clone, Debug)]
pub(super) struct Transcoder {
    stack: Vec<Frame>,
    /// Whether the open object or list has an entry.
    filled: Vec<bool>,
    state: State,
}

impl Transcoder {
    /// A writer for a text that begins with `{` or `[`.
    pub fn new() -> Self {
        Self { stack: Vec::new(), filled: Vec::new(), state: State::Value }
    }

    /// Takes more text and appends what is certain.
    pub fn push(&mut self, text: &str, out: &mut String) {
        for c in text.chars() {
            self.take(c, out);
        }
    }

    /// Ends the text: closes what is open.
    pub fn finish(&mut self, out: &mut String) {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Text(mut text) => {
                end_escape(&mut text, out);
                self.end_text(&text, out);
            }
            State::MaybeEnd(text, _) => self.end_text(&text, out),
            State::Word(word) => self.end_word(&word, out),
            state => self.state = state,
        }
        if matches!(self.state, State::Value | State::Colon) && self.stack.last() == Some(&Frame::Object) {
            out.push_str("null");
        }
        while !self.stack.is_empty() {
            self.close(out);
        }
        self.state = State::Done;
    }

    fn take(&mut self, c: char, out: &mut String) {
        match &mut self.state {
            State::Done => {}
            State::TooDeep(open) => match c {
                '{' | '[' => *open += 1,
                '}' | ']' => {
                    *open -= 1;
                    if *open == 0 {
                        self.state = State::After;
                    }
                }
                _ => {}
            },
            State::Text(text) => {
                if text.read(c, out) {
                    let text = text.clone();
                    self.state = State::MaybeEnd(text, String::new());
                }
            }
            State::MaybeEnd(..) => self.maybe_end(c, out),
            State::Word(word) => {
                if c.is_whitespace() || ",:]}{[\"'".contains(c) {
                    let word = std::mem::take(word);
                    self.end_word(&word, out);
                    self.take(c, out);
                } else {
                    word.push(c);
                }
            }
            State::Value | State::Key | State::Colon | State::After => self.between(c, out),
        }
    }

    /// A character outside of texts and words.
    fn between(&mut self, c: char, out: &mut String) {
        let is_key = match self.state {
            State::Key => true,
            State::After => self.stack.last() == Some(&Frame::Object),
            _ => false,
        };
        match c {
            c if c.is_whitespace() => {}
            ':' => {
                if self.state == State::Colon {
                    self.state = State::Value;
                }
            }
            ',' => self.comma(out),
            '}' => self.close_until(Frame::Object, out),
            ']' => self.close_until(Frame::List, out),
            // No key begins so.
            '{' | '[' if is_key => {}
            '{' => self.open(Frame::Object, out),
            '[' => self.open(Frame::List, out),
            _ => {
                self.entry(is_key, out);
                self.state = if is_key { State::Key } else { State::Value };
                if matches!(c, '"' | '\'') {
                    out.push('"');
                    self.state = State::Text(Text { quote: c, is_key, escape: String::new(), surrogate: None });
                } else {
                    // A key of one word is written with quotes like any other.
                    let mark = if is_key { "\u{0}" } else { "" };
                    self.state = State::Word(format!("{mark}{c}"));
                }
            }
        }
    }

    fn comma(&mut self, out: &mut String) {
        match (&self.state, self.stack.last()) {
            // A key without a value.
            (State::Value | State::Colon, Some(Frame::Object)) => {
                out.push_str("null");
                self.state = State::Key;
            }
            (_, Some(Frame::Object)) => self.state = State::Key,
            _ => self.state = State::Value,
        }
    }

    /// Whether the quote before `c` ended the text is seen by `c`: texts with quotes inside go on.
    fn maybe_end(&mut self, c: char, out: &mut String) {
        let State::MaybeEnd(text, space) = &mut self.state else { return };
        if c.is_whitespace() {
            space.push(c);
            return;
        }
        let (text, space) = (text.clone(), std::mem::take(space));
        if ",:}]".contains(c) {
            self.end_text(&text, out);
            self.take(c, out);
            return;
        }
        escape(text.quote, out);
        space.chars().for_each(|c| escape(c, out));
        self.state = State::Text(text);
        self.take(c, out);
    }

    fn end_text(&mut self, text: &Text, out: &mut String) {
        out.push('"');
        self.end_entry(text.is_key, out);
    }

    fn end_word(&mut self, word: &str, out: &mut String) {
        let key = word.strip_prefix('\u{0}');
        match key.unwrap_or(word) {
            "true" | "True" if key.is_none() => out.push_str("true"),
            "false" | "False" if key.is_none() => out.push_str("false"),
            "null" | "None" if key.is_none() => out.push_str("null"),
            number if key.is_none() && serde_json::from_str::<Number>(number).is_ok() => out.push_str(number),
            word => {
                out.push('"');
                word.chars().for_each(|c| escape(c, out));
                out.push('"');
            }
        }
        self.end_entry(key.is_some(), out);
    }

    fn end_entry(&mut self, is_key: bool, out: &mut String) {
        if is_key {
            out.push(':');
        }
        self.state = if is_key { State::Colon } else { State::After };
    }

    /// Begins an entry of the open list, or a key of the open object.
    fn entry(&mut self, is_key: bool, out: &mut String) {
        let in_list = self.stack.last() == Some(&Frame::List);
        if (is_key || in_list)
            && let Some(filled) = self.filled.last_mut()
        {
            if *filled {
                out.push(',');
            }
            *filled = true;
        }
    }

    fn open(&mut self, frame: Frame, out: &mut String) {
        self.entry(false, out);
        if self.stack.len() == DEPTH_MAX {
            out.push_str("null");
            self.state = State::TooDeep(1);
            return;
        }
        self.stack.push(frame);
        self.filled.push(false);
        let object = frame == Frame::Object;
        out.push(if object { '{' } else { '[' });
        self.state = if object { State::Key } else { State::Value };
    }

    /// Closes the innermost frame of a kind and all inside it; none is open if the closer is one too many.
    fn close_until(&mut self, frame: Frame, out: &mut String) {
        if !self.stack.contains(&frame) {
            return;
        }
        if matches!(self.state, State::Value | State::Colon) && self.stack.last() == Some(&Frame::Object) {
            out.push_str("null");
        }
        while let Some(&open) = self.stack.last() {
            self.close(out);
            if open == frame {
                break;
            }
        }
        self.state = if self.stack.is_empty() { State::Done } else { State::After };
    }

    fn close(&mut self, out: &mut String) {
        self.filled.pop();
        match self.stack.pop() {
            Some(Frame::Object) => out.push('}'),
            Some(Frame::List) => out.push(']'),
            None => {}
        }
    }
}

impl Text {
    /// Takes a character of the text; true if it may be the quote that ends it.
    fn read(&mut self, c: char, out: &mut String) -> bool {
        if self.escape.is_empty() {
            if c == '\\' {
                self.escape.push(c);
                return false;
            }
            self.end_pair(out);
            if c == self.quote {
                return true;
            }
            escape(c, out);
            return false;
        }
        if self.escape.len() > 1 || c == 'u' {
            return self.unicode(c, out);
        }
        self.end_pair(out);
        self.escape.clear();
        match c {
            '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => out.extend(['\\', c]),
            '\'' => out.push('\''),
            // No escape of JSON's: the backslash is one.
            other => {
                out.push_str("\\\\");
                escape(other, out);
            }
        }
        false
    }

    /// Takes a character of an escape by number; true if it may be the quote that ends the text, and the escape was none.
    fn unicode(&mut self, c: char, out: &mut String) -> bool {
        if self.escape.len() > 1 && !c.is_ascii_hexdigit() {
            end_escape(self, out);
            return self.read(c, out);
        }
        self.escape.push(c);
        if self.escape.len() < 6 {
            return false;
        }
        let code = u16::from_str_radix(&self.escape[2..], 16).unwrap_or_default();
        let escaped = std::mem::take(&mut self.escape);
        match (code, self.surrogate.take()) {
            (0xDC00..=0xDFFF, Some(first)) => out.extend([first, escaped]),
            (0xDC00..=0xDFFF, None) => out.push('\u{FFFD}'),
            (code, first) => {
                if first.is_some() {
                    out.push('\u{FFFD}');
                }
                if (0xD800..=0xDBFF).contains(&code) {
                    self.surrogate = Some(escaped);
                } else {
                    out.push_str(&escaped);
                }
            }
        }
        false
    }

    /// Half a pair that stays alone is no character.
    fn end_pair(&mut self, out: &mut String) {
        if self.surrogate.take().is_some() {
            out.push('\u{FFFD}');
        }
    }
}

/// Writes an escape that was not completed as the text it is.
fn end_escape(text: &mut Text, out: &mut String) {
    text.end_pair(out);
    std::mem::take(&mut text.escape).chars().for_each(|c| escape(c, out));
}

/// Appends a character of a text.
fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}

/// The whole of a text that begins with a bracket; `None` for others.
pub(super) fn json(text: &str) -> Option<String> {
    let text = text.trim_start();
    text.starts_with(['{', '[']).then(|| {
        let (mut transcoder, mut out) = (Transcoder::new(), String::new());
        transcoder.push(text, &mut out);
        transcoder.finish(&mut out);
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn careless_json_becomes_json() {
        let check = |text: &str, expected: &str| assert_eq!(json(text).as_deref(), Some(expected), "{text}");
        check("{'a': True, 'b': None}", r#"{"a":true,"b":null}"#);
        check(r#"{"a": "it's", 'b': 'say "hi"'}"#, r#"{"a":"it's","b":"say \"hi\""}"#);
        check("[1, 2, ]", "[1,2]");
        check("{\"a\": \"x\ny\",}", r#"{"a":"x\ny"}"#);
        check(r"{'a': 'it\'s \n \d'}", r#"{"a":"it's \n \\d"}"#);
        check("[1.5e3, 01, nan]", r#"[1.5e3,"01","nan"]"#);
        check("{a: 1, b}", r#"{"a":1,"b":null}"#);
        check("{'a': 'open", r#"{"a":"open"}"#);
        check("[[1", "[[1]]");
        check("{\"a\":", r#"{"a":null}"#);
        check("[1 2 {\"b\": 1}]", r#"[1,2,{"b":1}]"#);
        check("{\"a\": [1, 2}, \"b\": 3}", r#"{"a":[1,2]}"#);
        check("[1]] and more", "[1]");
        check(r#"["he said "no" to me"]"#, r#"["he said \"no\" to me"]"#);
        check(
            r#"["\ud83d\ude00", "\ud83d", "\ude00x", "\u12"]"#,
            "[\"\\ud83d\\ude00\",\"\u{FFFD}\",\"\u{FFFD}x\",\"\\\\u12\"]",
        );
        assert_eq!(json("5"), None);
    }

    #[test]
    fn depth_is_bounded() {
        let deep = "[".repeat(5000);
        let out = json(&deep).unwrap();
        assert!(serde_json::from_str::<Value>(&out).is_ok() && out.len() < 300);
        let inner = format!("{}1{}", "[".repeat(120), "]".repeat(120));
        let out = json(&format!("{{\"a\": {inner}, \"b\": 2}}")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["b"], 2);
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[a-z\"',:{}\\[\\]\\\\ ]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec(("[a-z\" ]{0,4}", inner), 0..5).prop_map(|p| p.into_iter().collect::<Value>()),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn json_stays_the_same(values in prop::collection::vec(values(), 0..4)) {
            let value = Value::from(values);
            for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                let out = json(&text).unwrap();
                prop_assert_eq!(&serde_json::from_str::<Value>(&out).unwrap(), &value, "{}", text);
            }
        }

        #[test]
        fn anything_becomes_json(
            text in prop::collection::vec(prop::sample::select("{}[]\"':, \n\\au1-eTn😀".chars().collect::<Vec<_>>()), 0..40),
            list: bool,
        ) {
            let text: String = std::iter::once(if list { '[' } else { '{' }).chain(text).collect();
            let out = json(&text).unwrap();
            let value = serde_json::from_str::<Value>(&out);
            prop_assert!(value.is_ok_and(|v| if list { v.is_array() } else { v.is_object() }), "{} from {}", out, text);
        }
    }
}
