//! A device that computes nothing but a script: its state is a hash of the tokens that went into it, and its logits are a
//! hash of its whole state. So what any text must be is known without a device, and state that is mixed up, cut short or
//! taken from elsewhere gives another text.
//!
//! It keeps the virtual time: work takes as long as it says. On demand it fails, or its logits break.

use crate::backend::cpu::CpuMode;
use crate::backend::script::{Hashes, mix};
use crate::backend::stand_in::{Behaviour, Behind, StandIn};
use crate::backend::{Backend, BackendError, State};
use crate::model::Traits;
use crate::plan::{Plan, Slot};
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
    /// Tokens that the device chose for a session beside others.
    pub chosen_together: AtomicUsize,
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

/// Logits of the token that comes next after a sequence.
pub fn logits(hashes: Hashes, vocab: usize) -> Vec<f32> {
    (0..vocab as u64).map(|i| (mix(hashes.seed(), i) >> 48) as f32 / 8192.0).collect()
}

/// A device that computes no model.
pub fn scripted(world: Arc<World>, traits: Traits) -> StandIn<Script> {
    StandIn { mode: CpuMode::Reference, ..StandIn::new(traits, Script(world)) }
}

/// What it does: of the CPU it needs the memory and the sampler's kernel.
pub struct Script(Arc<World>);

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

impl Behaviour for Script {
    fn new_state(&self, behind: &Behind) -> Result<Box<dyn State>, BackendError> {
        self.0.states.fetch_add(1, SeqCst);
        Ok(Box::new(Counted { state: behind.cpu.new_state()?, world: Arc::clone(&self.0) }))
    }

    fn run(&mut self, behind: &mut Behind, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        let (world, Behind { cpu, places }) = (&self.0, behind);
        let has_logits = plan.dispatches.iter().any(|dispatch| dispatch.contract.name == "head");
        let breaks = |trouble: &mut Trouble| *trouble == Trouble::Fails || has_logits;
        let trouble = world.trouble.lock().unwrap().take_if(breaks);
        let sessions = states.len();
        let mut hashes = vec![Hashes::default(); sessions];
        for dispatch in &plan.dispatches {
            match dispatch.contract.name {
                "embed" => {
                    let tokens = dispatch.slots[0];
                    let rows = tokens.bytes / 4 / sessions;
                    for (place, state) in states.iter_mut().enumerate() {
                        hashes[place] = places.take(cpu, (place, sessions), tokens, *state, &mut |_, _| ());
                    }
                    world.batched.fetch_add(sessions - 1, SeqCst);
                    world.pass(if rows == 1 { STEP } else { CHUNK + CHUNK_TOKEN * rows as u32 });
                }
                "head" => {
                    for (place, hashes) in hashes.iter().enumerate() {
                        let mut logits = logits(*hashes, places.vocab());
                        if trouble == Some(Trouble::NotANumber) && place == 0 {
                            logits[1] = f32::NAN;
                            world.faults.fetch_add(1, SeqCst);
                        }
                        places.put_logits(cpu, place, &logits);
                    }
                }
                "sample" => {
                    world.chosen_together.fetch_add(usize::from(sessions > 1), SeqCst);
                    let state = states[0].as_any_mut().downcast_mut::<Counted>().expect("a state of this device");
                    let plan = Plan { dispatches: vec![dispatch.clone()], ..Plan::default() };
                    cpu.run(&plan, &mut [state.state.as_mut()])?;
                }
                _ => {}
            }
        }
        if trouble == Some(Trouble::Fails) {
            world.faults.fetch_add(sessions, SeqCst);
            states.iter_mut().for_each(|state| places.spoil(*state));
            return Err(BackendError::Refused { what: "a step", message: "the simulation says so".into() });
        }
        Ok(())
    }
}
