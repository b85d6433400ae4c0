//! Steps that check guesses give the tokens and the state of plain steps, to the bit.

#[expect(dead_code, reason = "the rest is for other devices than the CPU")]
mod nano;

use lily_engine::backend::cpu::{CpuDevice, CpuMode, isa::Isa};
use lily_engine::backend::stand_in::{Behaviour, Behind, StandIn};
use lily_engine::backend::{Backend, BackendError, State};
use lily_engine::model::Traits;
use lily_engine::plan::Plan;

#[test]
fn guesses_change_nothing_on_any_instruction_set() {
    for isa in Isa::supported() {
        nano::guesses_change_nothing(Box::new(CpuDevice { mode: CpuMode::Fast(isa), threads: 2 }), 40, &[2, 3, 5]);
    }
}

/// The CPU, with the plans of a GPU.
struct Plain;

impl Behaviour for Plain {
    fn run(&mut self, behind: &mut Behind, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        behind.cpu.run(plan, states)
    }
}

#[test]
fn guesses_change_nothing_in_the_plans_of_gpus() {
    for traits in [Traits::GPU, Traits::WIDE_GPU] {
        let device = StandIn { mode: CpuMode::Reference, ..StandIn::new(traits, Plain) };
        nano::guesses_change_nothing(Box::new(device), 14, &[2, 3]);
    }
}
