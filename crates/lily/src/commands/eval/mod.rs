//! `lily eval`: how good a model's answers are, and how close its numbers to those of other implementations.

pub mod nano;
mod scoring;
pub mod teacher;
