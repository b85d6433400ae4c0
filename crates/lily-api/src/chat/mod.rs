//! OpenAI chat completions: `/v1/chat/completions`.

mod encode;
mod parse;

pub use encode::ChatEncoder;
pub use parse::parse;

pub(crate) use encode::{number, token_json};
