//! From a `.metal` file to a shared library, by way of clang and the rewriter.
//!
//! Libraries are kept under `target/soft-metal`, named by a hash of everything they are made from. Several processes may
//! compile the same text: each writes aside and renames.

use crate::rewrite::{self, RewriteError, Rewritten};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Compilers that work, best first.
const CLANG: [&str; 4] = ["clang-19", "clang-20", "clang-21", "clang-22"];

/// How a library is instrumented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Checks of alignment and of array bounds only.
    Plain,
    /// Every memory access is also reported to the run time, which looks for races; 5 to 15 times slower.
    Races,
}

/// Why a file could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// No compiler.
    #[error("none of {} is installed; `apt-get install clang-19`, or run `cargo xtask ci`, which does", CLANG.join(", "))]
    NoClang,
    /// The processor lacks instructions that compiled kernels use.
    #[error("this processor has no {0}, which compiled kernels use")]
    Processor(&'static str),
    /// A file or program could not be used.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The text has a construct that is not known or not allowed.
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
    /// The compiler refuses the text.
    #[error("{stage} {file}:\n{messages}")]
    Clang {
        /// Preprocessing, compiling or linking.
        stage: &'static str,
        /// The file.
        file: String,
        /// What the compiler says.
        messages: String,
    },
    /// The library lacks what the rewriter should have put in.
    #[error("the compiled library: {0}")]
    Library(String),
}

impl CompileError {
    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| CompileError::Io { what, error }
    }
}

/// A compiled file.
pub struct Compiled {
    /// The shared library.
    pub library: PathBuf,
    /// What the rewriter found.
    pub rewritten: Rewritten,
}

/// Compiles a file; `includes` are searched for its headers, `defines` are macros that the text sees as 1.
///
/// # Errors
/// If there is no compiler, or the text is refused at any stage.
pub fn compile(source: &Path, includes: &[PathBuf], defines: &[&str], mode: Mode) -> Result<Compiled, CompileError> {
    processor()?;
    let clang = Clang::find()?;
    let preprocessed = clang.preprocess(source, includes, defines)?;
    let rewritten = rewrite::rewrite(&preprocessed)?;
    let folder = cache();
    fs::create_dir_all(&folder).map_err(CompileError::io(folder.display().to_string()))?;
    let mut hash = Sha256::new();
    // This file is part of the recipe.
    let recipe = include_str!("compile.rs").to_owned();
    for text in [&recipe, &clang.version, &rewritten.text, &format!("{mode:?}{}", clang.flags(mode).join(" "))] {
        hash.update(text.as_bytes());
        hash.update([0]);
    }
    for (name, text) in shim_files()? {
        hash.update(name.as_bytes());
        hash.update(text);
    }
    let key: String = hash.finalize().iter().take(12).map(|b| format!("{b:02x}")).collect();
    let stem = source.file_stem().map_or("kernel".into(), |s| s.to_string_lossy().into_owned());
    let library = folder.join(format!("{stem}-{key}.so"));
    if !library.is_file() {
        clang.build(source, &rewritten.text, mode, &library)?;
    }
    Ok(Compiled { library, rewritten })
}

/// Where libraries are kept.
fn cache() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/soft-metal")
}

/// Where the shim is.
fn shim() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("shim")
}

/// Name and contents of everything that is compiled into each library.
fn shim_files() -> Result<Vec<(String, Vec<u8>)>, CompileError> {
    let mut files = Vec::new();
    for folder in [shim(), shim().join("sm")] {
        let entries = fs::read_dir(&folder).map_err(CompileError::io(folder.display().to_string()))?;
        for path in entries.filter_map(|e| e.ok()).map(|e| e.path()).filter(|p| p.is_file()) {
            let text = fs::read(&path).map_err(CompileError::io(path.display().to_string()))?;
            files.push((path.display().to_string(), text));
        }
    }
    files.sort();
    Ok(files)
}

fn processor() -> Result<(), CompileError> {
    let missing = [
        ("AVX2", std::arch::is_x86_feature_detected!("avx2")),
        ("FMA", std::arch::is_x86_feature_detected!("fma")),
        ("F16C", std::arch::is_x86_feature_detected!("f16c")),
        ("BMI2", std::arch::is_x86_feature_detected!("bmi2")),
    ];
    missing.iter().find(|(_, present)| !present).map_or(Ok(()), |(name, _)| Err(CompileError::Processor(name)))
}

struct Clang {
    program: &'static str,
    version: String,
}

/// Options that make clang's OpenCL-C++ mode take nearly Metal.
const LANGUAGE: [&str; 12] = [
    "-x",
    "clcpp",
    "-cl-std=clc++2021",
    "-cl-single-precision-constant",
    "-ffp-contract=on",
    "-fbfloat16-excess-precision=none",
    "-ffloat16-excess-precision=none",
    "-Wno-c++11-narrowing",
    "-Wno-unused-value",
    "-Wimplicit-float-conversion",
    "-ferror-limit",
    "10",
];

/// Features that the mode leaves out by default.
const EXTENSIONS: &str = "-cl-ext=+cl_khr_fp16,+cl_khr_fp64,+__cl_clang_function_pointers,\
    +__cl_clang_variadic_functions,+__cl_clang_bitfields,+__opencl_c_generic_address_space,\
    +__opencl_c_program_scope_global_variables";

impl Clang {
    fn find() -> Result<Self, CompileError> {
        for program in CLANG {
            if let Ok(output) = Command::new(program).arg("--version").output()
                && output.status.success()
            {
                return Ok(Self { program, version: String::from_utf8_lossy(&output.stdout).into_owned() });
            }
        }
        Err(CompileError::NoClang)
    }

    fn flags(&self, mode: Mode) -> Vec<&'static str> {
        let mut flags = vec!["-cc1", "-triple", "x86_64-unknown-linux-gnu", "-target-cpu", "x86-64-v3"];
        flags.extend(LANGUAGE);
        flags.push(EXTENSIONS);
        flags.extend(["-mrelocation-model", "pic", "-pic-level", "2", "-fvisibility=hidden", "-O2"]);
        flags.extend(["-debug-info-kind=line-tables-only", "-dwarf-version=4"]);
        let sanitizers = "-fsanitize=alignment,array-bounds";
        let traps = "-fsanitize-trap=alignment,array-bounds";
        // Large frames touch every page, so that none is entered past the guard page of a stack.
        flags.extend([sanitizers, traps, "-fstack-clash-protection"]);
        // Every check traps at an instruction of its own, which tells its line; newer compilers do so anyway.
        flags.extend(["-mllvm", "-enable-tail-merge=0"]);
        if self.program == "clang-19" {
            flags.extend(["-mllvm", "-ubsan-unique-traps"]);
        }
        match mode {
            Mode::Plain => flags.extend(["-vectorize-loops", "-vectorize-slp"]),
            // Not vectorised: the sanitiser overlooks accesses of more than 16 bytes.
            Mode::Races => flags.push("-fsanitize=thread"),
        }
        flags
    }

    /// Runs the compiler, with text on its standard input if there is any.
    fn run(
        &self,
        stage: &'static str,
        source: &Path,
        arguments: &[&str],
        input: Option<&str>,
    ) -> Result<(String, String), CompileError> {
        let io = || CompileError::io(format!("cannot run {}", self.program));
        let mut command = Command::new(self.program);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().map_err(io())?;
        if let (Some(text), Some(mut pipe)) = (input, child.stdin.take()) {
            // A compiler that stops early closes the pipe; its messages say why.
            let _ = pipe.write_all(text.as_bytes());
        }
        let output = child.wait_with_output().map_err(io())?;
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            return Err(CompileError::Clang { stage, file: source.display().to_string(), messages });
        }
        Ok((String::from_utf8_lossy(&output.stdout).into_owned(), messages))
    }

    fn preprocess(&self, source: &Path, includes: &[PathBuf], defines: &[&str]) -> Result<String, CompileError> {
        let (stubs, file) = (shim().join("stubs").display().to_string(), source.display().to_string());
        let mut arguments = vec!["-E", "-x", "c++", "-std=c++17", "-nostdinc", "-nostdinc++", "-undef"];
        arguments.extend(["-D__METAL_VERSION__=400", "-D__METAL__=1", "-D__HAVE_BFLOAT__=1", "-I", &stubs]);
        let folders: Vec<String> = includes.iter().map(|i| i.display().to_string()).collect();
        folders.iter().for_each(|f| arguments.extend(["-I", f]));
        defines.iter().for_each(|d| arguments.extend(["-D", d]));
        arguments.push(&file);
        Ok(self.run("preprocessing", source, &arguments, None)?.0)
    }

    fn build(&self, source: &Path, text: &str, mode: Mode, library: &Path) -> Result<(), CompileError> {
        let aside = |ending: &str| library.with_extension(format!("{}.{ending}", std::process::id()));
        let (object, support, races, linked) = (aside("o"), aside("support.o"), aside("races.o"), aside("so"));
        let names = [&object, &support, &races, &linked].map(|p| p.display().to_string());
        let include = shim().display().to_string();
        let mut arguments = self.flags(mode);
        arguments.extend(["-I", &include, "-emit-obj", "-o", &names[0], "-"]);
        let (_, messages) = self.run("compiling", source, &arguments, Some(text))?;
        explicit_bfloats(source, &messages)?;
        let define = if mode == Mode::Races { "-DSM_RACES" } else { "-USM_RACES" };
        let mut objects = vec![names[0].as_str()];
        for (name, object) in [("support.c", &names[1]), ("races.c", &names[2])] {
            if name == "support.c" || mode == Mode::Races {
                let text = shim().join(name).display().to_string();
                self.run("compiling", source, &["-O2", "-fPIC", define, "-c", &text, "-o", object], None)?;
                objects.push(object);
            }
        }
        let mut arguments = vec!["-shared", "-nostdlib", "-Wl,-z,defs", "-o", &names[3]];
        arguments.extend(&objects);
        arguments.extend(["-lm", "-lc"]);
        self.run("linking", source, &arguments, None)?;
        fs::rename(&linked, library).map_err(CompileError::io(library.display().to_string()))?;
        for object in objects {
            fs::remove_file(object).map_err(CompileError::io(object))?;
        }
        Ok(())
    }
}

/// Metal converts to bfloat only where the text says so; clang warns of such conversions among others.
fn explicit_bfloats(source: &Path, messages: &str) -> Result<(), CompileError> {
    let implicit = |line: &&str| {
        let target = line.split_once(" to '").map_or("", |(_, target)| target);
        line.contains("implicit conversion") && target.contains("bf")
    };
    let breaches: Vec<&str> = messages.lines().filter(implicit).collect();
    if breaches.is_empty() {
        return Ok(());
    }
    let messages = format!("{}\nMetal converts to bfloat only explicitly: write bfloat(x)", breaches.join("\n"));
    Err(CompileError::Clang { stage: "compiling", file: source.display().to_string(), messages })
}
