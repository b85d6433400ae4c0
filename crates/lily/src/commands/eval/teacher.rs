//! `lily eval teacher-forced`: log-probabilities of given tokens beside those of other implementations on the same bytes.

use crate::cli::EvalTeacherArgs;
use crate::failure::Failure;
use crate::output;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::Engine;
use lily_engine::sampler::LogProbs;
use safetensors::SafeTensors;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::Path;

/// What the file holds (tools/golden/README.md).
struct Reference {
    /// Sequences, each run from an empty state.
    sequences: Vec<Vec<u32>>,
    runs: Vec<Run>,
}

/// One implementation's results at every position but the last of each sequence.
struct Run {
    name: String,
    /// Negative log-probability of the next token.
    nll: Vec<f32>,
    /// The most likely token.
    top: Vec<u32>,
}

/// How close lily is to one run.
#[derive(Clone, Debug, Serialize)]
struct Comparison {
    run: String,
    perplexity: f64,
    /// Of lily's perplexity, relative to the run's.
    perplexity_difference_percent: f64,
    top1_agreement_percent: f64,
    mean_abs_nll_difference: f64,
    max_abs_nll_difference: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Report {
    positions: usize,
    device: String,
    perplexity: f64,
    comparisons: Vec<Comparison>,
}

/// Runs the command.
pub fn run(args: &EvalTeacherArgs) -> Result<(), Failure> {
    let reference = Reference::read(&args.file)?;
    let checkpoint = args.model.open()?;
    check_bytes(&args.file, &checkpoint)?;
    let mut options = args.engine.options(checkpoint.weights.shape.max_context_tokens)?;
    options.cache.bytes = 0; // nothing is computed twice
    let mut engine = Engine::new(checkpoint, &options)?;
    let (mut nll, mut top) = (Vec::new(), Vec::new());
    for sequence in &reference.sequences {
        follow(&mut engine, sequence, args.prompt, &mut nll, &mut top)?;
    }
    let report = Report {
        positions: nll.len(),
        device: engine.device(),
        perplexity: perplexity(&nll),
        comparisons: reference.runs.iter().map(|run| compare(run, &nll, &top)).collect(),
    };
    if args.json { output::json(&report) } else { output::write(&table(&report)) }
}

/// Refuses a checkpoint other than the one that the reference was made with: the JSON beside the reference has its hashes.
fn check_bytes(reference: &Path, checkpoint: &Checkpoint) -> Result<(), Failure> {
    let path = reference.with_extension("json");
    let text = std::fs::read(&path).map_err(|e| Failure::file("read what the reference was made with", &path, e))?;
    let facts: Value = serde_json::from_slice(&text).unwrap_or_default();
    for name in checkpoint.file_names() {
        let expected = facts["sha256"][name].as_str().unwrap_or("no such file");
        let found = sha256(checkpoint, name)?;
        if found != expected {
            return Err(Failure::model(format_args!(
                "{}: expected the file that {} was made with (SHA-256 {expected}), found another ({found}); name the right \
                 model, or make the reference again",
                checkpoint.path().join(name).display(),
                reference.display()
            )));
        }
    }
    Ok(())
}

fn sha256(checkpoint: &Checkpoint, name: &str) -> Result<String, Failure> {
    let mut hash = Sha256::new();
    let path = checkpoint.path().join(name);
    match std::fs::File::open(&path) {
        Ok(mut file) => {
            std::io::copy(&mut file, &mut HashWriter(&mut hash)).map_err(|e| Failure::file("read", &path, e))?;
        }
        // The model in the box has no path.
        Err(_) => hash.update(checkpoint.side_file(name)?.unwrap_or_default()),
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Lets a file flow into a hash.
struct HashWriter<'a>(&'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Computes a sequence token by token, noting at each position how likely the next token was and which was most likely. A
/// prompt's values do not depend on its chunks, so that chunks of one token show those of any.
fn follow(
    engine: &mut Engine,
    sequence: &[u32],
    prompt: bool,
    nll: &mut Vec<f32>,
    top: &mut Vec<u32>,
) -> Result<(), Failure> {
    let mut session = engine.new_session()?;
    engine.check(sequence)?;
    for (position, pair) in sequence.windows(2).enumerate() {
        match prompt {
            true => engine.prefill(&mut session, &sequence[..=position], &[], 1)?,
            false => engine.decode(&mut session, pair[0])?,
        }
        let logits = session.logits().expect("the last token of a step leaves logits");
        let probabilities = LogProbs::new(logits).map_err(Failure::other)?;
        nll.push(-probabilities.of(pair[1]));
        top.push(probabilities.top(1)[0].id);
    }
    Ok(())
}

fn perplexity(nll: &[f32]) -> f64 {
    (nll.iter().map(|&n| f64::from(n)).sum::<f64>() / nll.len() as f64).exp()
}

fn compare(run: &Run, nll: &[f32], top: &[u32]) -> Comparison {
    let n = nll.len() as f64;
    let differences = || nll.iter().zip(&run.nll).map(|(a, b)| f64::from((a - b).abs()));
    let agree = top.iter().zip(&run.top).filter(|(a, b)| a == b).count();
    let theirs = perplexity(&run.nll);
    Comparison {
        run: run.name.clone(),
        perplexity: theirs,
        perplexity_difference_percent: 100.0 * (perplexity(nll) / theirs - 1.0),
        top1_agreement_percent: 100.0 * agree as f64 / n,
        mean_abs_nll_difference: differences().sum::<f64>() / n,
        max_abs_nll_difference: differences().fold(0.0, f64::max),
    }
}

impl Reference {
    fn read(path: &Path) -> Result<Self, Failure> {
        let bytes = std::fs::read(path).map_err(|e| Failure::file("read the reference", path, e))?;
        let wrong = |found: &dyn std::fmt::Display| {
            Failure::other(format_args!(
                "{}: expected teacher-forced results as tools/golden/gen_teacher.py writes them, found {found}",
                path.display()
            ))
        };
        let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(&e))?;
        let words = |name: &str| -> Result<Vec<[u8; 4]>, Failure> {
            let tensor = file.tensor(name).map_err(|e| wrong(&e))?;
            Ok(tensor.data().chunks_exact(4).map(|b| b.try_into().expect("four bytes")).collect())
        };
        let ints = |name: &str| -> Result<Vec<u32>, Failure> {
            Ok(words(name)?.into_iter().map(|b| i32::from_le_bytes(b) as u32).collect())
        };
        let tokens = ints("tokens")?;
        let starts = ints("starts")?;
        let ends = starts.iter().skip(1).map(|&s| s as usize).chain([tokens.len()]);
        let spans: Vec<_> = starts.iter().map(|&s| s as usize).zip(ends).collect();
        if spans.iter().any(|&(start, end)| start >= end || end > tokens.len()) {
            return Err(wrong(&"sequences that do not follow each other"));
        }
        let positions: usize = spans.iter().map(|(start, end)| end - start - 1).sum();
        let mut runs = Vec::new();
        for name in file.names().iter().filter_map(|n| n.strip_prefix("nll_")) {
            let nll = words(&format!("nll_{name}"))?.into_iter().map(f32::from_le_bytes).collect::<Vec<_>>();
            let top8 = ints(&format!("top8_id_{name}"))?;
            if nll.len() != positions || top8.len() != 8 * positions {
                return Err(wrong(&format_args!("{} positions of run {name}, not {positions}", nll.len())));
            }
            runs.push(Run { name: name.to_owned(), nll, top: top8.chunks_exact(8).map(|row| row[0]).collect() });
        }
        runs.sort_by(|a, b| a.name.cmp(&b.name));
        let sequences = spans.iter().map(|&(start, end)| tokens[start..end].to_vec()).collect();
        Ok(Self { sequences, runs })
    }
}

fn table(report: &Report) -> String {
    let mut text = format!(
        "{} positions on {}: perplexity {:.4}\n\n{:<12} {:>12} {:>12} {:>10} {:>12} {:>12}\n",
        report.positions,
        report.device,
        report.perplexity,
        "against",
        "perplexity",
        "ours is",
        "top-1",
        "mean |nll|",
        "max |nll|"
    );
    for c in &report.comparisons {
        text += &format!(
            "{:<12} {:>12.4} {:>+10.4} % {:>8.2} % {:>12.5} {:>12.5}\n",
            c.run,
            c.perplexity,
            c.perplexity_difference_percent,
            c.top1_agreement_percent,
            c.mean_abs_nll_difference,
            c.max_abs_nll_difference
        );
    }
    text
}
