//! A model without its files: the weights of a shape as they would be bound, for plans and their costs.
//!
//! Nothing can be computed with an outline; every matrix has the right format and size and stands for no bytes.

use crate::shape::{Mixer, Shape};
use crate::weights::{
    AttentionWeights, DeltaWeights, FileRange, Format, LayerWeights, Matrix, MixerWeights, MoeWeights, Weights,
};

/// The weights of `shape` with matrices in `format`, the router and the shared expert's scalar gate in `routing`.
pub fn outline(shape: &Shape, format: Format, routing: Format) -> Weights {
    let (c, moe) = (shape.hidden, &shape.moe);
    let matrix = |rows, cols| stack(format, 1, rows, cols);
    let layers = shape.mixers.iter().map(|mixer| LayerWeights {
        input_norm: vec![1.0; c],
        mixer: match mixer {
            Mixer::Delta => MixerWeights::Delta(delta(shape, &matrix)),
            Mixer::Attention => MixerWeights::Attention(attention(shape, &matrix)),
        },
        post_norm: vec![1.0; c],
        moe: MoeWeights {
            router: stack(routing, 1, moe.experts, c),
            gate: stack(format, moe.experts, moe.expert_width, c),
            up: stack(format, moe.experts, moe.expert_width, c),
            down: stack(format, moe.experts, c, moe.expert_width),
            shared_gate: matrix(moe.shared_width, c),
            shared_up: matrix(moe.shared_width, c),
            shared_down: matrix(c, moe.shared_width),
            shared_scale: stack(routing, 1, 1, c),
        },
    });
    let embed = matrix(shape.vocab, c);
    Weights { shape: shape.clone(), embed, layers: layers.collect(), final_norm: vec![1.0; c], head: embed }
}

fn delta(shape: &Shape, matrix: &impl Fn(usize, usize) -> Matrix) -> DeltaWeights {
    let (c, d) = (shape.hidden, &shape.delta);
    DeltaWeights {
        qkv: matrix(d.conv_channels(), c),
        z: matrix(d.values_width(), c),
        a: matrix(d.value_heads, c),
        b: matrix(d.value_heads, c),
        conv: vec![0.0; d.conv_channels() * d.conv_width],
        a_log: vec![0.0; d.value_heads],
        dt_bias: vec![0.0; d.value_heads],
        norm: vec![1.0; d.value_dim],
        out: matrix(c, d.values_width()),
    }
}

fn attention(shape: &Shape, matrix: &impl Fn(usize, usize) -> Matrix) -> AttentionWeights {
    let (c, a) = (shape.hidden, &shape.attention);
    AttentionWeights {
        q: matrix(2 * a.heads * a.head_dim, c),
        k: matrix(a.kv_heads * a.head_dim, c),
        v: matrix(a.kv_heads * a.head_dim, c),
        o: matrix(c, a.heads * a.head_dim),
        q_norm: vec![1.0; a.head_dim],
        k_norm: vec![1.0; a.head_dim],
    }
}

/// A stack of `experts` matrices that lies nowhere.
fn stack(format: Format, experts: usize, rows: usize, cols: usize) -> Matrix {
    let range = |row_bytes: usize| FileRange { file: 0, offset: 0, bytes: experts * rows * row_bytes };
    Matrix {
        format,
        rows,
        cols,
        experts,
        expert_stride_rows: rows,
        first_row: 0,
        codes: range(format.row_bytes(cols)),
        scales: range(format.scale_row_bytes(cols)),
        biases: range(format.scale_row_bytes(cols)),
    }
}
