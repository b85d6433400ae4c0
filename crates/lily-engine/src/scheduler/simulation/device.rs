//! A device that computes nothing but a script: its state is a hash of the tokens that went into it, and its logits are a
//! hash of its whole state. So what any text must be is known without a device, and state that is mixed up, cut short or
//! taken from elsewhere gives another text.
//!
//! It keeps the virtual time: work takes as long as it says. On demand it fails, or its logits break.

use crate::backend::cpu::{Cpu, CpuMode};
use crate::backend::{Backend, BackendError, Device, DeviceMemory, Program, State};
use crate::checkpoint::Checkpoint;
use crate::kernel::Step;
use crate::model::Traits;
use crate::plan::{BufferTable, Plan, Slot};
use std::any::Any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a chunk takes, and each of its tokens; and what a decode step takes.
pub const CHUNK: Duration = Duration::from_millis(2);
pub const CHUNK_TOKEN: Duration = Duration::from_micros(200);
pub const STEP: Duration = Duration::from_millis(1);

/// What is to go wrong with the next plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Fails,
    NotANumber,
}

/// What the simulation sees of the device.
#[derive(Default)]
pub struct World {
    nanos: AtomicU64,
    /// States that are alive.
    pub states: AtomicUsize,
    /// Sessions that shared a step with another.
    pub batched: AtomicUsize,
    pub trouble: Mutex<Option<Trouble>>,
    /// Jobs that may fail of troubles that came: broken logits are met when a token is chosen from them.
    pub faults: AtomicUsize,
}

impl World {
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(SeqCst))
    }

    pub fn pass(&self, time: Duration) {
        self.nanos.fetch_add(time.as_nanos() as u64, SeqCst);
    }
}

/// The state of a sequence, as the script has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hashes {
    /// Of the tokens: the recurrent state.
    recurrent: u64,
    /// Of the rows in the cache.
    rows: u64,
}

fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x632b_e593_04b4_dc75);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 29)
}

impl Hashes {
    pub fn push(&mut self, token: u32) {
        self.recurrent = mix(self.recurrent, u64::from(token) + 1);
        self.rows = mix(self.rows, self.recurrent);
    }

    /// Logits of the token that comes next.
    pub fn logits(self, vocab: usize) -> Vec<f32> {
        let seed = mix(self.recurrent, self.rows);
        (0..vocab as u64).map(|i| (mix(seed, i) >> 48) as f32 / 8192.0).collect()
    }
}

/// The device without a model.
pub struct Scripted {
    pub world: Arc<World>,
    pub traits: Traits,
}

impl Device for Scripted {
    fn traits(&self) -> Traits {
        self.traits
    }

    fn memory(&self) -> Option<DeviceMemory> {
        None
    }

    fn load(
        self: Box<Self>,
        checkpoint: Arc<Checkpoint>,
        table: &BufferTable,
    ) -> Result<Box<dyn Backend>, BackendError> {
        let slots = |ending: &str| {
            let named = table.iter().filter(|(_, info)| info.name.ends_with(ending));
            named.map(|(buffer, info)| Slot::whole(buffer, info.bytes)).collect::<Vec<_>>()
        };
        let called = |name: &str| {
            let (buffer, info) = table.iter().find(|(_, info)| info.name == name).expect("a buffer of every model");
            Slot::whole(buffer, info.bytes)
        };
        let row_bytes = 2 * checkpoint.weights.shape.attention.kv_heads * checkpoint.weights.shape.attention.head_dim;
        Ok(Box::new(Script {
            world: self.world,
            row_bytes,
            vocab: checkpoint.weights.shape.vocab,
            steps: called("steps"),
            logits: called("logits"),
            windows: slots(".window"),
            states: slots(".state"),
            rows: [slots(".keys"), slots(".values")].concat(),
            cpu: Cpu::new(checkpoint, table, CpuMode::Reference, 1)?,
            under_way: 0,
        }))
    }
}

struct Script {
    world: Arc<World>,
    /// Its memory, and the sampler's kernel.
    cpu: Cpu,
    row_bytes: usize,
    vocab: usize,
    steps: Slot,
    logits: Slot,
    windows: Vec<Slot>,
    states: Vec<Slot>,
    rows: Vec<Slot>,
    under_way: usize,
}

/// A state that is counted.
struct Counted {
    state: Box<dyn State>,
    world: Arc<World>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.world.states.fetch_sub(1, SeqCst);
    }
}

impl State for Counted {
    fn read(&self, slot: Slot, out: &mut [u8]) {
        self.state.read(slot, out);
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) {
        self.state.write(slot, bytes);
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Writes a hash to both ends of a slot.
fn put(state: &mut dyn State, slot: Slot, hash: u64) {
    state.write(slot.first(8), &hash.to_le_bytes());
    state.write(slot.part(slot.bytes - 8, 8), &hash.to_le_bytes());
}

/// A hash of what is at both ends of a slot; the one that was put there, if it is the same.
fn get(state: &dyn State, slot: Slot) -> u64 {
    let mut ends = [[0; 8]; 2];
    state.read(slot.first(8), &mut ends[0]);
    state.read(slot.part(slot.bytes - 8, 8), &mut ends[1]);
    let [first, last] = ends.map(u64::from_le_bytes);
    if first == last { first } else { mix(first, last) }
}

impl Script {
    fn halves(&self, window: u32) -> impl Iterator<Item = Slot> {
        self.windows.iter().map(move |slot| slot.part(window as usize * slot.bytes / 2, slot.bytes / 2))
    }

    /// What the state says of the tokens before a step; a hash of its contradictions, if there are any.
    fn hashes(&self, state: &dyn State, step: Step) -> Hashes {
        let mut hashes = Hashes::default();
        for row in 0..step.position as usize {
            let all = self.rows.iter().map(|slot| get(state, slot.part(row * self.row_bytes, self.row_bytes)));
            hashes.rows = mix(hashes.rows, same(all));
        }
        let recurrent = self.states.iter().copied().chain(self.halves(step.window)).map(|slot| get(state, slot));
        hashes.recurrent = same(recurrent);
        hashes
    }

    /// Takes tokens into the state of session `place` of the plan.
    fn layers(&mut self, place: usize, tokens: Slot, state: &mut dyn State) -> Hashes {
        let mut step = Step { position: 0, window: 0 };
        self.cpu.read(self.steps.part(place * size_of::<Step>(), size_of::<Step>()), bytemuck::bytes_of_mut(&mut step));
        let mut ids = vec![0_u32; tokens.bytes / 4];
        self.cpu.read(tokens, bytemuck::cast_slice_mut(&mut ids));
        let mut hashes = self.hashes(state, step);
        for (row, &id) in (step.position as usize..).zip(&ids) {
            hashes.push(id);
            for slot in &self.rows {
                put(state, slot.part(row * self.row_bytes, self.row_bytes), hashes.recurrent);
            }
        }
        self.states.iter().for_each(|slot| put(state, *slot, hashes.recurrent));
        self.halves(1 - step.window).collect::<Vec<_>>().into_iter().for_each(|s| put(state, s, hashes.recurrent));
        hashes
    }
}

/// The one value that all of them are, or a hash of their differences.
fn same(mut all: impl Iterator<Item = u64>) -> u64 {
    let first = all.next().expect("a model with both kinds of layers");
    all.fold(first, |hash, next| if next == first { hash } else { mix(hash, next) })
}

impl Backend for Script {
    fn describe(&self) -> String {
        "a script".into()
    }

    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        self.world.states.fetch_add(1, SeqCst);
        Ok(Box::new(Counted { state: self.cpu.new_state()?, world: Arc::clone(&self.world) }))
    }

    fn submit(&mut self, program: &Program, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        self.under_way += 1;
        assert!(self.under_way <= 2, "three submissions under way");
        self.run(program.plan(), states)
    }

    fn wait_until(&mut self, under_way: usize) -> Result<(), BackendError> {
        self.under_way = self.under_way.min(under_way);
        Ok(())
    }

    fn run(&mut self, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        let has_logits = plan.dispatches.iter().any(|dispatch| dispatch.contract.name == "head");
        let breaks = |trouble: &mut Trouble| *trouble == Trouble::Fails || has_logits;
        let trouble = self.world.trouble.lock().unwrap().take_if(breaks);
        let sessions = states.len();
        let mut hashes = vec![Hashes::default(); sessions];
        for dispatch in &plan.dispatches {
            match dispatch.contract.name {
                "embed" => {
                    let tokens = dispatch.slots[0];
                    let rows = tokens.bytes / 4 / sessions;
                    for (place, state) in states.iter_mut().enumerate() {
                        hashes[place] = self.layers(place, tokens.part(4 * rows * place, 4 * rows), *state);
                    }
                    self.world.batched.fetch_add(sessions - 1, SeqCst);
                    self.world.pass(if rows == 1 { STEP } else { CHUNK + CHUNK_TOKEN * rows as u32 });
                }
                "head" => {
                    for (place, hashes) in hashes.iter().enumerate() {
                        let mut logits = hashes.logits(self.vocab);
                        if trouble == Some(Trouble::NotANumber) && place == 0 {
                            logits[1] = f32::NAN;
                            self.world.faults.fetch_add(1, SeqCst);
                        }
                        let slot = self.logits.part(4 * self.vocab * place, 4 * self.vocab);
                        self.cpu.write(slot, bytemuck::cast_slice(&logits));
                    }
                }
                "sample" => {
                    let state = states[0].as_any_mut().downcast_mut::<Counted>().expect("a state of this device");
                    let plan = Plan { dispatches: vec![dispatch.clone()], ..Plan::default() };
                    self.cpu.run(&plan, &mut [state.state.as_mut()])?;
                }
                _ => {}
            }
        }
        if trouble == Some(Trouble::Fails) {
            self.world.faults.fetch_add(sessions, SeqCst);
            states.iter_mut().for_each(|state| self.states.iter().for_each(|slot| put(*state, *slot, 0xbad)));
            return Err(BackendError::Refused { what: "a step", message: "the simulation says so".into() });
        }
        Ok(())
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) {
        assert_eq!(self.under_way, 0, "a buffer is written while a submission is under way");
        self.cpu.write(slot, bytes);
    }

    fn read(&self, slot: Slot, out: &mut [u8]) {
        assert_eq!(self.under_way, 0, "a buffer is read while a submission is under way");
        self.cpu.read(slot, out);
    }

    fn peek(&self, slot: Slot, out: &mut [u8]) {
        self.cpu.read(slot, out);
    }
}
