//! Which tokens lie behind which text, for log-probabilities.
//!
//! Tokens arrive with the text they decode to and wait until that text is *resolved*: shown to the client, or swallowed as markup.
//! Text is resolved in the order it arrived, so a queue of ranges is all that is needed. A character that several tokens make
//! up belongs to all of them.

use std::collections::VecDeque;

use super::{Channel, TokenLogprob};

/// An end that is not known yet.
const OPEN: usize = usize::MAX;

#[derive(Clone, Debug)]
struct Waiting {
    /// Where its text starts and ends, in bytes of all decoded text. It starts no later than here; the end is [`OPEN`] while
    /// its last character is incomplete.
    start: usize,
    end: usize,
    /// None once it has been handed out.
    token: Option<TokenLogprob>,
}

/// Tokens between decoding and the client.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenQueue {
    waiting: VecDeque<Waiting>,
    /// Bytes of text decoded, and resolved.
    decoded: usize,
    resolved: usize,
    /// Swallowed behind text that is not resolved yet: where it begins, how many bytes, whose.
    aside: VecDeque<(usize, usize, Channel)>,
    /// Tokens that the next piece takes along.
    ready: Vec<(Channel, TokenLogprob)>,
}

impl TokenQueue {
    /// A token arrived, and with it `text` became certain; if `incomplete`, a part of a character is left over.
    pub fn arrived(&mut self, token: Option<TokenLogprob>, text: &str, incomplete: bool) {
        // Without a token there are no others either.
        self.waiting.extend(token.map(|token| Waiting { start: self.decoded, end: OPEN, token: Some(token) }));
        let character = self.decoded + text.chars().next().map_or(0, char::len_utf8);
        self.decoded += text.len();
        if incomplete && text.is_empty() {
            return;
        }
        // The latest ends with the text, unless it left a character open; those before it with the one that they left open.
        let first = self.waiting.partition_point(|waiting| waiting.end < OPEN);
        let mut open = self.waiting.range_mut(first..).rev();
        if let Some(latest) = open.next()
            && !incomplete
        {
            latest.end = self.decoded;
        }
        open.for_each(|waiting| waiting.end = character);
    }

    /// The next `bytes` of text, but for those that were swallowed before, belong to `channel`; `shown` if the client sees them.
    pub fn resolve(&mut self, mut bytes: usize, channel: Channel, shown: bool) {
        while let Some(&(at, length, aside)) = self.aside.front()
            && at <= self.resolved + bytes
        {
            self.aside.pop_front();
            bytes -= at - self.resolved;
            self.advance(at - self.resolved, channel, shown);
            self.advance(length, aside, false);
        }
        self.advance(bytes, channel, shown);
    }

    /// Nobody sees the `bytes` of text that come after the next `held`, which are somebody else's.
    pub fn swallow(&mut self, held: usize, bytes: usize, channel: Channel) {
        if held == 0 {
            return self.resolve(bytes, channel, false);
        }
        let aside: usize = self.aside.iter().map(|(_, bytes, _)| bytes).sum();
        self.aside.push_back((self.resolved + held + aside, bytes, channel));
    }

    fn advance(&mut self, bytes: usize, channel: Channel, shown: bool) {
        if bytes == 0 && shown {
            return;
        }
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
