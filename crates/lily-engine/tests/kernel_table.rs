//! docs/kernels.md: what every GPU kernel takes, moves, computes and how it is launched for the published model. With
//! `LILY_WRITE_GENERATED` set the file is written: that is `cargo xtask codegen`.

use lily_engine::kernel::codegen::contracts;
use lily_engine::kernel::{Access, Contract, Step, source};
use lily_engine::model::{Mechanisms, Model, Traits};
use lily_engine::outline::outline;
use lily_engine::plan::{Dispatch, Plan};
use lily_engine::shape::Shape;
use lily_engine::weights::{Float, Format};
use std::fmt::Write;
use std::path::Path;

const ROWS: usize = 512;

/// Plans of the published model that between them launch every kernel, each with its name and position.
fn plans() -> Vec<(&'static str, usize, Plan)> {
    let affine = |bits| Format::Affine { bits, group: 64, scale: Float::Bf16 };
    let weights = outline(&Shape::qwen36_35b_a3b(), affine(4), affine(8));
    let model = Model::new(&weights, Traits::GPU, ROWS, 65_536);
    let without = Model::new(&weights, Traits::GPU.with(Mechanisms::NONE), ROWS, 65_536);
    // Segments are merged where tokens see several.
    let (merged, rest) =
        model.prefill(ROWS, true).dispatches.into_iter().partition(|d| d.contract.name == "merge_segments");
    let prefill = Plan { dispatches: rest, ..Plan::default() };
    vec![
        ("prefill of 512 rows at 4,096", 4096, prefill),
        ("decode at 4,096", 4096, model.decode(4096, true)),
        ("decode at 32,768", 32_768, model.decode(32_768, true)),
        ("prefill of 512 rows at 32,768", 32_768, Plan { dispatches: merged, ..Plan::default() }),
        ("prefill of 512 rows at 4,096 without mechanisms", 4096, without.prefill(ROWS, true)),
        ("decode at 4,096 without mechanisms", 4096, without.decode(4096, false)),
    ]
}

fn table() -> String {
    let mut text = String::from(
        "# The kernels of a GPU\n\n\
         Written by `cargo xtask codegen` from the contracts in `crates/lily-engine/src/kernel/`, for the shape of the published model\n\
         in contexts of up to 65,536 tokens.\n\
         Costs are those of the first launch in the plan named, least bytes that must move; threadgroups x threads.\n",
    );
    let plans = plans();
    for contract in contracts().into_iter().filter(|c| c.on_gpu()) {
        let file = source::file_of(contract.name).expect("every contract of a GPU has a kernel");
        let doc: Vec<&str> = contract.doc.lines().map(str::trim).collect();
        write!(text, "\n## {}\n\n`kernels/{file}`: {}\n\n", contract.name, doc.join(" ").trim()).unwrap();
        text += &buffers(contract);
        let found = plans.iter().find_map(|(name, position, plan)| {
            plan.dispatches.iter().find(|d| d.contract.name == contract.name).map(|d| (*name, *position, d))
        });
        let (name, position, dispatch) = found.unwrap_or_else(|| panic!("no plan launches `{}`", contract.name));
        text += &cost(name, position, dispatch);
    }
    text
}

fn buffers(contract: &Contract) -> String {
    let list = |wanted: fn(Access) -> bool| {
        let names = contract.params.iter().filter(|p| wanted(p.access)).map(|p| format!("{} {}", p.name, p.element));
        names.collect::<Vec<_>>().join(", ")
    };
    let kinds = [
        ("reads", list(|a| a == Access::Read)),
        ("writes", list(|a| a == Access::Write)),
        ("updates", list(|a| a == Access::Update)),
    ];
    let lines = kinds.iter().filter(|(_, names)| !names.is_empty()).map(|(kind, names)| format!("- {kind} {names}\n"));
    lines.collect()
}

fn cost(name: &str, position: usize, dispatch: &Dispatch) -> String {
    let cost = dispatch.cost(Step { position: position as u32, window: 0 });
    let launch = (dispatch.contract.launch)(&dispatch.args);
    let [x, y, z] = launch.threadgroups;
    format!(
        "- {name}: {:.3} MB of weights, {:.3} MB of state, {:.3} MB of activations; {:.3} GFLOP; {x} x {y} x {z} of {}\n",
        cost.weight_bytes / 1e6,
        cost.state_bytes / 1e6,
        cost.activation_bytes / 1e6,
        cost.flops / 1e9,
        launch.threads
    )
}

#[test]
fn the_committed_table_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kernels.md");
    if std::env::var_os("LILY_WRITE_GENERATED").is_some() {
        std::fs::write(&path, table()).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == table(), "docs/kernels.md is old: run `cargo xtask codegen`");
}
