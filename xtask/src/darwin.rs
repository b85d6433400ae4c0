//! `cargo xtask darwin`: lints and links what ships for `aarch64-apple-darwin`, on Linux.
//!
//! Debian carries a current compiler with its library sources (`rustc-web`, `rust-web-src`). From these the standard
//! library is built once into a private sysroot below target/darwin; after that clippy (which checks all types, tests
//! included) and the build are ordinary runs of cargo. The executable is linked by rustup's `rust-lld` against a stub
//! SDK of names (`tools/darwin`), so a call to anything that is not on these lists is an error. Nothing is run.

use crate::ci::succeed;
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is checked for.
const TARGET: &str = "aarch64-apple-darwin";
/// Packages that ship.
const SHIPPED: [&str; 6] = ["-p", "lily", "-p", "lily-api", "-p", "lily-engine"];
/// Debian's packages; bookworm has them in its security archive.
const DEBIAN: [&str; 3] = ["rustc-web", "rust-web-src", "rust-web-clippy"];
/// Debian's compiler and linter.
const RUSTC: &str = "/usr/bin/rustc";
const CLIPPY: &str = "/usr/bin/cargo-clippy";
/// Where Debian keeps the library's sources and its own compiled libraries.
const RUSTLIB: &str = "/usr/lib/rustlib";
/// The machine this runs on, for build scripts and procedural macros.
const HOST: &str = "x86_64-unknown-linux-gnu";

/// Frameworks of the stub SDK with the names that are linked from each.
const FRAMEWORKS: [(&str, &str); 4] = [
    ("CoreFoundation", "___CFConstantStringClassReference"),
    ("CoreGraphics", "_CGMainDisplayID"),
    ("Foundation", "_NSCocoaErrorDomain"),
    ("Metal", "_MTLCopyAllDevices, _MTLCreateSystemDefaultDevice"),
];

/// Checks, lints and links; on a Mac the ordinary steps of ci do that already.
pub fn run(root: &Path) -> Result<()> {
    if cfg!(target_os = "macos") {
        eprintln!("darwin: this is a Mac; clippy and the tests have built the same code");
        return Ok(());
    }
    install()?;
    let folder = root.join("target/darwin");
    let sysroot = sysroot(&folder)?;
    let flags = format!("--sysroot {}", sysroot.display());
    let mut clippy = cargo(root, CLIPPY, &folder.join("check"), &flags);
    clippy.arg("clippy").args(SHIPPED).args(["--all-targets", "--locked", "--target", TARGET, "--", "-D", "warnings"]);
    succeed(&mut clippy).with_context(|| format!("clippy for {TARGET}"))?;
    link(root, &folder, &flags)
}

/// Installs Debian's packages where they are missing.
fn install() -> Result<()> {
    let sources = Path::new(RUSTLIB).join("src/rust/library/std");
    if [Path::new(RUSTC), Path::new(CLIPPY), &sources].iter().all(|path| path.exists()) {
        return Ok(());
    }
    let advice = format!(
        "{TARGET} is checked with Debian's {} (bookworm's security archive); install them as root with apt-get, \
         or run this where that is possible",
        DEBIAN.join(", ")
    );
    eprintln!("darwin: installing {}", DEBIAN.join(", "));
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        apt
    };
    succeed(apt().args(["update", "-qq"])).context(advice.clone())?;
    succeed(apt().args(["install", "-y", "-qq", "--no-install-recommends"]).args(DEBIAN)).context(advice)
}

/// The standard library for the target, built once per compiler version.
fn sysroot(folder: &Path) -> Result<PathBuf> {
    let version = Command::new(RUSTC).arg("-V").output().with_context(|| format!("{RUSTC} -V"))?.stdout;
    let version = String::from_utf8_lossy(&version);
    let number = version.split(' ').nth(1).with_context(|| format!("{RUSTC} -V says `{version}`"))?;
    let sysroot = folder.join(format!("sysroot-{number}"));
    if sysroot.is_dir() {
        return Ok(sysroot);
    }
    eprintln!("darwin: building the standard library of {number} for {TARGET}");
    let (package, partial) = (folder.join("std"), folder.join("sysroot.partial"));
    for old in [&package, &partial] {
        if old.exists() {
            std::fs::remove_dir_all(old).with_context(|| format!("removing {}", old.display()))?;
        }
    }
    std::fs::create_dir_all(package.join("src"))?;
    std::fs::write(package.join("src/lib.rs"), "")?;
    let manifest = "[package]\nname = \"stdbuild\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
                    [profile.dev]\ndebug = 0\n[workspace]\n";
    std::fs::write(package.join("Cargo.toml"), manifest)?;
    let mut build = cargo(&package, &cargo_path(), &package.join("target"), "");
    // Sources and compiler are of one release, which is what `-Zbuild-std` needs; the switch is for this step only.
    build.env("RUSTC_BOOTSTRAP", "1").args(["build", "--quiet", "--target", TARGET]);
    succeed(build.arg("-Zbuild-std=std,panic_abort,test"))
        .context("cargo cannot build Debian's standard library; if Debian's is much newer, raise the rust version")?;
    let libraries = partial.join("lib/rustlib").join(TARGET).join("lib");
    std::fs::create_dir_all(&libraries)?;
    symlink(Path::new(RUSTLIB).join(HOST), partial.join("lib/rustlib").join(HOST))?;
    for entry in std::fs::read_dir(package.join("target").join(TARGET).join("debug/deps"))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if name.ends_with(".rlib") && !name.starts_with("libstdbuild") {
            std::fs::copy(&path, libraries.join(name))?;
        }
    }
    // Renamed when whole, so that an interrupted run leaves nothing that looks finished.
    std::fs::rename(&partial, &sysroot)?;
    Ok(sysroot)
}

/// Links the executable against the stub SDK.
fn link(root: &Path, folder: &Path, flags: &str) -> Result<()> {
    let sdk = folder.join("sdk");
    write_sdk(root, &sdk)?;
    let linker = linker()?;
    // The linker is rustup's own program, told its flavour by the compiler; stripping would need a tool of Xcode.
    let flags = format!(
        "{flags} -Clinker={} -Clinker-flavor=ld64.lld -Zunstable-options -Cstrip=none -Clink-arg=--error-limit=0",
        linker.display()
    );
    let mut build = cargo(root, &cargo_path(), &folder.join("link"), &flags);
    build.args(["build", "--locked", "-p", "lily", "--bins", "--target", TARGET]);
    build.env("SDKROOT", &sdk).env("RUSTC_BOOTSTRAP", "1");
    // What the linker shall see are names, and these do not depend on how well the code is optimised.
    build.envs([("CARGO_PROFILE_DEV_OPT_LEVEL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")]);
    succeed(&mut build).context(
        "linking for aarch64-apple-darwin failed; for `undefined symbol: X`, make sure that X is public and as old as \
         the deployment target, then add it to tools/darwin/libSystem.txt or libobjc.txt",
    )?;
    let executable = folder.join("link").join(TARGET).join("debug/lily");
    let magic = std::fs::read(&executable).with_context(|| executable.display().to_string())?;
    if !magic.starts_with(&0xfeed_facf_u32.to_le_bytes()) {
        bail!("{}: not a 64-bit Mach-O file", executable.display());
    }
    eprintln!("darwin: linked {} ({} MB)", executable.display(), magic.len() >> 20);
    Ok(())
}

/// Writes text stubs: names only, each claimed by us and none copied from an SDK.
fn write_sdk(root: &Path, sdk: &Path) -> Result<()> {
    let system = "/usr/lib/libSystem.B.dylib";
    for (name, symbols) in FRAMEWORKS {
        let place = sdk.join(format!("System/Library/Frameworks/{name}.framework/{name}.tbd"));
        let installed = format!("/System/Library/Frameworks/{name}.framework/Versions/A/{name}");
        write_stub(&place, &installed, symbols)?;
    }
    for (name, installed) in [("libobjc", "/usr/lib/libobjc.A.dylib"), ("libSystem", system)] {
        let list = root.join(format!("tools/darwin/{name}.txt"));
        let text = std::fs::read_to_string(&list).with_context(|| list.display().to_string())?;
        let symbols: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        write_stub(&sdk.join(format!("usr/lib/{name}.tbd")), installed, &symbols.join(", "))?;
    }
    for name in ["c", "m", "iconv"] {
        write_stub(&sdk.join(format!("usr/lib/lib{name}.tbd")), system, &format!("_{name}_placeholder"))?;
    }
    Ok(())
}

fn write_stub(place: &Path, installed: &str, symbols: &str) -> Result<()> {
    let mut text = String::from("--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\n");
    writeln!(
        text,
        "install-name: '{installed}'\nexports:\n  - targets: [ arm64-macos ]\n    symbols: [ {symbols} ]\n..."
    )?;
    std::fs::create_dir_all(place.parent().context("a stub lies in a folder")?)?;
    std::fs::write(place, text).with_context(|| place.display().to_string())
}

/// Rustup's linker. The wrapper beside it does not take the flavour that the compiler passes.
fn linker() -> Result<PathBuf> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().context("rustc --print sysroot")?.stdout;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot).trim_end());
    let linker = sysroot.join("lib/rustlib").join(HOST).join("bin/rust-lld");
    if !linker.is_file() {
        bail!("{} is missing; use a Rust toolchain of rustup, which brings it", linker.display());
    }
    Ok(linker)
}

/// The cargo that runs this program.
fn cargo_path() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// A cargo command with Debian's compiler.
fn cargo(folder: &Path, program: &str, target: &Path, flags: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env("CARGO", cargo_path()).env("RUSTC", RUSTC).env("CARGO_TARGET_DIR", target);
    command.env_remove("RUSTC_WRAPPER").env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", flags);
    command
}
