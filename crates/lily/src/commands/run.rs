//! `lily run`: one prompt, one answer.

use crate::chat::{Answer, Chat};
use crate::cli::RunArgs;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output;
use lily_api::output::Delta;
use lily_engine::generate::{FinishReason, Summary};
use serde_json::{Value, json};
use std::io::{IsTerminal, Read};

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let prompt = prompt(args)?;
    let checkpoint = args.model.open()?;
    let interrupt = Interrupt::install()?;
    let mut chat = Chat::new(args.engine.engine(checkpoint)?, interrupt)?;
    let mut printer = Printer { quiet: args.json, ..Printer::default() };
    let mut show = |delta: &Delta| printer.show(delta);
    let answer = if args.raw {
        chat.complete(&prompt, &args.sampling, &mut show)?
    } else {
        let mut messages: Vec<Value> = Vec::new();
        messages.extend(args.system.as_ref().map(|text| json!({"role": "system", "content": text})));
        messages.push(json!({"role": "user", "content": prompt}));
        chat.answer(&messages, args.sampling.thinking(), &args.sampling, &mut show)?
    };
    if args.json {
        output::json(&report(&answer, chat.engine().device()))?;
    } else {
        printer.end()?;
        tell_ending(&answer.summary);
    }
    match answer.summary.finish_reason {
        FinishReason::Cancelled => Err(Failure::interrupted()),
        _ => Ok(()),
    }
}

/// The prompt from argument and file, or else from stdin.
fn prompt(args: &RunArgs) -> Result<String, Failure> {
    let mut parts: Vec<String> = args.prompt.iter().cloned().collect();
    if let Some(path) = &args.file {
        parts.push(std::fs::read_to_string(path).map_err(|e| Failure::file("read the prompt", path, e))?);
    }
    if parts.is_empty() {
        let mut stdin = std::io::stdin();
        if stdin.is_terminal() {
            return Err(Failure::usage("no prompt; give it as an argument, with --file, or through a pipe"));
        }
        let mut text = String::new();
        stdin.read_to_string(&mut text).map_err(|e| Failure::other(format_args!("cannot read stdin: {e}")))?;
        parts.push(text);
    }
    let prompt = parts.join("\n\n");
    if prompt.trim().is_empty() {
        return Err(Failure::usage("the prompt is empty; give it as an argument, with --file, or through a pipe"));
    }
    Ok(prompt)
}

/// Streams an answer: the text to stdout, the reasoning dim to stderr while a person reads that.
#[derive(Debug, Default)]
pub struct Printer {
    /// Print nothing.
    quiet: bool,
    reasoned: bool,
    started: bool,
    ends_in_newline: bool,
}

impl Printer {
    /// Shows a piece.
    pub fn show(&mut self, delta: &Delta) -> Result<(), Failure> {
        if self.quiet {
            return Ok(());
        }
        match delta {
            Delta::Reasoning(text) if output::stderr_is_terminal() => {
                eprint!("{}", output::dim(text));
                self.reasoned = true;
            }
            Delta::Content(text) => {
                if self.reasoned && !self.started {
                    eprint!("\n\n");
                }
                self.started = true;
                self.ends_in_newline = text.ends_with('\n');
                output::write(text)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends the answer's last line.
    pub fn end(&self) -> Result<(), Failure> {
        if self.reasoned && !self.started {
            eprintln!();
        }
        if self.ends_in_newline { Ok(()) } else { output::line("") }
    }
}

/// Says how an answer ended, where its reader could not know, and how fast it was.
pub fn tell_ending(summary: &Summary) {
    match summary.finish_reason {
        FinishReason::Length => output::note(&format!("[cut at {} tokens, --max-tokens]", summary.generated_tokens)),
        FinishReason::ContextFull => output::note("[cut: the context is full; raise --context]"),
        FinishReason::Cancelled => output::note("[stopped]"),
        FinishReason::Stop | FinishReason::StopString => {}
    }
    if output::stderr_is_terminal() {
        output::note(&speed(summary));
    }
}

/// One line of figures.
pub fn speed(summary: &Summary) -> String {
    let rate = |rate: Option<f64>| rate.map_or_else(String::new, |r| format!(" at {r:.1} tokens/s"));
    format!(
        "[prompt {} tokens, {} reused, {} read{}; answer {} tokens{}]",
        summary.prompt_tokens,
        summary.reuse.tokens(),
        summary.prefill_tokens,
        rate(summary.prefill_tokens_per_second()),
        summary.generated_tokens,
        rate(summary.decode_tokens_per_second())
    )
}

fn report(answer: &Answer, device: String) -> Value {
    let s = &answer.summary;
    json!({
        "text": answer.text,
        "reasoning": answer.reasoning,
        "finish_reason": s.finish_reason,
        "usage": {
            "prompt_tokens": s.prompt_tokens,
            "reused_tokens": s.reuse.tokens(),
            "generated_tokens": s.generated_tokens,
        },
        "timings": {
            "prefill_seconds": s.prefill_seconds,
            "prefill_tokens_per_second": s.prefill_tokens_per_second(),
            "decode_seconds": s.decode_seconds,
            "decode_tokens_per_second": s.decode_tokens_per_second(),
        },
        "seed": s.seed,
        "device": device,
    })
}
