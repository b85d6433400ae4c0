//! Every kernel contract on every instruction set of this machine against its reference function.

#[expect(dead_code, reason = "it has cases of kernels that are for GPUs alone")]
mod conformance;

use conformance::{Case, Run, Runs, any_checkpoint};
use lily_engine::backend::cpu::{Cpu, CpuMode, isa::Isa};
use lily_engine::plan::Dispatch;

/// The CPU backend with three threads on every instruction set that it has here.
struct InstructionSets;

impl Runs for InstructionSets {
    fn ways(&self) -> Vec<(String, Run)> {
        let way = |isa: Isa| -> (String, Run) {
            let run = move |case: &Case, dispatch: &Dispatch| {
                let mut cpu = Cpu::new(any_checkpoint(), &case.table, CpuMode::Fast(isa), 3).unwrap();
                case.run_on(&mut cpu, dispatch)
            };
            (format!("{isa:?}"), Box::new(run))
        };
        Isa::supported().map(way).collect()
    }
}

common_cases!(InstructionSets);
cases! { InstructionSets; attention: attend_step; }
