//! The kernel texts, embedded in the binary, and what a GPU's compiler is given of them.
//!
//! Each `.metal` file is a library of its own, as it is for the software Metal that tests it: what was compiled together
//! there is compiled together everywhere, names of helper functions cannot meet, an error names its file, and a plan
//! waits for the files it uses only. Includes are written out once per library, because a GPU's compiler at run time has
//! no folder to look in.

use super::signature::signatures;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../kernels/", $name)))),*]
    };
}

/// Names below `kernels/` and texts.
const FILES: &[(&str, &str)] = &embedded![
    "attend_decode.metal",
    "attend_keys.h",
    "attend_keys_mma.h",
    "attend_outputs.h",
    "attend_tile.h",
    "attend_tile_mma.h",
    "attention.h",
    "attention_strip.h",
    "delta_scan_staged.h",
    "delta_step.metal",
    "embed.metal",
    "functions.h",
    "generated/args.h",
    "matvec.h",
    "matvec_copied.h",
    "matvec_rows.h",
    "merge_matvec_add.metal",
    "moe_step.metal",
    "platform.h",
    "prefill_attention.metal",
    "prefill_delta.metal",
    "prefill_experts.metal",
    "prefill_matmul.metal",
    "prefill_route.metal",
    "project.metal",
    "quant.h",
    "router_mma.h",
    "sample.metal",
    "sampling.h",
    "tile.h",
    "tile_mma.h",
    "tile_simdgroup.h",
    "tile_tensor.h",
    "top_k.h",
];

/// The file that has the entry point `entry`; `None` where no text has it.
pub fn file_of(entry: &str) -> Option<&'static str> {
    let mut libraries = FILES.iter().filter(|(name, _)| name.ends_with(".metal"));
    libraries.find(|(_, text)| signatures(text).iter().any(|s| s.name == entry)).map(|(name, _)| *name)
}

/// A number that changes with any kernel text, with lily's version or with `salt`.
pub fn fingerprint(salt: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (FILES, env!("CARGO_PKG_VERSION"), salt).hash(&mut hasher);
    hasher.finish()
}

/// The text of a library with its includes written out and `defines` set; `#line` directives keep places right.
///
/// # Panics
/// If there is no such file: a broken invariant that the tests of this module hold.
pub fn library(file: &str, defines: &[&str]) -> String {
    let (_, text) = FILES.iter().find(|(name, _)| *name == file).unwrap_or_else(|| panic!("no kernel file {file}"));
    let mut out = String::new();
    defines.iter().for_each(|name| out += &format!("#define {name} 1\n"));
    expand(file, text, &mut Vec::new(), &mut out);
    out
}

/// Writes out a file. `whole` names the headers that were written already outside of any condition.
fn expand(file: &str, text: &str, whole: &mut Vec<String>, out: &mut String) {
    let mut conditions = 0;
    place(out, 1, file);
    for (number, line) in text.lines().enumerate() {
        let directive = line.trim_start();
        if directive.starts_with("#if") {
            conditions += 1;
        } else if directive.starts_with("#endif") {
            conditions -= 1;
        }
        if let Some(include) = directive.strip_prefix("#include \"") {
            let name = include.split('"').next().unwrap_or_default();
            if conditions == 0 {
                header(name, whole, out);
            } else {
                // Whether this one counts is for the compiler to say, so a later one must not be left out.
                header(name, &mut whole.clone(), out);
            }
            place(out, number + 2, file);
        } else if directive == "#pragma once" {
            out.push('\n');
        } else {
            *out += line;
            out.push('\n');
        }
    }
}

/// Writes out a header, guarded against a second time.
fn header(name: &str, whole: &mut Vec<String>, out: &mut String) {
    if whole.iter().any(|w| w == name) {
        return;
    }
    let Some((_, text)) = FILES.iter().find(|(n, _)| *n == name) else {
        *out += &format!("#error \"kernels/{name} is missing\"\n");
        return;
    };
    let guard = name.replace(|c: char| !c.is_alphanumeric(), "_").to_uppercase();
    *out += &format!("#ifndef INCLUDED_{guard}\n#define INCLUDED_{guard}\n");
    expand(name, text, whole, out);
    *out += "#endif\n";
    whole.push(name.to_owned());
}

fn place(out: &mut String, line: usize, file: &str) {
    writeln!(out, "#line {line} \"{file}\"").expect("writing to a string succeeds");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::codegen::contracts;
    use crate::kernel::signature::{Bound, Space};
    use crate::kernel::{Access, Contract};
    use std::path::Path;

    fn libraries() -> impl Iterator<Item = (&'static str, &'static str)> {
        FILES.iter().copied().filter(|(name, _)| name.ends_with(".metal"))
    }

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
        let mut found = Vec::new();
        for part in ["", "generated"] {
            for entry in std::fs::read_dir(folder.join(part)).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|e| e == "metal" || e == "h") {
                    found.push(path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        found.sort();
        assert_eq!(found, FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "list them in kernel/source.rs");
    }

    /// Lines of a library with the places that a compiler would give them.
    fn placed(library: &str) -> Vec<(&str, usize, &str)> {
        let (mut file, mut number, mut lines) = ("", 0, Vec::new());
        for line in library.lines() {
            if let Some((at, name)) = line.strip_prefix("#line ").and_then(|l| l.split_once(' ')) {
                (file, number) = (name.trim_matches('"'), at.parse().unwrap());
            } else {
                lines.push((file, number, line));
                number += 1;
            }
        }
        lines
    }

    #[test]
    fn includes_are_written_out_and_places_stay_right() {
        for (file, text) in libraries() {
            let library = library(file, &["SOME_SWITCH"]);
            assert!(library.starts_with("#define SOME_SWITCH 1\n#line 1 \""), "{file}");
            assert!(!library.contains("#include \"") && !library.contains("#pragma once"), "{file}");
            let own = |line: &str| line.starts_with('#') && (line.contains(" INCLUDED_") || line == "#endif");
            for (name, number, line) in placed(&library).into_iter().filter(|(name, ..)| !name.is_empty()) {
                let (_, original) = FILES.iter().find(|(n, _)| *n == name).unwrap();
                let same = original.lines().nth(number - 1) == Some(line);
                assert!(same || line.is_empty() || own(line) || line.starts_with("#error"), "{name}:{number}: {line}");
            }
            assert!(text.lines().all(|l| l.starts_with('#') || library.contains(l)), "{file} is whole");
        }
    }

    #[test]
    fn a_header_is_written_once_unless_a_condition_hides_it() {
        let text = "#if A\n#include \"platform.h\"\n#endif\n#include \"platform.h\"\n#include \"platform.h\"\n";
        let mut out = String::new();
        expand("x.metal", text, &mut Vec::new(), &mut out);
        assert_eq!(out.matches("#define INCLUDED_PLATFORM_H\n").count(), 2);
        assert_eq!(out.matches("#ifndef INCLUDED_PLATFORM_H\n").count(), 2);
        let mut out = String::new();
        expand("x.metal", "#include \"nothing.h\"\n", &mut Vec::new(), &mut out);
        assert!(out.contains("#error \"kernels/nothing.h is missing\""), "{out}");
    }

    /// What a parameter of a contract must look like in the text.
    fn wanted(contract: &Contract) -> Vec<Bound> {
        let buffers = contract.params.iter().enumerate().map(|(index, param)| Bound {
            index,
            space: Space::Device,
            is_const: param.access == Access::Read,
            element: match param.element {
                "bf16" => "bfloat",
                "f32" => "float",
                "u32" => "uint",
                "u8" => "uchar",
                other => panic!("{}: element {other}", contract.name),
            }
            .into(),
            name: param.name.into(),
        });
        let args = Bound {
            index: contract.params.len(),
            space: Space::Constant,
            is_const: true,
            element: contract.layout.name.into(),
            name: "args".into(),
        };
        buffers.chain([args]).collect()
    }

    #[test]
    fn every_contract_has_its_entry_and_entries_bind_what_contracts_say() {
        let mut entries = Vec::new();
        for (file, text) in libraries() {
            let found = signatures(text);
            assert_eq!(found.len(), text.matches("kernel void ").count(), "{file}: a declaration was not understood");
            for entry in found {
                let contract = contracts().into_iter().find(|c| c.name == entry.name);
                let contract = contract.unwrap_or_else(|| panic!("{file}: `{}` has no contract", entry.name));
                assert_eq!(entry.buffers, wanted(contract), "{file}: `{}`", entry.name);
                assert_eq!(file_of(&entry.name), Some(file), "`{}` stands in two files", entry.name);
                entries.push(entry.name);
            }
        }
        let missing: Vec<&str> =
            contracts().iter().map(|c| c.name).filter(|name| !entries.iter().any(|e| e == name)).collect();
        assert_eq!(missing, ["attend_step"], "the one-kernel attention is for devices with few threads");
    }
}
