//! Steps that check guesses give the tokens and the state of plain steps, to the bit.

#[expect(dead_code, reason = "the rest is for other devices than the CPU")]
mod nano;

use lily_engine::backend::cpu::{CpuDevice, CpuMode, isa::Isa};

#[test]
fn guesses_change_nothing_on_any_instruction_set() {
    for isa in Isa::supported() {
        nano::guesses_change_nothing(Box::new(CpuDevice { mode: CpuMode::Fast(isa), threads: 2 }), 40, &[2, 3, 5]);
    }
}
