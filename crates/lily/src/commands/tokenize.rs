//! `lily tokenize`: the tokens of a text.

use crate::cli::TokenizeArgs;
use crate::failure::Failure;
use crate::output;
use lily_engine::prompt::Prompter;
use lily_engine::tokenizer::ControlTokens;
use serde_json::{Value, json};
use std::io::Read;

/// Runs the command.
pub fn run(args: &TokenizeArgs) -> Result<(), Failure> {
    let text = match &args.text {
        Some(text) => text.clone(),
        None => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(|e| Failure::other(format_args!("cannot read stdin: {e}")))?;
            text
        }
    };
    let prompter = Prompter::new(&args.model.open()?)?;
    let tokenizer = prompter.tokenizer();
    let control = if args.plain { ControlTokens::AsText } else { ControlTokens::Recognise };
    let ids = tokenizer.encode(&text, control).map_err(Failure::other)?;
    let piece = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
    if args.json {
        let tokens: Vec<Value> = ids.iter().map(|&id| json!({"id": id, "text": piece(id)})).collect();
        return output::json(&tokens);
    }
    let mut lines = String::new();
    for id in ids {
        lines += &format!("{id:>7}  {:?}\n", piece(id));
    }
    output::write(&lines)
}
