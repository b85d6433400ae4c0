//! Developer commands of lily. `cargo xtask ci` is everything that must hold before a change is merged.
#![forbid(unsafe_code)]

mod agents;
mod api;
mod bench_gpu;
mod ci;
mod darwin;
mod metal_host;
mod mutants;
mod report;
mod tidy;
mod verified;

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
    /// Let coding agents do a small task with a model that follows a script; part of `api`
    Agents {
        /// Only this one
        name: Option<String>,
    },
    /// Run the official clients, a browser and coding agents against the server
    Api,
    /// Measure this machine's GPU by the protocol of published comparisons, and keep the record
    BenchGpu(bench_gpu::BenchGpu),
    /// Lint and link what ships for aarch64-apple-darwin
    Darwin,
    /// Write kernels/generated/ and docs/kernels.md from the kernel contracts
    Codegen,
    /// Run the kernels on a host: this machine's GPU, or the software Metal
    Kernels {
        /// Where
        #[arg(long)]
        host: Option<verified::Host>,
    },
    /// Make mistakes in kernels and plans, and say which tests notice
    Mutants {
        /// Only those of this file of kernels/
        file: Option<String>,
        /// Only the few that ci makes
        #[arg(long, conflicts_with = "file")]
        sample: bool,
    },
    /// Say where the present kernel text ran
    Verified {
        /// Run it here first, and write it down
        #[arg(long)]
        record: bool,
        /// Where, if not on this machine's GPU (a Mac) or the software Metal
        #[arg(long, requires = "record")]
        host: Option<verified::Host>,
    },
    /// Write figures and tables from the records of bench/records
    Report {
        /// Only say whether what is committed is what the records give
        #[arg(long)]
        check: bool,
    },
    /// Run the Metal backend's host code on Linux, against a fake of Metal
    MetalHost {
        /// Passed on to the tests
        filter: Vec<String>,
    },
    /// Rules that the compiler does not know: file lengths, module texts, words that do not belong here
    Tidy,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Agents { name } => agents::run(&root(), name.as_deref()),
        Command::Api => api::run(&root()),
        Command::BenchGpu(args) => bench_gpu::run(&root(), &args),
        Command::Ci => ci::run(&root()),
        Command::Codegen => ci::codegen(&root()),
        Command::Darwin => darwin::run(&root()),
        Command::Kernels { host } => verified::kernels(&root(), host),
        Command::Mutants { sample: true, .. } => mutants::sample(&root()),
        Command::Mutants { file, .. } => mutants::run(&root(), file.as_deref()),
        Command::Verified { record, host } => verified::verified(&root(), record, host),
        Command::MetalHost { filter } => metal_host::run(&root(), &filter),
        Command::Report { check } => report::run(&root(), check),
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
