//! OpenAI chat completions: `/v1/chat/completions`.

mod encode;
mod parse;

pub use encode::ChatEncoder;
pub(crate) use parse::TABLES;
pub use parse::parse;

pub(crate) use encode::{number, token_json};
