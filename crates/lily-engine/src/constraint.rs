//! What may be generated next: masks over the vocabulary, and those who make them.
//!
//! A [`Constraint`] follows the tokens of one text and says before each which ones may come: a grammar, a budget for
//! thinking, a call that must be made. The decode loop asks it between the submission of a step and the wait for it, so that a
//! GPU works meanwhile; the CPU backend has computed the step by then. Grammars themselves are the work of the layers above.

const WORD_BITS: usize = u32::BITS as usize;

/// A set of tokens: one bit each, the lowest bit of the first word is token 0.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    vocab: usize,
}

impl Clone for TokenMask {
    fn clone(&self) -> Self {
        Self { words: self.words.clone(), vocab: self.vocab }
    }

    /// Without a new allocation where there is room.
    fn clone_from(&mut self, source: &Self) {
        self.words.clone_from(&source.words);
        self.vocab = source.vocab;
    }
}

impl TokenMask {
    /// No token of a vocabulary of `vocab`.
    pub fn none(vocab: usize) -> Self {
        Self { words: vec![0; vocab.div_ceil(WORD_BITS)], vocab }
    }

    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Takes all tokens out.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Puts a token in; one beyond the vocabulary is passed over.
    pub fn allow(&mut self, token: u32) {
        if (token as usize) < self.vocab {
            self.words[token as usize / WORD_BITS] |= 1 << (token as usize % WORD_BITS);
        }
    }

    /// Becomes the set that `words` say, in the same form; missing words are zero, bits beyond the vocabulary are passed
    /// over.
    pub fn copy_from_words(&mut self, words: &[u32]) {
        let common = words.len().min(self.words.len());
        self.words[..common].copy_from_slice(&words[..common]);
        self.words[common..].fill(0);
        let rest = self.vocab % WORD_BITS;
        if let Some(last) = self.words.last_mut().filter(|_| rest > 0) {
            *last &= (1 << rest) - 1;
        }
    }

    /// Whether a token is in the set.
    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.vocab && self.words[token as usize / WORD_BITS] >> (token as usize % WORD_BITS) & 1 == 1
    }

    /// How many tokens are in the set.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Makes every logit whose token is not in the set minus infinity.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        for (logits, &word) in logits.chunks_mut(WORD_BITS).zip(self.words.iter().chain(std::iter::repeat(&0))) {
            if word != u32::MAX {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
    }
}

/// Why a constraint cannot say what may come next; ends the generation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);

/// Follows one text and says what may come next.
pub trait Constraint: Send {
    /// The tokens that may come next, those that end the text among them; `None` is all of them. Called once per token,
    /// while a GPU computes its logits.
    ///
    /// # Errors
    /// If it cannot say.
    fn mask(&mut self) -> Result<Option<&TokenMask>, ConstraintError>;

    /// Takes note of a token of the text. A token that ends the text is no part of it.
    ///
    /// # Errors
    /// If no such text is allowed.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_the_set_of_its_tokens() {
        for vocab in [1, 31, 32, 33, 100] {
            let mut mask = TokenMask::none(vocab);
            assert_eq!((mask.count(), mask.vocab()), (0, vocab));
            let chosen = [0, vocab as u32 / 2, vocab as u32 - 1];
            chosen.into_iter().chain([vocab as u32, 9999]).for_each(|token| mask.allow(token));
            let mut logits = vec![1.0; vocab];
            mask.apply(&mut logits);
            for (token, logit) in (0..).zip(&logits) {
                assert_eq!(mask.allows(token), chosen.contains(&token));
                assert_eq!(logit.is_finite(), chosen.contains(&token));
            }
            assert!(!mask.allows(vocab as u32));
            mask.copy_from_words(&[u32::MAX; 9]);
            assert_eq!(mask.count(), vocab, "bits beyond the vocabulary are dropped");
            mask.copy_from_words(&[]);
            assert_eq!(mask.count(), 0);
        }
    }
}
