//! Names and sizes of all buffers of a model.

use super::{DecodeClass, Mechanism, Model, Traits};
use crate::kernel::{MatrixSlots, RESULT_WORDS, SCAN_STRETCH, SCAN_WORDS, SampleParams, Segments, Step, launch};
use crate::plan::{BufferTable, Home, Slot};
use crate::shape::Shape;
use crate::weights::{AttentionWeights, DeltaWeights, FileRange, LayerWeights, Matrix, MixerWeights, Weights};

/// Buffers of one layer.
#[derive(Clone, Debug)]
pub struct LayerBuffers {
    /// Gain of the norm before the mixer.
    pub input_norm: Slot,
    /// The mixer.
    pub mixer: MixerBuffers,
    /// Gain of the norm before the MoE block.
    pub post_norm: Slot,
    /// Router.
    pub router: MatrixSlots,
    /// Routed gate projections.
    pub gate: MatrixSlots,
    /// Routed up projections.
    pub up: MatrixSlots,
    /// Routed down projections.
    pub down: MatrixSlots,
    /// Shared gate projection.
    pub shared_gate: MatrixSlots,
    /// Shared up projection.
    pub shared_up: MatrixSlots,
    /// Shared down projection.
    pub shared_down: MatrixSlots,
    /// Row whose product with the input, through a sigmoid, scales the shared expert.
    pub shared_scale: MatrixSlots,
}

/// Buffers of a layer's mixer.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // named as in `weights`
pub enum MixerBuffers {
    Delta {
        qkv: MatrixSlots,
        z: MatrixSlots,
        a: MatrixSlots,
        b: MatrixSlots,
        taps: Slot,
        a_log: Slot,
        dt_bias: Slot,
        norm: Slot,
        out: MatrixSlots,
        /// Session state: bf16 `[2, conv_width - 1, channels]`.
        window: Slot,
        /// Session state: fp32 `[Hv, Dv, Dk]`.
        state: Slot,
    },
    Attention {
        q: MatrixSlots,
        k: MatrixSlots,
        v: MatrixSlots,
        o: MatrixSlots,
        q_norm: Slot,
        k_norm: Slot,
        /// Session state: bf16 `[context, G, D]`.
        keys: Slot,
        /// Session state: bf16 `[context, G, D]`.
        values: Slot,
    },
}

/// Activations of a step. All layers use the same ones; sizes are for the longest chunk.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // what each holds is said where the plan uses it
pub struct Scratch {
    /// Of the first session; those of all lie in `steps`.
    pub step: Slot,
    pub steps: Slot,
    pub tokens: Slot,
    pub h: Slot,
    pub x: Slot,
    pub qkv: Slot,
    pub z: Slot,
    pub a: Slot,
    pub b: Slot,
    pub q: Slot,
    pub k: Slot,
    pub v: Slot,
    pub decay: Slot,
    pub beta: Slot,
    pub y: Slot,
    pub mixed: Slot,
    pub q_raw: Slot,
    pub k_raw: Slot,
    pub v_raw: Slot,
    pub router_logits: Slot,
    pub shared: Slot,
    pub experts: Slot,
    pub scores: Slot,
    pub offsets: Slot,
    pub order: Slot,
    pub tiles: Slot,
    pub partials: Slot,
    pub act: Slot,
    pub expert_y: Slot,
    pub shared_act: Slot,
    pub shared_y: Slot,
    /// Of the first session; those of all lie in `logits_rows`.
    pub logits: Slot,
    pub logits_rows: Slot,
    /// What the choice of a token works with, of all sessions one after another.
    pub sampling: Slot,
    pub bias: Slot,
    pub counts: Slot,
    pub draws: Slot,
    pub results: Slot,
    pub logprobs: Slot,
    pub scans: Slot,
    pub sums: Slot,
    /// Only where the mechanism that does without it is off; otherwise empty.
    pub products: Slot,
    pub expanded: [Slot; 2],
}

impl Scratch {
    fn build(table: &mut BufferTable, shape: &Shape, rows: usize, batch: usize, extra: &Extra) -> Self {
        let rows = rows.max(batch);
        let mut add = |name: &str, bytes: usize| table.add(name, bytes, Home::Scratch);
        let (d, a, m) = (&shape.delta, &shape.attention, &shape.moe);
        let q_width = a.heads * a.head_dim;
        let assignments = rows * m.top_k;
        let steps = add("steps", batch * size_of::<Step>());
        let logits_rows = add("logits", 4 * batch * shape.vocab);
        let stretches = shape.vocab.div_ceil(SCAN_STRETCH as usize);
        // Short tiles make the longest map.
        let tiles = launch::expert_tiles(assignments as u32, m.experts as u32, 16) as usize;
        Self {
            step: steps.first(size_of::<Step>()),
            steps,
            tokens: add("tokens", 4 * rows),
            h: add("h", 2 * rows * shape.hidden),
            x: add("x", 2 * rows * shape.hidden),
            qkv: add("qkv", 2 * rows * d.conv_channels()),
            z: add("z", 2 * rows * d.values_width()),
            a: add("a", 2 * rows * d.value_heads),
            b: add("b", 2 * rows * d.value_heads),
            q: add("q", 2 * rows * d.keys_width().max(q_width)),
            k: add("k", 2 * rows * d.keys_width()),
            v: add("v", 2 * rows * d.values_width()),
            decay: add("decay", 4 * rows * d.value_heads),
            beta: add("beta", 4 * rows * d.value_heads),
            y: add("y", 2 * rows * d.values_width()),
            mixed: add("mixed", 2 * rows * d.values_width().max(q_width)),
            q_raw: add("q_raw", 4 * rows * q_width),
            k_raw: add("k_raw", 2 * rows * a.kv_heads * a.head_dim),
            v_raw: add("v_raw", 2 * rows * a.kv_heads * a.head_dim),
            router_logits: add("router_logits", 4 * rows * m.experts),
            shared: add("shared", 4 * rows),
            experts: add("experts", 4 * assignments),
            scores: add("scores", 4 * assignments),
            offsets: add("offsets", 4 * (m.experts + 1)),
            order: add("order", 4 * assignments),
            tiles: add("tiles", 8 * tiles),
            partials: add("partials", (batch * extra.partials_bytes).max(rows * extra.segments_bytes)),
            act: add("act", 2 * assignments * m.expert_width),
            expert_y: add("expert_y", 2 * assignments * shape.hidden),
            shared_act: add("shared_act", 2 * rows * m.shared_width),
            shared_y: add("shared_y", 2 * rows * shape.hidden),
            logits: logits_rows.first(4 * shape.vocab),
            logits_rows,
            sampling: add("sampling", batch * size_of::<SampleParams>()),
            bias: add("bias", 4 * batch * shape.vocab),
            counts: add("counts", 4 * batch * shape.vocab),
            draws: add("draws", 4 * batch),
            results: add("results", 2 * 4 * batch * RESULT_WORDS as usize),
            logprobs: add("logprobs", 2 * 4 * batch),
            scans: add("scans", 4 * batch * SCAN_WORDS as usize * stretches),
            sums: add("sums", 4 * batch * stretches),
            products: add("products", extra.products_bytes),
            expanded: ["expanded0", "expanded1"].map(|name| add(name, extra.expanded_bytes)),
        }
    }
}

/// Adds buffers with a common name prefix.
struct Namer<'a> {
    table: &'a mut BufferTable,
    prefix: String,
}

impl Namer<'_> {
    fn vector(&mut self, name: &str, values: &[f32]) -> Slot {
        self.table.add(format!("{}{name}", self.prefix), 4 * values.len(), Home::Vector(values.to_vec()))
    }

    fn state(&mut self, name: &str, bytes: usize) -> Slot {
        self.table.add(format!("{}{name}", self.prefix), bytes, Home::State)
    }

    fn matrix(&mut self, name: &str, m: &Matrix) -> MatrixSlots {
        let rows_stored = |bytes: usize, row_bytes: usize| bytes - m.first_row * row_bytes;
        let mut part = |suffix: &str, range: FileRange, row_bytes: usize| {
            let skipped = m.first_row * row_bytes;
            let bytes = rows_stored(range.bytes.max(skipped), row_bytes);
            let range = FileRange { file: range.file, offset: range.offset + skipped, bytes };
            self.table.add(format!("{}{name}.{suffix}", self.prefix), bytes, Home::Weight(range))
        };
        let scale_bytes = m.format.scale_row_bytes(m.cols);
        MatrixSlots {
            codes: part("codes", m.codes, m.format.row_bytes(m.cols)),
            scales: part("scales", m.scales, scale_bytes),
            biases: part("biases", m.biases, scale_bytes),
            format: m.format.into(),
            rows: m.rows as u32,
            cols: m.cols as u32,
            expert_stride_rows: m.expert_stride_rows as u32,
        }
    }
}

/// `[rows, cols]` as `[cols, rows]`.
fn transposed(x: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect()
}

fn delta(n: &mut Namer<'_>, shape: &Shape, w: &DeltaWeights) -> MixerBuffers {
    let d = &shape.delta;
    MixerBuffers::Delta {
        qkv: n.matrix("qkv", &w.qkv),
        z: n.matrix("z", &w.z),
        a: n.matrix("a", &w.a),
        b: n.matrix("b", &w.b),
        taps: n.vector("conv", &transposed(&w.conv, d.conv_channels(), d.conv_width)),
        a_log: n.vector("a_log", &w.a_log),
        dt_bias: n.vector("dt_bias", &w.dt_bias),
        norm: n.vector("delta_norm", &w.norm),
        out: n.matrix("out", &w.out),
        window: n.state("window", 2 * 2 * (d.conv_width - 1) * d.conv_channels()),
        state: n.state("state", 4 * d.state_elements()),
    }
}

fn attention(n: &mut Namer<'_>, shape: &Shape, context: usize, w: &AttentionWeights) -> MixerBuffers {
    let cache_bytes = 2 * context * shape.attention.kv_heads * shape.attention.head_dim;
    MixerBuffers::Attention {
        q: n.matrix("q", &w.q),
        k: n.matrix("k", &w.k),
        v: n.matrix("v", &w.v),
        o: n.matrix("o", &w.o),
        q_norm: n.vector("q_norm", &w.q_norm),
        k_norm: n.vector("k_norm", &w.k_norm),
        keys: n.state("keys", cache_bytes),
        values: n.state("values", cache_bytes),
    }
}

fn layer(n: &mut Namer<'_>, shape: &Shape, context: usize, w: &LayerWeights) -> LayerBuffers {
    LayerBuffers {
        input_norm: n.vector("input_norm", &w.input_norm),
        mixer: match &w.mixer {
            MixerWeights::Delta(w) => delta(n, shape, w),
            MixerWeights::Attention(w) => attention(n, shape, context, w),
        },
        post_norm: n.vector("post_norm", &w.post_norm),
        router: n.matrix("router", &w.moe.router),
        gate: n.matrix("gate", &w.moe.gate),
        up: n.matrix("up", &w.moe.up),
        down: n.matrix("down", &w.moe.down),
        shared_gate: n.matrix("shared_gate", &w.moe.shared_gate),
        shared_up: n.matrix("shared_up", &w.moe.shared_up),
        shared_down: n.matrix("shared_down", &w.moe.shared_down),
        shared_scale: n.matrix("shared_scale", &w.moe.shared_scale),
    }
}

/// Bytes of scratch that only some devices and plans need.
struct Extra {
    /// Partial results of attention of a session in a decode step.
    partials_bytes: usize,
    /// The same of a row in a prefill chunk.
    segments_bytes: usize,
    /// Products of the experts before their activation.
    products_bytes: usize,
    /// An expanded matrix.
    expanded_bytes: usize,
}

impl Extra {
    fn new(shape: &Shape, traits: Traits, context_tokens: usize, layers: &[LayerBuffers]) -> Self {
        let segments = Segments::new(traits.segment_keys, context_tokens).count as usize;
        let blocks = DecodeClass::most_blocks(context_tokens, traits) as usize;
        let (a, m) = (&shape.attention, &shape.moe);
        let partials_bytes = |parts: usize| 4 * parts * a.heads * (a.head_dim + 2);
        let unless = |mechanism, bytes| if traits.mechanisms.has(mechanism) { 0 } else { bytes };
        let products = 2 * (m.top_k * m.expert_width + m.shared_width);
        let expanded = layers.iter().map(|layer| most_elements(layer, m.experts)).max().unwrap_or(0);
        Self {
            partials_bytes: partials_bytes(blocks),
            segments_bytes: if segments > 1 { partials_bytes(segments) } else { 0 },
            products_bytes: unless(Mechanism::FusedGateUp, 4 * products),
            expanded_bytes: unless(Mechanism::FusedDequantize, 2 * expanded),
        }
    }
}

/// Elements of the largest matrix that a prefill chunk multiplies by in this layer, all experts counted as one.
fn most_elements(layer: &LayerBuffers, experts: usize) -> usize {
    let elements = |m: &MatrixSlots| m.rows as usize * m.cols as usize;
    let mixer = match &layer.mixer {
        MixerBuffers::Delta { qkv, z, a, b, out, .. } => [qkv, z, a, b, out].map(elements),
        MixerBuffers::Attention { q, k, v, o, .. } => [q, k, v, o, o].map(elements),
    };
    let shared = [&layer.shared_gate, &layer.shared_up, &layer.shared_down].map(elements);
    let routed = [&layer.gate, &layer.up, &layer.down].map(|m| experts * elements(m));
    mixer.into_iter().chain(shared).chain(routed).max().unwrap_or(0)
}

/// Sessions of a decode step where there are so many. The plans without a fusion are for one; and rows of a device's buffers
/// start at multiples of 4 bytes.
fn batch(shape: &Shape, traits: Traits, sessions: usize) -> usize {
    let fusions = [Mechanism::FusedGateUp, Mechanism::FusedDown, Mechanism::FusedQkPrep, Mechanism::FusedDeltaNorm];
    let fused = fusions.into_iter().all(|mechanism| traits.mechanisms.has(mechanism));
    let even = shape.delta.value_heads.is_multiple_of(2);
    if fused && even { sessions.clamp(1, launch::BATCH_MAX as usize) } else { 1 }
}

pub(super) fn build(
    weights: &Weights,
    traits: Traits,
    chunk_tokens: usize,
    context_tokens: usize,
    sessions: usize,
) -> Model {
    let batch = batch(&weights.shape, traits, sessions);
    let shape = weights.shape.clone();
    let mut table = BufferTable::default();
    let mut layers = Vec::with_capacity(shape.layers());
    for (i, w) in weights.layers.iter().enumerate() {
        let mut namer = Namer { table: &mut table, prefix: format!("layers.{i}.") };
        layers.push(layer(&mut namer, &shape, context_tokens, w));
    }
    let mut namer = Namer { table: &mut table, prefix: String::new() };
    let (rotary, theta) = (shape.attention.rotary_dim, shape.attention.rope_theta);
    let inv_freq: Vec<f32> = (0..rotary / 2).map(|i| theta.powf(-2.0 * i as f64 / rotary as f64) as f32).collect();
    let extra = Extra::new(&shape, traits, context_tokens, &layers);
    Model {
        embed: namer.matrix("embed", &weights.embed),
        final_norm: namer.vector("final_norm", &weights.final_norm),
        head: namer.matrix("head", &weights.head),
        inv_freq: namer.vector("inv_freq", &inv_freq),
        scratch: Scratch::build(&mut table, &shape, chunk_tokens, batch, &extra),
        shape,
        traits,
        chunk_tokens,
        context_tokens,
        batch,
        table,
        layers,
    }
}
