//! Chat templates: messages in, prompt text out, byte for byte as `transformers` renders them with Python's jinja2.
//!
//! [`ChatTemplate`] runs a checkpoint's template in minijinja, set up like jinja2 there: `trim_blocks`, `lstrip_blocks`,
//! loop controls, its own `tojson`, Python's printing of values and Python's string methods ([`builtins`], [`python`]).
//! [`messages`] first makes what clients send into what templates accept. A template has a budget of steps, so that one that
//! loops for ever fails instead of hanging.
//!
//! Known differences, none met in a chat template so far: `strftime_now` uses UTC; integers beyond 64 bits arrive here as
//! floats; a float, list or mapping joined with `~` or given to a filter for text prints in minijinja's way; `and` of two
//! constants gives false where Python gives the falsy one; an integer to a negative power fails, as does the reverse
//! `[::-1]` of an empty string or list. The budget counts steps, not the work or memory of one step: a template that doubles
//! a string over and over is not stopped. Turning the text into tokens is [`crate::tokenizer`]'s work.

mod builtins;
mod clock;
#[cfg(test)]
mod fuzz;
mod messages;
mod python;
#[cfg(test)]
mod tests;

use std::error::Error as _;
use std::panic::AssertUnwindSafe;

use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value, json};
use thiserror::Error;

/// Steps that one rendering may take: a hundred times what a chat of a thousand messages needs, and about a second.
const FUEL: u64 = 20_000_000;
/// Depth of macro calls and the like, which use the thread's stack; a test runs into it on a thread of 2 MiB.
const RECURSION: usize = 100;
const NAME: &str = "chat_template";

/// A chat that cannot be rendered.
#[derive(Debug, Error)]
pub enum TemplateError {
    /// The template is not valid.
    #[error(
        "line {line} of the chat template: {reason}; the checkpoint's chat template is damaged or of another dialect"
    )]
    Syntax {
        /// Line in the template.
        line: usize,
        /// What the parser said.
        reason: String,
    },
    /// The messages do not have the form of a chat.
    #[error("{place} {problem}")]
    Messages {
        /// Which one, such as `messages[2].tool_calls[0].function.arguments`.
        place: String,
        /// What is wrong and what to send.
        problem: String,
    },
    /// The template refused the chat (`raise_exception`).
    #[error("the chat template refuses these messages: {message}")]
    Refused {
        /// The template's own words.
        message: String,
    },
    /// The template failed.
    #[error("line {line} of the chat template failed: {reason}")]
    Failed {
        /// Line in the template.
        line: usize,
        /// What went wrong.
        reason: String,
    },
    /// The template used up its budget of steps.
    #[error("the chat template took more than {FUEL} steps; it loops, or the chat is absurdly long")]
    TooLong,
}

/// What a template raised, carried through the engine's error.
#[derive(Debug, Error)]
#[error("{0}")]
struct Raised(String);

/// A chat to render.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatInput {
    /// The messages: a list of objects with `role`, `content`, `tool_calls` and so on.
    pub messages: Value,
    /// Descriptions of the tools the model may call: a list.
    pub tools: Option<Value>,
    /// Whether the prompt ends with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further variables of the template, such as `enable_thinking` and `preserve_thinking`.
    pub kwargs: Map<String, Value>,
}

impl ChatInput {
    /// A chat without tools whose prompt asks for the assistant's turn.
    pub fn new(messages: Value) -> Self {
        Self { messages, tools: None, add_generation_prompt: true, kwargs: Map::new() }
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
}

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// The source is not a template.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_keep_trailing_newline(false);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_fuel(Some(FUEL));
        env.set_recursion_limit(RECURSION);
        builtins::install(&mut env);
        env.add_function("raise_exception", |message: minijinja::Value| -> Result<String, Error> {
            let raised = Raised(python::to_str(&message));
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
        });
        env.add_function("strftime_now", |format: &str| clock::strftime(format, clock::now()));
        // jinja2 reads all line ends as newlines.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        env.add_template_owned(NAME, without_generation_tags(&source))
            .map_err(|error| TemplateError::Syntax { line: error.line().unwrap_or(1), reason: reason(&error) })?;
        Ok(Self { env })
    }

    /// The prompt for a chat, after [`messages`] has made it acceptable.
    ///
    /// # Errors
    /// Malformed messages, a chat that the template refuses, or a template that fails.
    pub fn render(&self, input: &ChatInput) -> Result<String, TemplateError> {
        let messages = messages::prepare(&input.messages)?;
        let mut context = input.kwargs.clone();
        context.insert("messages".into(), Value::Array(messages));
        context.insert("tools".into(), input.tools.clone().unwrap_or_default());
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), json!(input.add_generation_prompt));
        self.render_context(&context)
    }

    /// Renders with exactly these variables.
    fn render_context(&self, context: &Map<String, Value>) -> Result<String, TemplateError> {
        // The engine panics on some slices of nothing with a negative step.
        let render = || self.env.get_template(NAME).and_then(|template| template.render(context));
        let rendered = std::panic::catch_unwind(AssertUnwindSafe(render));
        let rendered =
            rendered.unwrap_or_else(|_| Err(Error::new(ErrorKind::InvalidOperation, "the template engine broke down")));
        rendered.map_err(|error| {
            let mut source = error.source();
            while let Some(cause) = source {
                if let Some(Raised(message)) = cause.downcast_ref() {
                    return TemplateError::Refused { message: message.clone() };
                }
                source = cause.source();
            }
            match error.kind() {
                ErrorKind::OutOfFuel => TemplateError::TooLong,
                _ => TemplateError::Failed { line: error.line().unwrap_or(1), reason: reason(&error) },
            }
        })
    }
}

/// Kind and detail of an error, without the excerpt of the template.
fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// `generation` blocks mark the assistant's text for training and print as they are: they become blocks that do nothing
/// but keep their variables to themselves, as they do in `transformers`.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let tag_end = rest[start..].find("%}").map_or(rest.len(), |end| start + end);
        let inside = &rest[start + 2..tag_end];
        let name = inside.trim_matches(['-', '+']).trim();
        let instead = match name {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => name,
        };
        out.push_str(&rest[..start + 2]);
        if instead == name {
            rest = &rest[start + 2..];
        } else {
            out.push_str(&inside.replace(name, instead));
            rest = &rest[tag_end..];
        }
    }
    out + rest
}
