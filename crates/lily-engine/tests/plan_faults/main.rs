//! Whether the checks of plans would notice a mistake: faults are put into the plans of a model, one at a time, and every
//! one must be seen by a check that plans without a fault pass.
//!
//! The checks are those of the suite: stages keep conflicting dispatches apart and hold none back, contracts bind what the
//! kernel text binds, and the model's logits are another implementation's. The model runs on a device that takes the
//! dispatches of a stage backwards, because a GPU may take them in any order.

use lily_engine::backend::stand_in::{Behaviour, Behind, StandIn};
use lily_engine::backend::{Backend, BackendError, State};
use lily_engine::cache::CacheOptions;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::kernel::signature::signatures;
use lily_engine::kernel::{Access, Contract, RmsNorm, RmsNormArgs, source};
use lily_engine::model::Traits;
use lily_engine::plan::stages::{conflict, stages};
use lily_engine::plan::{BufferTable, Dispatch, Home, Plan};
use safetensors::SafeTensors;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A mistake in how plans are made or ordered.
#[derive(Clone)]
struct Fault {
    class: &'static str,
    what: String,
    change: Change,
}

/// What it changes.
#[derive(Clone)]
enum Change {
    /// Nothing.
    None,
    /// The launches, before stages are derived from them.
    Launches(fn(&mut Vec<Dispatch>)),
    /// The stages: no barrier before the first launch of the kernel.
    Barrier(&'static str),
    /// The stages: the first launch of the kernel a stage early, or late.
    Stage(&'static str, isize),
    /// The stages: derived from conflicts of which this kind is forgotten.
    Hazard(Hazard),
}

/// Kinds of conflict between an earlier and a later launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hazard {
    ReadAfterWrite,
    WriteAfterRead,
    WriteAfterWrite,
}

impl Hazard {
    fn between(self, earlier: &Dispatch, later: &Dispatch) -> bool {
        earlier.bindings().any(|(first, a)| {
            later.bindings().any(|(second, b)| {
                let kind = match (first.access.writes(), second.access.writes()) {
                    (true, false) => self == Hazard::ReadAfterWrite,
                    (false, true) => self == Hazard::WriteAfterRead,
                    // A launch that updates what another wrote reads it as well.
                    (true, true) if second.access == Access::Update => self != Hazard::WriteAfterRead,
                    (true, true) => self == Hazard::WriteAfterWrite,
                    (false, false) => false,
                };
                kind && a.overlaps(b)
            })
        })
    }
}

impl Change {
    /// The launches of a plan with their stages.
    fn apply(&self, plan: &Plan) -> (Plan, Vec<usize>) {
        let mut plan = plan.clone();
        if let Change::Launches(edit) = self {
            edit(&mut plan.dispatches);
        }
        let mut stages = stages(&plan);
        let first = |name: &str| plan.dispatches.iter().position(|d| d.contract.name == name);
        match *self {
            Change::Barrier(name) => {
                if let Some(stage) = first(name).map(|i| stages[i]) {
                    stages.iter_mut().filter(|s| **s >= stage).for_each(|s| *s -= 1);
                }
            }
            Change::Stage(name, by) => {
                if let Some(i) = first(name) {
                    stages[i] = stages[i].checked_add_signed(by).expect("a stage");
                }
            }
            Change::Hazard(forgotten) => {
                let kept = [Hazard::ReadAfterWrite, Hazard::WriteAfterRead, Hazard::WriteAfterWrite];
                let kept: Vec<Hazard> = kept.into_iter().filter(|h| *h != forgotten).collect();
                for j in 0..stages.len() {
                    let later = &plan.dispatches[j];
                    let waits = (0..j).filter(|&i| kept.iter().any(|h| h.between(&plan.dispatches[i], later)));
                    stages[j] = waits.map(|i| stages[i] + 1).max().unwrap_or(0);
                }
            }
            Change::None | Change::Launches(_) => {}
        }
        (plan, stages)
    }
}

/// What the device saw of the plans that it ran.
#[derive(Default)]
struct Seen {
    /// Whether a plan had two conflicting launches in stages that do not keep them in order.
    unordered: bool,
    /// Whether a launch was in a later stage than it had to be.
    idle: bool,
    /// Whether a contract binds other than its kernel's text.
    other_text: bool,
}

/// Gives plans a fault.
struct Faulty {
    change: Change,
    seen: Arc<Mutex<Seen>>,
}

impl Behaviour for Faulty {
    fn run(&mut self, behind: &mut Behind, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        let (plan, stages) = self.change.apply(plan);
        look(&plan, &stages, &mut self.seen.lock().unwrap());
        let mut order: Vec<usize> = (0..stages.len()).rev().collect();
        order.sort_by_key(|&i| stages[i]);
        let dispatches = order.into_iter().map(|i| plan.dispatches[i].clone()).collect();
        behind.cpu.run(&Plan { dispatches, ..Plan::default() }, states)
    }
}

/// Checks a plan's stages and contracts.
fn look(plan: &Plan, stages: &[usize], seen: &mut Seen) {
    for (j, later) in plan.dispatches.iter().enumerate() {
        let mut waited = stages[j] == 0;
        for (i, _) in plan.dispatches[..j].iter().enumerate().filter(|(_, e)| conflict(e, later)) {
            seen.unordered |= stages[i] >= stages[j];
            waited |= stages[i] + 1 == stages[j];
        }
        seen.idle |= !waited;
        seen.other_text |= !text_agrees(later.contract);
    }
}

/// Whether the kernel's text declares `const` what the contract says is only read, and nothing else.
fn text_agrees(contract: &Contract) -> bool {
    static TEXTS: Mutex<Option<HashMap<String, Vec<bool>>>> = Mutex::new(None);
    let mut texts = TEXTS.lock().unwrap();
    let texts = texts.get_or_insert_default();
    if !texts.contains_key(contract.name) {
        let file = source::file_of(contract.name).expect("a file that has the kernel");
        for signature in signatures(&source::library(file, &[])) {
            texts.insert(signature.name, signature.buffers.iter().map(|b| b.is_const).collect());
        }
    }
    let reads = contract.params.iter().map(|p| p.access == Access::Read);
    texts[contract.name][..contract.params.len()].iter().copied().eq(reads)
}

fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(path)
}

/// What another implementation made of some tokens.
struct Wanted {
    checkpoint: PathBuf,
    tokens: Vec<u32>,
    /// So many are a prompt, the others are decoded.
    prompt: usize,
    /// Some logits after the prompt and after each decoded token, of a float32 run: ids and values.
    ids: Vec<Vec<u32>>,
    logits: Vec<Vec<f32>>,
    /// How far bf16 moves its own.
    spread: f64,
}

fn words(file: &SafeTensors<'_>, name: &str) -> Vec<u32> {
    let data = file.tensor(name).unwrap().data().to_vec();
    data.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

fn rows(file: &SafeTensors<'_>, name: &str) -> Vec<Vec<f32>> {
    let columns = file.tensor(name).unwrap().shape()[1];
    words(file, name).chunks_exact(columns).map(|row| row.iter().map(|&w| f32::from_bits(w)).collect()).collect()
}

/// Random weights, and all logits.
fn random_weights(name: &str) -> Wanted {
    let bytes = std::fs::read(golden(&format!("mlx/{name}.safetensors"))).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (tokens, prompt) = (words(&file, "tokens"), 34);
    let logits = rows(&file, "logits_f32").split_off(prompt - 1);
    let bf16 = rows(&file, "logits_bf16k").split_off(prompt - 1);
    let ids = vec![(0..logits[0].len() as u32).collect(); logits.len()];
    let checkpoint = golden("checkpoints/mlx").join(name);
    Wanted { checkpoint, tokens, prompt, ids, spread: relative_rms(&bf16, &logits), logits }
}

/// The trained model, whose attention matters, and the logits of the most likely tokens.
fn trained_weights() -> Wanted {
    let bytes = std::fs::read(golden("teacher/lily-nano.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (last, prompt, decoded) = (words(&file, "starts").len() - 1, 80, 16);
    let start = words(&file, "starts")[last] as usize;
    let tokens = words(&file, "tokens")[start..start + prompt + decoded].to_vec();
    // The last token of each text has no row.
    let place = start - last + prompt - 1;
    let part = |name: &str| rows(&file, name)[place..=place + decoded].to_vec();
    let ids = part("top8_id_mlx_f32").iter().map(|row| row.iter().map(|id| id.to_bits()).collect()).collect();
    let (logits, bf16) = (part("top8_logit_mlx_f32"), part("top8_logit_mlx_bf16k"));
    // Each run has its own most likely tokens, and their logits descend: near-ties change nothing.
    let spread = relative_rms(&bf16, &logits);
    let checkpoint = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano");
    Wanted { checkpoint, tokens, prompt, ids, spread, logits }
}

fn relative_rms(got: &[Vec<f32>], want: &[Vec<f32>]) -> f64 {
    let square = |v: f32| (v as f64).powi(2);
    let (got, want) = (got.iter().flatten(), want.iter().flatten());
    let error: f64 = got.zip(want.clone()).map(|(g, w)| square(g - w)).sum();
    (error / want.map(|w| square(*w)).sum::<f64>()).sqrt()
}

impl Wanted {
    /// What the engine makes of the tokens, on a device with such plans.
    fn run(&self, change: &Change, seen: &Arc<Mutex<Seen>>) -> Vec<Vec<f32>> {
        let checkpoint = Checkpoint::open(&self.checkpoint).unwrap();
        // Nothing is kept of the prompt, so that it ends with a chunk of several rows.
        let cache = CacheOptions { bytes: 0, ..CacheOptions::default() };
        let options =
            EngineOptions { context_tokens: 128, chunk_tokens: Some(24), cache, ..EngineOptions::for_this_machine() };
        let device = StandIn::new(Traits::GPU, Faulty { change: change.clone(), seen: Arc::clone(seen) });
        let mut engine = Engine::on(Box::new(device), checkpoint, &options).unwrap();
        let mut session = engine.new_session().unwrap();
        let (prompt, decoded) = self.tokens.split_at(self.prompt);
        engine.advance(&mut session, prompt, &[], &mut |_, _| ControlFlow::Continue(())).unwrap();
        let mut all = vec![session.logits().unwrap().to_vec()];
        for &token in decoded {
            engine.decode(&mut session, token).unwrap();
            all.push(session.logits().unwrap().to_vec());
        }
        let pick = |(logits, ids): (Vec<f32>, &Vec<u32>)| ids.iter().map(|&id| logits[id as usize]).collect();
        all.into_iter().zip(&self.ids).map(pick).collect()
    }
}

/// The checks that turn red.
fn red(change: &Change, wanted: &[Wanted]) -> Vec<&'static str> {
    let mut red = Vec::new();
    if stages_of_hazards(change) != [0, 0, 1, 2, 2, 3] {
        red.push("hazards");
    }
    for (wanted, name) in wanted.iter().zip(["logits", "logits of a trained model", "logits of other heads"]) {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let run = catch_unwind(AssertUnwindSafe(|| wanted.run(change, &seen)));
        let error = run.as_ref().map_or(0.0, |got| relative_rms(got, &wanted.logits));
        // Other roundings are another draw of the same size.
        let far = error.is_nan() || error >= 1.5 * wanted.spread;
        let seen = seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let checks = [
            ("order", seen.unordered),
            ("idle barrier", seen.idle),
            ("kernel text", seen.other_text),
            ("binding", run.is_err()),
            (name, far),
        ];
        red.extend(checks.into_iter().filter(|(_, red)| *red).map(|(name, _)| name));
        if !red.is_empty() {
            break;
        }
    }
    red
}

/// Stages of a small plan in which every kind of conflict decides one.
fn stages_of_hazards(change: &Change) -> Vec<usize> {
    let mut table = BufferTable::default();
    let gain = table.add("gain", 32, Home::Vector(vec![1.0; 8]));
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| table.add(name, 16, Home::Scratch));
    let mut plan = Plan::default();
    // Two that only read the same; two that read what was written; one that writes what was read; one that writes what was
    // written.
    for (x, y) in [(a, b), (a, c), (b, d), (d, a), (c, b), (c, b)] {
        plan.push(RmsNorm { args: RmsNormArgs { rows: 1, width: 8, eps: 1e-6 }, x, gain, y });
    }
    match change {
        Change::Hazard(_) => change.apply(&plan).1,
        _ => stages(&plan),
    }
}

mod faults;

/// Every fault is seen, or it is said why none can be.
#[test]
fn every_fault_is_noticed() {
    let wanted = [random_weights("base-q4g64"), trained_weights(), random_weights("family_heads-q4g64")];
    assert!(red(&Change::None, &wanted).is_empty(), "plans without a fault are red: {:?}", red(&Change::None, &wanted));
    // Faults make kernels panic, which is what one of the checks wants to see.
    std::panic::set_hook(Box::new(|_| {}));
    let faults = faults::all();
    let results: Vec<(&Fault, Vec<&str>)> = faults.iter().map(|f| (f, red(&f.change, &wanted))).collect();
    let _ = std::panic::take_hook();
    let mut wrong = Vec::new();
    for (fault, red) in &results {
        let reason = faults::SURVIVORS.iter().find(|(what, _)| *what == fault.what).map(|(_, reason)| *reason);
        let told = match reason {
            _ if !red.is_empty() => format!("red: {}", red.join(", ")),
            Some(reason) => format!("SURVIVED: {reason}"),
            None => "SURVIVED".to_owned(),
        };
        println!("plan: {:<50} {:<20} {told}", fault.what, fault.class);
        if red.is_empty() == reason.is_none() {
            wrong.push(&fault.what);
        }
    }
    let seen = results.iter().filter(|(_, red)| !red.is_empty()).count();
    println!("plan: {seen} of {} faults seen", results.len());
    assert!(wrong.is_empty(), "not seen without a reason, or seen against it: {wrong:?}");
    assert!(seen * 20 >= results.len() * 19, "fewer than 95 % are seen");
}
