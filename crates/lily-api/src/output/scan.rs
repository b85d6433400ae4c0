//! The phases of a text: reasoning, answer, calls. What the parser does at each place of it.

use super::arguments::Arguments;
use super::call::{Call, Step};
use super::tags::{CALL, FUNCTION, Opening, STRAY, Seen, THINK, THINK_END, any, named, opening, tag};
use super::{Channel, Delta, OutputParser, Piece, Start};
use crate::output::content::Resolved;
use serde_json::{Map, Value};

/// Where in the text the parser is.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// Only white space so far; reasoning may be opened.
    MaybeOpen,
    /// Inside reasoning, before its first character other than a newline.
    ReasoningStart,
    Reasoning,
    /// After reasoning or a call, before the answer's next character.
    ContentStart,
    Content,
    Call(Box<Call>),
    /// A stop string ended the answer, or a call did.
    Stopped,
}

impl From<Option<Start>> for Phase {
    fn from(start: Option<Start>) -> Self {
        match start {
            Some(Start::Reasoning) => Self::ReasoningStart,
            Some(Start::InsideReasoning) => Self::Reasoning,
            Some(Start::Content) => Self::MaybeOpen,
            None => Self::Content,
        }
    }
}

impl OutputParser {
    /// Looks at the beginning of `text` and uses so many bytes of it; `None` if it needs more. `ended` says that no more comes.
    pub(super) fn step(&mut self, text: &str, ended: bool, out: &mut Vec<Piece>) -> Option<usize> {
        if let Phase::Call(call) = &mut self.phase {
            let step = call.step(text, ended);
            return self.after_step(step, out);
        }
        match self.phase {
            Phase::MaybeOpen => self.maybe_open(text, ended),
            Phase::ReasoningStart => self.reasoning_start(text, ended),
            Phase::Reasoning => self.reason(text, ended, out),
            Phase::ContentStart => self.content_start(text, ended),
            Phase::Content => self.content(text, ended, out),
            Phase::Stopped | Phase::Call(_) => {
                self.overran |= !text.is_empty();
                (!text.is_empty()).then_some(text.len())
            }
        }
    }

    fn maybe_open(&mut self, text: &str, ended: bool) -> Option<usize> {
        let space = text.len() - text.trim_start().len();
        let rest = &text[space..];
        for (candidate, phase) in [(THINK, Phase::ReasoningStart), (THINK_END, Phase::ContentStart)] {
            match tag(rest, candidate) {
                Seen::Yes(()) => {
                    self.phase = phase;
                    return self.swallow(space + candidate.len(), Channel::Reasoning);
                }
                Seen::Maybe if !ended => return None,
                _ => {}
            }
        }
        self.phase = Phase::Content;
        Some(0)
    }

    fn reasoning_start(&mut self, text: &str, ended: bool) -> Option<usize> {
        let newlines = text.len() - text.trim_start_matches('\n').len();
        if newlines > 0 {
            return self.swallow(newlines, Channel::Reasoning);
        }
        if text.is_empty() {
            return None;
        }
        // Some models repeat the opener that the prompt already gave.
        match tag(text, THINK) {
            Seen::Yes(()) => self.swallow(THINK.len(), Channel::Reasoning),
            Seen::Maybe if !ended => None,
            _ => {
                self.phase = Phase::Reasoning;
                Some(0)
            }
        }
    }

    fn reason(&mut self, text: &str, ended: bool, out: &mut Vec<Piece>) -> Option<usize> {
        let at = text.find('<').unwrap_or(text.len());
        let sure = text[..at].trim_end_matches('\n');
        if !sure.is_empty() {
            return self.show_reasoning(sure, out);
        }
        // Newlines at most, and then the end of the text or a tag.
        let rest = &text[at..];
        if rest.is_empty() && !ended || text.is_empty() {
            return None;
        }
        let mut wait = false;
        match tag(rest, THINK_END) {
            Seen::Yes(()) => {
                self.phase = Phase::ContentStart;
                return self.swallow(at + THINK_END.len(), Channel::Reasoning);
            }
            Seen::Maybe => wait = true,
            Seen::No => {}
        }
        if self.takes_calls {
            match opening(rest) {
                Seen::Yes(Opening::Function(..) | Opening::Json(_)) => {
                    self.phase = Phase::Content;
                    self.closer_is_due = true;
                    return self.swallow(at, Channel::Reasoning);
                }
                Seen::Maybe => wait = true,
                Seen::Yes(Opening::Empty(_)) | Seen::No => {}
            }
        }
        match (wait, ended) {
            (true, false) => None,
            (_, true) if wait || rest.is_empty() => self.show_reasoning(text, out),
            _ => self.show_reasoning(&text[..=at], out),
        }
    }

    fn content_start(&mut self, text: &str, ended: bool) -> Option<usize> {
        let layout = |c: char| c == '\n' || self.after_call && c.is_whitespace();
        let space = text.len() - text.trim_start_matches(layout).len();
        let channel = if self.after_call { Channel::ToolCalls } else { Channel::Reasoning };
        if space > 0 {
            return self.swallow(space, channel);
        }
        if text.is_empty() {
            return None;
        }
        let strays: &[&[&str]] = if self.after_call { &[&[THINK_END], &STRAY] } else { &[&[THINK_END]] };
        for list in strays {
            match any(text, list) {
                Seen::Yes(length) => return self.swallow(length, channel),
                Seen::Maybe if !ended => return None,
                _ => {}
            }
        }
        self.phase = Phase::Content;
        Some(0)
    }

    fn content(&mut self, text: &str, ended: bool, out: &mut Vec<Piece>) -> Option<usize> {
        if text.is_empty() {
            return None;
        }
        if self.answer_start.is_none() {
            self.answer_start = Some(self.queue.resolved());
        }
        if !self.takes_calls {
            return self.pass(text, out);
        }
        let at = text.find('<').unwrap_or(text.len());
        if at > 0 {
            return self.pass(&text[..at], out);
        }
        let mut wait = false;
        match opening(text) {
            Seen::Yes(Opening::Function(length, name)) => return self.open_call(length, name, out),
            Seen::Yes(Opening::Empty(length)) => return self.drop_call(length, out),
            Seen::Yes(Opening::Json(at)) => match self.json_call(text, at, out) {
                Seen::Yes(length) => return Some(length),
                Seen::Maybe => wait = true,
                Seen::No => {}
            },
            Seen::Maybe => wait = true,
            Seen::No => {}
        }
        // A function without the call's opener, as models forget it.
        let likely = self.after_call || self.stage.at_line_start();
        match named(text, FUNCTION) {
            Seen::Yes((length, name)) if likely && (self.after_call || self.knows(name)) => {
                return self.open_call(length, name, out);
            }
            Seen::Maybe if likely => wait = true,
            _ => {}
        }
        if self.closer_is_due {
            match tag(text, THINK_END) {
                Seen::Yes(()) => {
                    self.closer_is_due = false;
                    self.phase = Phase::ContentStart;
                    return self.swallow(THINK_END.len(), Channel::Reasoning);
                }
                Seen::Maybe => wait = true,
                Seen::No => {}
            }
        }
        if wait && !ended {
            return None;
        }
        if wait && tag(text, CALL) == Seen::Yes(()) && (likely || text.contains('{')) {
            // A call that was cut before it had a name.
            return self.drop_call(text.len(), out);
        }
        self.pass("<", out)
    }

    /// More of the answer.
    fn pass(&mut self, text: &str, out: &mut Vec<Piece>) -> Option<usize> {
        self.after_call = false;
        let resolved = self.stage.push(text);
        self.show_content(resolved, Channel::Content, out);
        if self.stage.stopped().is_some() {
            self.phase = Phase::Stopped;
        }
        Some(text.len())
    }

    /// Begins the call of a function; its tag ends after `length` bytes.
    fn open_call(&mut self, length: usize, name: &str, out: &mut Vec<Piece>) -> Option<usize> {
        self.end_content(out);
        self.swallow(length, Channel::ToolCalls);
        let call = Call::new(self.calls, Arguments::new(self.parameters(name)));
        self.emit(Delta::ToolCall { index: self.calls, id: self.call_id(), name: name.to_owned() }, out);
        self.phase = Phase::Call(Box::new(call));
        Some(length)
    }

    /// Leaves out a call that has no function.
    fn drop_call(&mut self, length: usize, out: &mut Vec<Piece>) -> Option<usize> {
        self.end_content(out);
        self.after_call = true;
        self.phase = Phase::ContentStart;
        self.swallow(length, Channel::ToolCalls)
    }

    /// A call as a JSON object from byte `at` on: `name` and `arguments`.
    fn json_call(&mut self, text: &str, at: usize, out: &mut Vec<Piece>) -> Seen<usize> {
        let Some(length) = self.balance.find(&text[at..]) else { return Seen::Maybe };
        let Some((name, arguments)) = named_arguments(&text[at..at + length]) else { return Seen::No };
        self.open_call(at + length, &name, out);
        let mut writer = Arguments::new(Value::Null);
        writer.object(&arguments);
        self.emit(Delta::Arguments { index: self.calls, json: writer.take() }, out);
        self.phase = Phase::Call(Box::new(Call::closed(self.calls, writer)));
        Seen::Yes(at + length)
    }

    fn after_step(&mut self, step: Step, out: &mut Vec<Piece>) -> Option<usize> {
        let (length, over) = match step {
            Step::Wait => return None,
            Step::Used(length) => (length, false),
            Step::Over(length) => (length, true),
        };
        self.swallow(length, Channel::ToolCalls);
        let Phase::Call(call) = &mut self.phase else { return Some(length) };
        if over {
            call.arguments.close();
        }
        let json = call.arguments.take();
        let index = call.index;
        if !json.is_empty() {
            self.emit(Delta::Arguments { index, json }, out);
        }
        if over {
            self.calls += 1;
            self.after_call = true;
            self.phase = if self.one_call { Phase::Stopped } else { Phase::ContentStart };
        }
        Some(length)
    }

    fn end_content(&mut self, out: &mut Vec<Piece>) {
        let resolved = self.stage.end_before_call();
        self.show_content(resolved, Channel::ToolCalls, out);
    }

    fn show_reasoning(&mut self, text: &str, out: &mut Vec<Piece>) -> Option<usize> {
        self.queue.resolve(text.len(), Channel::Reasoning, true);
        self.emit(Delta::Reasoning(text.to_owned()), out);
        Some(text.len())
    }

    /// Shows what left the last stage; what is dropped after it belongs to `after`.
    pub(super) fn show_content(&mut self, resolved: Resolved, after: Channel, out: &mut Vec<Piece>) {
        if !resolved.shown.is_empty() {
            self.queue.resolve(resolved.shown.len(), Channel::Content, true);
            self.emit(Delta::Content(resolved.shown), out);
        }
        self.queue.resolve(resolved.dropped, after, false);
    }

    /// Uses text that the client does not see.
    fn swallow(&mut self, bytes: usize, channel: Channel) -> Option<usize> {
        self.queue.swallow(self.stage.held(), bytes, channel);
        Some(bytes)
    }
}

/// Name and arguments of a call that is written as JSON.
fn named_arguments(json: &str) -> Option<(String, Map<String, Value>)> {
    let parsed = serde_json::from_str(json).ok();
    let call: Value = parsed.or_else(|| serde_json::from_str(&super::transcode::json(json)?).ok())?;
    let call = call.get("function").filter(|function| function.is_object()).unwrap_or(&call);
    let name = call.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let arguments = match call.get("arguments").or_else(|| call.get("parameters")) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(_) => return None,
    };
    Some((name.to_owned(), arguments))
}
