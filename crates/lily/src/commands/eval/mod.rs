//! `lily eval`: how good a model's answers are, how close its numbers to those of other implementations, and whether they
//! are the same every time.

pub mod determinism;
pub mod nano;
mod scoring;
pub mod teacher;
