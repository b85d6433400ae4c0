//! With the feature `cuda`, compiles the kernels to PTX and writes the table of them that the backend includes.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "cuda")]
    ptx::build();
}

#[cfg(feature = "cuda")]
mod ptx {
    use std::fmt::Write;
    use std::path::{Path, PathBuf};

    /// The architecture that the kernels are compiled for, with the instructions of it alone.
    const ARCHITECTURE: &str = "sm_90a";

    pub fn build() {
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
        println!("cargo::rerun-if-changed={}", kernels.display());
        println!("cargo::rerun-if-changed={}", msl::shim().display());
        use msl::ptx::{CONSTANT, ENTRY, STARTED, STARTED_LATE};
        let names = [("CONSTANT", CONSTANT), ("ENTRY", ENTRY), ("STARTED", STARTED), ("STARTED_LATE", STARTED_LATE)];
        let mut table: String = names.map(|(name, text)| format!("const {name}: &str = {text:?};\n")).concat();
        table += "static KERNELS: &[Ptx] = &[\n";
        for source in sources(&kernels) {
            let compiled = msl::ptx::compile(&source, std::slice::from_ref(&kernels), ARCHITECTURE)
                .unwrap_or_else(|error| panic!("the feature `cuda` compiles kernels with clang: {error}"));
            for kernel in compiled {
                let file = out.join(format!("{}.ptx", kernel.name));
                std::fs::write(&file, &kernel.text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
                let (name, bytes, early) = (kernel.name, kernel.threadgroup_bytes, kernel.early);
                writeln!(
                    table,
                    "Ptx {{ name: {name:?}, text: include_str!({:?}), threadgroup_bytes: {bytes}, early: {early} }},",
                    file.display().to_string()
                )
                .expect("writing to a string succeeds");
            }
        }
        table += "];\n";
        std::fs::write(out.join("ptx.rs"), table).unwrap_or_else(|error| panic!("ptx.rs: {error}"));
    }

    /// The kernel files, in order of their names.
    fn sources(kernels: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(kernels).unwrap_or_else(|error| panic!("{}: {error}", kernels.display()));
        let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        files.retain(|path| path.extension().is_some_and(|e| e == "metal"));
        files.sort();
        files
    }
}
