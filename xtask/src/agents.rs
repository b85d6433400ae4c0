//! `cargo xtask agents`: coding agents against lily's server, each correcting one line of one file.
//!
//! The model's words come from a script per agent (tests/api/agents), written by `lily-server`'s example `scripted`; all else is
//! what it is for a user: the agent as published, its settings as `lily serve --print-config` prints them, and the server.
//! Every agent gets a home of its own and no proxy that leads anywhere, so that none can ask for more than the server.

use crate::api::{Server, node_packages};
use crate::ci::{cargo, succeed};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What the agents are asked, each in a conversation of its own.
const TASKS: [&str; 2] =
    ["area.py should compute the area of a rectangle. Correct it.", "Please repair area.py, whose result is wrong."];
/// The file to correct, and what it has to become.
const FILE: &str = "area.py";
const WRONG: &str = "def area(width, height):\n    return width + height\n";
const RIGHT: &str = "def area(width, height):\n    return width * height\n";
/// What it has to show at the end, as the model wrote it.
const LAST_WORDS: &str = "width × height → area. ✓";
/// Longest run of an agent.
const PATIENCE: Duration = Duration::from_secs(120);
/// What the agents are told of the context's length; `scripted` has it.
const CONTEXT_TOKENS: &str = "131072";
/// Tokens that may be computed again: those between the last kept boundary of a prompt and the answer's start.
const TAIL_TOKENS: usize = 16;
/// Of the first prompt of another conversation, the part that may be computed: its question and what the agent says with it.
const SHARED: usize = 10;

/// An agent, and how it runs without anybody to answer it.
struct Agent {
    /// Of its script; `--print-config` knows it by that name.
    name: &'static str,
    /// Of its program.
    program: &'static str,
    /// Before the task.
    arguments: &'static [&'static str],
    /// Where in its home the settings go.
    settings: &'static str,
    /// Besides HOME and PATH.
    variables: &'static [(&'static str, &'static str)],
    /// What it says where a prompt does not fit into the context, if it says more than the server.
    too_long: Option<&'static str>,
}

const AGENTS: [Agent; 5] = [
    Agent {
        name: "codex",
        program: "codex",
        arguments: &["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"],
        settings: ".codex/config.toml",
        variables: &[],
        too_long: Some("ran out of room in the model's context window"),
    },
    Agent {
        name: "claude",
        program: "claude",
        arguments: &["--print", "--allowedTools=Read,Edit,Bash"],
        settings: ".claude/settings.json",
        variables: &[],
        too_long: Some("Prompt is too long"),
    },
    Agent {
        name: "opencode",
        program: "opencode",
        arguments: &["run"],
        settings: ".config/opencode/opencode.json",
        variables: &[
            ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
            ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
            ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
        ],
        too_long: None,
    },
    Agent {
        name: "qwen",
        program: "qwen",
        arguments: &["--yolo", "--prompt"],
        settings: ".qwen/settings.json",
        variables: &[("QWEN_CODE_SUPPRESS_YOLO_WARNING", "1")],
        too_long: None,
    },
    Agent {
        name: "continue",
        program: "cn",
        arguments: &["--auto", "--print"],
        settings: ".continue/config.yaml",
        variables: &[("CONTINUE_TELEMETRY_ENABLED", "0")],
        too_long: None,
    },
];

/// Runs every agent, or one; stops at the first that fails.
pub fn run(root: &Path, only: Option<&str>) -> Result<()> {
    let packages = node_packages(root, "agents", "agents/package.json")?;
    cargo(root, &["build", "--package", "lily", "--package", "lily-server", "--bins", "--examples", "--locked"])?;
    let chosen: Vec<&Agent> = AGENTS.iter().filter(|agent| only.is_none_or(|name| name == agent.name)).collect();
    if chosen.is_empty() {
        bail!("no such agent; expected one of {}", AGENTS.map(|agent| agent.name).join(", "));
    }
    for agent in chosen {
        let place = Place::new(root, &packages, agent)?;
        let start = Instant::now();
        let done = work(agent, &place).and_then(|()| overflow(agent, &place));
        if done.is_err() {
            for log in ["agent.txt", "server.txt", "overflow-agent.txt", "overflow-server.txt"] {
                if let Ok(text) = std::fs::read_to_string(place.folder.join(log)) {
                    eprintln!("--- {} {log}\n{text}---", agent.name);
                }
            }
        }
        done.with_context(|| format!("{} with the script tests/api/agents/{0}.txt", agent.name))?;
        eprintln!("{} ok in {:.0} s", agent.name, start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Where an agent works.
struct Place {
    root: PathBuf,
    program: PathBuf,
    folder: PathBuf,
    home: PathBuf,
    /// A repository with the file.
    work: PathBuf,
}

impl Place {
    /// Folders under target/api, empty but for the file.
    fn new(root: &Path, packages: &Path, agent: &Agent) -> Result<Self> {
        let folder = root.join("target/api/agents-at-work").join(agent.name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        let (home, work) = (folder.join("home"), folder.join("work"));
        std::fs::create_dir_all(&home)?;
        std::fs::create_dir_all(&work)?;
        // Agents look for the repository they are in; it is not to be this one.
        succeed(Command::new("git").args(["init", "--quiet"]).current_dir(&work))?;
        let program = packages.join("node_modules/.bin").join(agent.program);
        Ok(Self { root: root.to_owned(), program, folder, home, work })
    }
}

/// Lets an agent do its task, and looks at what it did.
fn work(agent: &Agent, place: &Place) -> Result<()> {
    let script = place.root.join("tests/api/agents").join(agent.name).with_extension("txt");
    let mut scripted = Command::new(place.root.join("target/debug/examples/scripted"));
    scripted.arg(script).arg(&place.work).stderr(File::create(place.folder.join("server.txt"))?);
    let server = Server::start(&mut scripted)?;
    for task in TASKS {
        std::fs::write(place.work.join(FILE), WRONG)?;
        let status = ask(agent, place, &server, task, "agent.txt")?;
        if !status.success() {
            bail!("it ended with {status}");
        }
        let found = std::fs::read_to_string(place.work.join(FILE))?;
        if found != RIGHT {
            bail!("{FILE} is not as it should be:\n{found}");
        }
        if !std::fs::read_to_string(place.folder.join("agent.txt"))?.contains(LAST_WORDS) {
            bail!("it does not show {LAST_WORDS:?}");
        }
    }
    let log = std::fs::read_to_string(place.folder.join("server.txt"))?;
    reread(agent.name, &turns(&log)?)
}

/// Asks the same of lily-nano itself, whose context is far too short, and looks whether the agent knows why that failed.
fn overflow(agent: &Agent, place: &Place) -> Result<()> {
    let Some(words) = agent.too_long else { return Ok(()) };
    let mut lily = Command::new(place.root.join("target/debug/lily"));
    lily.args(["serve", "lily-nano", "--port", "0"]).stderr(File::create(place.folder.join("overflow-server.txt"))?);
    let server = Server::start(&mut lily)?;
    let status = ask(agent, place, &server, TASKS[0], "overflow-agent.txt")?;
    let said = std::fs::read_to_string(place.folder.join("overflow-agent.txt"))?;
    if status.success() || !said.contains(words) {
        bail!("it ended with {status}; expected a failure, and {words:?}");
    }
    Ok(())
}

/// Runs an agent with a task; its words go into the file `log`.
fn ask(agent: &Agent, place: &Place, server: &Server, task: &str, log: &str) -> Result<ExitStatus> {
    configure(agent, place, server)?;
    let output = File::create(place.folder.join(log))?;
    let mut command = Command::new(&place.program);
    command
        .args(agent.arguments)
        .arg(task)
        .current_dir(&place.work)
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .env("HOME", &place.home)
        // Nothing listens there, so that whatever is not for the server fails at once.
        .envs(["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"].map(|name| (name, "http://127.0.0.1:9")))
        .envs(["NO_PROXY", "no_proxy"].map(|name| (name, "127.0.0.1,localhost")))
        .envs(agent.variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output);
    wait(&mut command)
}

/// Writes the settings that `lily serve` prints for an agent.
fn configure(agent: &Agent, place: &Place, server: &Server) -> Result<()> {
    let port = server.variables[1].1.rsplit(':').next().context("a base URL ends with the port")?;
    let mut lily = Command::new(place.root.join("target/debug/lily"));
    let printed = lily
        .args(["serve", "lily-nano", "--context", CONTEXT_TOKENS, "--port", port, "--print-config", agent.name])
        .stderr(Stdio::null())
        .output()?;
    if !printed.status.success() {
        bail!("{lily:?}: {}", printed.status);
    }
    let path = place.home.join(agent.settings);
    std::fs::create_dir_all(path.parent().context("settings lie in the home")?)?;
    Ok(std::fs::write(path, printed.stdout)?)
}

/// Waits for an agent's end, but not for ever.
fn wait(command: &mut Command) -> Result<ExitStatus> {
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill(); // it may end at this moment
            let _ = child.wait();
            bail!("it did not end within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a turn of the conversation cost, in tokens.
struct Turn {
    /// In its conversation, from 1.
    number: usize,
    prompt: usize,
    cached: usize,
    generated: usize,
}

/// The turns of the script that were written, from the server's log.
fn turns(log: &str) -> Result<Vec<Turn>> {
    let number = |line: &str, name: &str| {
        let value = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.and_then(|value| value.parse::<usize>().ok()).with_context(|| format!("no {name} in {line:?}"))
    };
    let mut turns = Vec::new();
    for (place, line) in log.lines().enumerate().filter(|(_, line)| line.contains(" script: ")) {
        let turn = number(line, "turn")?;
        if turn == 0 {
            continue;
        }
        let prompt = number(line, "prompt")?;
        let of_it = |line: &&str| line.contains(" lily::jobs: ") && line.contains(&format!(" prompt={prompt} "));
        let job =
            log.lines().skip(place).find(of_it).with_context(|| format!("no job with a prompt of {prompt} tokens"))?;
        turns.push(Turn { number: turn, prompt, cached: number(job, "cached")?, generated: number(job, "generated")? });
    }
    Ok(turns)
}

/// Prints what each turn cost, and holds it to what neither the prompt before had nor the answer to it; the first turn of the second
/// conversation to a small part of its prompt.
fn reread(name: &str, turns: &[Turn]) -> Result<()> {
    let conversations: Vec<&[Turn]> = turns.chunk_by(|_, next| next.number > 1).collect();
    if conversations.len() != TASKS.len() || conversations.iter().any(|turns| turns.len() < 3) {
        bail!("{} conversations; expected {}, of three turns at least", conversations.len(), TASKS.len());
    }
    let mut known = 0;
    for (place, turn) in turns.iter().enumerate() {
        let &Turn { number, prompt, cached, generated } = turn;
        let begins_again = number == 1 && place > 0;
        let (new, computed) = (prompt.saturating_sub(known), prompt - cached);
        let most = if begins_again { prompt / SHARED } else { new + TAIL_TOKENS };
        eprintln!("{name}, turn {number}: prompt {prompt}, cached {cached}, computed {computed}, at most {most}");
        if computed > most {
            bail!("turn {number}: {computed} tokens were computed; expected {most} at most");
        }
        known = prompt + generated;
    }
    Ok(())
}
