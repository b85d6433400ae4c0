//! Pieces joined to whole texts: what every answer that is not streamed is made of.

use crate::output::{Channel, Delta, Piece, TokenLogprob};

/// A part of an answer, in the order the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// What it thought.
    Reasoning(String),
    /// What it said.
    Content(String),
    /// A function it called.
    ToolCall {
        /// The call's id.
        id: String,
        /// The function.
        name: String,
        /// A JSON object as text.
        arguments: String,
    },
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Folded {
    /// Its parts; neighbours differ in kind, but for tool calls.
    pub blocks: Vec<Block>,
    /// Its tokens, where log-probabilities were asked for.
    pub tokens: Vec<(Channel, TokenLogprob)>,
}

impl Folded {
    /// Joins pieces.
    pub fn new(pieces: &[Piece]) -> Self {
        let mut folded = Self::default();
        for piece in pieces {
            folded.push(&piece.delta);
            folded.tokens.extend(piece.tokens.iter().cloned());
        }
        folded
    }

    /// Adds one delta.
    pub fn push(&mut self, delta: &Delta) {
        match (delta, self.blocks.last_mut()) {
            (Delta::Reasoning(more), Some(Block::Reasoning(text)))
            | (Delta::Content(more), Some(Block::Content(text)))
            | (Delta::Arguments { json: more, .. }, Some(Block::ToolCall { arguments: text, .. })) => {
                text.push_str(more)
            }
            (Delta::Reasoning(text), _) => self.blocks.push(Block::Reasoning(text.clone())),
            (Delta::Content(text), _) if !text.is_empty() => self.blocks.push(Block::Content(text.clone())),
            (Delta::ToolCall { id, name, .. }, _) => {
                self.blocks.push(Block::ToolCall { id: id.clone(), name: name.clone(), arguments: String::new() });
            }
            (Delta::Content(_) | Delta::Arguments { .. }, _) => {}
        }
    }

    /// All reasoning; empty if there is none.
    pub fn reasoning(&self) -> String {
        self.blocks
            .iter()
            .filter_map(|b| if let Block::Reasoning(text) = b { Some(text.as_str()) } else { None })
            .collect()
    }

    /// All of the answer's text; empty if there is none.
    pub fn content(&self) -> String {
        self.blocks
            .iter()
            .filter_map(|b| if let Block::Content(text) = b { Some(text.as_str()) } else { None })
            .collect()
    }

    /// Whether a function was called.
    pub fn has_tool_calls(&self) -> bool {
        self.blocks.iter().any(|b| matches!(b, Block::ToolCall { .. }))
    }
}
