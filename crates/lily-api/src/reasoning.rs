//! Splits a model's text into reasoning and answer.
//!
//! The family thinks between `<think>` and `</think>`. Its chat template usually ends the prompt with the opened tag, so
//! the text starts inside the reasoning ([`Start::Reasoning`]); otherwise the text may open the block itself, before
//! anything but white space ([`Start::Content`]). A tool call may come before any `</think>`: its opener ends the
//! reasoning and belongs to the answer, where the tool-call parser finds it. Tags are withheld until complete.
//!
//! Newlines next to the tags are layout, as the template has it when it reads such text back: newlines at both ends of
//! the reasoning and those that follow its closer are dropped. If the text ends inside the reasoning, nothing is
//! dropped from its end. After the block is closed, tags are ordinary text.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
const TOOL_CALL: &str = "<tool_call>";

/// Where the model's text starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The prompt opened the reasoning block.
    Reasoning,
    /// The prompt did not; the text may.
    Content,
}

/// What one piece of text added. The reasoning precedes the content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReasoningDelta {
    /// Text for the reasoning channel.
    pub reasoning: String,
    /// Text for the answer.
    pub content: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Only white space so far; an opener may follow.
    MaybeOpen,
    /// Inside the block, before its first character other than a newline.
    ReasoningStart,
    Reasoning,
    /// After the closer, before the first character of the answer.
    ContentStart,
    Content,
}

/// Incremental splitter; see the module's text for the rules.
#[derive(Clone, Debug)]
pub struct ReasoningParser {
    phase: Phase,
    /// Text not yet assigned: a partial tag, and newlines that may turn out to be layout.
    held: String,
}

impl ReasoningParser {
    /// A parser for text that starts at `start`.
    pub fn new(start: Start) -> Self {
        let phase = match start {
            Start::Reasoning => Phase::ReasoningStart,
            Start::Content => Phase::MaybeOpen,
        };
        Self { phase, held: String::new() }
    }

    /// True while the text is inside the reasoning block.
    pub fn in_reasoning(&self) -> bool {
        matches!(self.phase, Phase::ReasoningStart | Phase::Reasoning)
    }

    /// Takes the next piece of text and returns what is certain now.
    pub fn push(&mut self, text: &str) -> ReasoningDelta {
        self.held.push_str(text);
        let mut delta = ReasoningDelta::default();
        while self.step(&mut delta) {}
        delta
    }

    /// Ends the text: everything withheld goes to the channel that was open.
    pub fn finish(&mut self) -> ReasoningDelta {
        let rest = std::mem::take(&mut self.held);
        if self.in_reasoning() {
            ReasoningDelta { reasoning: rest, content: String::new() }
        } else {
            ReasoningDelta { reasoning: String::new(), content: rest }
        }
    }

    /// Consumes what it can of the held text; true when the phase changed and there may be more to do.
    fn step(&mut self, delta: &mut ReasoningDelta) -> bool {
        match self.phase {
            Phase::MaybeOpen => self.open(self.held.len() - self.held.trim_start().len(), Phase::Content),
            Phase::ReasoningStart => {
                self.drop_newlines();
                // Some models repeat the opener that the prompt already gave.
                self.open(0, Phase::Reasoning)
            }
            Phase::Reasoning => self.reason(delta),
            Phase::ContentStart => {
                self.drop_newlines();
                if !self.held.is_empty() {
                    self.phase = Phase::Content;
                }
                !self.held.is_empty()
            }
            Phase::Content => {
                delta.content.push_str(&self.held);
                self.held.clear();
                false
            }
        }
    }

    /// Swallows an opener at byte `at` of the held text, waits while it is incomplete, and goes to `otherwise` when there is none.
    fn open(&mut self, at: usize, otherwise: Phase) -> bool {
        let rest = &self.held[at..];
        if rest.starts_with(OPEN) {
            self.held.drain(..at + OPEN.len());
            self.phase = Phase::ReasoningStart;
            return true;
        }
        if OPEN.starts_with(rest) {
            return false;
        }
        self.phase = otherwise;
        true
    }

    fn reason(&mut self, delta: &mut ReasoningDelta) -> bool {
        let close = self.held.find(CLOSE);
        let call = self.held.find(TOOL_CALL);
        let end = [close, call].into_iter().flatten().min();
        let Some(end) = end else {
            let sure = self.held.len() - partial_tag(&self.held);
            let sure = self.held[..sure].trim_end_matches('\n').len();
            delta.reasoning.extend(self.held.drain(..sure));
            return false;
        };
        delta.reasoning.push_str(self.held[..end].trim_end_matches('\n'));
        if close == Some(end) {
            self.held.drain(..end + CLOSE.len());
            self.phase = Phase::ContentStart;
        } else {
            self.held.drain(..end);
            self.phase = Phase::Content;
        }
        true
    }

    fn drop_newlines(&mut self) {
        let newlines = self.held.len() - self.held.trim_start_matches('\n').len();
        self.held.drain(..newlines);
    }
}

/// Length of the longest tail of `text` that is the beginning of a tag that ends reasoning.
fn partial_tag(text: &str) -> usize {
    let longest = CLOSE.len().max(TOOL_CALL.len()) - 1;
    let tail = |n: &usize| {
        let tail = &text.as_bytes()[text.len() - n..];
        CLOSE.as_bytes().starts_with(tail) || TOOL_CALL.as_bytes().starts_with(tail)
    };
    (1..=longest.min(text.len())).rev().find(tail).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(start: Start, pieces: &[&str]) -> ReasoningDelta {
        let mut parser = ReasoningParser::new(start);
        let mut all = ReasoningDelta::default();
        for piece in pieces {
            let delta = parser.push(piece);
            all.reasoning += &delta.reasoning;
            all.content += &delta.content;
        }
        let delta = parser.finish();
        all.reasoning += &delta.reasoning;
        all.content += &delta.content;
        all
    }

    fn check(start: Start, text: &str, reasoning: &str, content: &str) {
        let expected = ReasoningDelta { reasoning: reasoning.into(), content: content.into() };
        assert_eq!(split(start, &[text]), expected, "whole: {text:?}");
        for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            assert_eq!(split(start, &[&text[..at], &text[at..]]), expected, "split at {at}: {text:?}");
        }
    }

    #[test]
    fn splits_by_the_rules() {
        use Start::{Content, Reasoning};
        check(Reasoning, "I think.\n</think>\n\nYes.", "I think.", "Yes.");
        check(Reasoning, "\na\n\nb\n</think>\n\n\nYes.\n", "a\n\nb", "Yes.\n");
        check(Reasoning, "</think>\n\nYes.", "", "Yes.");
        check(Reasoning, "cut short\n", "cut short\n", "");
        check(Reasoning, "half a tag </thi", "half a tag </thi", "");
        check(Reasoning, "1 < 2 </ x </thinker", "1 < 2 </ x </thinker", "");
        check(Reasoning, "<think>\ntwice\n</think>\nYes", "twice", "Yes");
        check(Content, "<think>\nown\n</think>\n\nYes", "own", "Yes");
        check(Content, "\n <think>own</think>Yes", "own", "Yes");
        check(Content, "Plain <think>not</think>", "", "Plain <think>not</think>");
        check(Content, "\n\n plain", "", "\n\n plain");
        check(Content, " <thin", "", " <thin");
        check(Reasoning, "a</think>b</think><think>c", "a", "b</think><think>c");
    }

    #[test]
    fn a_tool_call_ends_reasoning_implicitly() {
        let call = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
        check(Start::Reasoning, &format!("I need f.\n\n{call}"), "I need f.", call);
        check(Start::Reasoning, call, "", call);
        check(Start::Reasoning, &format!("ok\n</think>\n\n{call}"), "ok", call);
    }

    #[test]
    fn shows_text_as_soon_as_it_is_certain() {
        let mut parser = ReasoningParser::new(Start::Reasoning);
        assert_eq!(parser.push("one\n").reasoning, "one");
        assert_eq!(parser.push("two <").reasoning, "\ntwo ");
        assert_eq!(parser.push("b").reasoning, "<b");
        assert!(parser.in_reasoning());
        assert_eq!(parser.push("</think>\n\nx").content, "x");
        assert!(!parser.in_reasoning());
    }

    fn fragments() -> impl Strategy<Value = Vec<&'static str>> {
        let parts =
            ["<think>", "</think>", "<tool_call>", "<", "/think>", "tool", "\n", "\n\n", " ", "a", "é", "</", ">"];
        prop::collection::vec(prop::sample::select(parts.to_vec()), 0..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_split_equals_the_whole(parts in fragments(), inside: bool, cuts in prop::collection::vec(0usize..64, 0..6)) {
            let start = if inside { Start::Reasoning } else { Start::Content };
            let text = parts.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&c| c <= text.len() && text.is_char_boundary(c)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            prop_assert_eq!(split(start, &pieces), split(start, &[&text]));
        }
    }
}
