//! Developer commands: `cargo xtask ci` is what CI runs.

fn main() {}
