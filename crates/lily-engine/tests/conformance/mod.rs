//! Conformance cases of every kernel contract: random inputs, awkward row counts, poisoned outputs, and the judgement of
//! what a device makes of them against the reference function.
//!
//! [`cases!`] names every case, so that each device's test file runs all of them; the device comes in as a [`Runs`].

pub mod attention;
pub mod batch;
pub mod chunks;
pub mod delta;
pub mod drift;
pub mod ends;
pub mod linear;
pub mod moe;
pub mod unfused;

use half::{bf16, f16};
use lily_engine::backend::Backend;
use lily_engine::backend::cpu::{Cpu, CpuMode};
use lily_engine::checkpoint::Checkpoint;
use lily_engine::kernel::*;
use lily_engine::plan::{BufferTable, Dispatch, Home, Plan, Slot};
use lily_engine::weights::{Float, Format};
use std::path::PathBuf;
use std::sync::Arc;

pub const ROWS: [u32; 14] = [1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65];
/// Rows for kernels that are cheap to run: the same, and around a power of two.
pub const MANY_ROWS: [u32; 14] = [1, 2, 3, 5, 17, 33, 64, 65, 127, 128, 129, 511, 512, 513];
pub const Q4: Format = Format::Affine { bits: 4, group: 64, scale: Float::Bf16 };
pub const Q8: Format = Format::Affine { bits: 8, group: 32, scale: Float::Bf16 };
pub const PLAIN: Format = Format::Dense(Float::Bf16);
/// What a checkpoint may hold besides: other widths of codes, groups and types of scales, other plain elements.
pub const RARE: [Format; 9] = [
    Format::Affine { bits: 2, group: 64, scale: Float::Bf16 },
    Format::Affine { bits: 3, group: 32, scale: Float::F16 },
    Format::Affine { bits: 4, group: 32, scale: Float::F32 },
    Format::Affine { bits: 4, group: 128, scale: Float::F16 },
    Format::Affine { bits: 5, group: 128, scale: Float::F32 },
    Format::Affine { bits: 6, group: 64, scale: Float::Bf16 },
    Format::Affine { bits: 8, group: 128, scale: Float::F16 },
    Format::Dense(Float::F16),
    Format::Dense(Float::F32),
];

/// One dispatch with its buffers and their contents.
pub struct Case {
    pub table: BufferTable,
    pub contents: Vec<(Slot, Vec<u8>)>,
    random: u64,
}

impl Case {
    pub fn new(seed: u64) -> Self {
        Self {
            table: BufferTable::default(),
            contents: Vec::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    /// The same buffers and contents.
    pub fn copy(&self) -> Self {
        Self { table: self.table.clone(), contents: self.contents.clone(), random: self.random }
    }

    pub fn next(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32
    }

    /// Between -1 and 1.
    pub fn uniform(&mut self) -> f32 {
        self.next() as f32 / u32::MAX as f32 * 2.0 - 1.0
    }

    pub fn bytes(&mut self, bytes: Vec<u8>) -> Slot {
        let slot = self.table.add("input", bytes.len(), Home::Scratch);
        self.contents.push((slot, bytes));
        slot
    }

    pub fn bf16(&mut self, count: u32, scale: f32) -> Slot {
        let values: Vec<bf16> = (0..count).map(|_| bf16::from_f32(self.uniform() * scale)).collect();
        self.bytes(bytemuck::cast_slice(&values).to_vec())
    }

    /// Elements of any type between `-scale` and `scale`.
    fn floats(&mut self, float: Float, count: u32, scale: f32) -> Slot {
        let half = |x: f32| f16::from_f32(x).to_le_bytes();
        match float {
            Float::Bf16 => self.bf16(count, scale),
            Float::F16 => {
                let bytes = (0..count).flat_map(|_| half(self.uniform() * scale)).collect();
                self.bytes(bytes)
            }
            Float::F32 => self.f32(count, -scale, scale),
        }
    }

    pub fn f32(&mut self, count: u32, low: f32, high: f32) -> Slot {
        let values: Vec<f32> = (0..count).map(|_| low + (self.uniform() + 1.0) / 2.0 * (high - low)).collect();
        self.bytes(bytemuck::cast_slice(&values).to_vec())
    }

    pub fn u32(&mut self, values: &[u32]) -> Slot {
        self.bytes(bytemuck::cast_slice(values).to_vec())
    }

    /// A buffer full of NaN.
    pub fn poison(&mut self, bytes: u32) -> Slot {
        self.bytes(vec![0xff; bytes as usize])
    }

    pub fn matrix(&mut self, rows: u32, cols: u32, format: Format) -> MatrixSlots {
        let row_bytes = format.row_bytes(cols as usize) as u32;
        let codes = match format {
            Format::Affine { .. } => {
                let codes = (0..rows * row_bytes).map(|_| self.next() as u8).collect();
                self.bytes(codes)
            }
            Format::Dense(float) => self.floats(float, rows * cols, 0.2),
        };
        let (float, groups) = match format {
            Format::Affine { group, scale, .. } => (scale, rows * (cols / group as u32)),
            Format::Dense(float) => (float, 0),
        };
        let most = if row_bytes == cols { 0.001 } else { 0.02 };
        let (scales, biases) = (self.floats(float, groups, most), self.floats(float, groups, 0.1));
        MatrixSlots { codes, scales, biases, format: format.into(), rows, cols, expert_stride_rows: rows }
    }

    /// Runs the dispatch by reference and by every way of the device, twice each, and compares everything it writes.
    pub fn check(self, dispatch: Dispatch, label: &str, device: &dyn Runs) {
        let contract = dispatch.contract;
        let want = self.reference(&dispatch);
        let mut first: Option<Vec<Vec<u8>>> = None;
        for (way, run) in device.ways() {
            let label = format!("{} {label} {way}", contract.name);
            let got = run(&self, &dispatch);
            assert!(got == run(&self, &dispatch), "{label}: two runs differ");
            let written = contract.params.iter().filter(|p| p.access.writes());
            for ((param, want), got) in written.zip(&want).zip(&got) {
                compare(param.element, want, got, contract.tolerance, &format!("{label}: `{}`", param.name));
            }
            let first = first.get_or_insert_with(|| got.clone());
            assert!(!device.agree() || *first == got, "{label}: another way gives other bits");
        }
    }

    /// What the reference function writes.
    pub fn reference(&self, dispatch: &Dispatch) -> Vec<Vec<u8>> {
        let mut cpu = Cpu::new(any_checkpoint(), &self.table, CpuMode::Reference, 1).unwrap();
        self.run_on(&mut cpu, dispatch)
    }

    /// What a backend that holds this case's buffers writes.
    pub fn run_on(&self, backend: &mut dyn Backend, dispatch: &Dispatch) -> Vec<Vec<u8>> {
        self.contents.iter().for_each(|(slot, bytes)| backend.write(*slot, bytes));
        let mut state = backend.new_state().unwrap();
        backend.run(&Plan { dispatches: vec![dispatch.clone()], ..Plan::default() }, &mut [state.as_mut()]).unwrap();
        let written = dispatch.bindings().filter(|(param, _)| param.access.writes());
        written
            .map(|(_, slot)| {
                let mut bytes = vec![0; slot.bytes];
                backend.read(slot, &mut bytes);
                bytes
            })
            .collect()
    }
}

/// Runs one case in one way and hands out the written buffers.
pub type Run = Box<dyn Fn(&Case, &Dispatch) -> Vec<Vec<u8>>>;

/// A device under test.
pub trait Runs {
    /// Ways in which it can run a dispatch (instruction sets, lane orders), each with its name.
    fn ways(&self) -> Vec<(String, Run)>;

    /// Whether all ways must give the same bits.
    fn agree(&self) -> bool {
        false
    }

    /// Most queries that its attention packs.
    fn packed_queries(&self) -> u32 {
        PACKED_QUERIES
    }

    /// Heights that its matrix-matrix tiles can have; those of experts up to 64.
    fn tile_heights(&self) -> [u32; 3] {
        [16, 32, 64]
    }
}

/// A checkpoint, for backends that want one; the cases use none of its weights.
pub fn any_checkpoint() -> Arc<Checkpoint> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints/mlx/base-q4g64");
    Arc::new(Checkpoint::open(&path).unwrap())
}

/// Element by element within `tolerance` of the largest reference magnitude; NaN only where the reference has it.
pub fn compare(element: &str, want: &[u8], got: &[u8], tolerance: f32, label: &str) {
    let widen = |bytes: &[u8]| -> Vec<f32> {
        match element {
            "bf16" => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        }
    };
    if element == "u32" {
        return assert!(want == got, "{label} differs");
    }
    let (want, got) = (widen(want), widen(got));
    let most = want.iter().filter(|w| w.is_finite()).fold(0.0_f32, |m, w| m.max(w.abs()));
    for (i, (w, g)) in want.iter().zip(&got).enumerate() {
        let right = if w.is_nan() { g.is_nan() } else { (w - g).abs() <= tolerance * most };
        assert!(right, "{label}[{i}] is {g}, the reference {w}; tolerance {tolerance} of {most}");
    }
}

/// Every case of kernels that GPUs have as a test: `gpu_cases!(device)` where `device` is an expression that makes a
/// [`Runs`].
#[macro_export]
macro_rules! gpu_cases {
    ($device:expr) => {
        $crate::common_cases!($device);
        $crate::cases! { $device;
            batch: project_rows, matvec_add_rows, merge_matvec_add_rows, head_rows, router_step_rows, experts_rows;
            unfused: dequantize, delta_update, attend_prepared, experts_products_and_gate, experts_each_step;
        }
    };
}

/// The cases of kernels that CPUs have too.
#[macro_export]
macro_rules! common_cases {
    ($device:expr) => {
        $crate::cases! { $device;
            ends: embed, head, sample_scan, sample_scan_of_broken_logits, sample, sample_as_the_host,
                sample_cuts_where_the_host_does, sample_lists_many_stretches, sample_takes_the_lowest_of_equals,
                sample_reports_broken_logits;
            linear: rms_norm, matmul_and_matmul_add, matmul_of_every_height, matmul_of_every_format_and_width,
                gate_up, project, matvec_add;
            delta: delta_prep, delta_scan_and_gated_norm, delta_step;
            drift: the_state_keeps_32768_tokens;
            attention: qk_prep, attend, attend_by_segments, attend_at_long_contexts, attend_blocks_and_merge, attend_blocks_at_borders,
                attend_merge_of_many_blocks;
            moe: router_and_router_step, route_and_group_rows, route_breaks_ties_towards_the_lowest_expert,
                expert_gate_up_and_down, combine, experts_gate_up_step, experts_down_step;
            chunks: products_do_not_depend_on_the_chunk, router_does_not_depend_on_the_chunk,
                experts_do_not_depend_on_the_chunk_or_tile, attention_does_not_depend_on_the_chunk,
                delta_does_not_depend_on_the_chunk;
        }
    };
}

/// Cases as tests: the device, and the names of cases by module.
#[macro_export]
macro_rules! cases {
    ($device:expr; $($module:ident: $($case:ident),+;)+) => {
        $($(
            #[test]
            fn $case() {
                conformance::$module::$case(&$device);
            }
        )+)+
    };
}
