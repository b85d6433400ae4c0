//! The record of a comparison, and its table for people.

use super::arm::{Arm, ArmLength, NEW_TOKENS};
use super::rounds::{Rounds, greatest_drift_percent, rate, rounds};
use super::{Engines, peer::Peer};
use crate::cli::BenchArgs;
use crate::measure::Rate;
use crate::record::{Origin, hex};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// Everything measured. Rates are tokens per second, with all runs in the order of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    #[serde(flatten)]
    origin: Origin,
    /// Threads of the CPU backend.
    threads: usize,
    /// Longest prefill chunk of lily.
    chunk_tokens: usize,
    /// Tokens of a run of decoding.
    decode_tokens: usize,
    rounds: usize,
    /// At least; `runs` has them all.
    runs_in_a_round: usize,
    /// The greatest difference between medians of rounds, of all figures that are here.
    drift_percent: f64,
    /// What was measured and is left out, because it drifted, in words; with it the other figures at its length.
    refused: Vec<String>,
    #[serde(flatten)]
    process: Process,
    /// Bytes per second that all threads together read, or that a copy within the device's own memory reads and writes.
    bandwidth: f64,
    peer: Option<PeerOrigin>,
    lengths: Vec<Row>,
    first_token: Option<FirstToken>,
}

/// What an engine's processes took.
#[derive(Clone, Debug, Serialize)]
struct Process {
    load_seconds: Option<Rate>,
    /// Most memory of the process that was resident; mapped weights count.
    host_bytes: Option<u64>,
    /// Most memory of the device: of lily with one session, of MLX-LM of arrays.
    device_bytes: Option<u64>,
}

/// The other engine.
#[derive(Clone, Debug, Serialize)]
struct PeerOrigin {
    name: &'static str,
    versions: BTreeMap<String, String>,
    device: String,
    /// The file, where it is not the same checkpoint.
    model: Option<String>,
    #[serde(flatten)]
    process: Process,
}

/// What was measured at a length.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// Tokens of the prompt, or of the context decoded after.
    tokens: usize,
    prefill_tps: Option<Rate>,
    peer_prefill_tps: Option<Rate>,
    decode_tps: Option<Rate>,
    peer_decode_tps: Option<Rate>,
    /// Weights and state that a decoded token touches by the plan.
    bytes_per_token: Option<f64>,
    /// Share of the measured bandwidth that these bytes come to.
    bandwidth_share: Option<f64>,
    /// SHA-256 of the greedy tokens, as little-endian words.
    tokens_sha256: Option<String>,
    /// First tokens of the peer that are the same, of those decoded; `None` where it does not tell.
    peer_same_tokens: Option<usize>,
    sampled_tps: Option<Rate>,
    batches: Vec<Batch>,
}

/// Several sessions decoded at once.
#[derive(Clone, Debug, Serialize)]
struct Batch {
    sessions: usize,
    /// Of all sessions together.
    tps: Option<Rate>,
}

/// How long a conversation that comes back waits.
#[derive(Clone, Debug, Serialize)]
struct FirstToken {
    cached_tokens: usize,
    new_tokens: usize,
    milliseconds: Rate,
}

impl Record {
    /// The record of all rounds of all engines, of which figures were refused.
    pub fn new(args: &BenchArgs, origin: Origin, engines: &Engines, refused: &[String]) -> Self {
        let lily = &engines[0];
        let bandwidth = rate(&rounds(lily, |arm| std::slice::from_ref(&arm.own.bandwidth))).map_or(0.0, |r| r.median);
        let peer = args.peer.as_ref().map(|peer| PeerOrigin::new(peer, args.peer_model.as_deref(), &engines[1]));
        let lengths = 0..lily[0].lengths.len();
        let first_token = rate(&rounds(lily, |arm| &arm.own.first_token));
        Self {
            origin,
            threads: lily[0].own.threads,
            chunk_tokens: lily[0].own.chunk_tokens,
            decode_tokens: args.measure.decode,
            rounds: args.rounds,
            runs_in_a_round: args.reps,
            drift_percent: greatest_drift_percent(engines),
            refused: refused.to_vec(),
            process: Process::new(lily),
            bandwidth,
            peer,
            lengths: lengths.map(|i| Row::new(engines, i, bandwidth)).collect(),
            first_token: args.cached.zip(first_token).map(|(cached_tokens, milliseconds)| FirstToken {
                cached_tokens,
                new_tokens: NEW_TOKENS,
                milliseconds,
            }),
        }
    }
}

impl Process {
    fn new(arms: &[Arm]) -> Self {
        let seconds: Rounds = vec![arms.iter().filter_map(|arm| arm.load_seconds).collect()];
        Self {
            load_seconds: rate(&seconds),
            host_bytes: arms.iter().filter_map(|arm| arm.host_bytes).max(),
            device_bytes: arms.iter().filter_map(|arm| arm.device_bytes).max(),
        }
    }

    fn describe(&self) -> String {
        let memory = |of: &str, bytes: Option<u64>| Some(format!("{:.2} GB of {of}", bytes? as f64 / 1e9));
        let seconds = self.load_seconds.as_ref().map(|seconds| format!("loaded in {:.2} s", seconds.median));
        let parts = [seconds, memory("the process", self.host_bytes), memory("the device", self.device_bytes)];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl PeerOrigin {
    fn new(peer: &Peer, model: Option<&Path>, arms: &[Arm]) -> Self {
        Self {
            name: peer.name(),
            versions: arms[0].versions.clone(),
            device: arms[0].device.clone(),
            model: model.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned()),
            process: Process::new(arms),
        }
    }
}

impl Row {
    fn new(engines: &Engines, i: usize, bandwidth: f64) -> Self {
        let lily = &engines[0][0].lengths[i];
        let of = |engine: usize, pick: &dyn Fn(&ArmLength) -> &[f64]| {
            rate(&rounds(engines.get(engine)?, |arm| pick(&arm.lengths[i])))
        };
        let decode_tps = of(0, &|length| &length.decode);
        let share = |rate: &Rate| rate.median * lily.bytes_per_token / bandwidth;
        let generated = lily.generated.first();
        let theirs = engines.get(1).and_then(|arms| arms[0].lengths[i].generated.first());
        let batch = |(j, (sessions, _)): (usize, &(usize, Vec<f64>))| Batch {
            sessions: *sessions,
            tps: of(0, &|length| &length.batch[j].1),
        };
        Self {
            tokens: lily.tokens,
            prefill_tps: of(0, &|length| &length.prefill),
            peer_prefill_tps: of(1, &|length| &length.prefill),
            bytes_per_token: decode_tps.as_ref().map(|_| lily.bytes_per_token),
            bandwidth_share: decode_tps.as_ref().map(share),
            decode_tps,
            peer_decode_tps: of(1, &|length| &length.decode),
            tokens_sha256: generated.map(|tokens| digest(tokens)),
            peer_same_tokens: generated
                .zip(theirs)
                .map(|(ours, theirs)| ours.iter().zip(theirs).take_while(|(a, b)| a == b).count()),
            sampled_tps: of(0, &|length| &length.sampled),
            batches: lily.batch.iter().enumerate().map(batch).collect(),
        }
    }
}

/// The digest of tokens.
fn digest(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    hex(&Sha256::digest(&bytes))
}

/// The record for people.
pub fn table(record: &Record) -> String {
    let mut text = record.origin.heading();
    text += &format!(
        "chunks of {} tokens, {} tokens decoded; rounds {} (at most {:.1} % apart), runs {} or more\n{}; memory bandwidth {:.1} GB/s\n",
        record.chunk_tokens,
        record.decode_tokens,
        record.rounds,
        record.drift_percent,
        record.runs_in_a_round,
        record.process.describe(),
        record.bandwidth / 1e9
    );
    if let Some(peer) = &record.peer {
        let versions: Vec<String> = peer.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        let process = Some(peer.process.describe()).filter(|text| !text.is_empty());
        let process = process.map_or_else(String::new, |text| format!(": {text}"));
        text += &format!("beside {} ({}) on {}{process}\n", peer.name, versions.join(", "), peer.device);
    }
    let peer = record.peer.as_ref().map(|peer| peer.name);
    let mut row = |cells: [&str; 7]| {
        let [what, rate, spread, peer_rate, ratio, bytes, share] = cells;
        let beside = if peer.is_some() { format!(" {peer_rate:>12} {ratio:>7}") } else { String::new() };
        let line = format!("{what:<30} {rate:>11} {spread:>22}{beside} {bytes:>12} {share:>13}");
        text += line.trim_end();
        text.push('\n');
    };
    row([""; 7]);
    row(["", "tokens/s", "min..max", peer.unwrap_or_default(), "ratio", "MB a token", "of bandwidth"]);
    for length in &record.lengths {
        rows_of(length, &mut row);
    }
    if let Some(first) = &record.first_token {
        let what = format!("first token, {} + {} tokens", first.cached_tokens, first.new_tokens);
        row([&what, &format!("{:.1} ms", first.milliseconds.median), &spread(&first.milliseconds), "", "", "", ""]);
    }
    text
}

fn spread(rate: &Rate) -> String {
    format!("{:.2}..{:.2}", rate.min, rate.max)
}

fn rows_of(length: &Row, row: &mut dyn FnMut([&str; 7])) {
    let mut rates = |what: String, rate: &Option<Rate>, peer: &Option<Rate>, more: [String; 2]| {
        let Some(rate) = rate else { return };
        let peer_rate = peer.as_ref().map_or_else(String::new, |peer| format!("{:.2}", peer.median));
        let ratio = peer.as_ref().map_or_else(String::new, |peer| format!("{:.2}", rate.median / peer.median));
        row([&what, &format!("{:.2}", rate.median), &spread(rate), &peer_rate, &ratio, &more[0], &more[1]]);
    };
    let none = [const { String::new() }; 2];
    let tokens = length.tokens;
    rates(format!("prefill {tokens}"), &length.prefill_tps, &length.peer_prefill_tps, none.clone());
    let bytes = length.bytes_per_token.map_or_else(String::new, |bytes| format!("{:.1}", bytes / 1e6));
    let share = length.bandwidth_share.map_or_else(String::new, |share| format!("{:.1} %", 100.0 * share));
    rates(format!("decode at {tokens}"), &length.decode_tps, &length.peer_decode_tps, [bytes, share]);
    // How many times as fast as greedy decoding of one session.
    let times = |rate: &Option<Rate>| {
        let times = rate.as_ref().zip(length.decode_tps.as_ref()).map(|(rate, greedy)| rate.median / greedy.median);
        times.map_or_else(String::new, |times| format!(" ({times:.2}x)"))
    };
    let sampled = &length.sampled_tps;
    rates(format!("  sampled at {tokens}{}", times(sampled)), sampled, &None, none.clone());
    for Batch { sessions, tps } in &length.batches {
        rates(format!("  {sessions} sessions at {tokens}{}", times(tps)), tps, &None, none.clone());
    }
}
