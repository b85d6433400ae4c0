//! One module per command.

pub mod ablate;
pub mod bench;
pub mod chat;
pub mod convert;
pub mod doctor;
pub mod eval;
pub mod inspect;
pub mod kernels;
pub mod plan;
pub mod report;
pub mod run;
pub mod serve;
pub mod shell;
pub mod tokenize;
