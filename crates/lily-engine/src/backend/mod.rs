//! The machines that execute a plan.

pub mod cpu;
