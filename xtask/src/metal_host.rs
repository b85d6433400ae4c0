//! `cargo xtask metal-host`: runs the Metal backend's host code on Linux, against a fake of Metal.
//!
//! objc2-metal is copied from the registry with one line changed, so that it links where there are no frameworks; the
//! libraries that it names are empty, as tools/fake-metal has what is called of them. The engine is compiled with a switch
//! that lets its Metal backend in.

use crate::ci::succeed;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The fake, and the tests that run the host code on it: a workspace of its own.
pub const MANIFEST: &str = "tools/fake-metal/Cargo.toml";
/// The crate that is copied.
const CRATE: &str = "objc2-metal";
/// The line that only Apple's linker understands, and what takes its place.
const LINK: &str = "#[link(name = \"Metal\", kind = \"framework\")]";
const LINK_ON_APPLE: &str = "#[cfg_attr(target_vendor = \"apple\", link(name = \"Metal\", kind = \"framework\"))]";
/// An archive without members, as `ar` writes it.
const EMPTY_ARCHIVE: &[u8] = b"!<arch>\n";

/// Builds and tests; `filter` is passed on to the tests.
pub fn run(root: &Path, filter: &[String]) -> Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        eprintln!("metal-host: the fake of Metal is for Linux on x86-64; nothing to do here");
        return Ok(());
    }
    let folder = root.join("target/metal-host");
    copy_crate(root, &folder)?;
    let libraries = folder.join("lib");
    std::fs::create_dir_all(&libraries)?;
    for name in ["objc", "BlocksRuntime"] {
        std::fs::write(libraries.join(format!("lib{name}.a")), EMPTY_ARCHIVE)?;
    }
    let mut test = Command::new("cargo");
    test.args([
        "test",
        "--quiet",
        "--no-fail-fast",
        "--locked",
        "--manifest-path",
        "tools/fake-metal/Cargo.toml",
        "--",
    ])
    .args(filter);
    test.env("RUSTFLAGS", format!("--cfg lily_fake_metal -L native={}", libraries.display()));
    test.env("CARGO_TARGET_DIR", folder.join("build")).current_dir(root);
    succeed(&mut test).with_context(|| {
        format!("the Metal backend on the fake; if only a lock file is old: cargo update --workspace --manifest-path {MANIFEST}")
    })
}

/// Copies the crate and changes its line; a copy of the same version is left alone.
fn copy_crate(root: &Path, folder: &Path) -> Result<()> {
    let source = find_crate(root)?;
    let version = source.file_name().and_then(|n| n.to_str()).context("a crate's folder has a name")?;
    let (place, stamp) = (folder.join(CRATE), folder.join(CRATE).join(version));
    if stamp.exists() {
        return Ok(());
    }
    if place.exists() {
        std::fs::remove_dir_all(&place)?;
    }
    copy_folder(&source, &place)?;
    let file = place.join("src/generated/mod.rs");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    if text.matches(LINK).count() != 1 {
        bail!(
            "{version} does not have the line `{LINK}` once; look at how it links now and change xtask/src/metal_host.rs"
        );
    }
    std::fs::write(&file, text.replace(LINK, LINK_ON_APPLE))?;
    Ok(std::fs::write(stamp, "")?)
}

/// Where cargo keeps the crate's source, fetched if it is not there yet.
fn find_crate(root: &Path) -> Result<PathBuf> {
    let mut metadata = Command::new("cargo");
    metadata.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", "aarch64-apple-darwin"]);
    let output = metadata.current_dir(root).output().context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout).context("cargo metadata is text")?;
    let paths = text.split("\"manifest_path\":\"").filter_map(|rest| rest.split('"').next());
    let manifest = paths.map(Path::new).find(|path| {
        let folder = path.parent().and_then(|folder| folder.file_name()).and_then(|name| name.to_str());
        folder.is_some_and(|name| name.strip_prefix(CRATE).is_some_and(|rest| rest.starts_with("-0")))
    });
    let folder = manifest.and_then(Path::parent).with_context(|| format!("{CRATE} is not among the dependencies"))?;
    Ok(folder.to_owned())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &place)?;
        } else {
            std::fs::copy(entry.path(), place)?;
        }
    }
    Ok(())
}
