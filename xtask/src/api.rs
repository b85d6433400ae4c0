//! `cargo xtask api`: the official clients, and a browser, against `lily serve` with the model in the box; then coding agents.
//!
//! The scripts and the versions of the clients are in tests/api. What they need is installed under target/api.

use crate::agents;
use crate::ci::{apt_install, cargo, quiet, succeed};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Scripts that Python runs.
const PYTHON: [&str; 3] = ["openai_python.py", "anthropic_python.py", "frameworks.py"];
/// Scripts that Node runs.
const NODE: [&str; 2] = ["node.mjs", "page.mjs"];
/// Names of the browser.
const CHROMIUM: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Runs every script; stops at the first that fails.
pub fn run(root: &Path) -> Result<()> {
    let scripts = root.join("tests/api");
    let python = installed(root, "python", "requirements.txt", |folder| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
        succeed(pip.arg(scripts.join("requirements.txt")).arg("--target").arg(folder))
    })?;
    let node = node_packages(root, "node", "package.json")?;
    let browser = browser()?;
    cargo(root, &["build", "--package", "lily", "--package", "lily-server", "--bins", "--examples", "--locked"])?;
    for script in PYTHON {
        let mut command = Command::new("python3");
        command.arg(scripts.join(script)).env("PYTHONPATH", &python).env("PYTHONDONTWRITEBYTECODE", "1");
        against_a_server(root, &mut command)?;
    }
    for script in NODE {
        // Node looks for packages beside the script.
        let copy = node.join(script);
        std::fs::copy(scripts.join(script), &copy)?;
        // The newest clients need a newer Node.js than Debian has, so it comes with them.
        let newer = node.join("node_modules/.bin/node");
        against_a_server(root, Command::new(newer).arg(copy).env("CHROMIUM", &browser))?;
    }
    agents::run(root, None)
}

/// A folder with the npm packages that a list names.
pub fn node_packages(root: &Path, name: &str, list: &str) -> Result<PathBuf> {
    installed(root, name, list, |folder| {
        std::fs::copy(root.join("tests/api").join(list), folder.join("package.json"))?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--no-update-notifier"]).current_dir(folder);
        succeed(npm.stdout(std::io::stderr())).context("npm comes with Node.js, version 20 or newer")
    })
}

/// A folder under target/api with what `list` names; installed anew when the list has changed.
fn installed(root: &Path, name: &str, list: &str, install: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let folder = root.join("target/api").join(name);
    let stamp = folder.join("installed");
    let wanted = std::fs::read_to_string(root.join("tests/api").join(list))?;
    if std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(folder);
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    install(&folder).with_context(|| format!("installing what tests/api/{list} names"))?;
    std::fs::write(stamp, wanted)?;
    Ok(folder)
}

/// Path of Chromium, from the distribution's packages unless there is one.
fn browser() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let find = || {
        let places = CHROMIUM.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        places.into_iter().find(|place| quiet(Command::new(place).arg("--version")))
    };
    if let Some(found) = find() {
        return Ok(found);
    }
    apt_install(CHROMIUM[0]).context("the page's test needs Chromium; install it by hand if apt-get cannot")?;
    find().context("apt-get installed chromium, but it does not run")
}

/// Runs a script with the addresses of a server of its own.
fn against_a_server(root: &Path, script: &mut Command) -> Result<()> {
    let mut lily = Command::new(root.join("target/debug/lily"));
    let server = Server::start(lily.args(["serve", "lily-nano", "--port", "0", "--log", "error"]))?;
    script.envs(server.variables.iter().map(|(name, value)| (name, value)));
    succeed(script.stdout(std::io::stderr()))
}

/// A server that has said where it is, ended with the value.
pub struct Server {
    child: Child,
    /// What clients read: `OPENAI_BASE_URL` and `ANTHROPIC_BASE_URL`.
    pub variables: Vec<(String, String)>,
}

impl Server {
    /// Starts a command that prints the variables as `lily serve` does.
    pub fn start(command: &mut Command) -> Result<Self> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let output = BufReader::new(child.stdout.take().context("stdout is a pipe")?);
        let mut server = Self { child, variables: Vec::new() };
        for line in output.lines().take(2) {
            let line = line?;
            let (name, value) = line.split_once('=').with_context(|| format!("expected a variable, found {line:?}"))?;
            server.variables.push((name.to_owned(), value.to_owned()));
        }
        if server.variables.len() < 2 {
            bail!("{command:?} ended before it answered");
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}
