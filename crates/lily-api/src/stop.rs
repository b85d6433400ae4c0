//! Stop strings over a stream of text deltas.
//!
//! [`StopMatcher`] withholds any tail that could still grow into a stop string, so a client never sees a part of one,
//! and cuts the text where a stop string begins. Deciding what a stop means for a request is the caller's work.
//!
//! Definition, independent of how the text is split: the stop string that *completes* first wins, because generation can
//! end there without looking ahead; of several that complete at the same place, the longest wins. Everything before the
//! winner's first character is emitted and nothing after it.

use thiserror::Error;

/// Stop strings that cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum StopError {
    /// An empty string would stop before the first character.
    #[error("stop string {index} is empty; leave it out or give at least one character")]
    Empty {
        /// Position in the list of stop strings.
        index: usize,
    },
}

/// One stop string, matched with the Knuth-Morris-Pratt automaton.
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// `fallback[n]`: length of the longest proper prefix of the pattern that ends its first `n + 1` bytes.
    fallback: Vec<usize>,
    /// How many bytes of the pattern the text seen so far ends with; less than `bytes.len()` between bytes.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len()];
        let mut length = 0;
        for i in 1..bytes.len() {
            while length > 0 && bytes[i] != bytes[length] {
                length = fallback[length - 1];
            }
            if bytes[i] == bytes[length] {
                length += 1;
            }
            fallback[i] = length;
        }
        Self { bytes, fallback, matched: 0 }
    }

    /// Takes one more byte of the text; true when the pattern is complete.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

/// Incremental search for any of a request's stop strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Text seen but not emitted: the longest tail that begins a stop string.
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`; with none of them, all text passes at once.
    ///
    /// # Errors
    /// An empty stop string.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, StopError> {
        if let Some(index) = stops.iter().position(|s| s.as_ref().is_empty()) {
            return Err(StopError::Empty { index });
        }
        let patterns = stops.iter().map(|s| Pattern::new(s.as_ref())).collect();
        Ok(Self { patterns, held: String::new(), stopped: None })
    }

    /// Takes the next piece of text and returns what may be shown now. After a stop this is always empty.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        let start = self.held.len();
        self.held.push_str(text);
        for end in start + 1..=self.held.len() {
            let byte = self.held.as_bytes()[end - 1];
            if let Some(index) = self.advance(byte) {
                self.stopped = Some(index);
                // A stop string starts with the first byte of a character, so the cut is at a character border.
                self.held.truncate(end - self.patterns[index].bytes.len());
                return std::mem::take(&mut self.held);
            }
        }
        let keep = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
        let tail = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, tail)
    }

    /// Index of the stop string that ended the text, if one has.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Ends the text: returns what was withheld and turned out not to be a stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Forgets what came before, so that no stop string reaches back over this place. Nothing may be withheld.
    pub(crate) fn restart(&mut self) {
        self.patterns.iter_mut().for_each(|pattern| pattern.matched = 0);
    }

    /// Advances every pattern; the longest of those that `byte` completes.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut winner: Option<usize> = None;
        for index in 0..self.patterns.len() {
            let longer = winner.is_none_or(|w| self.patterns[index].bytes.len() > self.patterns[w].bytes.len());
            if self.patterns[index].advance(byte) && longer {
                winner = Some(index);
            }
        }
        winner
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<usize>) {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let mut deltas: Vec<String> = pieces.iter().map(|p| matcher.push(p)).collect();
        deltas.push(matcher.finish());
        (deltas, matcher.stopped())
    }

    /// The definition, on the whole text at once.
    fn whole(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let ending = |s: &String| text.as_bytes()[..end].ends_with(s.as_bytes());
            let longest = stops.iter().filter(|s| ending(s)).map(String::len).max();
            if let Some(length) = longest {
                let index = stops.iter().position(|s| s.len() == length && ending(s));
                return (text[..end - length].to_owned(), index);
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn withholds_a_tail_that_may_become_a_stop() {
        assert_eq!(run(&["STOP"], &["abS", "T", "x"]), (vec!["ab".into(), "".into(), "STx".into(), "".into()], None));
        assert_eq!(run(&["STOP"], &["abST", "OPcd"]), (vec!["ab".into(), "".into(), "".into()], Some(0)));
    }

    #[test]
    fn flushes_an_unfinished_stop_at_the_end() {
        assert_eq!(run(&["\n\nUser:"], &["hi\n\nUse"]), (vec!["hi".into(), "\n\nUse".into()], None));
    }

    #[test]
    fn first_completed_wins_then_the_longest() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), (vec!["xa".into(), "".into()], Some(1)));
        assert_eq!(run(&["c", "abc", "bc"], &["xabc"]), (vec!["x".into(), "".into()], Some(1)));
    }

    #[test]
    fn cuts_multi_byte_text_at_character_borders() {
        assert_eq!(run(&["終わり"], &["これで終", "わ", "り。"]).0.concat(), "これで");
        // The two characters share their first bytes; the second must pass.
        assert_eq!(run(&["\u{1F600}"], &["a\u{1F601}b"]).0.concat(), "a\u{1F601}b");
    }

    #[test]
    fn empty_stop_is_refused_and_no_stops_pass_everything() {
        assert_eq!(StopMatcher::new(&["a", ""]).unwrap_err(), StopError::Empty { index: 1 });
        assert_eq!(run(&[], &["abc", "d"]).0, vec!["abc", "d", ""]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_split_equals_the_whole(
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..8),
        ) {
            let text = pieces.concat();
            let mut matcher = StopMatcher::new(&stops).unwrap();
            let mut emitted = String::new();
            for piece in &pieces {
                emitted += &matcher.push(piece);
                prop_assert!(stops.iter().all(|s| !emitted.contains(s.as_str())));
            }
            let held = matcher.finish();
            // Only what could have become a stop was withheld.
            prop_assert!(held.is_empty() || stops.iter().any(|s| s.starts_with(&held)));
            emitted += &held;
            prop_assert_eq!((emitted, matcher.stopped()), whole(&stops, &text));
        }
    }
}
