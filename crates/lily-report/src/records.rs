//! Records under bench/records: one directory for each machine, one file for each measurement, told apart by what they hold.

use crate::ReportError;
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A measured figure over several runs.
#[derive(Clone, Debug, Deserialize)]
pub struct Rate {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// What every record of lily says of where it comes from.
#[derive(Clone, Debug, Deserialize)]
pub struct Origin {
    pub commit: String,
    pub device: String,
    checkpoint: Value,
}

impl Origin {
    /// What it was measured with.
    pub fn checkpoint(&self) -> String {
        let name = self.checkpoint["name"].as_str().or(self.checkpoint.as_str()).unwrap_or("unnamed");
        match name.strip_prefix("lily synth ") {
            Some(shape) => format!("{shape} with random weights"),
            None => name.to_owned(),
        }
    }
}

/// The commits that records come from, each once.
pub fn commits<'a>(origins: impl Iterator<Item = &'a Origin>) -> String {
    let mut commits: Vec<&str> = Vec::new();
    for origin in origins {
        if !commits.contains(&origin.commit.as_str()) {
            commits.push(&origin.commit);
        }
    }
    commits.join(", ")
}

/// What `lily bench` writes.
#[derive(Clone, Debug, Deserialize)]
pub struct Bench {
    #[serde(flatten)]
    pub origin: Origin,
    /// Bytes per second of the memory, measured in the same run.
    #[serde(default)]
    pub bandwidth: f64,
    /// The engine that took turns with lily.
    pub peer: Option<Peer>,
    pub lengths: Vec<Length>,
    /// Whether it lists prefill and decoding apart, as records without a peer once did.
    #[serde(skip)]
    apart: bool,
}

/// The engine beside lily.
#[derive(Clone, Debug, Deserialize)]
pub struct Peer {
    pub name: String,
}

/// Tokens per second at a length.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Length {
    pub tokens: usize,
    pub prefill_tps: Option<Rate>,
    pub decode_tps: Option<Rate>,
    pub peer_prefill_tps: Option<Rate>,
    pub peer_decode_tps: Option<Rate>,
    pub bytes_per_token: Option<f64>,
    pub bandwidth_share: Option<f64>,
    pub sampled_tps: Option<Rate>,
    #[serde(default)]
    pub batches: Vec<Batch>,
}

/// Tokens per second of several sessions together.
#[derive(Clone, Debug, Deserialize)]
pub struct Batch {
    pub sessions: usize,
    pub tps: Rate,
}

/// What `lily ablate` writes.
#[derive(Clone, Debug, Deserialize)]
pub struct Ablation {
    #[serde(flatten)]
    pub origin: Origin,
    #[serde(default)]
    pub chunk_tokens: usize,
    pub effects: Vec<Effect>,
    #[serde(default)]
    pub speculation: Vec<Speculation>,
}

/// What a mechanism is worth.
#[derive(Clone, Debug, Deserialize)]
pub struct Effect {
    pub mechanism: String,
    pub phase: String,
    pub tokens: usize,
    pub with: Rate,
    pub without: Rate,
    pub percent: Rate,
}

/// Steps of so many tokens of which all but one are guesses.
#[derive(Clone, Debug, Deserialize)]
pub struct Speculation {
    pub rows: usize,
    pub tokens: usize,
    pub plain_step_ms: f64,
    pub sources: Vec<Source>,
    pub break_even: Option<f64>,
}

/// The same with guesses of one source.
#[derive(Clone, Debug, Deserialize)]
pub struct Source {
    pub guesses: String,
    pub with: Rate,
    pub without: Rate,
    pub percent: Rate,
    pub step_ms: f64,
    pub guessed: usize,
    pub accepted: usize,
}

/// What `lily kernels` writes.
#[derive(Clone, Debug, Deserialize)]
pub struct Kernels {
    #[serde(flatten)]
    pub origin: Origin,
    pub bandwidth: f64,
    pub phases: Vec<Phase>,
}

/// A step by kernel.
#[derive(Clone, Debug, Deserialize)]
pub struct Phase {
    pub phase: String,
    pub context_tokens: usize,
    pub rows: usize,
    pub step_ms: Rate,
    pub kernels: Vec<Kernel>,
    pub launches: Option<Vec<Launch>>,
}

/// A kernel of a step.
#[derive(Clone, Debug, Deserialize)]
pub struct Kernel {
    pub kernel: String,
    pub launches: usize,
    pub alone_ms: f64,
    pub within_ms: f64,
    pub weight_bytes: f64,
    pub state_bytes: f64,
    pub activation_bytes: f64,
    pub flops: f64,
}

impl Kernel {
    /// All that must be moved.
    pub fn bytes(&self) -> f64 {
        self.weight_bytes + self.state_bytes + self.activation_bytes
    }
}

/// A launch of a step.
#[derive(Clone, Debug, Deserialize)]
pub struct Launch {
    pub kernel: String,
    pub stage: usize,
    pub ms: f64,
}

/// Figures of other engines that were not measured beside lily, written by hand with where they come from.
#[derive(Clone, Debug, Deserialize)]
pub struct Anchors {
    pub measured: String,
    pub device: String,
    pub copy_bandwidth: f64,
    pub bf16_flops: Option<f64>,
    pub decode_stages: Option<f64>,
    pub engines: Vec<Engine>,
    #[serde(default)]
    pub mechanisms: Vec<Published>,
}

/// Tokens per second of an engine, by tokens.
#[derive(Clone, Debug, Deserialize)]
pub struct Engine {
    pub engine: String,
    pub prefill: Vec<(usize, f64)>,
    pub decode: Vec<(usize, f64)>,
}

/// An effect as others report it.
#[derive(Clone, Debug, Deserialize)]
pub struct Published {
    pub mechanism: String,
    pub phase: String,
    pub tokens: usize,
    pub percent: f64,
}

/// All records of a machine.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Its directory.
    pub name: String,
    pub benches: Vec<Bench>,
    pub ablations: Vec<Ablation>,
    pub kernels: Vec<Kernels>,
    pub anchors: Option<Anchors>,
}

/// What is wrong with a record, in words.
#[derive(Debug)]
pub struct Wrong(pub String);

impl From<serde_json::Error> for Wrong {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// Reads the records of all machines, by name.
///
/// # Errors
/// If a file is none of the records that are known.
pub fn read(folder: &Path) -> Result<Vec<Machine>, ReportError> {
    let mut machines = Vec::new();
    for directory in sorted(folder)?.into_iter().filter(|path| path.is_dir()) {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut machine = Machine { name, ..Machine::default() };
        for path in sorted(&directory)?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "json")) {
            let text = std::fs::read(&path).map_err(|source| ReportError::Read { path: path.clone(), source })?;
            let wrong = |error: Wrong| ReportError::Record { what: path.display().to_string(), message: error.0 };
            add(&mut machine, &text).map_err(wrong)?;
        }
        machines.push(machine);
    }
    Ok(machines)
}

/// What is in a directory, by name.
fn sorted(folder: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let failed = |source| ReportError::Read { path: folder.to_owned(), source };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    paths.sort();
    Ok(paths)
}

/// Adds a record to those of its machine.
pub fn add(machine: &mut Machine, text: &[u8]) -> Result<(), Wrong> {
    let value: Value = serde_json::from_slice(text)?;
    if value.get("effects").is_some() {
        machine.ablations.push(serde_json::from_value(value)?);
    } else if value.get("phases").is_some() {
        machine.kernels.push(serde_json::from_value(value)?);
    } else if value.get("lengths").is_some() {
        machine.benches.push(serde_json::from_value(value)?);
    } else if value.get("prefill").is_some() {
        machine.benches.push(by_phase(value)?);
    } else if value.get("engines").is_some() {
        machine.anchors = Some(serde_json::from_value(value)?);
    } else {
        return Err(Wrong("it has no effects, phases, lengths, prefill or engines".to_owned()));
    }
    Ok(())
}

/// A record of `lily bench` that lists prefill and decoding apart.
fn by_phase(value: Value) -> Result<Bench, Wrong> {
    let origin = serde_json::from_value(value.clone())?;
    let mut lengths: Vec<Length> = Vec::new();
    for (list, key) in [("prefill", "tokens"), ("decode", "context_tokens")] {
        for entry in value[list].as_array().into_iter().flatten() {
            let tokens =
                entry[key].as_u64().ok_or_else(|| Wrong(format!("a figure of {list} without {key}")))? as usize;
            let rate = Some(serde_json::from_value(entry["tokens_per_second"].clone())?);
            let index = lengths.iter().position(|l| l.tokens == tokens).unwrap_or_else(|| {
                lengths.push(Length { tokens, ..Length::default() });
                lengths.len() - 1
            });
            match list {
                "prefill" => lengths[index].prefill_tps = rate,
                _ => {
                    lengths[index].decode_tps = rate;
                    lengths[index].bytes_per_token = entry["bytes_per_token"].as_f64();
                }
            }
        }
    }
    Ok(Bench { origin, bandwidth: value["bandwidth"].as_f64().unwrap_or(0.0), peer: None, lengths, apart: true })
}

/// Tokens per second of one engine on a machine.
#[derive(Clone, Debug)]
pub struct Series {
    pub engine: String,
    /// Whether it took turns with lily in the same record; else another day.
    pub beside: bool,
    pub prefill: Vec<(usize, f64)>,
    pub decode: Vec<(usize, f64)>,
}

impl Machine {
    /// Speeds by engine, lily first, each length once: the median of the records' medians, of those by turns with another engine
    /// if there are any.
    pub fn series(&self) -> Vec<Series> {
        let mut series = Vec::new();
        let mut add = |engine: &str, benches: &[&Bench], of: fn(&Length) -> (&Option<Rate>, &Option<Rate>)| {
            let collect = |pick: &dyn Fn(&Length) -> Option<f64>| {
                let of = |by_turns: bool| {
                    let records = benches.iter().filter(move |b| b.peer.is_some() == by_turns);
                    records.flat_map(|b| &b.lengths).filter_map(|l| Some((l.tokens, pick(l)?)))
                };
                let mut all: Vec<(usize, f64)> = of(true).collect();
                let alone: Vec<_> = of(false).filter(|(tokens, _)| all.iter().all(|(t, _)| t != tokens)).collect();
                all.extend(alone);
                by_length(all)
            };
            let prefill = collect(&|l| of(l).0.as_ref().map(|rate| rate.median));
            let decode = collect(&|l| of(l).1.as_ref().map(|rate| rate.median));
            if !prefill.is_empty() || !decode.is_empty() {
                series.push(Series { engine: engine.to_owned(), beside: true, prefill, decode });
            }
        };
        let benches = self.benches();
        add("lily", &benches, |l| (&l.prefill_tps, &l.decode_tps));
        let mut peers: Vec<&str> = benches.iter().filter_map(|b| Some(b.peer.as_ref()?.name.as_str())).collect();
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            let with: Vec<&Bench> =
                benches.iter().copied().filter(|b| b.peer.as_ref().is_some_and(|p| p.name == peer)).collect();
            add(peer, &with, |l| (&l.peer_prefill_tps, &l.peer_decode_tps));
        }
        for engine in self.anchors.iter().flat_map(|anchors| &anchors.engines) {
            if !series.iter().any(|s| s.engine == engine.engine) {
                let (engine, prefill, decode) = (engine.engine.clone(), engine.prefill.clone(), engine.decode.clone());
                series.push(Series { engine, beside: false, prefill, decode });
            }
        }
        series
    }

    /// Stages of a decode step as it was measured by kernel.
    pub fn decode_stages(&self) -> Option<f64> {
        let decode = self.kernels.last()?.phases.iter().find(|phase| phase.phase == "decode")?;
        decode.launches.as_ref()?.iter().map(|launch| launch.stage + 1).max().map(|stages| stages as f64)
    }

    /// The records of speed that count: those that list lengths, or the others where there are none.
    pub fn benches(&self) -> Vec<&Bench> {
        let apart = self.benches.iter().all(|bench| bench.apart);
        self.benches.iter().filter(|bench| bench.apart == apart).collect()
    }

    /// Effects of mechanisms, the last record's where several have the same.
    pub fn effects(&self) -> Vec<&Effect> {
        let mut effects: Vec<&Effect> = Vec::new();
        for effect in self.ablations.iter().flat_map(|ablation| &ablation.effects) {
            let of = |e: &Effect| (e.mechanism.clone(), e.phase.clone(), e.tokens);
            match effects.iter_mut().find(|e| of(e) == of(effect)) {
                Some(earlier) => *earlier = effect,
                None => effects.push(effect),
            }
        }
        effects
    }

    /// Bytes that a decoded token touches, by context.
    pub fn bytes_per_token(&self) -> Vec<(usize, f64)> {
        let lengths = self.benches().into_iter().flat_map(|bench| &bench.lengths);
        by_length(lengths.filter_map(|l| Some((l.tokens, l.bytes_per_token?))).collect())
    }
}

/// Medians of the values of each length, ascending.
fn by_length(mut all: Vec<(usize, f64)>) -> Vec<(usize, f64)> {
    all.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let groups = all.chunk_by(|a, b| a.0 == b.0);
    groups.map(|group| (group[0].0, (group[(group.len() - 1) / 2].1 + group[group.len() / 2].1) / 2.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BENCH: &str = r#"{"commit": "c", "device": "d", "checkpoint": "m", "prefill": [
        {"tokens": 8, "tokens_per_second": {"median": 4.0, "min": 1.0, "max": 5.0}}],
        "decode": [{"context_tokens": 8, "tokens_per_second": {"median": 2.0, "min": 1.0, "max": 5.0}, "bytes_per_token": 7}]}"#;

    #[test]
    fn records_are_told_apart_and_medians_are_of_all() {
        let mut machine = Machine::default();
        add(&mut machine, BENCH.as_bytes()).unwrap();
        add(&mut machine, BENCH.replace("4.0", "6.0").as_bytes()).unwrap();
        assert_eq!((machine.series()[0].prefill[0].1, machine.bytes_per_token()), (5.0, vec![(8, 7.0)]));
        let peer = r#"{"commit": "c", "device": "d", "checkpoint": "m", "peer": {"name": "other"}, "lengths": [
            {"tokens": 8, "prefill_tps": {"median": 5.5, "min": 1, "max": 9}, "peer_prefill_tps": {"median": 3, "min": 1, "max": 9}}]}"#;
        add(&mut machine, peer.as_bytes()).unwrap();
        add(&mut machine, br#"{"measured": "then", "device": "d", "copy_bandwidth": 1, "engines": [
            {"engine": "other", "prefill": [[8, 1]], "decode": []}, {"engine": "third", "prefill": [[8, 2]], "decode": []}]}"#).unwrap();
        let series = machine.series();
        let found: Vec<_> = series.iter().map(|s| (s.engine.as_str(), s.beside, s.prefill[0].1)).collect();
        assert_eq!(found, [("lily", true, 5.5), ("other", true, 3.0), ("third", false, 2.0)]);
        assert!(add(&mut machine, b"{}").is_err());
    }
}
