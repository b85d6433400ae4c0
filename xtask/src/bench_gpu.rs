//! `cargo xtask bench-gpu`: builds lily for this machine's GPU, makes the checkpoint if there is none, and has `lily bench` write a
//! record into bench/records. What is measured, and how, is `lily bench`'s; whoever has the binary alone runs the line that
//! is shown.

use crate::ci::{quiet, succeed};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where checkpoints lie that git does not see.
const CHECKPOINTS: &str = "bench/checkpoints";
/// The shape of the published model.
const SHAPE: &str = "qwen3.6-35b-a3b";
/// What decides the figures, and so must be what the commit says.
const MEASURED: [&str; 5] = ["Cargo.toml", "Cargo.lock", "crates", "kernels", "models"];
/// Ten lengths, as in the published comparison, and what else is claimed.
const BENCH: [&str; 6] = ["--prefill", "256..128K", "--sampled", "--cached", "32K", "--batch=2,4,8"];

/// Arguments.
#[derive(Args, Debug)]
pub struct BenchGpu {
    /// Directory of a checkpoint [default: one of the published shape with random weights, made in bench/checkpoints]
    #[arg(long)]
    model: Option<PathBuf>,
    /// Name of the machine's directory in bench/records [default: that of its GPU]
    #[arg(long)]
    machine: Option<String>,
    /// An engine beside lily, as `lily bench --peer` takes it; the record is named after it
    #[arg(long)]
    peer: Option<String>,
    /// Passed on to `lily bench`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

/// Builds, measures, records.
pub fn run(root: &Path, args: &BenchGpu) -> Result<()> {
    let clean = quiet(Command::new("git").args(["diff", "--quiet", "HEAD", "--"]).args(MEASURED).current_dir(root));
    if !clean {
        bail!("a record names the commit that was measured, and there are changes beside it; commit them first");
    }
    let machine = match &args.machine {
        Some(name) => name.clone(),
        None => slug(&gpu()?).context("the GPU has no name; give one with --machine")?,
    };
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked", "-p", "lily"]).current_dir(root);
    if !cfg!(target_os = "macos") {
        build.args(["--features", "cuda"]);
    }
    succeed(&mut build)?;
    let lily = root.join("target/release/lily");
    let model = match &args.model {
        // Commands run at the root; a relative path is seen from where this one was started.
        Some(model) => std::path::absolute(model).with_context(|| format!("--model {}", model.display()))?,
        None => random_checkpoint(root, &lily)?,
    };
    let folder = Path::new("bench/records").join(machine);
    std::fs::create_dir_all(root.join(&folder)).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut bench = Command::new(lily);
    bench.current_dir(root).arg("bench").arg("--model").arg(model).args(BENCH);
    bench.args(["--backend", if cfg!(target_os = "macos") { "metal" } else { "cuda" }]);
    bench.arg("--record").arg(folder.join(file_name(args.peer.as_deref())));
    bench.args(args.peer.iter().map(|peer| format!("--peer={peer}"))).args(&args.more);
    eprintln!("bench-gpu: {bench:?}");
    succeed(&mut bench)?;
    eprintln!("bench-gpu: `cargo xtask report` puts the record into figures and texts");
    Ok(())
}

fn random_checkpoint(root: &Path, lily: &Path) -> Result<PathBuf> {
    let path = Path::new(CHECKPOINTS).join(SHAPE);
    if !root.join(&path).is_dir() {
        // Written aside and renamed, so that an interrupted run leaves nothing that looks finished.
        let partial = Path::new(CHECKPOINTS).join("partial");
        let _ = std::fs::remove_dir_all(root.join(&partial));
        std::fs::create_dir_all(root.join(CHECKPOINTS)).with_context(|| format!("cannot make {CHECKPOINTS}"))?;
        succeed(Command::new(lily).args(["synth", SHAPE]).arg(&partial).current_dir(root))?;
        std::fs::rename(root.join(&partial), root.join(&path)).context("the checkpoint that was made")?;
    }
    Ok(path)
}

/// The record's name: that of the peer's tool is part of it, so that records of several stand side by side.
fn file_name(peer: Option<&str>) -> String {
    match peer.and_then(|peer| peer.split('=').next()) {
        Some(peer) => format!("bench-{peer}.json"),
        None => "bench.json".to_owned(),
    }
}

/// The name of this machine's GPU, as its system says it.
fn gpu() -> Result<String> {
    let (program, args) = match cfg!(target_os = "macos") {
        true => ("sysctl", ["-n", "machdep.cpu.brand_string"]),
        false => ("nvidia-smi", ["--query-gpu=name", "--format=csv,noheader"]),
    };
    let output = Command::new(program).args(args).output();
    let output = output.with_context(|| format!("cannot start {program} to ask for the GPU's name; give --machine"))?;
    if !output.status.success() {
        bail!("{program}: {}; give --machine", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}

/// A name for a directory: words without their maker, joined.
fn slug(name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.filter(|word| !["nvidia", "apple"].contains(word)).collect();
    (!words.is_empty()).then(|| words.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_named_by_machine_and_peer() {
        let slug = |name| slug(name).unwrap_or_default();
        assert_eq!((slug("NVIDIA H200"), slug("Apple M5 Max")), ("h200".to_owned(), "m5-max".to_owned()));
        assert_eq!((slug("NVIDIA H100 80GB HBM3"), slug("NVIDIA")), ("h100-80gb-hbm3".to_owned(), String::new()));
        assert_eq!(file_name(None), "bench.json");
        assert_eq!(file_name(Some("mlx-lm")), "bench-mlx-lm.json");
        assert_eq!(file_name(Some("llama-bench=build/bin/llama-bench")), "bench-llama-bench.json");
    }
}
