//! Figures and tables from the records that `lily bench`, `lily ablate` and `lily kernels` write.
//!
//! Figures are SVG for light and for dark, a page holds all of them, tables go into texts that ask for them. The same
//! records give the same bytes. Nothing is measured here, and nothing but records is read.
#![forbid(unsafe_code)]

mod ablation;
mod page;
mod records;
mod roofline;
mod svg;
mod tables;
mod throughput;
mod timeline;

use records::{Anchors, Machine};
use std::path::{Path, PathBuf};

/// Why there is no figure or table.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// A file is not a record that is known.
    #[error("{what}: expected a record of lily bench, ablate or kernels, or figures of other engines: {message}")]
    Record {
        /// Which.
        what: String,
        /// What is wrong with it.
        message: String,
    },
    /// A text asks for something that no record gives.
    #[error("`{name}`: {message}")]
    Table {
        /// What it asks for.
        name: String,
        /// What is missing.
        message: &'static str,
    },
}

/// Kinds of figures, which their names begin with.
const KINDS: [&str; 4] = ["speed", "roofline", "step", "mechanisms"];

/// A figure and the name of the file that it goes to.
#[derive(Clone, Debug)]
pub struct Figure {
    /// `KIND-MACHINE.svg`.
    pub file: String,
    /// The machine that it is about: the name of its directory.
    pub machine: String,
    /// The file.
    pub svg: String,
}

/// Records of several machines.
#[derive(Clone, Debug)]
pub struct Records {
    machines: Vec<Machine>,
}

impl Records {
    /// Reads all records under a directory that has one directory for each machine.
    ///
    /// # Errors
    /// If a file cannot be read, or is no record.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        Ok(Self { machines: records::read(folder)? })
    }

    /// Records of one machine, each with the name that an error calls it by.
    ///
    /// # Errors
    /// If one is none.
    pub fn of_machine<'a>(texts: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Self, ReportError> {
        let mut machine = Machine { name: "this".to_owned(), ..Machine::default() };
        for (what, text) in texts {
            let wrong = |error: records::Wrong| ReportError::Record { what: what.to_owned(), message: error.0 };
            records::add(&mut machine, text).map_err(wrong)?;
        }
        Ok(Self { machines: vec![machine] })
    }

    /// All figures that there is something for.
    pub fn figures(&self) -> Vec<Figure> {
        let anchors = self.machines.iter().filter_map(|machine| machine.anchors.as_ref());
        let published: Option<&Anchors> = anchors.into_iter().find(|anchors| !anchors.mechanisms.is_empty());
        let mut figures = Vec::new();
        for machine in &self.machines {
            let drawn = [
                throughput::draw(machine),
                roofline::draw(machine),
                timeline::draw(machine),
                ablation::draw(machine, published),
            ];
            for (kind, svg) in KINDS.into_iter().zip(drawn) {
                let file = format!("{kind}-{}.svg", machine.name);
                figures.extend(svg.map(|svg| Figure { file, machine: machine.name.clone(), svg }));
            }
        }
        figures
    }

    /// A page with all figures, which needs nothing else. `intro` is a paragraph of it.
    pub fn page(&self, intro: &str) -> String {
        page::page(&self.machines, &self.figures(), intro)
    }

    /// A text with the tables and figures that it asks for between `<!-- from records: NAME MACHINE -->` and `<!-- end -->`;
    /// figures lie in `folder`, seen from the text. Names: `speed`, `model`, `kernels`, `chunks`, `speculation`, and `figure-` with a kind.
    ///
    /// # Errors
    /// If it asks for something that no record gives.
    pub fn fill(&self, text: &str, folder: &str) -> Result<String, ReportError> {
        let addresses: Vec<String> = self.figures().iter().map(|figure| format!("{folder}/{}", figure.file)).collect();
        tables::fill(text, &self.machines, &addresses)
    }
}
