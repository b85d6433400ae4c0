//! OpenAI Responses: `/v1/responses`, without the server's memory of earlier responses.

mod encode;
mod items;
mod object;
mod parse;

pub use encode::ResponsesEncoder;
pub(crate) use parse::TABLES;
pub use parse::parse;

/// What stands before reasoning that a client carries from answer to answer in `encrypted_content`. The field is the one that
/// clients send back untouched; the text in it is plain.
const CARRIED: &str = "lily1:";
