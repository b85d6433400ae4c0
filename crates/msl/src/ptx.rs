//! From a `.metal` file to PTX, the assembly that NVIDIA's driver takes, one text for each kernel.
//!
//! Function constants stand in it as `SM_CONSTANT_n`, to be replaced by numbers ([`specialise`]); the driver's compiler does
//! away with what they decide against. Threadgroup memory is dynamic shared memory, whose size comes with the kernel.

use crate::clang::{Clang, EXTENSIONS, Error, LANGUAGE, explicit_bfloats};
use crate::rewrite::{self, Target};
use std::path::{Path, PathBuf};

/// What the name of an entry begins with; the kernel's name follows.
pub const ENTRY: &str = "sm_run_";

/// A kernel in PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// The text.
    pub text: String,
    /// Threadgroup memory that it needs.
    pub threadgroup_bytes: u32,
    /// Whether it has something to do before it waits for the kernels before it, so that it is worth an early start.
    pub early: bool,
}

/// What stands for a function constant in a text: this, the index and a semicolon.
pub const CONSTANT: &str = "SM_CONSTANT_";

/// What every kernel does first: it lets those after it start.
pub const STARTED: &str = "griddepcontrol.launch_dependents;";

/// The same of a kernel that then waits for those before it. In the place of [`STARTED`] it makes one that touches nothing early.
pub const STARTED_LATE: &str = "griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;";

/// A text with values in place of its function constants.
pub fn specialise(text: &str, constants: impl Iterator<Item = (u32, u32)>) -> String {
    let value = |text: String, (index, value)| text.replace(&format!("{CONSTANT}{index};"), &format!("{value};"));
    constants.fold(text.to_owned(), value)
}

/// Macros that tell kernel text how it is run: buffers are aligned, kernels may start early, matrix tiles are those of
/// the hardware.
const DEFINES: [&str; 3] = ["LILY_ALIGNED", "LILY_EARLY_START", "LILY_MMA"];

/// Compiles the kernels of a file for GPUs of an architecture (`sm_90a`) and newer ones that run its code.
///
/// # Errors
/// If there is no compiler, or the text is refused at any stage.
pub fn compile(source: &Path, includes: &[PathBuf], architecture: &str) -> Result<Vec<Kernel>, Error> {
    let clang = Clang::find()?;
    let preprocessed = clang.preprocess(source, includes, &DEFINES)?;
    let rewritten = rewrite::rewrite(&preprocessed, Target::Ptx)?;
    let headers = ["ptx", "common"].map(|folder| crate::shim().join(folder).display().to_string());
    let target = ["-triple", "nvptx64-nvidia-cuda", "-target-cpu", architecture, "-target-feature", "+ptx80"];
    let mut arguments = vec!["-cc1"];
    arguments.extend(target);
    arguments.extend(LANGUAGE);
    arguments.extend([EXTENSIONS, "-I", &headers[0], "-I", &headers[1], "-Wno-undefined-internal"]);
    arguments.extend(["-O3", "-disable-llvm-passes", "-emit-llvm", "-o", "-", "-"]);
    let (ir, messages) = clang.run("compiling", source, &arguments, Some(&rewritten.text))?;
    explicit_bfloats(source, &messages)?;
    let mut arguments = vec!["-cc1"];
    arguments.extend(target);
    arguments.extend(["-O3", "-ffp-contract=on", "-x", "ir", "-S", "-o", "-", "-"]);
    let (text, _) = clang.run("assembling", source, &arguments, Some(&addresses(&ir)))?;
    rewritten.kernels.iter().map(|kernel| split(&text, &kernel.name, kernel.waits, source)).collect()
}

/// Constant memory becomes plain memory, because the bank that the hardware has for it cannot hold a buffer or a parameter; the
/// arena becomes the dynamic shared memory of the launch, where matrix units read rows whose places depend on 10 bits of the
/// address.
fn addresses(ir: &str) -> String {
    let mut out = String::with_capacity(ir.len());
    for line in ir.lines() {
        if line.contains("sm_arena =") && line.contains("addrspace(3) global") {
            let name = line.split(' ').next().unwrap_or_default();
            out += name;
            out += " = external addrspace(3) global [0 x i8], align 1024";
        } else {
            out += &line.replace(" addrspace(4)", "").replace("addrspacecast (ptr @", "bitcast (ptr @");
        }
        out.push('\n');
    }
    out
}

/// The text of one entry, with what stands before all entries.
fn split(text: &str, name: &str, early: bool, source: &Path) -> Result<Kernel, Error> {
    let fail = |message: String| Error::Ptx { file: source.display().to_string(), message };
    let head = format!(".visible .entry {ENTRY}{name}(");
    let start = text.find(&head).ok_or_else(|| fail(format!("no entry `{name}`")))?;
    let end = start + text[start..].find("\n}\n").ok_or_else(|| fail(format!("`{name}` does not end")))? + 3;
    let entry = &text[start..end];
    let mut before = String::new();
    for line in text.lines() {
        let directive = [".version", ".target", ".address_size"].iter().any(|d| line.starts_with(d));
        // Shared memory of this entry alone: every kernel has a text of its own.
        let own = line.starts_with(".extern .shared") && line.contains("sm_arena") && entry.contains(shared(line));
        if directive || own {
            before += line;
            before.push('\n');
        }
    }
    let outside = entry.contains("call.uni") || entry.contains("call (");
    if outside {
        return Err(fail(format!("`{name}` calls a function that was not inlined")));
    }
    let told = |what: &str| {
        let number = |line: &str| line.trim().strip_prefix(what)?.parse::<u32>().ok();
        entry.lines().filter_map(number).max()
    };
    let threadgroup_bytes = told("// sm_arena ").unwrap_or(0);
    let directives = [("// sm_registers ", ".maxnreg"), ("// sm_threads ", ".maxntid")];
    let limits = directives.iter().filter_map(|(what, directive)| Some(format!("{directive} {}\n", told(what)?)));
    let entry = entry.replacen("\n{", &format!("\n{}{{", limits.collect::<String>()), 1);
    Ok(Kernel { name: name.to_owned(), text: format!("{before}{entry}"), threadgroup_bytes, early })
}

/// The name that a declaration of shared memory declares.
fn shared(line: &str) -> &str {
    line.split('[').next().and_then(|declared| declared.rsplit(' ').next()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_lily_becomes_an_entry_of_its_own() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
        let mut kernels = Vec::new();
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "metal") {
                let text = std::fs::read_to_string(&path).unwrap();
                let compiled =
                    compile(&path, std::slice::from_ref(&folder), "sm_90a").unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(compiled.len(), text.matches("kernel void ").count(), "{}", path.display());
                kernels.extend(compiled);
            }
        }
        for kernel in &kernels {
            let (name, text) = (&kernel.name, &kernel.text);
            assert_eq!(text.matches(".entry ").count(), 1, "{name}");
            assert!(text.starts_with(".version 8.0"), "{name}");
            assert_eq!(text.contains("sm_arena["), kernel.threadgroup_bytes > 0, "{name}");
            assert_eq!(text.matches(STARTED).count(), 1, "{name}");
            let late = text.replace(STARTED, STARTED_LATE);
            let before = &late[..late.find("griddepcontrol.wait;").expect("it waits")];
            assert!(
                !before.contains(".global") && !before.contains("cp.async"),
                "{name} touches memory before it waits"
            );
            let special = specialise(text, (0..32).map(|i| (i, 64)));
            assert!(!special.contains(CONSTANT), "{name}");
        }
        let attend = kernels.iter().find(|k| k.name == "attend").expect("attention");
        assert!(attend.text.contains("wgmma.mma_async") && attend.text.contains(&format!("{CONSTANT}6;")));
        assert!(kernels.iter().any(|k| k.threadgroup_bytes > 16 << 10));
        let mut limited: Vec<&str> =
            kernels.iter().filter(|k| k.text.contains(".maxnreg ")).map(|k| k.name.as_str()).collect();
        limited.sort_unstable();
        assert_eq!(limited, ["experts_gate_up_step", "router"]);
        let step = kernels.iter().find(|k| k.name == "delta_step").expect("the delta rule");
        assert!(step.text.contains(")\n.maxntid 512\n{\n"), "its attribute says so");
    }

    /// Compiles the parameters and the body of a kernel `k`.
    fn compile_kernel(name: &str, kernel: &str) -> Result<Kernel, Error> {
        let path = std::env::temp_dir().join(format!("msl-{name}-{}.metal", std::process::id()));
        let text = format!("#include <metal_stdlib>\nusing namespace metal;\nkernel void k{kernel}\n");
        std::fs::write(&path, text).unwrap();
        let kernels = compile(&path, &[], "sm_90a");
        std::fs::remove_file(&path).unwrap();
        Ok(kernels?.pop().unwrap())
    }

    #[test]
    fn what_cannot_become_ptx_is_refused() {
        let kernel = "(device float* x [[buffer(0)]], constant uint& n [[buffer(1)]]) { x[n] = atan(x[0]); }";
        let error = compile_kernel("call", kernel).unwrap_err().to_string();
        assert!(error.contains("`k` calls a function"), "{error}");
    }

    #[test]
    fn a_limit_of_registers_stands_before_the_body() {
        let body = |first: &str| format!("(device float* x [[buffer(0)]]) {{ {first} x[0] = 1; }}");
        let limited = compile_kernel("registers", &body("limit_registers<40>();")).unwrap().text;
        assert!(limited.contains(")\n.maxnreg 40\n{\n"), "{limited}");
        // The smallest of several is not known to be enough for all: the largest counts.
        let twice = compile_kernel("twice", &body("limit_registers<40>(); limit_registers<96>();")).unwrap().text;
        assert!(twice.contains(".maxnreg 96\n") && !twice.contains(".maxnreg 40"), "{twice}");
        assert!(!compile_kernel("free", &body("")).unwrap().text.contains("maxnreg"));
    }

    #[test]
    fn threadgroup_memory_is_what_a_multiprocessor_has() {
        let kernel = |floats: u32| {
            format!(
                "(device float* x [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) \
                 {{ threadgroup float a[{floats}]; a[i] = x[i]; threadgroup_barrier(mem_flags::mem_threadgroup); \
                 x[i] = a[i ^ 1]; }}"
            )
        };
        assert_eq!(compile_kernel("all", &kernel(57_344)).unwrap().threadgroup_bytes, 224 << 10);
        let error = compile_kernel("more", &kernel(57_345)).unwrap_err().to_string();
        assert!(error.contains("at most 229376 bytes"), "{error}");
    }
}
