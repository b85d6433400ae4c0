//! A script: what a model writes, and when.
//!
//! Its sections begin with a line of their own: `=== conversation` is a text that only prompts of the conversation proper
//! hold; each `=== turn` is an answer in it, in their order; `=== aside` is the answer to everything else, such as a
//! request for a title. Answers are as the model writes them: thinking, `</think>`, text and calls.

/// What stands between thinking and the rest.
const THOUGHT: &str = "</think>\n\n";
/// What answers begin after.
const ANSWER: &str = "<|im_start|>assistant";

/// A script.
pub struct Script {
    conversation: String,
    turns: Vec<String>,
    aside: String,
}

/// An answer of a script.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Which turn of the conversation, from 1; none for an aside.
    pub turn: Option<usize>,
    /// What the model writes.
    pub text: &'a str,
}

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// A section that is unknown or missing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut script = Self { conversation: String::new(), turns: Vec::new(), aside: String::new() };
        for section in format!("\n{text}").split("\n=== ").skip(1) {
            let (name, body) = section.split_once('\n').unwrap_or((section, ""));
            let body = body.trim_end().to_owned();
            match name {
                "conversation" => script.conversation = body,
                "turn" => script.turns.push(body),
                "aside" => script.aside = body,
                name => return Err(format!("section `{name}`: expected conversation, turn or aside")),
            }
        }
        if script.conversation.is_empty() || script.turns.is_empty() || script.aside.is_empty() {
            return Err("expected the sections conversation, turn and aside, none of them empty".into());
        }
        Ok(script)
    }

    /// The answer to a prompt.
    ///
    /// # Errors
    /// If the conversation has more turns than the script.
    pub fn answer(&self, prompt: &str) -> Result<Answer<'_>, String> {
        let (turn, text) = if prompt.contains(&self.conversation) {
            let turn = prompt.matches(ANSWER).count();
            let text = turn.checked_sub(1).and_then(|index| self.turns.get(index));
            (Some(turn), text.ok_or_else(|| format!("turn {turn} of a script with {} turns", self.turns.len()))?)
        } else {
            (None, &self.aside)
        };
        let thinks = prompt.trim_end().ends_with("<think>");
        // A model that was told not to think does not.
        let text = match text.split_once(THOUGHT) {
            Some((_, rest)) if !thinks => rest,
            _ => text,
        };
        Ok(Answer { turn, text })
    }
}
