//! What an answer may look like: grammars, tool calls that must or must not come, and an end to thinking.
//!
//! [`Rules`] follows one answer token by token and gives the scheduler a mask. It knows where the reasoning ends: grammars
//! bind the answer only, and a budget closes the reasoning by allowing nothing but its closing tag. Grammars themselves are
//! llguidance's work ([`Grammars`]); what a tool call looks like is in [`calls`].

mod calls;
mod grammar;
mod patterns;
mod rules;
mod texts;

pub(crate) use grammar::Grammars;
pub(crate) use rules::{Marks, Rules};

#[cfg(test)]
mod tests;
