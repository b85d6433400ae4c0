//! The faults.

use super::{Change, Fault, Hazard};
use lily_engine::kernel::{Access, Contract, Param};
use lily_engine::plan::Dispatch;

/// Faults that no check can see, and why.
pub const SURVIVORS: &[(&str, &str)] = &[
    (
        "one row less in matmul",
        "a CPU takes the number of rows from the slots; only the kernels of a GPU read this argument",
    ),
    (
        "half the rotation in attend_blocks",
        "a CPU takes the rotated part from the length of inv_freq; only the kernel of a GPU reads this argument",
    ),
    (
        "h of combine overwritten",
        "nothing is derived from the difference between writing and updating; both wait for everyone and are waited for",
    ),
];

/// Kernels that have a barrier before them, in prefill and in decode.
const KERNELS: [&str; 24] = [
    "rms_norm",
    "matmul",
    "matmul_add",
    "delta_prep",
    "delta_scan",
    "gated_norm",
    "qk_prep",
    "attend",
    "router",
    "route",
    "group_rows",
    "expert_gate_up",
    "expert_down",
    "combine",
    "project",
    "delta_step",
    "matvec_add",
    "attend_blocks",
    "merge_matvec_add",
    "router_step",
    "experts_gate_up_step",
    "experts_down_step",
    "head",
    "gate_up",
];

/// Every fault.
pub fn all() -> Vec<Fault> {
    let fault = |class, what: String, change| Fault { class, what, change };
    let mut all = Vec::new();
    for kernel in KERNELS.into_iter().filter(|k| *k != "gate_up") {
        all.push(fault("drop a barrier", format!("no barrier before {kernel}"), Change::Barrier(kernel)));
    }
    for kernel in KERNELS {
        all.push(fault("wrong stage", format!("{kernel} a stage early"), Change::Stage(kernel, -1)));
    }
    for kernel in ["route", "gate_up", "delta_step", "head"] {
        all.push(fault("wrong stage", format!("{kernel} a stage late"), Change::Stage(kernel, 1)));
    }
    for hazard in [Hazard::ReadAfterWrite, Hazard::WriteAfterRead, Hazard::WriteAfterWrite] {
        all.push(fault("drop a hazard edge", format!("{hazard:?} forgotten"), Change::Hazard(hazard)));
    }
    for (class, what, edit) in LAUNCHES {
        all.push(fault(class, (*what).to_owned(), Change::Launches(*edit)));
    }
    all
}

type Launches = (&'static str, &'static str, fn(&mut Vec<Dispatch>));

/// Faults of the launches themselves.
const LAUNCHES: &[Launches] = &[
    ("lost launch", "no combine", |d| remove(d, "combine")),
    ("lost launch", "no gated_norm", |d| remove(d, "gated_norm")),
    ("lost launch", "no qk_prep", |d| remove(d, "qk_prep")),
    ("lost launch", "no group_rows", |d| remove(d, "group_rows")),
    ("lost launch", "no experts_down_step", |d| remove(d, "experts_down_step")),
    ("lost launch", "no router_step", |d| remove(d, "router_step")),
    ("lost launch", "no delta_step", |d| remove(d, "delta_step")),
    ("wrong order", "combine twice", |d| twice(d, "combine")),
    ("wrong order", "delta_step twice", |d| twice(d, "delta_step")),
    ("wrong order", "matvec_add twice", |d| twice(d, "matvec_add")),
    ("wrong order", "gated_norm before delta_scan", |d| exchange(d, "delta_scan", "gated_norm")),
    ("wrong order", "attend before qk_prep", |d| exchange(d, "qk_prep", "attend")),
    ("wrong order", "group_rows before route", |d| exchange(d, "route", "group_rows")),
    ("wrong order", "experts before router_step", |d| exchange(d, "router_step", "experts_gate_up_step")),
    ("shift a slot", "tokens of embed by one", |d| shift(d, "embed", "tokens", 4)),
    ("shift a slot", "codes of project by a word", |d| shift(d, "project", "codes0", 4)),
    ("shift a slot", "keys of attend_blocks by a row", |d| shift(d, "attend_blocks", "keys", 256)),
    ("shift a slot", "state of delta_step by a row", |d| shift(d, "delta_step", "state", 128)),
    ("shift a slot", "scales of matmul by a group", |d| shift(d, "matmul", "scales", 2)),
    ("shift a slot", "gain of head by one", |d| shift(d, "head", "gain", 4)),
    ("shift a slot", "inv_freq of qk_prep by one", |d| shift(d, "qk_prep", "inv_freq", 4)),
    ("swap slots", "gate and up codes of experts_gate_up_step", |d| {
        swap(d, "experts_gate_up_step", "gate_codes", "up_codes");
    }),
    ("swap slots", "gate and up scales of expert_gate_up", |d| swap(d, "expert_gate_up", "gate_scales", "up_scales")),
    ("swap slots", "keys and values of attend", |d| swap(d, "attend", "keys", "values")),
    ("swap slots", "keys and values of attend_blocks", |d| swap(d, "attend_blocks", "keys", "values")),
    ("swap slots", "gains of qk_prep", |d| swap(d, "qk_prep", "q_gain", "k_gain")),
    ("swap slots", "a and b of delta_step", |d| swap(d, "delta_step", "a", "b")),
    ("swap slots", "a_log and dt_bias of delta_prep", |d| swap(d, "delta_prep", "a_log", "dt_bias")),
    ("swap slots", "decay and beta of delta_scan", |d| swap(d, "delta_scan", "decay", "beta")),
    ("swap slots", "q and k of delta_scan", |d| swap(d, "delta_scan", "q", "k")),
    ("swap slots", "scales and biases of head", |d| swap(d, "head", "scales", "biases")),
    ("wrong layer", "state of the first layer in the second", |d| borrow(d, "delta_step", "state")),
    ("wrong layer", "window of the first layer in the second", |d| borrow(d, "delta_prep", "window")),
    ("wrong layer", "gain of the first layer in the second", |d| borrow(d, "router_step", "gain")),
    ("wrong layer", "down codes of the first layer in the second", |d| borrow(d, "experts_down_step", "codes")),
    ("wrong constant", "head of the first row", |d| argument(d, "head", 0, |_| 0)),
    ("wrong constant", "one row less in matmul", |d| argument(d, "matmul", 0, |rows| rows.max(2) - 1)),
    ("wrong constant", "one expert less in route", |d| argument(d, "route", 2, |experts| experts - 1)),
    ("wrong constant", "one choice less in experts_down_step", |d| {
        argument(d, "experts_down_step", 3, |top_k| top_k - 1);
    }),
    ("wrong constant", "tiles of another height in group_rows", |d| argument(d, "group_rows", 7, |rows| rows / 2)),
    ("wrong constant", "a quarter of the blocks in merge_matvec_add", |d| {
        argument(d, "merge_matvec_add", 6, |blocks| blocks / 4);
    }),
    ("wrong constant", "half the rotation in attend_blocks", |d| argument(d, "attend_blocks", 4, |dim| dim / 2)),
    ("wrong constant", "one KV head in attend", |d| argument(d, "attend", 2, |_| 1)),
    ("wrong access", "window of delta_step only read", |d| access(d, "delta_step", "window", Access::Read)),
    ("wrong access", "keys of attend_blocks only read", |d| access(d, "attend_blocks", "keys", Access::Read)),
    ("wrong access", "y of rms_norm only read", |d| access(d, "rms_norm", "y", Access::Read)),
    ("wrong access", "h of router_step written", |d| access(d, "router_step", "h", Access::Update)),
    ("wrong access", "experts of group_rows written", |d| access(d, "group_rows", "experts", Access::Write)),
    ("wrong access", "h of combine overwritten", |d| access(d, "combine", "h", Access::Write)),
];

fn place(dispatches: &[Dispatch], kernel: &str) -> Option<usize> {
    dispatches.iter().position(|d| d.contract.name == kernel)
}

fn parameter(contract: &Contract, name: &str) -> usize {
    contract.params.iter().position(|p| p.name == name).unwrap_or_else(|| panic!("{} has no {name}", contract.name))
}

fn remove(dispatches: &mut Vec<Dispatch>, kernel: &str) {
    place(dispatches, kernel).into_iter().for_each(|i| drop(dispatches.remove(i)));
}

fn twice(dispatches: &mut Vec<Dispatch>, kernel: &str) {
    place(dispatches, kernel).into_iter().for_each(|i| dispatches.insert(i, dispatches[i].clone()));
}

/// Exchanges the first launches of two kernels.
fn exchange(dispatches: &mut [Dispatch], one: &str, other: &str) {
    if let (Some(i), Some(j)) = (place(dispatches, one), place(dispatches, other)) {
        dispatches.swap(i, j);
    }
}

/// Every launch of a kernel, to be changed.
fn each<'a>(dispatches: &'a mut [Dispatch], kernel: &'a str) -> impl Iterator<Item = &'a mut Dispatch> {
    dispatches.iter_mut().filter(move |d| d.contract.name == kernel)
}

fn shift(dispatches: &mut [Dispatch], kernel: &str, name: &str, bytes: usize) {
    for dispatch in each(dispatches, kernel) {
        dispatch.slots[parameter(dispatch.contract, name)].offset += bytes;
    }
}

fn swap(dispatches: &mut [Dispatch], kernel: &str, one: &str, other: &str) {
    for dispatch in each(dispatches, kernel) {
        dispatch.slots.swap(parameter(dispatch.contract, one), parameter(dispatch.contract, other));
    }
}

/// The second launch gets a buffer of the first.
fn borrow(dispatches: &mut [Dispatch], kernel: &str, name: &str) {
    let mut launches = each(dispatches, kernel);
    if let (Some(first), Some(second)) = (launches.next(), launches.next()) {
        let i = parameter(first.contract, name);
        second.slots[i] = first.slots[i];
    }
}

/// Changes a 32-bit word of the arguments.
fn argument(dispatches: &mut [Dispatch], kernel: &str, word: usize, change: fn(u32) -> u32) {
    for dispatch in each(dispatches, kernel) {
        let bytes = &mut dispatch.args[4 * word..][..4];
        let value = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        bytes.copy_from_slice(&change(value).to_le_bytes());
    }
}

/// Changes how the contract says that a kernel touches a buffer.
fn access(dispatches: &mut [Dispatch], kernel: &str, name: &str, access: Access) {
    for dispatch in each(dispatches, kernel) {
        let contract = dispatch.contract;
        let mut params: Vec<Param> = contract.params.to_vec();
        params[parameter(contract, name)].access = access;
        // Contracts are static; this one lives as long as the test.
        let params = Box::leak(params.into_boxed_slice());
        dispatch.contract = Box::leak(Box::new(Contract { params, ..*contract }));
    }
}
