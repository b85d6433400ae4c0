//! Finding and running clang in its OpenCL-C++ mode.

use crate::rewrite::RewriteError;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Compilers that work, best first.
pub const CLANG: [&str; 4] = ["clang-19", "clang-20", "clang-21", "clang-22"];

/// Why a text could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No compiler.
    #[error("none of {} is installed; `apt-get install clang-19`, or run `cargo xtask ci`, which does", CLANG.join(", "))]
    NoClang,
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
    /// The compiler's output has not the form that is counted on.
    #[error("{file} as PTX: {message}")]
    Ptx {
        /// The kernel file.
        file: String,
        /// What is missing.
        message: String,
    },
}

impl Error {
    /// An error of the system at something that was tried.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Error::Io { what, error }
    }
}

/// Options that make clang's OpenCL-C++ mode take nearly Metal.
pub const LANGUAGE: [&str; 12] = [
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
pub const EXTENSIONS: &str = "-cl-ext=+cl_khr_fp16,+cl_khr_fp64,+__cl_clang_function_pointers,\
    +__cl_clang_variadic_functions,+__cl_clang_bitfields,+__opencl_c_generic_address_space,\
    +__opencl_c_program_scope_global_variables";

/// An installed compiler.
pub struct Clang {
    /// Its name.
    pub program: &'static str,
    /// What it says of itself.
    pub version: String,
}

impl Clang {
    /// The best one that is installed.
    ///
    /// # Errors
    /// If there is none.
    pub fn find() -> Result<Self, Error> {
        for program in CLANG {
            if let Ok(output) = Command::new(program).arg("--version").output()
                && output.status.success()
            {
                return Ok(Self { program, version: String::from_utf8_lossy(&output.stdout).into_owned() });
            }
        }
        Err(Error::NoClang)
    }

    /// Runs the compiler on behalf of `source`, with text on its standard input if there is any. Gives its output and its
    /// messages.
    ///
    /// # Errors
    /// If it cannot be started, or refuses.
    pub fn run(
        &self,
        stage: &'static str,
        source: &Path,
        arguments: &[&str],
        input: Option<&str>,
    ) -> Result<(String, String), Error> {
        let io = || Error::io(format!("cannot run {}", self.program));
        let mut command = Command::new(self.program);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().map_err(io())?;
        let mut pipe = child.stdin.take();
        let output = std::thread::scope(|scope| {
            // The compiler may write before it has read all.
            scope.spawn(move || {
                if let (Some(text), Some(pipe)) = (input, &mut pipe) {
                    // A compiler that stops early closes the pipe; its messages say why.
                    let _ = pipe.write_all(text.as_bytes());
                }
            });
            child.wait_with_output()
        });
        let output = output.map_err(io())?;
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            return Err(Error::Clang { stage, file: source.display().to_string(), messages });
        }
        Ok((String::from_utf8_lossy(&output.stdout).into_owned(), messages))
    }

    /// Preprocesses a kernel file against headers that hold macros only; `includes` are searched for its own headers,
    /// `defines` are macros that the text sees as 1.
    ///
    /// # Errors
    /// If a header is missing.
    pub fn preprocess(&self, source: &Path, includes: &[PathBuf], defines: &[&str]) -> Result<String, Error> {
        let (stubs, file) = (crate::shim().join("stubs").display().to_string(), source.display().to_string());
        let mut arguments = vec!["-E", "-x", "c++", "-std=c++17", "-nostdinc", "-nostdinc++", "-undef"];
        arguments.extend(["-D__METAL_VERSION__=400", "-D__METAL__=1", "-D__HAVE_BFLOAT__=1", "-I", &stubs]);
        let folders: Vec<String> = includes.iter().map(|i| i.display().to_string()).collect();
        folders.iter().for_each(|f| arguments.extend(["-I", f]));
        defines.iter().for_each(|d| arguments.extend(["-D", d]));
        arguments.push(&file);
        Ok(self.run("preprocessing", source, &arguments, None)?.0)
    }
}

/// Metal converts to bfloat only where the text says so; clang warns of such conversions among others.
///
/// # Errors
/// If the compiler's messages name one.
pub fn explicit_bfloats(source: &Path, messages: &str) -> Result<(), Error> {
    let implicit = |line: &&str| {
        let target = line.split_once(" to '").map_or("", |(_, target)| target);
        line.contains("implicit conversion") && target.contains("bf")
    };
    let breaches: Vec<&str> = messages.lines().filter(implicit).collect();
    if breaches.is_empty() {
        return Ok(());
    }
    let messages = format!("{}\nMetal converts to bfloat only explicitly: write bfloat(x)", breaches.join("\n"));
    Err(Error::Clang { stage: "compiling", file: source.display().to_string(), messages })
}
