//! Streaming decoder: token ids in, text out that never splits a character.
//!
//! A token of a byte-level vocabulary may hold a part of a character. Its bytes are held until the character is complete
//! or can no longer become one; only then do they become U+FFFD, once per maximal invalid sequence, exactly as
//! [`String::from_utf8_lossy`] has it for the whole text.

use std::sync::Arc;

use crate::tokenizer::{SpecialTokens, TokenTable};

/// State of one streamed text.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    table: Arc<TokenTable>,
    special: SpecialTokens,
    /// Bytes of an incomplete character: at most three between calls.
    held: Vec<u8>,
    /// What the last call returned; kept for its capacity.
    out: String,
}

impl Detokenizer {
    pub(crate) fn new(table: Arc<TokenTable>, special: SpecialTokens) -> Self {
        Self { table, special, held: Vec::new(), out: String::new() }
    }

    /// Takes the next token and returns the text that is certain now, valid until the next call.
    pub fn push(&mut self, id: u32) -> &str {
        self.out.clear();
        if self.special == SpecialTokens::Show || !self.table.is_special(id) {
            self.held.extend_from_slice(self.table.bytes(id));
            let used = drain_certain(&self.held, &mut self.out);
            self.held.drain(..used);
        }
        &self.out
    }

    /// Ends the text: what was held can no longer become a character. The decoder is as new afterwards.
    pub fn finish(&mut self) -> &str {
        self.out.clear();
        if !self.held.is_empty() {
            self.held.clear();
            self.out.push(char::REPLACEMENT_CHARACTER);
        }
        &self.out
    }
}

/// Appends to `out` all characters and invalid sequences of `bytes` but an incomplete last character; returns how many
/// bytes that was.
fn drain_certain(bytes: &[u8], out: &mut String) -> usize {
    let mut used = 0;
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        used += chunk.valid().len();
        let invalid = chunk.invalid();
        let at_end = used + invalid.len() == bytes.len();
        if at_end && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none()) {
            return used;
        }
        if !invalid.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            used += invalid.len();
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tests::{BYTES, tiny};
    use proptest::prelude::*;

    /// Feeds single bytes, which the test vocabulary has as tokens `BYTES + byte`.
    fn stream(bytes: &[u8]) -> Vec<String> {
        let mut detokenizer = tiny().detokenizer(SpecialTokens::Show);
        let mut deltas: Vec<String> =
            bytes.iter().map(|&b| detokenizer.push(BYTES + u32::from(b)).to_owned()).collect();
        deltas.push(detokenizer.finish().to_owned());
        deltas
    }

    #[test]
    fn holds_a_character_until_it_is_complete() {
        assert_eq!(stream("ač🎉".as_bytes()), ["a", "", "č", "", "", "", "🎉", ""]);
    }

    #[test]
    fn replaces_as_soon_as_nothing_valid_can_follow() {
        // F0 9F is cut by a letter; FF can never begin a character; E2 82 is cut by the end.
        assert_eq!(stream(b"\xF0\x9Fz\xFF\xE2\x82"), ["", "", "\u{FFFD}z", "\u{FFFD}", "", "", "\u{FFFD}"]);
        // C0 and ED A0 are invalid at once, not when the next byte comes.
        assert_eq!(stream(b"\xC0\xED\xA0a"), ["\u{FFFD}", "", "\u{FFFD}\u{FFFD}", "a", ""]);
    }

    #[test]
    fn skips_special_tokens_without_breaking_a_character() {
        let tokenizer = tiny();
        let end = tokenizer.token_id("<|im_end|>").unwrap();
        let think = tokenizer.token_id("<think>").unwrap();
        let [a, b] = [0xC3, 0xA9].map(|byte| BYTES + byte);
        let run = |special| {
            let mut detokenizer = tokenizer.detokenizer(special);
            [a, end, b, think].map(|id| detokenizer.push(id).to_owned())
        };
        assert_eq!(run(SpecialTokens::Skip), ["", "", "é", "<think>"]);
        assert_eq!(run(SpecialTokens::Show), ["", "\u{FFFD}<|im_end|>", "\u{FFFD}", "<think>"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn deltas_join_to_the_whole(
            parts in prop::collection::vec(prop_oneof![
                2 => any::<u8>().prop_map(|b| vec![b]),
                2 => any::<char>().prop_map(|c| c.to_string().into_bytes()),
                1 => prop::sample::select(vec![0xC3u8, 0xE2, 0x82, 0xF0, 0x9F, 0x8E, 0xED, 0xA0]).prop_map(|b| vec![b]),
            ], 0..40),
        ) {
            let bytes = parts.concat();
            prop_assert_eq!(stream(&bytes).concat(), String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn any_token_sequence_streams_to_its_decoding(ids in prop::collection::vec(0u32..400, 0..60)) {
            let tokenizer = tiny();
            let mut detokenizer = tokenizer.detokenizer(SpecialTokens::Show);
            let mut text: String = ids.iter().map(|&id| detokenizer.push(id).to_owned()).collect();
            text += detokenizer.finish();
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
            prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
            prop_assert_eq!(text, tokenizer.decode(&ids));
        }
    }
}
