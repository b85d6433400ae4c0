//! `cargo xtask api`: the official clients, and a browser, against `lily serve` with the model in the box.
//!
//! The scripts and the versions of the clients are in tests/api. What they need is installed under target/api.

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
    let node = installed(root, "node", "package.json", |folder| {
        std::fs::copy(scripts.join("package.json"), folder.join("package.json"))?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--no-update-notifier"]).current_dir(folder);
        succeed(npm.stdout(std::io::stderr())).context("npm comes with Node.js, version 20 or newer")
    })?;
    let browser = browser()?;
    cargo(root, &["build", "--package", "lily", "--locked"])?;
    for script in PYTHON {
        let mut command = Command::new("python3");
        command.arg(scripts.join(script)).env("PYTHONPATH", &python).env("PYTHONDONTWRITEBYTECODE", "1");
        against_a_server(root, &mut command)?;
    }
    for script in NODE {
        // Node looks for packages beside the script.
        let copy = node.join(script);
        std::fs::copy(scripts.join(script), &copy)?;
        against_a_server(root, Command::new("node").arg(copy).env("CHROMIUM", &browser))?;
    }
    Ok(())
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
    let server = Server::start(root)?;
    script.envs(server.variables.iter().map(|(name, value)| (name, value)));
    succeed(script.stdout(std::io::stderr()))
}

/// `lily serve` with the model in the box, ended with the value.
struct Server {
    child: Child,
    variables: Vec<(String, String)>,
}

impl Server {
    fn start(root: &Path) -> Result<Self> {
        let mut command = Command::new(root.join("target/debug/lily"));
        command
            .args(["serve", "lily-nano", "--port", "0", "--log", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start lily serve")?;
        let output = BufReader::new(child.stdout.take().context("stdout is a pipe")?);
        let mut server = Self { child, variables: Vec::new() };
        for line in output.lines().take(2) {
            let line = line?;
            let (name, value) = line.split_once('=').with_context(|| format!("expected a variable, found {line:?}"))?;
            server.variables.push((name.to_owned(), value.to_owned()));
        }
        if server.variables.len() < 2 {
            bail!("lily serve ended before it answered");
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
