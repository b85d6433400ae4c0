//! Pure state machines between a model's text and its clients: stop strings, reasoning blocks, and the two together.
//!
//! Text goes in piece by piece, deltas come out; any split of the same text gives the same result. No I/O, no model
//! knowledge, no clock.
#![forbid(unsafe_code)]

pub mod reasoning;
pub mod stop;
pub mod text;
