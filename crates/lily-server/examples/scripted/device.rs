//! The device: every state knows which tokens led to it, and what comes next after them is what the script says.

use crate::script::Script;
use lily_engine::backend::cpu::CpuMode;
use lily_engine::backend::script::Hashes;
use lily_engine::backend::stand_in::{Behaviour, Behind, StandIn};
use lily_engine::backend::{BackendError, Device, State};
use lily_engine::model::Traits;
use lily_engine::plan::Plan;
use lily_engine::prompt::Prompter;
use lily_engine::tokenizer::ControlTokens;
use std::collections::HashMap;
use std::sync::Arc;

/// The logit of the token that comes next; those of all others are 0.
const CERTAIN: f32 = 1e4;
/// What ends an answer.
const END: &str = "<|im_end|>";

/// A device that follows a script; the CPU is its memory.
pub fn scripted(script: Script, prompter: Prompter) -> Box<dyn Device> {
    let writer = Writer { script, prompter, before: HashMap::new(), written: HashMap::new() };
    Box::new(StandIn { mode: CpuMode::Reference, ..StandIn::new(Traits::CPU, writer) })
}

impl Behaviour for Writer {
    fn run(&mut self, behind: &mut Behind, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        let Behind { cpu, places } = behind;
        let sessions = states.len();
        let mut hashes = vec![Hashes::default(); sessions];
        for dispatch in &plan.dispatches {
            match dispatch.contract.name {
                "embed" => {
                    for (place, state) in states.iter_mut().enumerate() {
                        let mut took = |before: Hashes, token| self.took(before, token);
                        hashes[place] = places.take(cpu, (place, sessions), dispatch.slots[0], *state, &mut took);
                    }
                }
                "head" => {
                    for (place, hashes) in hashes.iter().enumerate() {
                        let next = self.next(*hashes).map_err(refused)?;
                        let mut logits = vec![0.0; places.vocab()];
                        logits[next as usize] = CERTAIN;
                        places.put_logits(cpu, place, &logits);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn refused(message: String) -> BackendError {
    BackendError::Refused { what: "an answer", message }
}

/// Knows what led to each state, and what follows.
struct Writer {
    script: Script,
    prompter: Prompter,
    /// The state before each, and the token between.
    before: HashMap<Hashes, (Hashes, u32)>,
    /// Answers, and how much of them is written.
    written: HashMap<Hashes, (Arc<[u32]>, usize)>,
}

impl Writer {
    fn took(&mut self, before: Hashes, token: u32) {
        let mut after = before;
        after.push(token);
        self.before.insert(after, (before, token));
    }

    /// The token that comes next.
    fn next(&mut self, hashes: Hashes) -> Result<u32, String> {
        let (answer, at) = match self.written.get(&hashes) {
            Some((answer, at)) => (Arc::clone(answer), *at),
            None => (self.begin(hashes)?, 0),
        };
        let token = *answer.get(at).ok_or("an answer goes on after its end")?;
        let mut after = hashes;
        after.push(token);
        self.written.insert(after, (answer, at + 1));
        Ok(token)
    }

    /// The answer to the prompt that ends here.
    fn begin(&self, hashes: Hashes) -> Result<Arc<[u32]>, String> {
        let prompt = self.tokens(hashes)?;
        let tokenizer = self.prompter.tokenizer();
        let answer = self.script.answer(&tokenizer.decode(&prompt))?;
        tracing::info!(target: "script", turn = answer.turn.unwrap_or(0), prompt = prompt.len());
        let tokens = tokenizer.encode(&format!("{}{END}", answer.text), ControlTokens::Recognise);
        Ok(tokens.map_err(|error| error.to_string())?.into())
    }

    /// The tokens that led to a state.
    fn tokens(&self, mut hashes: Hashes) -> Result<Vec<u32>, String> {
        let mut tokens = Vec::new();
        while hashes != Hashes::default() {
            let (before, token) = self.before.get(&hashes).ok_or("a state that no tokens lead to")?;
            tokens.push(*token);
            hashes = *before;
        }
        tokens.reverse();
        Ok(tokens)
    }
}
