//! The text of one answer as its reader gets it: reasoning split off, stop strings applied to the answer.
//!
//! Stop strings are looked for in the answer only: one such as a blank line would otherwise end most answers inside the
//! reasoning, before they begin.

use crate::reasoning::{ReasoningDelta, ReasoningParser, Start};
use crate::stop::{StopError, StopMatcher};

/// Incremental pipeline from a model's text to reasoning and answer.
#[derive(Clone, Debug)]
pub struct AnswerStream {
    /// None where all text is answer.
    reasoning: Option<ReasoningParser>,
    stop: StopMatcher,
}

impl AnswerStream {
    /// A stream for text that starts at `start`; `None` where there is no reasoning to split off (no chat).
    ///
    /// # Errors
    /// An empty stop string.
    pub fn new<S: AsRef<str>>(start: Option<Start>, stops: &[S]) -> Result<Self, StopError> {
        Ok(Self { reasoning: start.map(ReasoningParser::new), stop: StopMatcher::new(stops)? })
    }

    /// Takes the next piece of text and returns what may be shown now. After a stop this is always empty.
    pub fn push(&mut self, text: &str) -> ReasoningDelta {
        if self.stopped().is_some() {
            return ReasoningDelta::default();
        }
        let delta = match &mut self.reasoning {
            Some(parser) => parser.push(text),
            None => ReasoningDelta { reasoning: String::new(), content: text.to_owned() },
        };
        self.through_stop(delta)
    }

    /// Index of the stop string that ended the text, if one has.
    pub fn stopped(&self) -> Option<usize> {
        self.stop.stopped()
    }

    /// Ends the text: returns what was withheld.
    pub fn finish(&mut self) -> ReasoningDelta {
        if self.stopped().is_some() {
            return ReasoningDelta::default();
        }
        let rest = self.reasoning.as_mut().map_or_else(ReasoningDelta::default, ReasoningParser::finish);
        let mut delta = self.through_stop(rest);
        delta.content.push_str(&self.stop.finish());
        delta
    }

    fn through_stop(&mut self, delta: ReasoningDelta) -> ReasoningDelta {
        ReasoningDelta { content: self.stop.push(&delta.content), ..delta }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(start: Option<Start>, stops: &[&str], text: &str) -> (String, String, Option<usize>) {
        let mut stream = AnswerStream::new(start, stops).unwrap();
        let (mut reasoning, mut content) = (String::new(), String::new());
        let pieces = text.chars().map(String::from);
        for delta in pieces.map(|piece| stream.push(&piece)).collect::<Vec<_>>() {
            reasoning += &delta.reasoning;
            content += &delta.content;
        }
        let delta = stream.finish();
        (reasoning + &delta.reasoning, content + &delta.content, stream.stopped())
    }

    fn check(start: Option<Start>, stops: &[&str], text: &str, expect: (&str, &str, Option<usize>)) {
        assert_eq!(whole(start, stops, text), (expect.0.into(), expect.1.into(), expect.2), "{text:?}");
    }

    #[test]
    fn stop_strings_end_the_answer_but_not_the_reasoning() {
        let start = Some(Start::Reasoning);
        check(start, &["\n\n", "END"], "a\n\nEND b\n</think>\n\nyes END no", ("a\n\nEND b", "yes ", Some(1)));
        check(start, &["END"], "only END", ("only END", "", None));
        check(Some(Start::Content), &["b"], "<think>b</think>ab", ("b", "a", Some(0)));
    }

    #[test]
    fn what_is_withheld_comes_out_at_the_end() {
        check(Some(Start::Content), &["END"], "the EN", ("", "the EN", None));
        check(Some(Start::Content), &["k"], "<thin", ("", "<thin", None));
        check(Some(Start::Content), &["i"], "<thin", ("", "<th", Some(0)));
    }

    #[test]
    fn plain_text_has_no_reasoning() {
        check(None, &[], "<think>x</think>y", ("", "<think>x</think>y", None));
    }
}
