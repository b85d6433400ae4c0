//! Developer commands of lily. `cargo xtask ci` is everything that must hold before a change is merged.
#![forbid(unsafe_code)]

mod ci;
mod darwin;
mod tidy;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Developer commands of lily
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that must hold before a change is merged
    Ci,
    /// Lint and link what ships for aarch64-apple-darwin
    Darwin,
    /// Write kernels/generated/ from the kernel contracts
    Codegen,
    /// Rules that the compiler does not know: file lengths, module texts, words that do not belong here
    Tidy,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Ci => ci::run(&root()),
        Command::Codegen => ci::codegen(&root()),
        Command::Darwin => darwin::run(&root()),
        Command::Tidy => tidy::run(&root()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}
