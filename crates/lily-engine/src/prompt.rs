//! From a chat to a prompt: the checkpoint's tokenizer and template together.
//!
//! [`Prompter`] finds both in a checkpoint, renders a chat, encodes it, and says what a generation needs to know of it:
//! where later prompts may part from this one, whether the answer starts inside the reasoning, which tokens end it.

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::template::{ChatInput, ChatTemplate, TemplateError};
use crate::tokenizer::{ControlTokens, Tokenizer, TokenizerError};
use serde_json::Value;

const TOKENIZER: &str = "tokenizer.json";
const TEMPLATE: &str = "chat_template.jinja";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The token that every message of the family starts with.
const MESSAGE_START: &str = "<|im_start|>";
/// Tokens that end a turn or a text in every checkpoint of the family, whatever its configuration says.
const ENDS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];
/// Last boundaries of a prompt that are worth a snapshot, besides the end of the first message.
const LAST_BOUNDARIES: usize = 3;

/// Why a checkpoint cannot take text, or a chat cannot become a prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// A file of the checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The tokenizer is missing or broken.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The template is broken, or refuses the chat.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A file is not there.
    #[error("{place}: expected {expected}, found none; {advice}")]
    Missing {
        /// The checkpoint.
        place: String,
        /// What was looked for.
        expected: &'static str,
        /// What to do.
        advice: &'static str,
    },
}

/// A prompt ready for the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Lengths at which a later prompt may part from this one, ascending: starts of messages, the answer's included.
    pub boundaries: Vec<usize>,
    /// The prompt opened the reasoning block, so the model's text starts inside it.
    pub in_reasoning: bool,
}

/// A part of a rendered chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Text to encode, by itself.
    Text(&'a str),
    /// Text whose tokens are known: those that a model wrote, which encoding its text may not give.
    Tokens(&'a [u32]),
}

/// A checkpoint's tokenizer and chat template.
#[derive(Debug)]
pub struct Prompter {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    message_start: Option<u32>,
    stop_ids: Vec<u32>,
    place: String,
}

impl Prompter {
    /// Loads both from the checkpoint's files. A checkpoint without a template can still continue plain text.
    ///
    /// # Errors
    /// A missing or broken tokenizer, or a broken template.
    pub fn new(checkpoint: &Checkpoint) -> Result<Self, PromptError> {
        let place = checkpoint.path().display().to_string();
        let json = checkpoint.side_file(TOKENIZER)?.ok_or_else(|| PromptError::Missing {
            place: place.clone(),
            expected: TOKENIZER,
            advice: "download it from the model's repository",
        })?;
        let tokenizer = Tokenizer::from_bytes(&json)?;
        let template = match template_source(checkpoint)? {
            Some(source) => Some(ChatTemplate::new(&source)?),
            None => None,
        };
        let mut stop_ids = checkpoint.generation.eos_token_ids.clone();
        stop_ids.extend(ENDS.iter().filter_map(|end| tokenizer.token_id(end)));
        stop_ids.sort_unstable();
        stop_ids.dedup();
        Ok(Self { message_start: tokenizer.token_id(MESSAGE_START), tokenizer, template, stop_ids, place })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Every token that ends an answer: those of the checkpoint's configuration and the family's own; sorted.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The prompt of a chat.
    ///
    /// # Errors
    /// No template, or a chat that it refuses.
    pub fn chat(&self, input: &ChatInput) -> Result<Prompt, PromptError> {
        self.encode(&[Part::Text(&self.render(input)?)])
    }

    /// The text of a chat's prompt.
    ///
    /// # Errors
    /// No template, or a chat that it refuses.
    pub fn render(&self, input: &ChatInput) -> Result<String, PromptError> {
        let template = self.template.as_ref().ok_or_else(|| PromptError::Missing {
            place: self.place.clone(),
            expected: "a chat template (chat_template.jinja, or in tokenizer_config.json)",
            advice: "add the model's own, or continue plain text with --raw",
        })?;
        Ok(template.render(input)?)
    }

    /// A rendered chat as a prompt, from its parts in order. It may go on after what the template wrote, with the beginning of
    /// the answer.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn encode(&self, parts: &[Part<'_>]) -> Result<Prompt, PromptError> {
        let mut tokens = Vec::new();
        for part in parts {
            match part {
                Part::Text(text) => tokens.extend(self.tokenizer.encode(text, ControlTokens::Recognise)?),
                Part::Tokens(known) => tokens.extend_from_slice(known),
            }
        }
        let boundaries = self.message_start.map_or_else(Vec::new, |start| boundaries(&tokens, start));
        let in_reasoning = matches!(parts.last(), Some(Part::Text(text)) if text.trim_end().ends_with("<think>"));
        Ok(Prompt { tokens, boundaries, in_reasoning })
    }

    /// Plain text as a prompt, without a template.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn plain(&self, text: &str) -> Result<Prompt, PromptError> {
        let tokens = self.tokenizer.encode(text, ControlTokens::Recognise)?;
        Ok(Prompt { tokens, boundaries: Vec::new(), in_reasoning: false })
    }
}

/// The template's text: its own file, or the entry in the tokenizer's configuration (one text, or a list of named ones).
fn template_source(checkpoint: &Checkpoint) -> Result<Option<String>, PromptError> {
    if let Some(text) = checkpoint.side_file(TEMPLATE)? {
        return Ok(Some(String::from_utf8_lossy(&text).into_owned()));
    }
    let Some(text) = checkpoint.side_file(TOKENIZER_CONFIG)? else { return Ok(None) };
    let config: Value = serde_json::from_slice(&text).map_err(|e| CheckpointError::Json {
        file: checkpoint.path().join(TOKENIZER_CONFIG).display().to_string(),
        expected: "a tokenizer configuration",
        found: e.to_string(),
    })?;
    let source = match &config["chat_template"] {
        Value::Array(named) => named.iter().find(|t| t["name"] == "default").map(|t| &t["template"]),
        other => Some(other),
    };
    Ok(source.and_then(Value::as_str).map(str::to_owned))
}

/// Starts of messages that are worth a snapshot: the second message's (what precedes it is shared by whole families of
/// chats) and the last few, the answer's included.
fn boundaries(tokens: &[u32], message_start: u32) -> Vec<usize> {
    let starts = tokens.iter().enumerate().filter(|&(i, &t)| i > 0 && t == message_start);
    let mut starts: Vec<usize> = starts.map(|(i, _)| i).collect();
    if starts.len() > LAST_BOUNDARIES + 1 {
        starts.drain(1..starts.len() - LAST_BOUNDARIES);
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_the_first_and_the_last_message_starts() {
        let check = |tokens: &[u32], expect: &[usize]| assert_eq!(boundaries(tokens, 9), expect);
        check(&[], &[]);
        check(&[9, 1, 2], &[]);
        check(&[9, 1, 9, 1, 9], &[2, 4]);
        check(&[9, 1, 9, 1, 9, 1, 9, 1, 9, 1, 9], &[2, 6, 8, 10]);
    }
}
