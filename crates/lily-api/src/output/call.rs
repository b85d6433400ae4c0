//! One tool call, from the end of its function's name to what follows it.
//!
//! The form is not XML: values are raw text that may hold tags. So a closer ends a value only where what follows it is what
//! may follow it in a call; anywhere else it is a part of the value. Closers may be missing: the next argument, the function's or
//! the call's closer, or the end of the text ends a value too.

use super::arguments::Arguments;
use super::tags::{
    Balance, CALL, CALL_END, FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END, STRAY, Seen, WRAPPER_ENDS, any, named,
    tag,
};

/// A closer, whether it ends a value before what follows it, and how many bytes of it belong to the value's end.
type Closer = (&'static str, fn(&str, bool) -> Seen<()>, usize);

/// The closers that may end a value.
const CLOSERS: [Closer; 3] = [
    (PARAMETER_END, after_parameter, PARAMETER_END.len()),
    (FUNCTION_END, after_function, 0),
    (CALL_END, after_call, 0),
];

/// Where in a call the text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// After the function's tag: all arguments may follow as one JSON object.
    Start,
    /// Between arguments.
    Between,
    /// After an argument's tag, before its first character.
    ValueStart,
    /// In an argument's value.
    Value,
    /// After the function's closer.
    Closed,
}

/// What a step did with the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It used so many bytes.
    Used(usize),
    /// It needs more text.
    Wait,
    /// It used so many bytes, and the call is over.
    Over(usize),
}

/// An open call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub index: usize,
    pub arguments: Arguments,
    place: Place,
    /// Whether the present value has a first character.
    started: bool,
    balance: Balance,
}

impl Call {
    pub fn new(index: usize, arguments: Arguments) -> Self {
        Self { index, arguments, place: Place::Start, started: false, balance: Balance::default() }
    }

    /// A call whose arguments came all at once; only closers may follow.
    pub fn closed(index: usize, arguments: Arguments) -> Self {
        Self { index, arguments, place: Place::Closed, started: false, balance: Balance::default() }
    }

    /// Looks at the beginning of `text`; `ended` says that no more will come.
    pub fn step(&mut self, text: &str, ended: bool) -> Step {
        match self.place {
            Place::ValueStart => {
                if text.is_empty() && !ended {
                    return Step::Wait;
                }
                self.place = Place::Value;
                self.started = false;
                // A value starts on a line of its own.
                Step::Used(usize::from(text.starts_with('\n')))
            }
            Place::Value => self.value(text, ended),
            Place::Start | Place::Between | Place::Closed => self.between(text, ended),
        }
    }

    fn between(&mut self, text: &str, ended: bool) -> Step {
        let space = text.len() - text.trim_start().len();
        if space > 0 {
            return Step::Used(space);
        }
        if text.is_empty() {
            return if ended { Step::Over(0) } else { Step::Wait };
        }
        if self.place == Place::Start {
            if text.starts_with('{') {
                return self.json(text, ended);
            }
            self.place = Place::Between;
        }
        if !text.starts_with('<') {
            if self.place == Place::Closed {
                return Step::Over(0);
            }
            // What is between arguments belongs nowhere.
            return Step::Used(text.find('<').unwrap_or(text.len()));
        }
        self.tag_between(text, ended)
    }

    fn tag_between(&mut self, text: &str, ended: bool) -> Step {
        let mut wait = false;
        match named(text, PARAMETER) {
            Seen::Yes((length, name)) => {
                self.arguments.begin(name);
                self.place = Place::ValueStart;
                return Step::Used(length);
            }
            Seen::Maybe => wait = true,
            Seen::No => {}
        }
        match named(text, FUNCTION) {
            // Another function: the answer's scanner knows what to do.
            Seen::Yes(_) => return Step::Over(0),
            Seen::Maybe => wait = true,
            Seen::No => {}
        }
        match any(text, &[CALL]) {
            Seen::Yes(_) => return Step::Over(0),
            Seen::Maybe => wait = true,
            Seen::No => {}
        }
        match any(text, &STRAY) {
            Seen::Yes(length) if text.starts_with(CALL_END) => return Step::Over(length),
            Seen::Yes(length) => {
                if text.starts_with(FUNCTION_END) {
                    self.place = Place::Closed;
                }
                return Step::Used(length);
            }
            Seen::Maybe => wait = true,
            Seen::No => {}
        }
        match (wait, ended, self.place) {
            (true, false, _) => Step::Wait,
            // A tag that was cut.
            (true, true, _) => Step::Used(text.len()),
            (false, _, Place::Closed) => Step::Over(0),
            (false, ..) => Step::Used(1),
        }
    }

    /// All arguments as a JSON object, which some models write inside the function's tag.
    fn json(&mut self, text: &str, ended: bool) -> Step {
        let Some(length) = self.balance.find(text) else {
            return if ended { Step::Used(text.len()) } else { Step::Wait };
        };
        self.place = Place::Between;
        let parsed = serde_json::from_str::<serde_json::Value>(&text[..length]);
        let lax = || super::transcode::json(&text[..length]).and_then(|json| serde_json::from_str(&json).ok());
        if let Some(serde_json::Value::Object(object)) = parsed.ok().or_else(lax) {
            self.arguments.object(&object);
        }
        Step::Used(length)
    }

    fn value(&mut self, text: &str, ended: bool) -> Step {
        let at = text.find('<').unwrap_or(text.len());
        // One line end before the closer is layout.
        let sure = text[..at].strip_suffix('\n').unwrap_or(&text[..at]);
        if !sure.is_empty() {
            self.started = true;
            self.arguments.push(sure);
            return Step::Used(sure.len());
        }
        let rest = &text[at..];
        if rest.is_empty() && !ended {
            return Step::Wait;
        }
        match self.closer(rest, at > 0 || !self.started, ended) {
            Seen::Yes(length) => {
                self.arguments.end();
                self.place = Place::Between;
                Step::Used(at + length)
            }
            Seen::Maybe => Step::Wait,
            Seen::No => {
                self.started = true;
                self.arguments.push(&text[..=at]);
                Step::Used(at + 1)
            }
        }
    }

    /// Whether a value ends before `text`, and how many bytes of its closer to skip.
    fn closer(&self, text: &str, at_line_start: bool, ended: bool) -> Seen<usize> {
        if text.is_empty() {
            return Seen::Yes(0);
        }
        let mut wait = false;
        for (closer, after, skip) in CLOSERS {
            match tag(text, closer) {
                Seen::Yes(()) => return after(&text[closer.len()..], ended).map(|()| skip),
                Seen::Maybe => wait = true,
                Seen::No => {}
            }
        }
        if at_line_start {
            match named(text, PARAMETER) {
                Seen::Yes((_, name)) if self.arguments.expects(name) => return Seen::Yes(0),
                Seen::Maybe => wait = true,
                _ => {}
            }
        }
        match (wait, ended) {
            (true, false) => Seen::Maybe,
            // A closer that was cut.
            (true, true) => Seen::Yes(text.len()),
            (false, _) => Seen::No,
        }
    }
}

/// Whether an argument's closer before `text` ends a value.
fn after_parameter(text: &str, ended: bool) -> Seen<()> {
    follows(text, &[&[PARAMETER, CALL, FUNCTION], &STRAY], ended)
}

/// Whether a function's closer before `text` ends a value whose own closer is missing. Documents that show a call end so too, so
/// nothing but another call may follow.
fn after_function(text: &str, ended: bool) -> Seen<()> {
    let text = text.trim_start();
    match tag(text, CALL_END) {
        Seen::Yes(()) => after_call(&text[CALL_END.len()..], ended),
        _ => follows(text, &[&[CALL, FUNCTION, CALL_END, FUNCTION_END], &WRAPPER_ENDS], ended),
    }
}

/// Whether a call's closer before `text` ends a value.
fn after_call(text: &str, ended: bool) -> Seen<()> {
    follows(text, &[&[CALL, CALL_END]], ended)
}

/// Whether `text` goes on with one of these tags, or not at all.
fn follows(text: &str, tags: &[&[&str]], ended: bool) -> Seen<()> {
    let text = text.trim_start();
    let mut seen = Seen::No;
    for list in tags {
        match any(text, list) {
            Seen::Yes(_) => return Seen::Yes(()),
            // At the end it is a tag that was cut, or nothing.
            Seen::Maybe => seen = if ended { Seen::Yes(()) } else { Seen::Maybe },
            Seen::No => {}
        }
    }
    seen
}
