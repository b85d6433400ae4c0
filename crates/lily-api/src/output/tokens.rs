//! Which tokens lie behind which text, for log-probabilities.
//!
//! Tokens arrive with the text they decode to and wait until that text is *resolved*: shown to the client, or swallowed as markup.
//! Text is resolved in the order it arrived, so a queue of ranges is all that is needed. A character that several tokens make
//! up belongs to all of them.

use std::collections::VecDeque;

use super::{Channel, TokenLogprob};

#[derive(Clone, Debug)]
struct Waiting {
    /// Where its text starts and ends, in bytes of all decoded text.
    start: usize,
    end: usize,
    /// None once it has been handed out.
    token: Option<TokenLogprob>,
}

/// Tokens between decoding and the client.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenQueue {
    waiting: VecDeque<Waiting>,
    /// Tokens whose last character is incomplete; their end is not known yet.
    open: Vec<(usize, TokenLogprob)>,
    /// Bytes of text decoded, and resolved.
    decoded: usize,
    resolved: usize,
    /// Tokens that the next piece takes along.
    ready: Vec<(Channel, TokenLogprob)>,
}

impl TokenQueue {
    /// A token arrived, and with it `text_bytes` of text became certain; `incomplete` bytes of a character are left over.
    pub fn arrived(&mut self, token: Option<TokenLogprob>, text_bytes: usize, incomplete: bool) {
        if let Some(token) = token {
            self.open.push((self.decoded, token));
        }
        self.decoded += text_bytes;
        // All but the latest end with the text that has just become certain, and so does that where no character is open.
        let closed = if incomplete { self.open.len().saturating_sub(1) } else { self.open.len() };
        let closed = if text_bytes == 0 && incomplete { 0 } else { closed };
        for (start, token) in self.open.drain(..closed) {
            self.waiting.push_back(Waiting { start, end: self.decoded, token: Some(token) });
        }
        // The latest starts no later than the open character does.
    }

    /// The next `bytes` of text belong to `channel`; `shown` if the client sees them.
    pub fn resolve(&mut self, bytes: usize, channel: Channel, shown: bool) {
        self.resolved += bytes;
        for waiting in &mut self.waiting {
            // A token without text goes with the text around it.
            if waiting.start >= self.resolved && waiting.end > self.resolved {
                break;
            }
            let last = waiting.end <= self.resolved;
            if (shown || last)
                && let Some(token) = waiting.token.take()
                // What the answer swallows is a stop string or layout: nobody's text.
                && (shown || channel != Channel::Content)
            {
                self.ready.push((channel, token));
            }
        }
        while self.waiting.front().is_some_and(|waiting| waiting.end <= self.resolved) {
            self.waiting.pop_front();
        }
    }

    /// Bytes of text that have been shown or swallowed.
    pub fn resolved(&self) -> usize {
        self.resolved
    }

    /// Tokens for the piece that is made now.
    pub fn take(&mut self) -> Vec<(Channel, TokenLogprob)> {
        std::mem::take(&mut self.ready)
    }
}
