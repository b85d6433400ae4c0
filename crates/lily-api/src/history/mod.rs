//! What the model wrote, remembered, so that a conversation that comes back renders byte for byte as it was written.
//!
//! Clients send a conversation back in their own words: keys of arguments in another order, white space gone, reasoning left
//! out. Rendered from those words, the prompt would part from the tokens that are cached at the first such place. [`History`]
//! keeps the exact text and tokens of answers, found again by the ids of their calls, or by the conversation up to them;
//! [`History::replay`] puts marks in place of the messages that it knows, and [`Replay::segments`] puts what was written in
//! place of the marks, once the template has rendered them. Whether a template shows the reasoning of a past turn stays the
//! template's decision.
//!
//! A message is replaced only if it says the same as what was written: same text, same calls (but for defaults that the client
//! filled in), and the same reasoning where it has any. The memory is bounded in bytes; what was used longest ago goes first. Scope and locking are the caller's work.

mod key;
mod replay;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;

use crate::fold::{Block, Folded};
use crate::output::Piece;
use crate::request::Tool;
use key::{Key, Said, hashes};
pub use replay::{Replay, Segment};

/// Bytes that an answer takes beside its text, its tokens and what is compared.
const OVERHEAD: usize = 256;

/// The exact text of an answer while it is generated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    bytes: Vec<u8>,
    tokens: Vec<u32>,
    /// Where each token ends, in bytes.
    ends: Vec<usize>,
}

impl Written {
    /// Adds a generated token and its bytes.
    pub fn push(&mut self, token: u32, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.tokens.push(token);
        self.ends.push(self.bytes.len());
    }
}

/// An answer that can come back.
#[derive(Debug)]
struct Turn {
    said: Said,
    text: String,
    tokens: Vec<u32>,
    ends: Vec<usize>,
    /// The prompt opened the reasoning, so the text starts inside it.
    in_reasoning: bool,
    /// Where the answer starts in the text.
    answer_start: usize,
}

impl Turn {
    fn bytes(&self) -> usize {
        OVERHEAD + self.said.bytes() + self.text.len() + 4 * self.tokens.len() + size_of::<usize>() * self.ends.len()
    }

    /// The tokens from byte `at` on, if one starts there.
    fn tokens_from(&self, at: usize) -> Option<&[u32]> {
        if at == 0 {
            return Some(&self.tokens);
        }
        // Several may end there, where some have no text; those come before what follows.
        let after = self.ends.partition_point(|&end| end <= at);
        (after > 0 && self.ends[after - 1] == at).then(|| &self.tokens[after..])
    }
}

#[derive(Debug)]
struct Entry {
    turn: Arc<Turn>,
    key: Key,
    /// Ids of its calls.
    calls: Vec<String>,
    used: u64,
}

/// Answers that may come back, at most so many bytes of them.
#[derive(Debug)]
pub struct History {
    limit_bytes: usize,
    bytes: usize,
    clock: u64,
    next: u64,
    entries: HashMap<u64, Entry>,
    by_call: HashMap<String, u64>,
    by_key: HashMap<Key, u64>,
    by_use: BTreeMap<u64, u64>,
}

impl History {
    /// An empty memory of at most `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            bytes: 0,
            clock: 0,
            next: 0,
            entries: HashMap::new(),
            by_call: HashMap::new(),
            by_key: HashMap::new(),
            by_use: BTreeMap::new(),
        }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Remembers an answer to `messages` (the conversation as [`crate::request::Conversation`] has it) that the model ended
    /// itself. `answer_start` is [`crate::output::OutputParser::answer_start`], `in_reasoning` whether the prompt opened the
    /// reasoning. Answers that were cut, or continue a text of the client's, must not be given: they do not come back as
    /// they were written. Text that is not UTF-8 is not remembered.
    pub fn remember(
        &mut self,
        messages: &[Value],
        pieces: &[Piece],
        written: Written,
        in_reasoning: bool,
        answer_start: Option<usize>,
    ) {
        let Written { bytes, tokens, ends } = written;
        let Ok(text) = String::from_utf8(bytes) else { return };
        let folded = Folded::new(pieces);
        let said = Said::of_blocks(&folded.blocks);
        let key = said.key(hashes(messages).last().copied().unwrap_or_default());
        let answer_start = answer_start.unwrap_or(text.len()).min(text.len());
        let turn = Turn { said, text, tokens, ends, in_reasoning, answer_start };
        let size = turn.bytes();
        if size > self.limit_bytes || !turn.text.is_char_boundary(answer_start) {
            return;
        }
        if let Some(&old) = self.by_key.get(&key) {
            self.forget(old);
        }
        let id = self.next;
        self.next += 1;
        self.by_key.insert(key, id);
        let call = |block: &Block| if let Block::ToolCall { id, .. } = block { Some(id.clone()) } else { None };
        let calls: Vec<String> = folded.blocks.iter().filter_map(call).collect();
        self.by_call.extend(calls.iter().map(|call| (call.clone(), id)));
        self.entries.insert(id, Entry { turn: Arc::new(turn), key, calls, used: 0 });
        self.bytes += size;
        self.touch(id);
        while self.bytes > self.limit_bytes {
            let Some((_, &oldest)) = self.by_use.first_key_value() else { break };
            self.forget(oldest);
        }
    }

    /// Marks what is known of a conversation, in which `tools` may be called; see [`Replay`].
    pub fn replay(&mut self, messages: &[Value], tools: &[Tool]) -> Replay {
        let known = messages.iter().zip(hashes(messages)).enumerate();
        let turns = known.filter_map(|(index, (message, before))| Some((index, self.find(message, before, tools)?)));
        let turns = turns.collect();
        Replay::new(messages, turns)
    }

    /// What was written where a conversation of the hash `before` goes on with this message.
    fn find(&mut self, message: &Value, before: u64, tools: &[Tool]) -> Option<Arc<Turn>> {
        if message["role"] != "assistant" {
            return None;
        }
        let said = Said::of_message(message);
        let by_call = message["tool_calls"][0]["id"].as_str().and_then(|id| self.by_call.get(id));
        let id = *by_call.or_else(|| self.by_key.get(&said.key(before)))?;
        let turn = Arc::clone(&self.entries.get(&id)?.turn);
        if !said.same_as(&turn.said, tools) {
            return None;
        }
        self.touch(id);
        Some(turn)
    }

    fn touch(&mut self, id: u64) {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(&id) {
            self.by_use.remove(&entry.used);
            entry.used = self.clock;
            self.by_use.insert(self.clock, id);
        }
    }

    fn forget(&mut self, id: u64) {
        let Some(entry) = self.entries.remove(&id) else { return };
        self.bytes -= entry.turn.bytes();
        self.by_use.remove(&entry.used);
        if self.by_key.get(&entry.key) == Some(&id) {
            self.by_key.remove(&entry.key);
        }
        for call in &entry.calls {
            if self.by_call.get(call) == Some(&id) {
                self.by_call.remove(call);
            }
        }
    }
}
