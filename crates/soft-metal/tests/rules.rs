//! Kernel text that Apple's compiler would refuse, or that soft-metal does not know, is refused with its line.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use soft_metal::{Library, Mode};
use std::path::PathBuf;

/// Compiles text as a file of its own; gives the error.
fn compile(name: &str, text: &str) -> Result<Library, String> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{name}.metal"));
    std::fs::write(&path, format!("#include <metal_stdlib>\nusing namespace metal;\n{text}\n")).unwrap();
    Library::compile(&path, &[], &[], Mode::Plain).map_err(|error| error.to_string())
}

/// The text must be refused at the line (of `text`, from 1), with these words.
fn refused(name: &str, text: &str, line: usize, words: &str) {
    let error = compile(name, text).err().unwrap_or_else(|| panic!("{name} was compiled"));
    let place = format!("{name}.metal:{}", line + 2);
    assert!(error.contains(&place), "{place} is not in: {error}");
    assert!(error.contains(words), "`{words}` is not in: {error}");
}

/// A kernel with this statement in its body, on line 2.
fn body(statement: &str) -> String {
    format!(
        "[[kernel]] void k(device float* x [[buffer(0)]], device const float* c [[buffer(1)]], uint i [[thread_index_in_threadgroup]]) {{\n{statement}\n}}"
    )
}

#[test]
fn address_spaces_do_not_mix() {
    refused("spaces", &body("threadgroup float* t = x; t[0] = 1;"), 2, "__local");
    refused("thread_space", &body("thread float* t = x; t[0] = 1;"), 2, "__private");
    refused("const_write", &body("c[i] = 1;"), 2, "read-only");
    let text = "void f(constant uint& n) { n = 1; }";
    refused("constant_write", text, 1, "constant");
}

#[test]
fn pointers_and_references_name_their_space() {
    refused("pointer", "float f(const float* p) { return p[0]; }", 1, "names no address space");
    refused("reference", "struct S { float a; };\nfloat f(S& s) { return s.a; }", 2, "names no address space");
    refused("vector", "template <typename T> T f(vec<T, 4>* p) { return p[0].x; }", 1, "names no address space");
    compile(
        "named",
        "float f(thread float& a, device const uint* b, const constant half* c) { return a * b[0] * c[0]; }",
    )
    .unwrap();
}

#[test]
fn what_metal_lacks_is_refused() {
    refused("double", &body("x[i] = double(1);"), 2, "Metal has no double");
    refused("goto", &body("end: goto end;"), 2, "no goto");
    refused("new", &body("thread float* p = new float;"), 2, "no allocation");
    refused("recursion", "uint f(uint n) { return n < 2 ? 1 : n * f(n - 1); }", 1, "calls itself");
    let mutual = "uint g(uint n);\nuint f(uint n) { return g(n); }\nuint g(uint n) { return f(n); }";
    refused("mutual", mutual, 2, "calls itself");
    refused("elements", &body("simdgroup_float8x8 m(0.0f); m.thread_elements()[0] = 1;"), 2, "not specified");
}

#[test]
fn conversions_to_bfloat_are_explicit() {
    refused("bfloat", "float g(float a) { bfloat b = a; return float(b); }", 1, "write bfloat(x)");
    compile("explicit", "float g(float a) { bfloat b = bfloat(a); half h = a; return float(b) + h; }").unwrap();
}

#[test]
fn overloads_that_metal_lacks_are_refused() {
    refused("exp", "float g(bfloat a) { return float(exp(a)); }", 1, "convert bfloat");
    refused("max", "float g(uint a, int b) { return float(max(a, b)); }", 1, "no matching function");
    refused("sum", "float g(bfloat a) { return float(simd_sum(a)); }", 1, "SIMD-group functions take");
    refused("count", "float4 g(float2 a) { return float4(a, 1.0f); }", 1, "exactly as many elements");
}

#[test]
fn the_convention_for_kernels_is_held() {
    refused("plain", "[[kernel]] void k(device float* x) { x[0] = 1; }", 1, "needs an attribute");
    refused("unknown", "[[kernel]] void k(device float* x [[raster_order_group(0)]]) { x[0] = 1; }", 1, "not known");
    refused(
        "nested",
        "namespace n { [[kernel]] void k(device float* x [[buffer(0)]]) { x[0] = 1; } }",
        1,
        "file level",
    );
    refused("dynamic", "[[kernel]] void k(threadgroup float* t [[threadgroup(0)]]) { t[0] = 1; }", 1, "not known");
    let twice = "[[kernel]] void k(device float* x [[buffer(0)]]) { x[0] = 1; }\n[[host_name(\"k\")]] [[kernel]] void j(device float* x [[buffer(0)]]) { x[0] = 1; }";
    refused("twice", twice, 2, "two kernels are called `k`");
    let constants = "constant uint A [[function_constant(0)]];\nconstant uint B [[function_constant(0)]];";
    refused("constants", constants, 2, "taken by `A`");
    refused("wide", "constant float4 A [[function_constant(0)]];", 1, "TYPE one of");
}

#[test]
fn threadgroup_memory_is_limited_and_declared_in_kernels() {
    refused(
        "limit",
        &body("threadgroup float a[8000]; threadgroup float b[193]; a[i] = 0; b[i] = 0;"),
        2,
        "at most 32768",
    );
    compile("within", &body("threadgroup float a[8000]; threadgroup float b[192]; a[i] = 0; b[i] = 0;")).unwrap();
    refused("helper", "void f() { threadgroup float a[4]; a[0] = 0; }", 1, "declared in kernels");
    refused("deep", &body("if (i == 0) { threadgroup float a[4]; a[0] = 0; }"), 2, "top level");
    refused("initial", &body("threadgroup uint a = 0; a = 1;"), 2, "no initial value");
}
