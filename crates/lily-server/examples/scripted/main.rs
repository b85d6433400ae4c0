//! A server whose model writes what a script says, for programs that need more of a model than lily-nano can.
//!
//! `scripted SCRIPT FOLDER` serves lily-nano's files with a template that thinks, prints the base URLs as `lily serve` does, and logs on stderr which
//! turn of the script was written and what the cache knew of its prompt. HTTP, template, tokenizer, scheduler, cache, sampler
//! and parsers are lily's own; only what the device says comes next is not computed. [`script`] is the file's form.

mod device;
mod script;

use device::scripted;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::prompt::Prompter;
use lily_engine::scheduler::SchedulerOptions;
use lily_server::{ServedModel, Server, ServerOptions};
use script::Script;
use std::error::Error;
use std::path::Path;
use tempfile::TempDir;

/// Longest context: room for an agent's instructions in lily-nano's small vocabulary.
const CONTEXT_TOKENS: usize = 131_072;
/// Requests that are answered side by side.
const SESSIONS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, folder] = arguments.as_slice() else { return Err("expected two arguments: SCRIPT FOLDER".into()) };
    let script = Script::parse(&std::fs::read_to_string(file)?.replace("{folder}", folder))?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let model = load(script)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = Server::new(ServerOptions { explain_cache: true, ..ServerOptions::new("lily-nano") });
        server.serve_model(model);
        println!("OPENAI_BASE_URL=http://{address}/v1\nANTHROPIC_BASE_URL=http://{address}");
        server.run(listener, std::future::pending()).await;
        Ok(())
    })
}

fn load(script: Script) -> Result<ServedModel, Box<dyn Error>> {
    let folder = model_files()?;
    let mut checkpoint = Checkpoint::open(folder.path())?;
    // Nothing is computed, so that nothing keeps it to the length that it was made for.
    checkpoint.weights.shape.max_context_tokens = CONTEXT_TOKENS;
    let device = scripted(script, Prompter::new(&checkpoint)?);
    let options =
        EngineOptions { context_tokens: CONTEXT_TOKENS, sessions: SESSIONS, ..EngineOptions::for_this_machine() };
    let engine = Engine::on(device, checkpoint, &options)?;
    Ok(ServedModel::start(engine, &SchedulerOptions { queue_jobs: 64 })?)
}

/// lily-nano's files with a template of the family's form, which thinks unless told not to.
fn model_files() -> Result<TempDir, Box<dyn Error>> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = TempDir::new()?;
    for file in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
        std::os::unix::fs::symlink(repository.join("models/lily-nano").join(file), folder.path().join(file))?;
    }
    let template = repository.join("tests/golden/template/qwen_style.jinja");
    std::os::unix::fs::symlink(template, folder.path().join("chat_template.jinja"))?;
    Ok(folder)
}
