//! `lily completions` and `lily man`: what packages install beside the binary.

use crate::cli::{Cli, CompletionsArgs};
use crate::failure::Failure;
use clap::CommandFactory;
use std::io::Write;

/// Runs `lily completions`.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lily", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}

/// Runs `lily man`: the page of lily itself, then one section for every command.
pub fn man() -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    sections(&command, &mut page)?;
    Ok(std::io::stdout().write_all(&page)?)
}

fn sections(command: &clap::Command, page: &mut Vec<u8>) -> Result<(), Failure> {
    for sub in command.get_subcommands().filter(|s| s.get_name() != "help" && !s.is_hide_set()) {
        let name = sub.get_bin_name().unwrap_or(sub.get_name()).to_uppercase();
        writeln!(page, ".SH \"{name}\"")?;
        let man = clap_mangen::Man::new(sub.clone());
        man.render_synopsis_section(page)?;
        man.render_description_section(page)?;
        man.render_options_section(page)?;
        sections(sub, page)?;
    }
    Ok(())
}
