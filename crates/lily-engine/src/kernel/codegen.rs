//! `kernels/generated/args.h`: what the kernel text and the contracts must agree on, written from the contracts.
//!
//! Argument structs, function constants and the numbers of [`super::launch`]. `cargo xtask codegen` writes the file, a
//! test compares it.

use super::launch::GEOMETRY;
use super::{
    AttentionDims, CacheReading, Constant, Contract, DeltaDims, EMPTY_BLOCK, Layout, MoeDims, NO_TILE, PACKED_QUERIES,
    Segments, WIDE_PACKED_QUERIES,
};

/// Numbers of the sampler.
const SAMPLING: [(&str, u32); 12] = [
    ("SAMPLE_THREADS", super::SAMPLE_THREADS),
    ("SCAN_STRETCH", super::SCAN_STRETCH),
    ("SCAN_THREADS", super::SCAN_THREADS),
    ("SCAN_WORDS", super::SCAN_WORDS),
    ("USES_BIAS", super::USES_BIAS),
    ("USES_GENERATED", super::USES_GENERATED),
    ("USES_SEEN", super::USES_SEEN),
    ("IN_PROMPT", super::IN_PROMPT),
    ("RESULT_WORDS", super::RESULT_WORDS),
    ("SAMPLE_NOT_FINITE", super::SAMPLE_NOT_FINITE),
    ("SAMPLE_ALL_MASKED", super::SAMPLE_ALL_MASKED),
    ("SAMPLE_FLAT", super::SAMPLE_FLAT),
];

/// Every contract, in the order of the model's parts.
pub fn contracts() -> Vec<&'static Contract> {
    use super::*;
    macro_rules! list {
        ($($kernel:ident),* $(,)?) => { vec![$($kernel::contract()),*] };
    }
    list![
        Embed,
        Head,
        RmsNorm,
        MatMul,
        MatMulAdd,
        MatVecAdd,
        GateUp,
        Project,
        DeltaPrep,
        DeltaScan,
        GatedNorm,
        DeltaStep,
        QkPrep,
        Attend,
        MergeSegments,
        AttendStep,
        AttendBlocks,
        AttendMerge,
        MergeMatVecAdd,
        Router,
        Route,
        GroupRows,
        ExpertGateUp,
        ExpertDown,
        Combine,
        RouterStep,
        ExpertsGateUpStep,
        ExpertsDownStep,
        SampleScan,
        Sample,
        Dequantize,
        ExpertsProductsStep,
        GateProducts,
        ExpertsEachStep,
        DeltaUpdate,
        AttendPrepared,
    ]
}

/// The header's text.
pub fn args_header() -> String {
    let mut text = String::from(
        "// Written by `cargo xtask codegen` from the kernel contracts; change those instead.\n#pragma once\n\n",
    );
    for (name, value) in GEOMETRY {
        text += &format!("#define {name} {value}\n");
    }
    text += &format!("#define PACKED_QUERIES {PACKED_QUERIES}\n#define WIDE_PACKED_QUERIES {WIDE_PACKED_QUERIES}\n");
    text += &format!("#define NO_TILE {NO_TILE}u\n");
    for (name, value) in SAMPLING {
        text += &format!("#define {name} {value}u\n");
    }
    text += &format!("#define EMPTY_BLOCK {EMPTY_BLOCK:e}f\n\n");
    for (constant, name) in Constant::ALL {
        text += &format!("constant uint {name} [[function_constant({})]];\n", constant as u32);
    }
    let dims = [
        MoeDims::LAYOUT,
        DeltaDims::LAYOUT,
        AttentionDims::LAYOUT,
        Segments::LAYOUT,
        CacheReading::LAYOUT,
        super::SampleParams::LAYOUT,
    ];
    for layout in dims.into_iter().chain(contracts().into_iter().filter(|c| c.on_gpu()).map(|c| c.layout)) {
        text += &structure(&layout);
    }
    text
}

fn structure(layout: &Layout) -> String {
    let mut text = format!("\nstruct {} {{\n", layout.name);
    for (name, ty) in layout.fields {
        text += &format!("    {};\n", declaration(name, ty));
    }
    text + "};\n"
}

/// A field as the kernel text declares it.
fn declaration(name: &str, ty: &str) -> String {
    if let Some((element, count)) =
        ty.strip_prefix('[').and_then(|t| t.strip_suffix(']')).and_then(|t| t.split_once("; "))
    {
        return format!("{}[{count}]", declaration(name, element));
    }
    let ty = match ty {
        "u32" | "PackedFormat" => "uint",
        "f32" => "float",
        dims => dims,
    };
    format!("{ty} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// With `LILY_WRITE_GENERATED` set the file is written instead: that is `cargo xtask codegen`.
    #[test]
    fn the_committed_header_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/generated/args.h");
        if std::env::var_os("LILY_WRITE_GENERATED").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, args_header()).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == args_header(), "kernels/generated/args.h is old: run `cargo xtask codegen`");
    }

    #[test]
    fn names_of_contracts_are_distinct() {
        let mut names: Vec<_> = contracts().iter().map(|c| c.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), contracts().len());
    }
}
