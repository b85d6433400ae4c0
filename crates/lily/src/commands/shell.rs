//! `lily completions` and `lily man`: what packages install beside the binary.

use crate::cli::{Cli, CompletionsArgs};
use crate::failure::Failure;
use crate::output;
use clap::CommandFactory;

/// Runs `lily completions`.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lily", &mut script);
    output::write(&String::from_utf8(script).expect("a script made of strings"))
}

/// Runs `lily man`: the page of lily itself, then one section for every command.
pub fn man() -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    let mut page = render(&command, |man, page| man.render(page))?.replace(".SH EXTRA\n", ".SH EXIT STATUS\n");
    sections(&command, &mut page)?;
    output::write(&page)
}

fn sections(command: &clap::Command, page: &mut String) -> Result<(), Failure> {
    for sub in command.get_subcommands().filter(|s| s.get_name() != "help") {
        let name = sub.get_bin_name().unwrap_or(sub.get_name()).to_uppercase();
        let body = render(sub, |man, page| {
            man.render_synopsis_section(page)?;
            man.render_description_section(page)?;
            man.render_options_section(page)
        })?;
        *page += &format!(".SH \"{name}\"\n{}", body.replace("\n.SH ", "\n.SS "));
        sections(sub, page)?;
    }
    Ok(())
}

fn render(
    command: &clap::Command,
    parts: impl FnOnce(&clap_mangen::Man, &mut Vec<u8>) -> std::io::Result<()>,
) -> Result<String, Failure> {
    let mut page = Vec::new();
    parts(&clap_mangen::Man::new(command.clone()), &mut page)?;
    Ok(String::from_utf8(page).expect("a page made of strings"))
}
