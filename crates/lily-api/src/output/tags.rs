//! The family's tags: what a text that begins with `<` is, or may become.

/// Opens and closes reasoning.
pub(crate) const THINK: &str = "<think>";
pub(crate) const THINK_END: &str = "</think>";
/// Opens and closes a tool call.
pub(super) const CALL: &str = "<tool_call>";
pub(super) const CALL_END: &str = "</tool_call>";
/// Opens and closes the function of a call.
pub(super) const FUNCTION: &str = "<function=";
pub(super) const FUNCTION_END: &str = "</function>";
/// Opens and closes an argument.
pub(super) const PARAMETER: &str = "<parameter=";
pub(super) const PARAMETER_END: &str = "</parameter>";
/// Wrappers that models of the family remember from other dialects, between the opener and the function.
const WRAPPERS: [&str; 3] = [CALL, "<function_invocation>", "<function_call>"];
/// Their closers.
pub(super) const WRAPPER_ENDS: [&str; 2] = ["</function_invocation>", "</function_call>"];
/// Closers that belong to no tag of the form; where a call could end they are skipped.
pub(super) const STRAY: [&str; 10] = [
    CALL_END,
    FUNCTION_END,
    PARAMETER_END,
    "</function_invocation>",
    "</function_call>",
    "</function_calls>",
    "</tool_calls>",
    "</parameters>",
    "</arg_value>",
    "</invoke>",
];
/// Longest name of a function or an argument, in bytes; what is longer is no name.
const NAME_MAX: usize = 256;

/// What a text begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen<T> {
    /// This.
    Yes(T),
    /// Not this.
    No,
    /// More text will tell.
    Maybe,
}

impl<T> Seen<T> {
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Seen<U> {
        match self {
            Self::Yes(value) => Seen::Yes(f(value)),
            Self::No => Seen::No,
            Self::Maybe => Seen::Maybe,
        }
    }
}

/// Whether `text` begins with `tag`.
pub(super) fn tag(text: &str, tag: &str) -> Seen<()> {
    if text.starts_with(tag) {
        Seen::Yes(())
    } else if tag.starts_with(text) {
        Seen::Maybe
    } else {
        Seen::No
    }
}

/// Which of `tags` `text` begins with: its length.
pub(super) fn any(text: &str, tags: &[&str]) -> Seen<usize> {
    // None of the tags begins another, so the first that matches is the only one.
    let mut seen = Seen::No;
    for candidate in tags {
        match tag(text, candidate) {
            Seen::Yes(()) => return Seen::Yes(candidate.len()),
            Seen::Maybe => seen = Seen::Maybe,
            Seen::No => {}
        }
    }
    seen
}

/// A tag that carries a name: `<function=NAME>` with `open` = `<function=`. Gives the length of the tag and the name's range.
/// Quotes and spaces around the name are not part of it; a line's end closes the tag too.
pub(super) fn named<'a>(text: &'a str, open: &str) -> Seen<(usize, &'a str)> {
    match tag(text, open) {
        Seen::Yes(()) => {}
        Seen::No => return Seen::No,
        Seen::Maybe => return Seen::Maybe,
    }
    let rest = &text[open.len()..];
    let Some(end) = rest.find(['>', '\n', '<']) else {
        return if rest.len() > NAME_MAX { Seen::No } else { Seen::Maybe };
    };
    let name = rest[..end].trim_matches(|c: char| c.is_whitespace() || c == '"' || c == '\'');
    if rest[end..].starts_with('<') || name.is_empty() || end > NAME_MAX {
        return Seen::No;
    }
    // The line's end belongs to what follows.
    let close = usize::from(rest[end..].starts_with('>'));
    Seen::Yes((open.len() + end + close, name))
}

/// What follows a call's opener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening<'a> {
    /// A function: the length of everything up to its name's end, and the name.
    Function(usize, &'a str),
    /// A JSON object, the family's older dialect: the length of everything before it.
    Json(usize),
    /// Nothing at all: the length of the empty call.
    Empty(usize),
}

/// Whether `text` begins a tool call, which the opener alone does not: texts speak of tags too.
pub(super) fn opening(text: &str) -> Seen<Opening<'_>> {
    match tag(text, CALL) {
        Seen::Yes(()) => {}
        Seen::No => return Seen::No,
        Seen::Maybe => return Seen::Maybe,
    }
    let mut at = CALL.len();
    loop {
        let rest = &text[at..];
        at += rest.len() - rest.trim_start().len();
        match any(&text[at..], &WRAPPERS) {
            Seen::Yes(length) => at += length,
            Seen::Maybe => return Seen::Maybe,
            Seen::No => break,
        }
    }
    let rest = &text[at..];
    if let Some(inside) = rest.strip_prefix('{') {
        return match inside.trim_start().chars().next() {
            None => Seen::Maybe,
            Some('"') => Seen::Yes(Opening::Json(at)),
            Some(_) => Seen::No,
        };
    }
    match tag(rest, CALL_END) {
        Seen::Yes(()) => return Seen::Yes(Opening::Empty(at + CALL_END.len())),
        Seen::Maybe => return Seen::Maybe,
        Seen::No => {}
    }
    named(rest, FUNCTION).map(|(length, name)| Opening::Function(at + length, name))
}

/// Search for the end of a JSON object or list, of which more and more text comes. Only brackets and quotes are looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Balance {
    at: usize,
    depth: usize,
    quoted: bool,
    escaped: bool,
}

impl Balance {
    /// The length of the object or list that `text` begins with; `None` while it is not complete. `text` begins with all that
    /// earlier calls were given.
    pub fn find(&mut self, text: &str) -> Option<usize> {
        for byte in &text.as_bytes()[self.at..] {
            self.at += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.quoted => self.escaped = true,
                b'"' => self.quoted = !self.quoted,
                b'{' | b'[' if !self.quoted => self.depth += 1,
                b'}' | b']' if !self.quoted => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(std::mem::take(self).at);
                    }
                }
                _ => {}
            }
        }
        None
    }
}
