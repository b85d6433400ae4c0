//! OpenAI completions of plain text: `/v1/completions`.

mod encode;
mod parse;

pub use encode::CompletionsEncoder;
pub(crate) use parse::TABLES;
pub use parse::parse;
