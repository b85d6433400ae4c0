//! Kernels at the two ends of the model: token ids to rows, last row to logits, logits to a token.

use super::linear::{norm_row, product_row};
use super::quant::HostMatrix;
use super::*;
use half::bf16;

kernel! {
    /// Rows of the embedding: `y[t] = embed[tokens[t]]`.
    Embed, "embed", args EmbedArgs, views EmbedViews {
        args {
            /// Tokens.
            rows: u32,
            /// Model width.
            width: u32,
            /// Storage of the embedding.
            format: PackedFormat,
        }
        buffers {
            tokens: read u32,
            codes: read u8,
            scales: read u8,
            biases: read u8,
            y: write bf16,
        }
        launch: |a| Launch::new([a.rows, 1, 1], launch::ROW_THREADS).formats(&[a.format]),
        cost: |a, _| Cost {
            weight_bytes: matrix_bytes(a.format, a.rows, a.width),
            activation_bytes: 2.0 * a.rows as f64 * a.width as f64,
            ..Cost::default()
        },
        tolerance: 0.0,
        reference: |v| {
            let width = v.args.width as usize;
            let matrix = HostMatrix {
                format: v.args.format.format(), cols: width, codes: v.codes, scales: v.scales, biases: v.biases,
            };
            for (token, y) in v.tokens.iter().zip(v.y.chunks_exact_mut(width)) {
                matrix.dequantize_row(*token as usize, |i, x| y[i] = bf16::from_f32(x));
            }
        },
    }
}

kernel! {
    /// Logits of one row: `logits = W * norm(h[row])`, fp32 out.
    Head, "head", args HeadArgs, views HeadViews {
        args {
            /// Row of `h` to take.
            row: u32,
            /// Model width.
            width: u32,
            /// Vocabulary.
            vocab: u32,
            /// Epsilon of the norm.
            eps: f32,
            /// Storage of the head.
            format: PackedFormat,
        }
        buffers {
            h: read bf16,
            gain: read f32,
            codes: read u8,
            scales: read u8,
            biases: read u8,
            logits: write f32,
        }
        launch: |a| launch::head(a.vocab).formats(&[a.format]),
        cost: |a, _| Cost {
            weight_bytes: matrix_bytes(a.format, a.vocab, a.width),
            activation_bytes: 2.0 * a.width as f64 + 4.0 * a.vocab as f64,
            flops: product_flops(1, a.vocab, a.width),
            ..Cost::default()
        },
        tolerance: 1e-4,
        reference: |v| {
            let (width, row) = (v.args.width as usize, v.args.row as usize);
            let matrix = HostMatrix {
                format: v.args.format.format(), cols: width, codes: v.codes, scales: v.scales, biases: v.biases,
            };
            let x = norm_row(&v.h[row * width..][..width], v.gain, v.args.eps);
            for (n, logit) in v.logits.iter_mut().enumerate() {
                *logit = product_row(&matrix, n, &x);
            }
        },
    }
}
