//! From a `.metal` file to a shared library, by way of clang and the rewriter.
//!
//! Libraries are kept under `target/soft-metal`, named by a hash of everything they are made from. Several processes may
//! compile the same text: each writes aside and renames.

use msl::clang::{EXTENSIONS, LANGUAGE, explicit_bfloats};
use msl::{Clang, Error, Rewritten, Target};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// The macro that tells kernel text, and the shim, of NVIDIA's GPUs.
pub const NVIDIA: &str = "LILY_MMA";

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
    /// There is no compiler, or it or the rewriter refuses the text.
    #[error(transparent)]
    Text(#[from] Error),
    /// The processor lacks instructions that compiled kernels use.
    #[error("this processor has no {0}, which compiled kernels use")]
    Processor(&'static str),
    /// The library lacks what the rewriter should have put in.
    #[error("the compiled library: {0}")]
    Library(String),
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
    let target = if defines.contains(&NVIDIA) { Target::SoftNvidia } else { Target::SoftMetal };
    let rewritten = msl::rewrite(&preprocessed, target).map_err(Error::from)?;
    let folder = cache();
    fs::create_dir_all(&folder).map_err(Error::io(folder.display().to_string()))?;
    let mut hash = Sha256::new();
    // This file is part of the recipe.
    let recipe = include_str!("compile.rs").to_owned();
    let options = format!("{mode:?}{}{defines:?}", flags(&clang, mode).join(" "));
    for text in [&recipe, &clang.version, &rewritten.text, &options] {
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
        build(&clang, source, &rewritten.text, defines, mode, &library)?;
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
    for folder in [shim(), shim().join("sm"), msl::shim().join("common")] {
        let entries = fs::read_dir(&folder).map_err(Error::io(folder.display().to_string()))?;
        for path in entries.filter_map(|e| e.ok()).map(|e| e.path()).filter(|p| p.is_file()) {
            let text = fs::read(&path).map_err(Error::io(path.display().to_string()))?;
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

/// The compiler's options.
fn flags(clang: &Clang, mode: Mode) -> Vec<&'static str> {
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
    if clang.program == "clang-19" {
        flags.extend(["-mllvm", "-ubsan-unique-traps"]);
    }
    match mode {
        Mode::Plain => flags.extend(["-vectorize-loops", "-vectorize-slp"]),
        // Not vectorised: the sanitiser overlooks accesses of more than 16 bytes.
        Mode::Races => flags.push("-fsanitize=thread"),
    }
    flags
}

/// Compiles rewritten text into a library.
fn build(
    clang: &Clang,
    source: &Path,
    text: &str,
    defines: &[&str],
    mode: Mode,
    library: &Path,
) -> Result<(), CompileError> {
    let aside = |ending: &str| library.with_extension(format!("{}.{ending}", std::process::id()));
    let (object, support, races, linked) = (aside("o"), aside("support.o"), aside("races.o"), aside("so"));
    let names = [&object, &support, &races, &linked].map(|p| p.display().to_string());
    let headers = [shim().join("sm"), msl::shim().join("common")].map(|folder| folder.display().to_string());
    let defined: Vec<String> = defines.iter().map(|name| format!("-D{name}")).collect();
    let mut arguments = flags(clang, mode);
    arguments.extend(defined.iter().map(String::as_str));
    arguments.extend(["-I", &headers[0], "-I", &headers[1], "-emit-obj", "-o", &names[0], "-"]);
    let (_, messages) = clang.run("compiling", source, &arguments, Some(text))?;
    explicit_bfloats(source, &messages)?;
    let define = if mode == Mode::Races { "-DSM_RACES" } else { "-USM_RACES" };
    let mut objects = vec![names[0].as_str()];
    for (name, object) in [("support.c", &names[1]), ("races.c", &names[2])] {
        if name == "support.c" || mode == Mode::Races {
            let text = shim().join(name).display().to_string();
            clang.run("compiling", source, &["-O2", "-fPIC", define, "-c", &text, "-o", object], None)?;
            objects.push(object);
        }
    }
    let mut arguments = vec!["-shared", "-nostdlib", "-Wl,-z,defs", "-o", &names[3]];
    arguments.extend(&objects);
    arguments.extend(["-lm", "-lc"]);
    clang.run("linking", source, &arguments, None)?;
    fs::rename(&linked, library).map_err(Error::io(library.display().to_string()))?;
    for object in objects {
        fs::remove_file(object).map_err(Error::io(object))?;
    }
    Ok(())
}
