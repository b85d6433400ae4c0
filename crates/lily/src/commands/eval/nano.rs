//! `lily eval nano`: lily-nano's held-out questions, put to it (or to another model of the family) greedily.

use super::scoring::Case;
use crate::cli::EvalNanoArgs;
use crate::failure::Failure;
use crate::model::Model;
use crate::{nano, output};
use lily_engine::engine::Engine;
use lily_engine::generate::{Event, FinishReason, Request, generate};
use lily_engine::prompt::Prompter;
use lily_engine::sampler::SamplingParams;
use lily_engine::session::Session;
use lily_engine::template::ChatInput;
use lily_engine::tokenizer::SpecialTokens;
use serde::Serialize;
use serde_json::json;
use std::ops::ControlFlow;

/// Most tokens of an answer.
const MAX_TOKENS: usize = 256;
/// Shares of right answers that lily-nano is to reach, by set.
const TARGETS: [(&str, f64); 2] = [("qa", 0.9), ("tool", 0.9)];

/// Scores of some cases.
#[derive(Clone, Debug, Default, Serialize)]
struct Score {
    cases: usize,
    right: usize,
    /// Answers that ended by themselves.
    stopped: usize,
}

impl Score {
    fn share(&self) -> f64 {
        self.right as f64 / self.cases as f64
    }

    fn add(&mut self, right: bool, stopped: bool) {
        self.cases += 1;
        self.right += usize::from(right);
        self.stopped += usize::from(stopped);
    }
}

/// A set of questions and how it went.
#[derive(Clone, Debug, Serialize)]
struct SetScore {
    set: String,
    score: Score,
    /// Share to reach; none where the model is not the one in the box, or nothing is asked of it.
    target: Option<f64>,
    categories: Vec<(String, Score)>,
}

/// Runs the command.
pub fn run(args: &EvalNanoArgs) -> Result<(), Failure> {
    let sets = sets(args)?;
    let mut judge = Judge::new(args)?;
    let is_nano = args.model.resolve()? == Model::Nano;
    let bar = output::count_bar("asking", sets.iter().map(|(_, cases)| cases.len()).sum());
    let mut scores = Vec::new();
    for (set, cases) in sets {
        let target = TARGETS.iter().find(|(name, _)| is_nano && *name == set).map(|(_, t)| *t);
        let mut score = SetScore { set, score: Score::default(), target, categories: Vec::new() };
        for case in &cases {
            let (text, stopped) = judge.answer(case)?;
            let right = stopped && case.is_right(&text);
            if args.wrong && !right {
                let last = case.messages.as_array().and_then(|m| m.last()).map(|m| &m["content"]);
                bar.suspend(|| eprintln!("{}: {}: {text:?}", case.category, last.unwrap_or_default()));
            }
            score.add(&case.category, right, stopped);
            bar.inc(1);
        }
        scores.push(score);
    }
    bar.finish_and_clear();
    if args.json {
        output::json(&json!({ "sets": scores }))?
    } else {
        output::write(&table(&scores))?
    }
    let missed = scores.iter().any(|s| s.target.is_some_and(|t| s.score.share() < t));
    if missed { Err(Failure::silent()) } else { Ok(()) }
}

impl SetScore {
    fn add(&mut self, category: &str, right: bool, stopped: bool) {
        self.score.add(right, stopped);
        let index = self.categories.iter().position(|(name, _)| name == category).unwrap_or_else(|| {
            self.categories.push((category.to_owned(), Score::default()));
            self.categories.len() - 1
        });
        self.categories[index].1.add(right, stopped);
    }
}

/// The questions: those in the box, or those of a directory.
fn sets(args: &EvalNanoArgs) -> Result<Vec<(String, Vec<Case>)>, Failure> {
    let known: Vec<&str> = nano::QUESTIONS.iter().map(|(file, _)| set_name(file)).collect();
    if let Some(unknown) = args.sets.iter().find(|s| !known.contains(&s.as_str())) {
        return Err(Failure::usage(format_args!("--set {unknown}: expected one of {}", known.join(", "))));
    }
    let mut sets = Vec::new();
    for (file, text) in nano::QUESTIONS {
        let name = set_name(file);
        if !args.sets.is_empty() && !args.sets.iter().any(|s| s == name) {
            continue;
        }
        let text = match &args.data {
            None => text.to_owned(),
            Some(folder) => {
                let path = folder.join(format!("{name}.jsonl"));
                std::fs::read_to_string(&path).map_err(|e| Failure::file("read the questions", &path, e))?
            }
        };
        let cases: Result<Vec<Case>, _> = text.lines().map(serde_json::from_str).collect();
        let mut cases = cases.map_err(|e| Failure::other(format_args!("{name}.jsonl: expected a case a line: {e}")))?;
        cases.truncate(args.limit.unwrap_or(usize::MAX));
        sets.push((name.to_owned(), cases));
    }
    Ok(sets)
}

fn set_name(file: &str) -> &str {
    file.trim_start_matches("eval/").trim_end_matches(".jsonl")
}

struct Judge {
    engine: Engine,
    session: Session,
    prompter: Prompter,
}

impl Judge {
    fn new(args: &EvalNanoArgs) -> Result<Self, Failure> {
        let engine = args.engine.engine(args.model.open()?)?;
        Ok(Self { session: engine.new_session()?, prompter: Prompter::new(engine.checkpoint())?, engine })
    }

    /// The model's text, and whether it ended by itself.
    fn answer(&mut self, case: &Case) -> Result<(String, bool), Failure> {
        let mut input = ChatInput::new(case.messages.clone());
        input.tools = case.tools.clone();
        input.kwargs.insert("enable_thinking".to_owned(), json!(case.enable_thinking));
        let tokenizer = self.prompter.tokenizer();
        let request = Request {
            prompt: self.prompter.chat(&input)?.tokens,
            sampling: SamplingParams::greedy(),
            vocab: tokenizer.vocab_size().min(self.engine.model().shape.vocab),
            stop_ids: self.prompter.stop_ids().to_vec(),
            max_tokens: Some(MAX_TOKENS),
            ..Request::default()
        };
        let mut text = String::new();
        let mut detokenizer = tokenizer.detokenizer(SpecialTokens::Show);
        let summary = generate(&mut self.engine, &mut self.session, &request, &mut |event| {
            if let Event::Token { token, .. } = event {
                text.push_str(detokenizer.push(token.id));
            }
            ControlFlow::Continue(())
        })?;
        text.push_str(detokenizer.finish());
        Ok((text, summary.finish_reason == FinishReason::Stop))
    }
}

fn table(scores: &[SetScore]) -> String {
    let mut text =
        format!("{:<28} {:>7} {:>7} {:>8} {:>9} {:>8}\n", "", "cases", "right", "share", "stopped", "target");
    let row = |name: &str, s: &Score, target: Option<f64>| {
        let target = target.map_or(String::new(), |t| format!("{:.1} %", 100.0 * t));
        format!("{name:<28} {:>7} {:>7} {:>6.1} % {:>9} {target:>8}\n", s.cases, s.right, 100.0 * s.share(), s.stopped)
    };
    let mut total = Score::default();
    for set in scores {
        text += &row(&set.set, &set.score, set.target);
        if set.categories.len() > 1 {
            text.extend(set.categories.iter().map(|(name, score)| row(&format!("  {name}"), score, None)));
        }
        total.cases += set.score.cases;
        total.right += set.score.right;
        total.stopped += set.score.stopped;
    }
    text + &row("total", &total, None)
}
