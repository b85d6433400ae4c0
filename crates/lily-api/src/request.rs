//! The one form that every API's requests are parsed into.
//!
//! Fields are options where the server has a default of its own (the checkpoint's sampling, the room left in the context).
//! Limits that need the model, such as the vocabulary's size, are checked by the server.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::error::Api;

/// What to generate, and how to answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The API it came by.
    pub api: Api,
    /// The model asked for; empty where the client named none.
    pub model: String,
    /// What to continue.
    pub input: Input,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Most tokens to generate, the reasoning included; `None` is the room left in the context.
    pub max_tokens: Option<usize>,
    /// Strings that end the answer. They are looked for in the answer's text, not in reasoning or tool calls.
    pub stop: Vec<String>,
    /// Further tokens that end the text.
    pub stop_token_ids: Vec<u32>,
    /// Report log-probabilities, with so many alternatives per token.
    pub logprobs: Option<usize>,
    /// What form the answer must have; it binds the answer, not the reasoning.
    pub format: ResponseFormat,
    /// Answer with server-sent events.
    pub stream: bool,
    /// End the stream with the token counts.
    pub include_usage: bool,
    /// Whose finished session a request that goes on from none may take over.
    pub cache_key: Option<String>,
    /// The client carries reasoning from answer to answer in a field of its own.
    pub carry_reasoning: bool,
    /// What the answer repeats of the request, in this API's words.
    pub echo: Map<String, Value>,
}

/// What to continue.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A conversation, through the chat template.
    Chat(Conversation),
    /// Plain text, without a template.
    Text {
        /// The text.
        prompt: Prompt,
        /// Begin the answer with the prompt.
        echo: bool,
    },
}

/// Plain text to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// A conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Messages as the chat template takes them. Contents are text; an assistant's message may have `reasoning_content` and
    /// `tool_calls` whose arguments are objects; a tool's answer has `tool_call_id`.
    pub messages: Vec<Value>,
    /// Functions that the model may call.
    pub tools: Vec<Tool>,
    /// Whether and what it must call.
    pub tool_choice: ToolChoice,
    /// Several calls in one answer are fine.
    pub parallel_tool_calls: bool,
    /// Whether and how long to think.
    pub thinking: Thinking,
    /// Further variables of the template.
    pub template_kwargs: Map<String, Value>,
    /// The beginning of the answer, given by the client: it is appended to the prompt and not repeated in the answer.
    pub prefill: Option<Prefill>,
}

impl Conversation {
    /// The functions that the answer may call: all, none, or those that the choice names.
    pub fn callable(&self) -> Vec<&Tool> {
        let chosen = |tool: &&Tool| match &self.tool_choice {
            ToolChoice::None => false,
            ToolChoice::Auto | ToolChoice::Required => true,
            ToolChoice::Named(name) => tool.name == *name,
            ToolChoice::Allowed { names, .. } => names.contains(&tool.name),
        };
        self.tools.iter().filter(chosen).collect()
    }

    /// The tools as templates take them: OpenAI's nested form, or `None` without tools.
    pub fn template_tools(&self) -> Option<Value> {
        if self.tools.is_empty() {
            return None;
        }
        Some(Value::Array(self.tools.iter().map(Tool::template).collect()))
    }
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name, with the namespace's before it where it has one.
    pub name: String,
    /// The group that the client knows it in.
    pub namespace: Option<String>,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of its arguments.
    pub parameters: Value,
    /// Arguments must follow the schema exactly.
    pub strict: bool,
    /// Where the client takes free text instead of arguments; `parameters` then has one text, `input`.
    pub free_text: bool,
}

impl Tool {
    /// The name of a function of a namespace, as the model sees it.
    pub(crate) fn full_name(namespace: &str, name: &str) -> String {
        format!("{namespace}__{name}")
    }

    /// As templates take it: the same keys in the same order, however the client wrote them.
    fn template(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".into(), json!(self.name));
        if let Some(description) = &self.description {
            function.insert("description".into(), json!(description));
        }
        function.insert("parameters".into(), self.parameters.clone());
        json!({"type": "function", "function": function})
    }
}

/// Whether the model must call a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// It may not.
    None,
    /// As it likes.
    #[default]
    Auto,
    /// It must call one.
    Required,
    /// It must call this one.
    Named(String),
    /// It may call these of them.
    Allowed {
        /// Their names.
        names: Vec<String>,
        /// It must call one.
        required: bool,
    },
}

/// Whether and how long to think before answering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thinking {
    /// The template's `enable_thinking`; `None` leaves it to the template.
    pub enabled: Option<bool>,
    /// Most tokens of reasoning; then the block is closed.
    pub budget_tokens: Option<usize>,
}

/// The beginning of an answer. It decides whether the answer thinks, whatever [`Thinking`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prefill {
    /// Text to continue.
    Text {
        /// Finished reasoning before it; without it the answer begins with no reasoning at all.
        reasoning: Option<String>,
        /// The text, exactly; empty where the answer goes on right after the reasoning.
        content: String,
    },
    /// Reasoning to continue, exactly, before any text.
    Reasoning(String),
}

impl Prefill {
    /// Whether the answer thinks, or has thought.
    pub fn thinks(&self) -> bool {
        !matches!(self, Self::Text { reasoning: None, .. })
    }
}

/// How to choose tokens; `None` is the server's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// Share of the probability to keep.
    pub top_p: Option<f32>,
    /// Tokens to keep; 0 keeps all.
    pub top_k: Option<u32>,
    /// Relative to the most likely token.
    pub min_p: Option<f32>,
    /// Once per token generated before.
    pub presence_penalty: Option<f32>,
    /// Per time generated before.
    pub frequency_penalty: Option<f32>,
    /// Of prompt and generated tokens; 1 is off.
    pub repetition_penalty: Option<f32>,
    /// Added to logits.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Same seed, same draws.
    pub seed: Option<u64>,
}

/// What form the answer must have.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ResponseFormat {
    /// Any text.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON after this schema.
    JsonSchema(Value),
    /// A text of this grammar.
    Grammar {
        /// The notation.
        syntax: GrammarSyntax,
        /// The grammar.
        text: String,
    },
}

/// Notations of grammars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarSyntax {
    /// Lark.
    Lark,
    /// A regular expression for the whole answer.
    Regex,
}
