//! `lily quantize` and `lily synth`: the commands that write checkpoints.

use crate::cli::{FormatArgs, QuantizeArgs, SynthArgs};
use crate::failure::Failure;
use crate::output;
use indicatif::ProgressBar;
use lily_engine::checkpoint::Progress;
use lily_engine::checkpoint::quantization::Affine;
use lily_engine::checkpoint::quantize::{QuantizeOptions, quantize as convert};
use lily_engine::checkpoint::synth::{PRESETS, SynthOptions, preset, synth as write, with_layers};
use lily_engine::shape::Shape;

impl FormatArgs {
    fn options(&self) -> QuantizeOptions {
        QuantizeOptions {
            affine: Affine { bits: self.bits, group: self.group },
            routing: Affine { bits: self.routing_bits, group: self.group },
        }
    }
}

/// Runs `lily quantize`.
pub fn quantize(args: &QuantizeArgs) -> Result<(), Failure> {
    let bar = output::byte_bar("quantizing");
    let summary = convert(&args.input, &args.output, args.format.options(), &mut |p| advance(&bar, p))?;
    bar.finish_and_clear();
    output::note(&format!(
        "{}: {:.3} GB from {:.3} GB; {} tensors of other parts left out",
        args.output.display(),
        summary.output_bytes as f64 / 1e9,
        summary.input_bytes as f64 / 1e9,
        summary.dropped_tensors
    ));
    Ok(())
}

/// Runs `lily synth`.
pub fn synth(args: &SynthArgs) -> Result<(), Failure> {
    let shape = named_shape(&args.shape)?;
    let shape = args.layers.map_or(shape.clone(), |layers| with_layers(&shape, layers));
    let bar = output::byte_bar("writing");
    let options = SynthOptions { seed: args.seed, format: args.format.options() };
    let bytes = write(&shape, &args.output, &options, &mut |p| advance(&bar, p))?;
    bar.finish_and_clear();
    output::note(&format!("{}: {:.3} GB", args.output.display(), bytes as f64 / 1e9));
    Ok(())
}

/// A shape by name.
pub fn named_shape(name: &str) -> Result<Shape, Failure> {
    preset(name).ok_or_else(|| {
        Failure::usage(format_args!("shape {name:?}: expected one of {}; see `lily synth --help`", PRESETS.join(", ")))
    })
}

fn advance(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.total_bytes as u64);
    bar.set_position(progress.done_bytes as u64);
}
