//! The command line of lily: parses arguments, runs one command, turns what went wrong into a message and an exit code.

mod chat;
mod cli;
mod clients;
mod commands;
mod failure;
mod hardware;
mod interrupt;
mod load;
mod measure;
mod model;
mod nano;
mod output;
mod record;
mod sampling;

use clap::Parser;
use cli::{Cli, Command, EvalCommand};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    output::set_color(cli.color);
    let result = match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Quantize(args) => commands::convert::quantize(&args),
        Command::Synth(args) => commands::convert::synth(&args),
        Command::Tokenize(args) => commands::tokenize::run(&args),
        Command::Eval(EvalCommand::Nano(args)) => commands::eval::nano::run(&args),
        Command::Eval(EvalCommand::TeacherForced(args)) => commands::eval::teacher::run(&args),
        Command::Eval(EvalCommand::Determinism(args)) => commands::eval::determinism::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Ablate(args) => commands::ablate::run(&args),
        Command::Kernels(args) => commands::kernels::run(&args),
        Command::Report(args) => commands::report::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Completions(args) => commands::shell::completions(&args),
        Command::Man => commands::shell::man(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
