//! Writes the PTX of a kernel file: `cargo run -p msl --example ptx -- FILE.metal FOLDER [index=value ...]`.

use std::path::{Path, PathBuf};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (source, folder) = (PathBuf::from(&arguments[0]), PathBuf::from(&arguments[1]));
    let pairs = arguments[2..].iter().filter_map(|a| a.split_once('='));
    let constants: Vec<(u32, u32)> = pairs.map(|(i, v)| (i.parse().unwrap(), v.parse().unwrap())).collect();
    let includes = [source.parent().unwrap_or(Path::new(".")).to_owned()];
    let kernels = msl::ptx::compile(&source, &includes, "sm_90a").unwrap_or_else(|error| panic!("{error}"));
    for kernel in kernels {
        let text = msl::ptx::specialise(&kernel.text, constants.iter().copied());
        let text = format!("// bytes {}\n{text}", kernel.threadgroup_bytes);
        std::fs::write(folder.join(format!("{}.ptx", kernel.name)), text).unwrap();
        println!("{} {}", kernel.name, kernel.threadgroup_bytes);
    }
}
