//! `cargo xtask report`: figures and tables from the records under bench/records, so that no number in them was typed.
//!
//! Figures go to docs/figures, one file each and a page with all of them; tables into the texts that ask for them. With
//! `--check`, nothing is written: what is committed must be what the records give.

use anyhow::{Context, Result, bail};
use lily_report::Records;
use std::io::ErrorKind;
use std::path::Path;

const RECORDS: &str = "bench/records";
const FIGURES: &str = "docs/figures";
/// Texts that may ask for tables.
const TEXTS: [&str; 3] = ["README.md", "docs/performance.md", "docs/experiments.md"];
/// What the page says first.
const INTRO: &str = "Written by `cargo xtask report` from the records in bench/records; docs/performance.md and \
    docs/experiments.md say how they were made. No Mac has been measured.";

/// Writes everything, or compares it with what is there.
pub fn run(root: &Path, check: bool) -> Result<()> {
    let files = files(root)?;
    let mut old: Vec<String> = files
        .iter()
        .filter(|(name, text)| std::fs::read(root.join(name)).ok().as_deref() != Some(text.as_bytes()))
        .map(|(name, _)| name.clone())
        .collect();
    let idle = idle(root, &files)?;
    old.extend(idle.iter().cloned());
    if check {
        if !old.is_empty() {
            bail!("not what the records give: {}; run `cargo xtask report` and commit it", old.join(", "));
        }
        eprintln!("report: {} files are what the records give", files.len());
        return Ok(());
    }
    std::fs::create_dir_all(root.join(FIGURES)).with_context(|| format!("cannot make {FIGURES}"))?;
    for (name, text) in &files {
        std::fs::write(root.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    for name in idle {
        std::fs::remove_file(root.join(&name)).with_context(|| format!("cannot remove {name}"))?;
    }
    eprintln!("report: {} of {} files changed", old.len(), files.len());
    Ok(())
}

/// Every file with what the records give.
fn files(root: &Path) -> Result<Vec<(String, String)>> {
    let records = Records::read(&root.join(RECORDS))?;
    let mut files: Vec<(String, String)> = vec![(format!("{FIGURES}/report.html"), records.page(INTRO))];
    for name in TEXTS {
        let text = std::fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"))?;
        let folder = if name.starts_with("docs/") { "figures" } else { FIGURES };
        files.push((name.to_owned(), records.fill(&text, folder).with_context(|| name.to_owned())?));
    }
    files.extend(records.figures().into_iter().map(|figure| (format!("{FIGURES}/{}", figure.file), figure.svg)));
    Ok(files)
}

/// Figures that no record gives any more.
fn idle(root: &Path, files: &[(String, String)]) -> Result<Vec<String>> {
    let mut idle = Vec::new();
    let figures = match std::fs::read_dir(root.join(FIGURES)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(idle),
        figures => figures.with_context(|| format!("cannot read {FIGURES}"))?,
    };
    for entry in figures {
        let name = format!("{FIGURES}/{}", entry?.file_name().to_string_lossy());
        if !files.iter().any(|(file, _)| *file == name) {
            idle.push(name);
        }
    }
    Ok(idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_writes_nothing() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join(RECORDS)).unwrap();
        std::fs::create_dir_all(root.path().join("docs")).unwrap();
        for name in TEXTS {
            std::fs::write(root.path().join(name), "").unwrap();
        }
        let figures = root.path().join(FIGURES);
        let error = run(root.path(), true).unwrap_err();
        assert!(error.to_string().contains("report.html"), "{error}");
        assert!(!figures.exists());
        run(root.path(), false).unwrap();
        std::fs::write(figures.join("speed-gone.svg"), "").unwrap();
        assert!(run(root.path(), true).is_err() && figures.join("speed-gone.svg").exists());
        run(root.path(), false).unwrap();
        run(root.path(), true).unwrap();
    }
}
