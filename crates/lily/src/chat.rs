//! One chat on one session: messages in, streamed answers out. What `run` and `chat` share.

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output;
use crate::sampling::SamplingArgs;
use lily_api::output::{Delta, OutputOptions, OutputParser, Piece, Start};
use lily_engine::engine::Engine;
use lily_engine::generate::{Event, Halt, Request, Summary, generate};
use lily_engine::prompt::{Prompt, Prompter};
use lily_engine::session::Session;
use lily_engine::template::ChatInput;
use lily_engine::tokenizer::SpecialTokens;
use serde_json::{Value, json};
use std::ops::ControlFlow;

/// A loaded model with the text of its conversation.
pub struct Chat {
    engine: Engine,
    session: Session,
    prompter: Prompter,
    interrupt: Interrupt,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What the model thought.
    pub reasoning: String,
    /// What it said.
    pub text: String,
    /// How it went.
    pub summary: Summary,
}

impl Chat {
    /// An empty conversation.
    pub fn new(engine: Engine, interrupt: Interrupt) -> Result<Self, Failure> {
        let prompter = Prompter::new(engine.checkpoint())?;
        let session = engine.new_session()?;
        Ok(Self { engine, session, prompter, interrupt })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Answers a chat. `thinking` of `None` leaves it to the template.
    pub fn answer(
        &mut self,
        messages: &[Value],
        thinking: Option<bool>,
        sampling: &SamplingArgs,
        show: &mut dyn FnMut(&Delta) -> Result<(), Failure>,
    ) -> Result<Answer, Failure> {
        let mut input = ChatInput::new(Value::Array(messages.to_vec()));
        if let Some(thinking) = thinking {
            input.kwargs.insert("enable_thinking".to_owned(), json!(thinking));
        }
        let prompt = self.prompter.chat(&input)?;
        let start = if prompt.in_reasoning { Start::Reasoning } else { Start::Content };
        self.generate(prompt, Some(start), sampling, show)
    }

    /// Continues plain text.
    pub fn complete(
        &mut self,
        text: &str,
        sampling: &SamplingArgs,
        show: &mut dyn FnMut(&Delta) -> Result<(), Failure>,
    ) -> Result<Answer, Failure> {
        let prompt = self.prompter.plain(text)?;
        self.generate(prompt, None, sampling, show)
    }

    fn generate(
        &mut self,
        prompt: Prompt,
        start: Option<Start>,
        sampling: &SamplingArgs,
        show: &mut dyn FnMut(&Delta) -> Result<(), Failure>,
    ) -> Result<Answer, Failure> {
        let options = OutputOptions { start, stop: &sampling.stop, conversation: None, call_prefix: String::new() };
        let mut parser = OutputParser::new(options).map_err(Failure::usage)?;
        let mut pieces = Vec::new();
        let tokenizer = self.prompter.tokenizer();
        let request = Request {
            prompt: prompt.tokens,
            boundaries: prompt.boundaries,
            sampling: sampling.params(&self.engine.checkpoint().generation),
            vocab: tokenizer.vocab_size().min(self.engine.model().shape.vocab),
            stop_ids: self.prompter.stop_ids().to_vec(),
            max_tokens: sampling.max_tokens,
            top_logprobs: 0,
        };
        let mut detokenizer = tokenizer.detokenizer(SpecialTokens::Skip);
        let mut answer = Text { show, reasoning: String::new(), content: String::new(), failure: None };
        let interrupt = &self.interrupt;
        // Shown for prompts of several chunks only: others are read before anybody wonders.
        let bar = output::count_bar("reading", request.prompt.len());
        let summary = generate(&mut self.engine, &mut self.session, &request, &mut |event| {
            match event {
                Event::Prefill { done_tokens, total_tokens } if done_tokens == total_tokens => bar.finish_and_clear(),
                Event::Prefill { done_tokens, .. } if done_tokens > 0 => bar.set_position(done_tokens as u64),
                Event::Prefill { .. } => {}
                Event::Token { token, .. } => {
                    parser.push(detokenizer.push(token.id).as_bytes(), None, &mut pieces);
                    answer.take(&mut pieces);
                    if parser.stopped().is_some() {
                        return ControlFlow::Break(Halt::StopString);
                    }
                }
            }
            let over = interrupt.is_raised() || answer.failure.is_some();
            if over { ControlFlow::Break(Halt::Cancelled) } else { ControlFlow::Continue(()) }
        })?;
        parser.push(detokenizer.finish().as_bytes(), None, &mut pieces);
        parser.finish(&mut pieces);
        answer.take(&mut pieces);
        match answer.failure {
            Some(failure) => Err(failure),
            None => Ok(Answer { reasoning: answer.reasoning, text: answer.content, summary }),
        }
    }
}

/// The text so far, and where it is shown.
struct Text<'a> {
    show: &'a mut dyn FnMut(&Delta) -> Result<(), Failure>,
    reasoning: String,
    content: String,
    /// The first failure to show it.
    failure: Option<Failure>,
}

impl Text<'_> {
    fn take(&mut self, pieces: &mut Vec<Piece>) {
        for Piece { delta, .. } in pieces.drain(..) {
            match &delta {
                Delta::Reasoning(text) => self.reasoning.push_str(text),
                Delta::Content(text) => self.content.push_str(text),
                // There are no functions to call.
                Delta::ToolCall { .. } | Delta::Arguments { .. } => {}
            }
            if self.failure.is_none() {
                self.failure = (self.show)(&delta).err();
            }
        }
    }
}
