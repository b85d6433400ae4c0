//! What every record of figures begins with, so that a figure can be traced: software, machine, checkpoint.

use crate::cli::PublishArgs;
use crate::failure::Failure;
use crate::hardware::Machine;
use crate::model::Model;
use crate::output;
use lily_engine::checkpoint::Checkpoint;
use lily_report::Records;
use serde::Serialize;
use std::path::Path;

/// Where figures come from.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    lily: &'static str,
    commit: &'static str,
    machine: Machine,
    /// What computed.
    device: String,
    checkpoint: CheckpointOrigin,
    /// Seed of the random tokens.
    seed: u64,
}

/// Which checkpoint it was, without where it lay.
#[derive(Clone, Debug, Serialize)]
struct CheckpointOrigin {
    name: String,
    /// lily's fingerprint: dimensions, headers, lengths of files and samples of their bytes.
    fingerprint: String,
    weight_bytes: usize,
}

impl Origin {
    /// The origin of figures that `device` gave with a model.
    pub fn new(model: &Model, checkpoint: &Checkpoint, device: String, seed: u64) -> Self {
        Self {
            lily: env!("CARGO_PKG_VERSION"),
            commit: env!("LILY_COMMIT"),
            machine: Machine::this(),
            device,
            checkpoint: CheckpointOrigin {
                name: model.short_name(),
                fingerprint: hex(&checkpoint.fingerprint()),
                weight_bytes: checkpoint.weight_bytes(),
            },
            seed,
        }
    }

    /// The origin for people.
    pub fn heading(&self) -> String {
        let driver = self.machine.driver.as_ref().map_or_else(String::new, |driver| format!(", driver {driver}"));
        format!(
            "{} on {}{driver}\n{} ({:.2} GB of weights), lily {} at commit {}\n",
            self.device,
            self.machine.processor,
            self.checkpoint.name,
            self.checkpoint.weight_bytes as f64 / 1e9,
            self.lily,
            self.commit
        )
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a record where the arguments say, and shows it or its table.
///
/// # Errors
/// If the file cannot be written.
pub fn publish(record: &impl Serialize, table: &str, args: &PublishArgs) -> Result<(), Failure> {
    if let Some(path) = &args.record {
        let text = serde_json::to_string_pretty(record).expect("plain JSON");
        std::fs::write(path, text + "\n").map_err(|e| Failure::file("write the record", path, e))?;
    }
    if let Some(path) = &args.report {
        let text = serde_json::to_vec(record).expect("plain JSON");
        write_page(&[("the record".to_owned(), text)], path)?;
    }
    if args.json { output::json(record) } else { output::write(table) }
}

/// Writes a page with the figures of records of one machine, each with its name.
///
/// # Errors
/// If one is no record, or the page cannot be written.
pub fn write_page(records: &[(String, Vec<u8>)], path: &Path) -> Result<(), Failure> {
    let texts = records.iter().map(|(name, text)| (name.as_str(), text.as_slice()));
    let records = Records::of_machine(texts).map_err(Failure::other)?;
    let intro = format!("Written by lily {}. Medians, with what they were measured on.", env!("CARGO_PKG_VERSION"));
    std::fs::write(path, records.page(&intro)).map_err(|e| Failure::file("write the page", path, e))
}
