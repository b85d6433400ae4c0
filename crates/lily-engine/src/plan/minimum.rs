//! The least that a decode step must move, whatever the kernels: the yardstick for a plan's bytes.
//!
//! Every weight that one token touches once (of the routed experts the chosen ones, of the embedding one row), the keys
//! and values of the context once, recurrent state and convolution window once each way. Activations are not counted.

use crate::weights::{LayerWeights, Matrix, MixerWeights, Weights};
use serde::Serialize;

/// Bytes of one decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DecodeMinimum {
    /// Weights, small vectors counted as bf16.
    pub weight_bytes: usize,
    /// Keys and values of the context.
    pub kv_bytes: usize,
    /// Recurrent state and convolution window, read and written.
    pub recurrent_bytes: usize,
}

impl DecodeMinimum {
    /// The minimum of `weights` with `position` tokens in the context.
    pub fn new(weights: &Weights, position: usize) -> Self {
        let shape = &weights.shape;
        let one_row = weights.embed.format.total_row_bytes(weights.embed.cols);
        let layers: usize = weights.layers.iter().map(|layer| layer_bytes(layer, shape.moe.top_k)).sum();
        Self {
            weight_bytes: one_row + layers + 2 * weights.final_norm.len() + weights.head.expert_bytes(),
            kv_bytes: shape.kv_bytes_per_token() * position,
            recurrent_bytes: 2 * shape.recurrent_bytes(),
        }
    }

    /// All of it.
    pub fn total_bytes(&self) -> usize {
        self.weight_bytes + self.kv_bytes + self.recurrent_bytes
    }
}

fn layer_bytes(layer: &LayerWeights, top_k: usize) -> usize {
    let sum = |matrices: &[&Matrix]| matrices.iter().map(|m| m.expert_bytes()).sum::<usize>();
    let mixer = match &layer.mixer {
        MixerWeights::Delta(w) => {
            let vectors = w.conv.len() + w.a_log.len() + w.dt_bias.len() + w.norm.len();
            sum(&[&w.qkv, &w.z, &w.a, &w.b, &w.out]) + 2 * vectors
        }
        MixerWeights::Attention(w) => sum(&[&w.q, &w.k, &w.v, &w.o]) + 2 * (w.q_norm.len() + w.k_norm.len()),
    };
    let moe = &layer.moe;
    let chosen = top_k * sum(&[&moe.gate, &moe.up, &moe.down]);
    let shared = sum(&[&moe.router, &moe.shared_scale, &moe.shared_gate, &moe.shared_up, &moe.shared_down]);
    mixer + chosen + shared + 2 * (layer.input_norm.len() + layer.post_norm.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Step;
    use crate::model::{Model, Traits};
    use crate::outline::outline;
    use crate::plan::report::Report;
    use crate::shape::Shape;
    use crate::weights::{Float, Format};

    fn published() -> Weights {
        let affine = |bits| Format::Affine { bits, group: 64, scale: Float::Bf16 };
        outline(&Shape::qwen36_35b_a3b(), affine(4), affine(8))
    }

    /// Megabytes a token of the published model, worked out by hand from its dimensions.
    #[test]
    fn the_minimum_of_the_published_model_is_its_roofline() {
        for (position, megabytes) in [(256, 1803.6), (4096, 1882.2), (32_768, 2469.4)] {
            let bytes = DecodeMinimum::new(&published(), position).total_bytes();
            assert!((bytes as f64 / 1e6 - megabytes).abs() < 0.1, "{bytes} bytes at {position}");
        }
    }

    /// The goal for one decode step: few kernels, few stages, hardly a byte too many.
    #[test]
    fn the_decode_plan_of_the_published_model_is_lean() {
        let weights = published();
        let step = Step { position: 4096, window: 0 };
        for (traits, choose) in [(Traits::CPU, false), (Traits::CPU, true), (Traits::GPU, true)] {
            let model = Model::new(&weights, traits, 1, 8192);
            let report = Report::new(&model.decode(4096, choose), step);
            let (bytes, least) = (report.total().bytes(), DecodeMinimum::new(&weights, 4096).total_bytes() as f64);
            println!("{} kernels, {} stages, {bytes} bytes of at least {least}", report.kernels, report.stages);
            assert!(report.kernels <= 400, "{} kernels", report.kernels);
            assert!(report.stages <= 250, "{} stages", report.stages);
            assert!(bytes >= least && bytes <= 1.05 * least, "{bytes} bytes, minimum {least}");
        }
    }
}
