//! `lily run` and `lily chat` from outside: answers, streams, limits, interruptions.

mod common;

use common::{Output, Run, lily, random_checkpoint};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command};
use tempfile::TempDir;

const QUESTION: &str = "What is the capital of France?";

/// A model that talks without end: random, and never allowed to end its turn.
struct Endless {
    _folder: TempDir,
    model: String,
}

impl Endless {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("random");
        random_checkpoint(&path);
        Self { model: path.to_str().unwrap().to_owned(), _folder: folder }
    }

    fn lily(&self, args: &[&str]) -> Run {
        // lily-nano's <|endoftext|> and <|im_end|>.
        let never = ["--model", &self.model, "--logit-bias", "4087=-1000,4089=-1000"];
        lily(&[args, &never].concat())
    }

    fn json(&self, args: &[&str]) -> Value {
        self.lily(&[&["run", "--json"], args].concat()).output().json()
    }
}

fn run_json(args: &[&str]) -> Value {
    lily(&[&["run", "--json"], args].concat()).output().json()
}

#[test]
fn the_model_in_the_box_answers() {
    let output = lily(&["run", QUESTION, "--seed", "1"]).output();
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stdout.contains("Paris") && output.stdout.ends_with('\n'), "{output:?}");
    let first = output.stderr.lines().next().unwrap();
    assert!(first.contains("lily-nano") && first.contains("hf download"), "{output:?}");
    assert_eq!(output.stderr.lines().count(), 1, "nothing else is said off a terminal: {output:?}");
    let named = lily(&["run", "--model", "lily-nano", QUESTION]).output();
    assert_eq!(named.stderr, "", "who named it knows it: {named:?}");
}

#[test]
fn json_holds_all_that_is_known() {
    let answer = run_json(&[QUESTION, "--temperature", "0"]);
    assert!(answer["text"].as_str().unwrap().contains("Paris"), "{answer}");
    assert_eq!(answer["finish_reason"], "stop");
    assert_eq!(answer["reasoning"], "");
    assert_eq!(answer["usage"]["reused_tokens"], 0);
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 5, "{answer}");
    assert!(answer["usage"]["generated_tokens"].as_u64().unwrap() > 1, "{answer}");
    assert!(answer["timings"]["decode_tokens_per_second"].as_f64().unwrap() > 0.0, "{answer}");
}

#[test]
fn thinking_is_kept_apart() {
    let answer = run_json(&[QUESTION, "--think", "--temperature", "0"]);
    assert!(!answer["reasoning"].as_str().unwrap().is_empty(), "{answer}");
    assert!(!answer["text"].as_str().unwrap().contains("think>"), "{answer}");
    let streamed = lily(&["run", QUESTION, "--think", "--temperature", "0"]).output();
    assert_eq!(streamed.stdout.trim_end(), answer["text"].as_str().unwrap().trim_end(), "stdout has the answer only");
    let off = lily(&["run", "--json", QUESTION, "--no-think"]).env("LILY_THINK", "true").output().json();
    assert_eq!(off["reasoning"], "", "the flag wins: {off}");
    let on = lily(&["run", "--json", QUESTION]).env("LILY_THINK", "true").output().json();
    assert_ne!(on["reasoning"], "", "{on}");
}

#[test]
fn prompts_come_from_argument_file_and_stdin() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, QUESTION).unwrap();
    let paris = |output: Output| assert!(output.stdout.contains("Paris"), "{output:?}");
    let run = |more: &[&str]| lily(&[&["run", "--temperature", "0"], more].concat());
    paris(run(&["--file"]).arg(&file).output());
    paris(run(&[]).input(QUESTION).output());
    paris(run(&["--system", "Be kind.", QUESTION]).output());
    let missing = lily(&["run", "--file", "no-such-file"]).output();
    assert!(missing.code == Some(1) && missing.stderr.contains("no-such-file: cannot read"), "{missing:?}");
}

#[test]
fn seeds_repeat_and_fresh_entropy_does_not() {
    let model = Endless::new();
    let answer = |more: &[&str]| model.json(&[&["hi", "--max-tokens", "12", "--temperature", "1"], more].concat());
    let text = |more: &[&str]| answer(more)["text"].as_str().unwrap().to_owned();
    assert_eq!(text(&["--seed", "7"]), text(&["--seed", "7"]));
    assert_ne!(text(&["--seed", "7"]), text(&["--seed", "8"]));
    assert_ne!(text(&[]), text(&[]));
    let shown = answer(&[]);
    assert_eq!(shown["text"], text(&["--seed", &shown["seed"].to_string()]), "the seed that is shown repeats it");
}

#[test]
fn endings_are_honest() {
    let model = Endless::new();
    let answer = model.json(&["hi", "--max-tokens", "5"]);
    assert_eq!((&answer["finish_reason"], &answer["usage"]["generated_tokens"]), (&"length".into(), &5.into()));
    let full = model.json(&["--context", "40", "hi"]);
    assert_eq!(full["finish_reason"], "context_full");
    let used = |key: &str| full["usage"][key].as_u64().unwrap();
    assert_eq!(used("prompt_tokens") + used("generated_tokens"), 40);
    let told = model.lily(&["run", "hi"]).env("LILY_MAX_TOKENS", "5").output();
    assert!(told.code == Some(0) && told.stderr.contains("cut at 5 tokens"), "{told:?}");
    let long = model.lily(&["run", "--context", "3", "hi"]).output();
    assert!(long.code == Some(1) && long.stderr.contains("do not fit into a context of 3"), "{long:?}");
}

#[test]
fn stop_strings_end_the_answer_before_them() {
    let whole = run_json(&[QUESTION, "--temperature", "0"])["text"].as_str().unwrap().to_owned();
    let (before, _) = whole.split_once("Paris").unwrap();
    let answer = run_json(&[QUESTION, "--temperature", "0", "--stop", "aris", "--stop", "Paris"]);
    // "aris" and "Paris" are complete at the same place; the longer one wins.
    assert_eq!((&answer["text"], &answer["finish_reason"]), (&before.into(), &"stop_string".into()));
}

#[test]
fn logit_bias_and_raw_prompts_reach_the_sampler() {
    let tokens = lily(&["tokenize", "--model", "lily-nano", "a", "--json"]).output().json();
    let bias = format!("{}=100", tokens[0]["id"]);
    let answer = run_json(&["--raw", "The", "--max-tokens", "3", "--logit-bias", &bias]);
    assert_eq!(answer["text"], "aaa");
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() <= 2, "no template: {answer}");
    let wrong = lily(&["run", "hi", "--logit-bias", "999999=1"]).output();
    assert!(wrong.code == Some(2) && wrong.stderr.contains("logit_bias names token 999999"), "{wrong:?}");
}

#[test]
fn a_chat_remembers_and_reuses() {
    let lines = "What is the capital of France?\nAnd of Spain?\n/quit\nnever read\n";
    let output = lily(&["chat", "--temperature", "0"]).input(lines).output();
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stdout.contains("Paris") && output.stdout.contains("Madrid"), "{output:?}");
    let figures: Vec<&str> = output.stderr.lines().filter(|l| l.contains("tokens/s")).collect();
    assert_eq!(figures.len(), 2, "{output:?}");
    assert!(figures[0].contains(" 0 reused") && !figures[1].contains(" 0 reused"), "{figures:?}");
}

#[test]
fn chat_commands_work_and_mistakes_do_not_end_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat.json");
    let file = file.to_str().unwrap();
    let lines = format!(
        "/think maybe\n/dance\n/load no-such-file\n/system Be kind.\nWhat is the capital of France?\n/save {file}\n/reset\n\
         /load {file}\n/think off\nAnd of Spain?\n/help\n"
    );
    let output = lily(&["chat", "--temperature", "0"]).input(&lines).output();
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stdout.contains("Madrid"), "the loaded chat goes on: {output:?}");
    for part in
        ["/think needs on or off", "unknown command /dance", "no-such-file: cannot load", "[2 messages]", "/reset"]
    {
        assert!(output.stderr.contains(part), "{part}: {output:?}");
    }
    let saved: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let roles: Vec<&str> = saved["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn ctrl_c_ends_a_run_with_130_after_what_was_said() {
    let model = Endless::new();
    let mut child = model.lily(&["run", "hi"]).spawn();
    let mut first = [0; 1];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("[stopped]"), "{output:?}");
}

#[test]
fn ctrl_c_ends_an_answer_but_not_the_chat() {
    let model = Endless::new();
    let mut child = model.lily(&["chat"]).input("hi\n").spawn();
    let mut first = [0; 1];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    interrupt(&child);
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(errors.any(|line| line == "[stopped]"));
    // It still listens.
    child.stdin.as_mut().unwrap().write_all(b"/dance\n").unwrap();
    assert!(errors.any(|line| line.contains("unknown command /dance")));
    drop(child.stdin.take());
    let mut rest = String::new();
    child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
