//! Rules that the compiler does not know.
//!
//! Every rule names the file, the line and what to do; all breaches are shown, not the first one only.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// Longest Rust file, in lines.
const LINES_MAX: usize = 700;
/// Largest file that may be committed, in bytes; lily-nano's weights are the reason for this much.
const BYTES_MAX: u64 = 16 << 20;

/// A text that does not belong into the repository, and what to do instead. Written in two halves, so that this file
/// keeps its own rules.
const FORBIDDEN: [(&str, &str, &str); 11] = [
    ("/ro", "ot/", "a path of one machine; make it relative"),
    ("/ho", "me/", "a path of one machine; make it relative"),
    ("/Us", "ers/", "a path of one machine; make it relative"),
    ("/wo", "rk/", "a path of one machine; make it relative"),
    ("index.cra", "tes.io", "a registry's host; cargo knows it"),
    ("static.cra", "tes.io", "a registry's host; cargo knows it"),
    ("py", "pi.org", "a registry's host; pip knows it"),
    ("pythonho", "sted.org", "a registry's host; pip knows it"),
    ("TO", "DO", "an unfinished idea; finish it or file an issue"),
    ("FIX", "ME", "an unfinished idea; finish it or file an issue"),
    ("db", "g!(", "left from debugging; remove it"),
];

/// Endings of files that are text of the project.
const TEXT: [&str; 9] = ["rs", "toml", "md", "py", "txt", "yml", "yaml", "sh", "metal"];

/// Checks every file that git tracks or would track.
pub fn run(root: &Path) -> Result<()> {
    let list = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .context("git ls-files")?;
    if !list.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&list.stderr));
    }
    let names = String::from_utf8(list.stdout).context("file names are UTF-8")?;
    let mut breaches = Vec::new();
    let mut files = 0;
    for name in names.split('\0').filter(|n| !n.is_empty()) {
        let path = root.join(name);
        // A tracked file that was removed and not yet committed.
        let Ok(meta) = path.metadata() else { continue };
        files += 1;
        if meta.len() > BYTES_MAX {
            breaches.push(format!("{name}: {} bytes; at most {BYTES_MAX} may be committed", meta.len()));
        }
        let is_text = path.extension().is_some_and(|e| TEXT.iter().any(|t| e == *t));
        if is_text {
            let text = std::fs::read_to_string(&path).with_context(|| format!("{name} is no text"))?;
            breaches.extend(check(name, &text));
        }
    }
    if breaches.is_empty() {
        eprintln!("tidy: {files} files");
        return Ok(());
    }
    bail!("tidy: {} breaches\n{}", breaches.len(), breaches.join("\n"));
}

/// Breaches of the rules in one file.
fn check(name: &str, text: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (first, second, advice) in FORBIDDEN {
            if let Some(at) = line.find(first)
                && line[at + first.len()..].starts_with(second)
            {
                breaches.push(format!("{name}:{}: `{first}{second}`: {advice}", number + 1));
            }
        }
    }
    if name.ends_with(".rs") {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            breaches.push(format!("{name}: {lines} lines; split it, {LINES_MAX} are the most"));
        }
        if !text.starts_with("//!") {
            breaches.push(format!("{name}:1: starts without `//!`: say what the module is responsible for"));
        }
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_bites() {
        let breaches = |name, text: &str| check(name, text).len();
        assert_eq!(breaches("a.rs", "//! Fine.\n"), 0);
        assert_eq!(breaches("a.rs", "fn main() {}\n"), 1);
        assert_eq!(breaches("a.md", "no module text needed\n"), 0);
        assert_eq!(breaches("a.rs", &"//! Long.\n".repeat(LINES_MAX + 1)), 1);
        for (first, second, _) in FORBIDDEN {
            assert_eq!(breaches("a.md", &format!("x {first}{second} y\n")), 1, "{first}{second}");
        }
    }
}
