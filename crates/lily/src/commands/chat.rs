//! `lily chat`: a conversation at the terminal, or line by line through a pipe.
//!
//! Reads lines and commands and keeps the messages; computing answers is [`Chat`]'s work.

use super::run::{Printer, speed, tell_ending};
use crate::chat::Chat;
use crate::cli::ChatArgs;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output;
use crate::sampling::SamplingArgs;
use lily_engine::generate::FinishReason;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

const HELP: &str = "\
/reset        forget the conversation
/save FILE    write the conversation to a file (JSON)
/load FILE    go on with a saved conversation
/system TEXT  set the system message; without TEXT remove it
/think on|off let the model think, or answer at once
/help         this list
/quit         end (also Ctrl-D)
Ctrl-C stops an answer.";
/// Lines of history kept.
const HISTORY_LINES: usize = 1000;

/// Runs the command.
pub fn run(args: &ChatArgs) -> Result<(), Failure> {
    let checkpoint = args.model.open()?;
    let interrupt = Interrupt::install()?;
    let chat = Chat::new(args.engine.engine(checkpoint)?, interrupt.clone())?;
    let mut input = Input::new()?;
    if let Input::Terminal { .. } = input {
        output::note(&format!("{}; /help lists the commands", chat.engine().device()));
    }
    let mut conversation = Conversation {
        chat,
        interrupt,
        sampling: args.sampling.clone(),
        thinking: args.sampling.thinking(),
        system: args.system.clone(),
        turns: Vec::new(),
    };
    while let Some(line) = input.line()? {
        // A Ctrl-C from before this line was meant for something that is over.
        conversation.interrupt.clear();
        let line = line.trim();
        let step = match line.strip_prefix('/') {
            _ if line.is_empty() => continue,
            Some("quit" | "exit") => break,
            Some(command) => conversation.command(command),
            None => conversation.say(line),
        };
        // A message that failed is lost, the conversation is not; only a reader that went away ends it.
        match step {
            Err(failure) if failure.is_broken_pipe() => return Err(failure),
            Err(failure) => eprintln!("error: {}", failure.message()),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Where lines come from.
enum Input {
    Terminal { editor: Box<Editor<(), FileHistory>>, history: Option<PathBuf> },
    Pipe(std::io::Lines<std::io::StdinLock<'static>>),
}

impl Input {
    fn new() -> Result<Self, Failure> {
        if !std::io::stdin().is_terminal() {
            return Ok(Input::Pipe(std::io::stdin().lock().lines()));
        }
        let failed = |e: ReadlineError| Failure::other(format_args!("cannot edit lines on this terminal: {e}"));
        let config = Config::builder().max_history_size(HISTORY_LINES).map_err(failed)?.auto_add_history(true).build();
        let mut editor = Editor::with_config(config).map_err(failed)?;
        let history = history_file();
        if let Some(path) = &history {
            let _ = editor.load_history(path); // none yet, the first time
        }
        Ok(Input::Terminal { editor: Box::new(editor), history })
    }

    /// The next line; none at the end.
    fn line(&mut self) -> Result<Option<String>, Failure> {
        match self {
            Input::Pipe(lines) => {
                lines.next().transpose().map_err(|e| Failure::other(format_args!("cannot read stdin: {e}")))
            }
            Input::Terminal { editor, history } => loop {
                match editor.readline("> ") {
                    Ok(line) => {
                        if let Some(path) = history {
                            let _ = editor.save_history(path); // a chat goes on without history
                        }
                        return Ok(Some(line));
                    }
                    Err(ReadlineError::Interrupted) => output::note("Ctrl-D ends the chat"),
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(e) => return Err(Failure::other(format_args!("cannot read from the terminal: {e}"))),
                }
            },
        }
    }
}

/// `$XDG_STATE_HOME/lily/history`, its directory made.
fn history_file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    let folder = state.join("lily");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("history"))
}

struct Conversation {
    chat: Chat,
    interrupt: Interrupt,
    sampling: SamplingArgs,
    thinking: Option<bool>,
    system: Option<String>,
    /// Messages of user and assistant.
    turns: Vec<Value>,
}

impl Conversation {
    fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        system.chain(self.turns.iter().cloned()).collect()
    }

    /// Puts a message to the model. An answer that was stopped stays in the conversation as far as it got.
    fn say(&mut self, text: &str) -> Result<(), Failure> {
        self.turns.push(json!({"role": "user", "content": text}));
        let mut printer = Printer::default();
        let answer = self.chat.answer(&self.messages(), self.thinking, &self.sampling, &mut |d| printer.show(d));
        // From here on Ctrl-C is for the next answer; pressed twice during one, it ends the program.
        self.interrupt.clear();
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => {
                self.turns.pop();
                return Err(failure);
            }
        };
        printer.end()?;
        tell_ending(&answer.summary);
        if !output::stderr_is_terminal() {
            output::note(&speed(&answer.summary));
        }
        if answer.summary.finish_reason == FinishReason::Cancelled && answer.text.is_empty() {
            self.turns.pop();
            return Ok(());
        }
        let mut message = json!({"role": "assistant", "content": answer.text});
        if !answer.reasoning.is_empty() {
            message["reasoning_content"] = json!(answer.reasoning);
        }
        self.turns.push(message);
        Ok(())
    }

    fn command(&mut self, command: &str) -> Result<(), Failure> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match (name, rest) {
            ("help", "") => output::note(HELP),
            ("reset", "") => {
                self.turns.clear();
                output::note("[forgotten]");
            }
            ("save" | "load", "") => return Err(Failure::usage(format_args!("/{name} needs a file"))),
            ("save", file) => self.save(Path::new(file))?,
            ("load", file) => self.load(Path::new(file))?,
            ("system", text) => self.system = (!text.is_empty()).then(|| text.to_owned()),
            ("think", "on") => self.thinking = Some(true),
            ("think", "off") => self.thinking = Some(false),
            ("think", _) => return Err(Failure::usage("/think needs on or off")),
            _ => return Err(Failure::usage(format_args!("unknown command /{command}; /help lists them"))),
        }
        Ok(())
    }

    fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(&json!({ "messages": self.messages() })).expect("plain JSON");
        std::fs::write(path, text + "\n").map_err(|e| Failure::file("save the conversation", path, e))?;
        output::note(&format!("[saved to {}]", path.display()));
        Ok(())
    }

    fn load(&mut self, path: &Path) -> Result<(), Failure> {
        let text = std::fs::read_to_string(path).map_err(|e| Failure::file("load a conversation", path, e))?;
        let expected = "expected {\"messages\": [...]} as /save writes it";
        let wrong = |found: &dyn std::fmt::Display| {
            Failure::other(format_args!("{}: {expected}, found {found}", path.display()))
        };
        let mut saved: Value = serde_json::from_str(&text).map_err(|e| wrong(&e))?;
        let Some(messages) = saved["messages"].as_array_mut() else { return Err(wrong(&"no list of messages")) };
        let mut turns = std::mem::take(messages);
        if !turns.iter().all(|m| m["role"].is_string()) {
            return Err(wrong(&"a message without a role"));
        }
        let system = turns
            .first()
            .filter(|m| m["role"] == "system")
            .map(|m| m["content"].as_str().unwrap_or_default().to_owned());
        if system.is_some() {
            turns.remove(0);
        }
        (self.system, self.turns) = (system, turns);
        output::note(&format!("[{} messages]", self.turns.len()));
        Ok(())
    }
}
