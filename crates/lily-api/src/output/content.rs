//! The answer's text on its way to the client: stop strings, and white space that may turn out to be layout before a tool call.

use crate::stop::{StopError, StopMatcher};

/// Text that has left the stage: so much of it is shown, and then so much is swallowed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Resolved {
    /// What to show.
    pub shown: String,
    /// Bytes after it that nobody sees.
    pub dropped: usize,
}

/// The last stage of the answer's text.
#[derive(Clone, Debug)]
pub(super) struct ContentStage {
    stop: StopMatcher,
    /// Bytes inside the matcher.
    inside: usize,
    /// White space withheld, where a call may follow.
    space: String,
    trims: bool,
    /// The last character that came in; none at the beginning.
    last: Option<char>,
}

impl ContentStage {
    /// A stage for these stop strings. `trims` says that tool calls may follow a text.
    pub fn new(stops: &[String], trims: bool) -> Result<Self, StopError> {
        Ok(Self { stop: StopMatcher::new(stops)?, inside: 0, space: String::new(), trims, last: None })
    }

    /// Whether the next character is the first of a line.
    pub fn at_line_start(&self) -> bool {
        self.last.is_none_or(|last| last == '\n')
    }

    /// Bytes that came in and have not left.
    pub fn held(&self) -> usize {
        self.inside + self.space.len()
    }

    /// Index of the stop string that ended the text.
    pub fn stopped(&self) -> Option<usize> {
        self.stop.stopped()
    }

    /// More text.
    pub fn push(&mut self, text: &str) -> Resolved {
        self.last = text.chars().next_back().or(self.last);
        self.inside += text.len();
        let passed = self.stop.push(text);
        self.inside -= passed.len();
        if self.stopped().is_some() {
            let dropped = std::mem::take(&mut self.inside);
            return Resolved { shown: std::mem::take(&mut self.space) + &passed, dropped };
        }
        Resolved { shown: self.hold_space(passed), dropped: 0 }
    }

    /// A tool call follows: the text before it ends without its white space.
    pub fn end_before_call(&mut self) -> Resolved {
        let rest = self.flush();
        let shown = self.hold_space(rest);
        self.last = None;
        Resolved { shown, dropped: std::mem::take(&mut self.space).len() }
    }

    /// The text ends.
    pub fn finish(&mut self) -> Resolved {
        let rest = self.flush();
        Resolved { shown: std::mem::take(&mut self.space) + &rest, dropped: 0 }
    }

    fn flush(&mut self) -> String {
        let rest = self.stop.finish();
        // The automaton must forget what is no longer before it.
        self.stop.restart();
        self.inside = 0;
        rest
    }

    fn hold_space(&mut self, text: String) -> String {
        if !self.trims {
            return text;
        }
        let sure = text.trim_end().len();
        if sure == 0 {
            self.space.push_str(&text);
            return String::new();
        }
        let mut shown = std::mem::replace(&mut self.space, text[sure..].to_owned());
        shown.push_str(&text[..sure]);
        shown
    }
}
