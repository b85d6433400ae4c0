//! `lily doctor`: what lily sees of this machine, and whether a model fits.

use crate::cli::DoctorArgs;
use crate::failure::Failure;
use crate::hardware::Machine;
use crate::load::open;
use crate::model::Caches;
use crate::output;
use lily_engine::engine::Engine;
use lily_engine::memory::MemoryPlan;
use serde_json::json;

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let machine = Machine::this();
    let caches = Caches::of_this_machine();
    let model = args.model.resolve()?;
    let checkpoint = open(&model)?;
    let options = args.engine.options(checkpoint.weights.shape.max_context_tokens)?;
    let engine = Engine::new(checkpoint, &options)?;
    let plan: &MemoryPlan = engine.memory_plan();
    let folder = |path: &Option<std::path::PathBuf>| match path {
        None => "no home directory".to_owned(),
        Some(path) if path.is_dir() => path.display().to_string(),
        Some(path) => format!("{} (not there)", path.display()),
    };
    if args.json {
        return output::json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "machine": machine,
            "device": engine.device(),
            "hugging_face_cache": caches.hugging_face,
            "lm_studio_models": caches.lm_studio,
            "model": model.to_string(),
            "memory_plan": plan,
        }));
    }
    let available = machine.available_bytes.map_or("unknown".to_owned(), |b| format!("{:.2} GB", b as f64 / 1e9));
    output::line(&format!(
        "lily              {}\n\
         system            {}\n\
         processor         {}, {} cores\n\
         instruction sets  {}\n\
         device            {}\n\
         memory available  {available}\n\
         Hugging Face      {}\n\
         LM Studio         {}\n\
         model             {model}\n\n{plan}",
        env!("CARGO_PKG_VERSION"),
        machine.system,
        machine.processor,
        machine.cores,
        machine.instruction_sets.join(", "),
        engine.device(),
        folder(&caches.hugging_face),
        folder(&caches.lm_studio),
    ))
}
