//! Which kernel text ran where: `cargo xtask kernels` runs the kernels on a host, `cargo xtask verified` keeps the record.
//!
//! A record names the text by its hash, so that it says nothing of any other text. docs/verified.toml is written here
//! alone; the suites themselves are ordinary tests.

use crate::ci::cargo;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The record.
const FILE: &str = "docs/verified.toml";
/// How it begins.
const HEAD: &str = "# Which kernel text ran where, and what passed. Written by `cargo xtask verified --record`.\n";

/// Where kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Host {
    /// The software Metal, on Linux
    SoftMetal,
    /// This Mac's GPU
    Metal,
    /// This machine's NVIDIA GPU
    Cuda,
}

impl Host {
    fn of_this_machine() -> Self {
        if cfg!(target_os = "macos") { Host::Metal } else { Host::SoftMetal }
    }

    fn name(self) -> &'static str {
        match self {
            Host::SoftMetal => "soft-metal",
            Host::Metal => "metal",
            Host::Cuda => "cuda",
        }
    }

    /// Arguments of cargo that run everything on this host.
    fn tests(self) -> &'static [&'static str] {
        match self {
            Host::SoftMetal => &["test", "--locked", "-p", "soft-metal"],
            Host::Metal => &["test", "--locked", "-p", "lily-engine", "--test", "metal"],
            Host::Cuda => &["test", "--locked", "-p", "lily-engine", "--features", "cuda", "--test", "cuda"],
        }
    }

    /// What it shows when they pass.
    fn shows(self) -> &'static str {
        match self {
            Host::SoftMetal => {
                "conformance in three lane orders, races, whole models, and the same of the text of NVIDIA's GPUs; clang, x86-64"
            }
            Host::Metal => "conformance on the GPU, compiled by the system",
            Host::Cuda => "conformance and lily-nano on the GPU; clang, PTX",
        }
    }
}

/// Runs the kernels on a host, this machine's by default.
pub fn kernels(root: &Path, host: Option<Host>) -> Result<()> {
    cargo(root, host.unwrap_or_else(Host::of_this_machine).tests())
}

/// Says where the present kernel text ran; with `record`, runs it here first and writes it down.
pub fn verified(root: &Path, record: bool, host: Option<Host>) -> Result<()> {
    let hash = text_hash(root)?;
    if record {
        let host = host.unwrap_or_else(Host::of_this_machine);
        kernels(root, Some(host))?;
        write_record(root, host, &hash)?;
    }
    let hosts = recorded(root, &hash)?;
    if hosts.is_empty() {
        bail!("the present kernel text ({hash}) has no record in {FILE}; run `cargo xtask verified --record`");
    }
    for host in &hosts {
        println!("{hash} {host}");
    }
    if !hosts.iter().any(|h| h.starts_with("metal")) {
        eprintln!("no Mac has run this text; on one, `cargo xtask verified --record` does it and writes {FILE}");
    }
    Ok(())
}

/// Hash of everything below kernels/, names included.
fn text_hash(root: &Path) -> Result<String> {
    let mut files = Vec::new();
    let mut folders = vec![root.join("kernels")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let mut hash = Sha256::new();
    for path in &files {
        let text = std::fs::read(path).with_context(|| path.display().to_string())?;
        hash.update(relative(root, path).as_bytes());
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    Ok(hash.finalize().iter().take(8).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

fn relative(root: &Path, path: &Path) -> String {
    let parts = path.strip_prefix(root).unwrap_or(path).components().map(|part| part.as_os_str().to_string_lossy());
    parts.collect::<Vec<_>>().join("/")
}

/// Hosts with a record of this text.
fn recorded(root: &Path, hash: &str) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path(root)).with_context(|| format!("{FILE} cannot be read"))?;
    let value = |block: &str, key: &str| -> Option<String> {
        let line = block.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")))?;
        Some(line.trim_matches('"').to_owned())
    };
    let blocks = text.split("[[run]]").skip(1).filter(|block| value(block, "kernels").as_deref() == Some(hash));
    Ok(blocks
        .map(|b| format!("{} {}", value(b, "host").unwrap_or_default(), value(b, "shows").unwrap_or_default()))
        .collect())
}

/// Adds a record; one of the same host that is older goes.
fn write_record(root: &Path, host: Host, hash: &str) -> Result<()> {
    let old = std::fs::read_to_string(path(root)).unwrap_or_default();
    let kept = old.split("[[run]]").skip(1).filter(|block| !block.contains(&format!("host = \"{}\"", host.name())));
    let mut text = String::from(HEAD);
    kept.for_each(|block| write!(text, "\n[[run]]{}\n", block.trim_end()).expect("a string takes it"));
    let (date, system) = (output("date", &["-u", "+%F"])?, output("uname", &["-sm"])?);
    let (name, shows) = (host.name(), host.shows());
    write!(
        text,
        "\n[[run]]\nkernels = \"{hash}\"\nhost = \"{name}\"\nsystem = \"{system}\"\ndate = \"{date}\"\nshows = \"{shows}\"\n"
    )?;
    std::fs::write(path(root), text).with_context(|| format!("{FILE} cannot be written"))
}

fn path(root: &Path) -> PathBuf {
    root.join(FILE)
}

fn output(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output().with_context(|| program.to_owned())?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
