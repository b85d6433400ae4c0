//! Preprocessed text as tokens that remember where they come from and what is to be written in their place.
//!
//! Only tokens that mean something are listed; the space, line markers and pragmas before a token are kept with it, so
//! that the rewritten text has the lines of the original. Passes read `text`, which never changes, and write `out`.

use super::RewriteError;
use std::sync::Arc;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Identifier or keyword.
    Word,
    /// Number.
    Number,
    /// String or character literal.
    Literal,
    /// Operator or punctuation.
    Symbol,
}

/// A place in the kernel text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// File, as the preprocessor names it.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One token.
#[derive(Clone, Debug)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// Its text in the original.
    pub text: String,
    /// What stands before it: space, line markers, pragmas.
    pub lead: String,
    /// What is written in its place.
    pub out: String,
    /// Where it is.
    pub place: Place,
}

/// A preprocessed file.
#[derive(Debug)]
pub struct Tokens {
    /// The tokens.
    pub list: Vec<Token>,
    /// What follows the last one.
    tail: String,
}

/// Symbols of more than one character, longest first.
const SYMBOLS: [&str; 21] = [
    "<<=", ">>=", "...", "::", "->", "++", "--", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "%=",
    "&=", "|=", "^=",
];

impl Tokens {
    /// Takes preprocessed text apart.
    ///
    /// # Errors
    /// If a literal does not end.
    pub fn parse(text: &str) -> Result<Self, RewriteError> {
        let mut place = Place { file: "<text>".into(), line: 1 };
        let (mut list, mut lead) = (Vec::new(), String::new());
        let mut rest = text;
        let mut line_start = true;
        while let Some(c) = rest.chars().next() {
            if c == '#' && line_start {
                let end = rest.find('\n').map_or(rest.len(), |i| i + 1);
                let directive = &rest[..end];
                match marker(directive) {
                    Some(marked) => place = marked,
                    None => place.line += 1,
                }
                lead.push_str(directive);
                rest = &rest[end..];
                continue;
            }
            if c.is_whitespace() {
                if c == '\n' {
                    place.line += 1;
                    line_start = true;
                }
                lead.push(c);
                rest = &rest[c.len_utf8()..];
                continue;
            }
            line_start = false;
            let (kind, length) = first_token(rest)
                .ok_or_else(|| RewriteError::new(&place, "a string or character literal does not end on its line"))?;
            let text = rest[..length].to_owned();
            let lead = std::mem::take(&mut lead);
            list.push(Token { kind, out: text.clone(), text, lead, place: place.clone() });
            rest = &rest[length..];
        }
        Ok(Self { list, tail: lead })
    }

    /// The rewritten text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for token in &self.list {
            text.push_str(&token.lead);
            text.push_str(&token.out);
        }
        text.push_str(&self.tail);
        text
    }

    /// Text of token `i`; empty past the end.
    pub fn text(&self, i: usize) -> &str {
        self.list.get(i).map_or("", |t| &t.text)
    }

    /// Text of the token before `i`; empty at the start.
    pub fn before(&self, i: usize) -> &str {
        i.checked_sub(1).map_or("", |i| self.text(i))
    }

    /// Whether token `i` is an identifier or keyword.
    pub fn is_word(&self, i: usize) -> bool {
        self.list.get(i).is_some_and(|t| t.kind == Kind::Word)
    }

    /// Original text of a range, tokens apart by one space.
    pub fn join(&self, range: std::ops::Range<usize>) -> String {
        self.list[range].iter().map(|t| t.text.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// Writes nothing in place of a range.
    pub fn blank(&mut self, range: std::ops::Range<usize>) {
        self.list[range].iter_mut().for_each(|t| t.out.clear());
    }

    /// The bracket that closes the one at `open`.
    ///
    /// # Errors
    /// If there is none.
    pub fn matching(&self, open: usize) -> Result<usize, RewriteError> {
        let closing = match self.text(open) {
            "(" => ")",
            "[" => "]",
            "{" => "}",
            "<" => return self.matching_angle(open),
            other => return Err(self.error(open, format!("`{other}` where a bracket was expected"))),
        };
        let opening = self.text(open);
        let mut depth = 0;
        for i in open..self.list.len() {
            let text = self.text(i);
            if text == opening {
                depth += 1;
            } else if text == closing {
                depth -= 1;
                if depth == 0 {
                    return Ok(i);
                }
            }
        }
        Err(self.error(open, format!("`{opening}` is never closed")))
    }

    /// The `>` that closes a template argument list; `>>` is two tokens here.
    fn matching_angle(&self, open: usize) -> Result<usize, RewriteError> {
        let mut depth = 0;
        let mut i = open;
        while i < self.list.len() {
            match self.text(i) {
                "<" => depth += 1,
                ">" => {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(i);
                    }
                }
                "(" | "[" => i = self.matching(i)?,
                ";" | "{" => break,
                _ => {}
            }
            i += 1;
        }
        Err(self.error(open, "`<` is never closed"))
    }

    /// An error at token `i`.
    pub fn error(&self, i: usize, message: impl Into<String>) -> RewriteError {
        let last = self.list.len().saturating_sub(1);
        match self.list.get(i.min(last)) {
            Some(token) => RewriteError::new(&token.place, message),
            None => RewriteError::new(&Place { file: "<empty>".into(), line: 1 }, message),
        }
    }
}

/// The place that a line marker (`# 12 "file" 2`, `#line 12 "file"`) gives the line after it.
fn marker(directive: &str) -> Option<Place> {
    let rest = directive.strip_prefix('#')?.trim_start();
    let rest = rest.strip_prefix("line").unwrap_or(rest).trim_start();
    let (number, rest) = rest.split_once(' ')?;
    let line = number.parse().ok()?;
    let name = rest.trim_start().strip_prefix('"')?;
    Some(Place { file: name[..name.find('"')?].into(), line })
}

/// Kind and length of the token that text starts with.
fn first_token(text: &str) -> Option<(Kind, usize)> {
    let bytes = text.as_bytes();
    let first = bytes[0];
    let length_while = |test: &dyn Fn(usize, u8) -> bool| {
        bytes.iter().enumerate().position(|(i, b)| !test(i, *b)).unwrap_or(bytes.len())
    };
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if first.is_ascii_alphabetic() || first == b'_' {
        return Some((Kind::Word, length_while(&|_, b| word(b))));
    }
    if first.is_ascii_digit() || first == b'.' && bytes.get(1).is_some_and(u8::is_ascii_digit) {
        let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
        let exponent = |b: u8| if hexadecimal { matches!(b, b'p' | b'P') } else { matches!(b, b'e' | b'E') };
        let length = length_while(&|i, b| {
            word(b) || b == b'.' || b == b'\'' || matches!(b, b'+' | b'-') && i > 0 && exponent(bytes[i - 1])
        });
        return Some((Kind::Number, length));
    }
    if first == b'"' || first == b'\'' {
        let mut i = 1;
        while *bytes.get(i)? != first {
            i += if bytes[i] == b'\\' { 2 } else { 1 };
            if bytes.get(i) == Some(&b'\n') {
                return None;
            }
        }
        return Some((Kind::Literal, i + 1));
    }
    let symbol = SYMBOLS.iter().find(|s| text.starts_with(**s)).map(|s| s.len());
    Some((Kind::Symbol, symbol.unwrap_or_else(|| text.chars().next().map_or(1, char::len_utf8))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives() {
        let text =
            "# 1 \"a.metal\"\nfloat x = 1.5e-3 + .5f; // no\n#pragma unroll\n  y >>= a<b<c>>(\"s\\\"t\", '\\'');\n";
        let tokens = Tokens::parse(text).unwrap();
        assert_eq!(tokens.render(), text);
        let texts: Vec<&str> = tokens.list.iter().map(|t| t.text.as_str()).collect();
        assert_eq!(texts[..4], ["float", "x", "=", "1.5e-3"]);
        assert!(texts.contains(&">>=") && texts.contains(&"\"s\\\"t\""));
    }

    #[test]
    fn places_follow_line_markers() {
        let tokens = Tokens::parse("# 7 \"k.metal\"\na\n\nb\n# 3 \"h.h\" 1\nc").unwrap();
        let places: Vec<String> = tokens.list.iter().map(|t| t.place.to_string()).collect();
        assert_eq!(places, ["k.metal:7", "k.metal:9", "h.h:3"]);
    }

    #[test]
    fn brackets_match() {
        let tokens = Tokens::parse("f<a<b>>(x[1], (y))").unwrap();
        assert_eq!(tokens.matching(1).unwrap(), 6);
        assert_eq!(tokens.matching(7).unwrap(), tokens.list.len() - 1);
        assert!(Tokens::parse("(a").unwrap().matching(0).is_err());
    }
}
