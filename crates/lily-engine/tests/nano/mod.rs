//! lily-nano on a device under test: it generates what the CPU backend generates, and what it generates without its cache.

use lily_engine::backend::Device;
use lily_engine::backend::cpu::{CpuDevice, CpuMode, isa::Isa};
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::generate::{Event, Request, generate};
use lily_engine::prompt::Prompter;
use lily_engine::sampler::SamplingParams;
use lily_engine::session::Session;
use lily_engine::template::ChatInput;
use lily_engine::tokenizer::ControlTokens;
use serde_json::json;
use std::ops::ControlFlow;
use std::path::Path;

fn engine(device: Box<dyn Device>) -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano");
    let options =
        EngineOptions { context_tokens: 256, chunk_tokens: Some(48), sessions: 5, ..EngineOptions::for_this_machine() };
    Engine::on(device, Checkpoint::open(&path).unwrap(), &options).unwrap_or_else(|e| panic!("{e}"))
}

fn cpu() -> Box<dyn Device> {
    Box::new(CpuDevice { mode: CpuMode::Fast(Isa::detect()), threads: 2 })
}

/// A conversation whose last question needs the turns before it.
fn conversation() -> ChatInput {
    ChatInput::new(json!([
        {"role": "user", "content": "Hello! What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is Paris."},
        {"role": "user", "content": "Thank you. And how is the word garden spelled?"},
        {"role": "assistant", "content": "garden is spelled g-a-r-d-e-n."},
        {"role": "user", "content": "What is the capital of Spain?"},
    ]))
}

/// Prompt tokens, generated tokens and the text.
fn answer(engine: &mut Engine, sampling: SamplingParams) -> (usize, Vec<u32>, String) {
    let prompter = Prompter::new(engine.checkpoint()).unwrap();
    let prompt = prompter.chat(&conversation()).unwrap();
    let request = Request {
        prompt: prompt.tokens,
        boundaries: prompt.boundaries,
        sampling,
        vocab: prompter.tokenizer().vocab_size(),
        max_tokens: Some(16),
        ..Request::default()
    };
    let mut session = engine.new_session().unwrap();
    let mut tokens = Vec::new();
    generate(engine, &mut session, &request, &mut |event| {
        if let Event::Token { token, .. } = event {
            tokens.push(token.id);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    let text = prompter.tokenizer().decode(&tokens);
    (request.prompt.len(), tokens, text)
}

/// The greedy answer, from a prompt of several chunks.
pub fn answers_as_on_the_cpu(device: Box<dyn Device>) {
    let (prompt_tokens, want, text) = answer(&mut engine(cpu()), SamplingParams::greedy());
    assert!(prompt_tokens >= 64, "{prompt_tokens} tokens");
    assert!(text.contains("Madrid"), "{text:?}");
    let (_, got, text) = answer(&mut engine(device), SamplingParams::greedy());
    println!("{prompt_tokens} tokens of prompt, then {text:?}");
    assert_eq!(got, want);
}

/// Sampled, with the draws on the device. The model is sure of most tokens, so that both round to the same text.
pub fn draws_as_on_the_cpu(device: Box<dyn Device>) {
    let sampling = SamplingParams { temperature: 0.7, top_k: 20, top_p: 0.95, seed: Some(11), ..Default::default() };
    let (_, want, _) = answer(&mut engine(cpu()), sampling.clone());
    let (_, got, _) = answer(&mut engine(device), sampling);
    assert_eq!(got, want);
}

/// Teacher-forced: at every position of a text the two agree on the most likely token, and their logits are close.
pub fn agrees_with_the_cpu_at_every_position(device: Box<dyn Device>) {
    let (mut host, mut gpu) = (engine(cpu()), engine(device));
    let prompter = Prompter::new(host.checkpoint()).unwrap();
    let tokens = prompter.chat(&conversation()).unwrap().tokens;
    let (mut a, mut b) = (host.new_session().unwrap(), gpu.new_session().unwrap());
    let (mut same, mut error, mut size) = (0, 0.0, 0.0);
    for &token in &tokens[..64] {
        host.decode(&mut a, token).unwrap();
        gpu.decode(&mut b, token).unwrap();
        let (want, got) = (a.logits().unwrap(), b.logits().unwrap());
        same += usize::from(best(want) == best(got));
        let (e, s) = squares(want, got);
        (error, size) = (error + e, size + s);
    }
    let relative = (error / size).sqrt();
    println!("{same} of 64 positions agree; relative rms error {relative:.5}");
    assert!(same >= 62, "{same} of 64");
    assert!(relative < 0.02, "{relative}");
}

/// Steps of several sessions, of which some are left out by turns, give each the logits that it gets alone, to the bit.
pub fn sessions_together_are_as_alone(device: Box<dyn Device>, sessions: usize, steps: usize) {
    let mut engine = engine(device);
    let prompter = Prompter::new(engine.checkpoint()).unwrap();
    let prompt = prompter.chat(&conversation()).unwrap().tokens;
    // Prompts of several lengths.
    let mut start = |i: usize| turn(&mut engine, &prompt[..prompt.len() - 7 * i], &[], 0).session;
    let (mut alone, mut together): (Vec<_>, Vec<_>) = (0..sessions).map(|i| (start(i), start(i))).unzip();
    for step in 0..steps {
        let chosen: Vec<usize> = (0..sessions).filter(|i| (step + i) % 3 != 0 || step == 0).collect();
        let tokens: Vec<u32> = chosen.iter().map(|i| best(alone[*i].logits().unwrap())).collect();
        chosen.iter().zip(&tokens).for_each(|(i, token)| engine.decode(&mut alone[*i], *token).unwrap());
        let taken = together.iter_mut().enumerate().filter(|(i, _)| chosen.contains(i));
        let mut batch: Vec<&mut Session> = taken.map(|(_, session)| session).collect();
        engine.decode_batch(&mut batch, &tokens, || ()).unwrap();
        for (i, (a, b)) in alone.iter().zip(&together).enumerate() {
            assert!(a.logits() == b.logits(), "session {i} has other logits after step {step}");
        }
    }
}

/// Steps that check guesses, right ones and at every place a wrong one, give the tokens of plain steps, and leave the state that
/// those leave.
pub fn guesses_change_nothing(device: Box<dyn Device>, count: usize, rows: &[usize]) {
    let mut engine = engine(device);
    let prompter = Prompter::new(engine.checkpoint()).unwrap();
    let prompt = prompter.chat(&conversation()).unwrap().tokens;
    let mut start = || turn(&mut engine, &prompt, &[], 0).session;
    let (mut plain, mut guessing) = (start(), rows.iter().map(|_| start()).collect::<Vec<_>>());
    let mut logits = vec![plain.logits().unwrap().to_vec()];
    for i in 0..count {
        engine.decode(&mut plain, best(&logits[i])).unwrap();
        logits.push(plain.logits().unwrap().to_vec());
    }
    let tokens: Vec<u32> = logits.iter().map(|logits| best(logits)).collect();
    for (session, rows) in guessing.iter_mut().zip(rows) {
        let (mut done, mut step) = (0, 0);
        while done + rows < count {
            let mut guesses = tokens[done..done + rows].to_vec();
            let wrong = (step % rows > 0).then_some(step % rows);
            wrong.iter().for_each(|i| guesses[*i] ^= 1);
            let choices: Vec<u32> =
                engine.check_guesses(session, &guesses).unwrap().into_iter().map(Result::unwrap).collect();
            let right = wrong.unwrap_or(*rows);
            assert_eq!(choices, tokens[done + 1..=done + right], "step {step} of {rows} rows");
            (done, step) = (done + right, step + 1);
        }
        assert!(step > *rows && session.tokens().ends_with(&tokens[..done]) && session.logits().is_none());
        engine.decode(session, tokens[done]).unwrap();
        assert!(session.logits().unwrap() == logits[done + 1], "another state after {done} tokens in rows of {rows}");
    }
}

/// The most likely token.
fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&i, &j| logits[i].total_cmp(&logits[j])).unwrap() as u32
}

/// Sums of the squares of the differences, and of what is wanted.
fn squares(want: &[f32], got: &[f32]) -> (f64, f64) {
    let square = |value: f32| f64::from(value).powi(2);
    (want.iter().zip(got).map(|(w, g)| square(w - g)).sum(), want.iter().map(|w| square(*w)).sum())
}

/// A prompt read in a session of its own, and some tokens after it.
struct Turn {
    session: Session,
    reused_tokens: usize,
    /// After the prompt.
    logits: Vec<f32>,
    answer: Vec<u32>,
}

fn turn(engine: &mut Engine, tokens: &[u32], boundaries: &[usize], answer_tokens: usize) -> Turn {
    let mut session = engine.new_session().unwrap();
    let read = engine.advance(&mut session, tokens, boundaries, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let logits = session.logits().unwrap().to_vec();
    let mut answer = Vec::new();
    for _ in 0..answer_tokens {
        let token = best(session.logits().unwrap());
        engine.decode(&mut session, token).unwrap();
        answer.push(token);
    }
    Turn { session, reused_tokens: read.reused_tokens, logits, answer }
}

/// A conversation's next turns compute what is new in them and say what a cold run says: to the bit where the prefix was read as a
/// prompt, within tolerance where the device generated it.
pub fn reuses_the_turns_before(device: Box<dyn Device>) {
    let mut engine = engine(device);
    let prompter = Prompter::new(engine.checkpoint()).unwrap();
    let messages = [("user", "What is the capital of France?"), ("assistant", "Paris."), ("user", "What is 2 + 2?")]
        .map(|(role, content)| json!({"role": role, "content": content}));
    let [first, second] = [1, 3].map(|count| prompter.chat(&ChatInput::new(json!(&messages[..count]))).unwrap());
    let mut cold = turn(&mut engine, &second.tokens, &second.boundaries, 3);
    assert_eq!(cold.reused_tokens, 0);
    engine.discard(&mut cold.session); // and all that was kept of it

    let asked = turn(&mut engine, &first.tokens, &first.boundaries, 8);
    assert_eq!(asked.reused_tokens, 0);
    let warm = turn(&mut engine, &second.tokens, &second.boundaries, 3);
    let shared = first.tokens.iter().zip(&second.tokens).take_while(|(a, b)| a == b).count();
    assert!(warm.reused_tokens > 0 && warm.reused_tokens <= shared, "{} of {shared} tokens", warm.reused_tokens);
    assert!(warm.logits == cold.logits, "a prefix that was read gives other bits");
    assert_eq!(warm.answer, cold.answer);

    // The conversation goes on from what was generated.
    let mut spoken = asked.session;
    engine.remember(&mut spoken);
    let mut further = spoken.tokens().to_vec();
    let question = "<|im_end|>\n<|im_start|>user\nThanks!<|im_end|>\n<|im_start|>assistant\n";
    further.extend(prompter.tokenizer().encode(question, ControlTokens::Recognise).unwrap());
    let mut warm = turn(&mut engine, &further, &[], 0);
    assert_eq!(warm.reused_tokens, spoken.tokens().len());
    engine.discard(&mut warm.session);
    let cold = turn(&mut engine, &further, &[], 0);
    assert_eq!(cold.reused_tokens, 0);
    let (error, size) = squares(&cold.logits, &warm.logits);
    let relative = (error / size).sqrt();
    println!("relative rms error {relative:.5} after a prefix that was generated");
    // As much as prompts and steps may differ, see above.
    assert!(relative < 0.02, "{relative}");
    assert_eq!(best(&warm.logits), best(&cold.logits));
}
