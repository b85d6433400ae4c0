//! docs/api.md against the code: its tables of fields, and the tests that it names.

use super::APIS;
use crate::schema::{markdown, schema};
use std::path::{Path, PathBuf};

/// Set to write the tables instead of comparing them.
const WRITE: &str = "LILY_WRITE_GENERATED";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_fields_in_the_docs_are_those_of_the_parsers() {
    let path = root().join("docs/api.md");
    let mut text = std::fs::read_to_string(&path).unwrap();
    let old = text.clone();
    for api in APIS {
        let (begin, end) = (format!("<!-- fields of {api:?} -->\n"), "<!-- end -->");
        let from = text.find(&begin).unwrap_or_else(|| panic!("docs/api.md lacks {begin}")) + begin.len();
        let to = from + text[from..].find(end).expect("an end");
        text.replace_range(from..to, &markdown(api));
    }
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &text).unwrap();
    } else {
        assert!(old == text, "docs/api.md is old: run `cargo xtask codegen`");
    }
}

/// The reports that must have a row with tests.
const REPORTS: [&str; 20] = [
    "ml-explore/mlx-lm#980",
    "ggml-org/llama.cpp#20225",
    "QwenLM/Qwen3.8#48",
    "ml-explore/mlx-lm#883",
    "anthropics/claude-code#68900",
    "ml-explore/mlx-lm#965",
    "raullenchai/Rapid-MLX#171",
    "vllm-project/vllm PR #35687",
    "ollama/ollama#16383",
    "scouzi1966/maclocal-api#38",
    "raullenchai/Rapid-MLX#973",
    "vllm-project/vllm#41114",
    "lmstudio-ai/lmstudio-bug-tracker#1990",
    "waybarrios/vllm-mlx PR #109",
    "SharpAI/SwiftLM#126",
    "cubist38/mlx-openai-server#269",
    "lmstudio-ai/lmstudio-bug-tracker#1773",
    "ml-explore/mlx-lm#1245",
    "sgl-project/sglang PR #32279",
    "ollama/ollama#15865",
];

fn field_reports() -> String {
    let text = std::fs::read_to_string(root().join("docs/api.md")).unwrap();
    text.split("## Field reports").nth(1).expect("a table of field reports").to_owned()
}

#[test]
fn every_field_report_has_its_row() {
    let table = field_reports();
    // The first column of the rows that name a test in their last.
    let tested = |line: &&str| line.rsplit(" | ").next().is_some_and(|tests| tests.contains('`'));
    let rows = table.lines().filter(tested).filter_map(|line| line.split(" | ").next());
    let reports: Vec<&str> = rows.flat_map(|row| row.trim_start_matches("| ").split(", ")).collect();
    for report in REPORTS {
        assert!(reports.contains(&report), "docs/api.md has no test for {report}");
    }
}

/// Every test that the table of field reports names exists.
#[test]
fn tests_named_in_the_docs_exist() {
    let table = field_reports();
    let mut sources = String::new();
    for directory in ["crates", "xtask", "tests"] {
        read(&root().join(directory), &mut sources);
    }
    // The last column.
    let rows = table.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit(" | ").next());
    let names = rows.flat_map(|tests| tests.split('`').skip(1).step_by(2));
    let tests: Vec<&str> =
        names.filter_map(|name| name.rsplit("::").next()).filter(|name| name.contains('_')).collect();
    assert!(tests.len() > 20);
    for test in tests {
        assert!(sources.contains(&format!("fn {test}(")), "docs/api.md names the test `{test}`, which is not there");
    }
}

fn read(directory: &Path, out: &mut String) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *out += &std::fs::read_to_string(&path).unwrap_or_default();
        }
    }
}

#[test]
fn schemas_describe_every_field() {
    for api in APIS {
        let schema = schema(api);
        let properties = schema["properties"].as_object().unwrap();
        assert!(properties.len() > 25 && properties.values().all(|p| p["description"].is_string()));
        assert!(properties.contains_key(schema["required"][0].as_str().unwrap()));
    }
}
