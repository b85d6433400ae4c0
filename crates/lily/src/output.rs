//! What goes where: stdout is data, stderr everything else; colours and progress bars only for people.

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use crate::failure::Failure;

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

static COLOR: OnceLock<Color> = OnceLock::new();

/// Decides about colours, once.
pub fn set_color(color: Color) {
    let _ = COLOR.set(color); // the command line is parsed once
}

/// Whether stderr is read by a person.
pub fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Whether stderr is coloured.
pub fn stderr_is_colored() -> bool {
    match COLOR.get().copied().unwrap_or(Color::Auto) {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
            stderr_is_terminal() && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
        }
    }
}

/// Text for stderr, dim where colours are on.
pub fn dim(text: &str) -> String {
    if stderr_is_colored() { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
}

/// Prints a line of information on stderr.
pub fn note(text: &str) {
    eprintln!("{}", dim(text));
}

/// Writes to stdout at once.
pub fn write(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a line to stdout.
pub fn line(text: &str) -> Result<(), Failure> {
    write(&format!("{text}\n"))
}

/// Writes a value to stdout as JSON.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(&serde_json::to_string_pretty(value).expect("reports have string keys and finite depth"))
}

/// A progress bar over bytes, hidden unless stderr is a terminal.
pub fn byte_bar(what: &str) -> ProgressBar {
    let bar = if stderr_is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}");
    bar.set_style(style.expect("a valid template"));
    bar.set_message(what.to_owned());
    bar
}

/// A progress bar over things, hidden unless stderr is a terminal.
pub fn count_bar(what: &str, total: usize) -> ProgressBar {
    let bar = if stderr_is_terminal() { ProgressBar::new(total as u64) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}").expect("a valid template"));
    bar.set_message(what.to_owned());
    bar
}
