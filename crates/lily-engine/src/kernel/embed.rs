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
    /// Logits of one row or a few: `logits[t] = W * norm(h[row + t])`, fp32 out.
    Head, "head", args HeadArgs, views HeadViews {
        args {
            /// First row of `h` to take.
            row: u32,
            /// Rows to take, at most [`launch::BATCH_MAX`].
            rows: u32,
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
        launch: |a| launch::head(a.vocab).formats(&[a.format]).constant(Constant::Batch, a.rows),
        cost: |a, _| Cost {
            weight_bytes: matrix_bytes(a.format, a.vocab, a.width),
            activation_bytes: a.rows as f64 * (2.0 * a.width as f64 + 4.0 * a.vocab as f64),
            flops: product_flops(a.rows, a.vocab, a.width),
            ..Cost::default()
        },
        tolerance: 1e-4,
        reference: |v| {
            let (width, row) = (v.args.width as usize, v.args.row as usize);
            let matrix = HostMatrix {
                format: v.args.format.format(), cols: width, codes: v.codes, scales: v.scales, biases: v.biases,
            };
            let rows = v.h[row * width..].chunks_exact(width);
            for (h, logits) in rows.zip(v.logits.chunks_exact_mut(v.args.vocab as usize)) {
                let x = norm_row(h, v.gain, v.args.eps);
                logits.iter_mut().enumerate().for_each(|(n, logit)| *logit = product_row(&matrix, n, &x));
            }
        },
    }
}
