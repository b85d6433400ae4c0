//! Clients that hold conversations, change their minds, and go away; and what each of their answers must be.

use super::device::logits;
use super::trace::Trace;
use crate::backend::script::Hashes;
use crate::cache::tests::Random;
use crate::constraint::{Constraint, ConstraintError, TokenMask};
use crate::generate::{FinishReason, Halt, Request, Summary};
use crate::sampler::{History, Sampler, SamplingParams};
use crate::scheduler::{Job, JobError, JobEvent, JobId, Sink};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Tokens that may be drawn; few, so that conversations have beginnings in common.
const VOCAB: u32 = 12;
/// The token that ends a text.
const STOP: u32 = 3;
/// Where a conversation is given up for another.
const TALK_TOKENS: usize = 110;

/// Messages, and where each ends.
#[derive(Clone, Default)]
pub struct Talk {
    tokens: Vec<u32>,
    ends: Vec<usize>,
}

impl Talk {
    fn say(&mut self, message: impl IntoIterator<Item = u32>) {
        self.tokens.extend(message);
        self.ends.push(self.tokens.len());
    }
}

/// What happened to a job.
#[derive(Default)]
pub struct Record {
    pub tokens: Vec<u32>,
    pub started: bool,
    pub done_tokens: usize,
    /// Events so far.
    pub events: usize,
    /// Whether its client has left, or broken down: nothing but the end is for it any more.
    over: bool,
    /// What came all the same.
    late: Option<String>,
    pub end: Option<Result<Summary, JobError>>,
}

/// What a client does to its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whim {
    None,
    /// It is gone after so many events.
    Leaves(usize),
    /// Its code panics at an event.
    Panics(usize),
    /// Its constraint fails after so many tokens.
    Refuses(usize),
    /// It cancels from outside when the simulation feels like it.
    Cancels,
}

/// A job under way.
pub struct Order {
    pub id: JobId,
    pub request: Request,
    pub whim: Whim,
    pub record: Arc<Mutex<Record>>,
    /// When it last got somewhere.
    pub moved: (usize, Duration),
    expected: (Vec<u32>, FinishReason),
}

pub struct Client {
    name: usize,
    talk: Talk,
    pub order: Option<Order>,
    trace: Trace,
}

/// Allows every second token, by turns, and the one that ends the text.
struct EverySecond {
    mask: TokenMask,
    taken: usize,
    fails_after: Option<usize>,
}

fn every_second(mask: &mut TokenMask, taken: usize) {
    mask.clear();
    (0..VOCAB)
        .filter(|token| (*token as usize + taken).is_multiple_of(2) || *token == STOP)
        .for_each(|t| mask.allow(t));
}

impl Constraint for EverySecond {
    fn mask(&mut self) -> Result<Option<&TokenMask>, ConstraintError> {
        every_second(&mut self.mask, self.taken);
        // By turns, whether there is a mask at all.
        Ok((self.taken % 3 < 2).then_some(&self.mask))
    }

    fn accept(&mut self, _token: u32) -> Result<(), ConstraintError> {
        self.taken += 1;
        if Some(self.taken) == self.fails_after { Err(ConstraintError("as planned".into())) } else { Ok(()) }
    }
}

/// What a lone cold run answers.
fn answer(request: &Request, constrained: bool, context_tokens: usize) -> (Vec<u32>, FinishReason) {
    let mut state = Hashes::default();
    request.prompt.iter().for_each(|&token| state.push(token));
    let mut sampler = Sampler::new(request.sampling.clone(), request.vocab).unwrap();
    let mut mask = TokenMask::none(VOCAB as usize);
    let (mut tokens, room) = (Vec::new(), context_tokens - request.prompt.len());
    let most = request.max_tokens.unwrap_or(room).min(room);
    while tokens.len() < most {
        every_second(&mut mask, tokens.len());
        let mask = (constrained && tokens.len() % 3 < 2).then_some(&mask);
        let history = History { prompt: &request.prompt, generated: &tokens };
        let token = sampler.sample_among(&logits(state, VOCAB as usize), mask, history).unwrap().id;
        if token == STOP {
            return (tokens, FinishReason::Stop);
        }
        tokens.push(token);
        state.push(token);
    }
    (tokens, if most == room { FinishReason::ContextFull } else { FinishReason::Length })
}

impl Client {
    /// One that has said nothing yet.
    pub fn new(name: usize, trace: Trace) -> Self {
        Self { name, talk: Talk::default(), order: None, trace }
    }

    /// Its conversation so far.
    pub fn talk(&self) -> Talk {
        self.talk.clone()
    }

    /// Goes on from where another client is.
    pub fn take_up(&mut self, talk: Talk) {
        self.talk = talk;
    }

    /// The next thing that the client wants.
    pub fn next_job(&mut self, random: &mut Random, context_tokens: usize) -> (Job, Sink, Order) {
        let message: Vec<u32> = (0..1 + random.below(30)).map(|_| random.below(VOCAB as usize) as u32).collect();
        let mut talk = self.talk.clone();
        let background = random.below(5) == 0;
        if background || talk.tokens.len() > TALK_TOKENS {
            talk = Talk::default();
        } else if random.below(4) == 0 && !talk.ends.is_empty() {
            // Back to an earlier message.
            talk.ends.truncate(1 + random.below(talk.ends.len()));
            talk.tokens.truncate(*talk.ends.last().unwrap());
        }
        if talk.ends.is_empty() || random.below(6) > 0 {
            talk.say(message); // otherwise the same again
        }
        if !background {
            self.talk = talk.clone();
        }
        let request = Request {
            prompt: [&talk.tokens[..], &[1, 1]].concat(),
            boundaries: talk.ends,
            sampling: sampling(random),
            vocab: VOCAB as usize,
            stop_ids: vec![STOP, VOCAB + 1],
            max_tokens: [Some(random.below(40)), None][usize::from(random.below(8) == 0)],
            top_logprobs: [0, 0, 0, 3][random.below(4)],
        };
        let constrained = random.below(4) == 0;
        let whim = match random.below(12) {
            0 => Whim::Leaves(random.below(12)),
            1 => Whim::Panics(random.below(12)),
            2 if constrained => Whim::Refuses(1 + random.below(5)),
            3 => Whim::Cancels,
            _ => Whim::None,
        };
        let fails_after = if let Whim::Refuses(after) = whim { Some(after) } else { None };
        let constraint = EverySecond { mask: TokenMask::none(VOCAB as usize), taken: 0, fails_after };
        let record = Arc::new(Mutex::new(Record::default()));
        let job = Job {
            request: request.clone(),
            constraint: constrained.then(|| Box::new(constraint) as Box<dyn Constraint>),
            cache_key: [None, Some("a".to_owned()), Some("b".to_owned())][random.below(3)].clone(),
        };
        let sink = self.sink(Arc::clone(&record), whim);
        let expected = answer(&request, constrained, context_tokens);
        (job, sink, Order { id: JobId(0), request, whim, record, moved: (0, Duration::ZERO), expected })
    }

    /// Takes note of an answer: the conversation goes on from it, rendered as it was written or a little differently.
    pub fn hear(&mut self, order: &Order, random: &mut Random) {
        let answer = order.record.lock().unwrap().tokens.clone();
        if self.talk.tokens.len() + 2 == order.request.prompt.len() && !answer.is_empty() {
            let header = [[1, 1], [1, 0]][random.below(2)];
            self.talk.say(header.into_iter().chain(answer));
        }
    }

    /// Takes down what happens to a job, and follows its client's whim.
    fn sink(&self, record: Arc<Mutex<Record>>, whim: Whim) -> Sink {
        let (name, trace) = (self.name, self.trace.clone());
        Box::new(move |event| {
            let mut record = record.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            trace.note(|| format!("client {name}: {event:?}"));
            assert!(record.end.is_none(), "an event after the end");
            if record.over && !matches!(event, JobEvent::End(_)) {
                record.late = Some(format!("{event:?}"));
            }
            let leaves = whim == Whim::Leaves(record.events);
            let panics = whim == Whim::Panics(record.events);
            record.events += 1;
            record.over |= leaves || panics;
            match event {
                JobEvent::Started { .. } => record.started = true,
                JobEvent::Prefill { done_tokens, cached_tokens, .. } => {
                    assert!(cached_tokens <= done_tokens && record.done_tokens <= done_tokens);
                    record.done_tokens = done_tokens;
                }
                JobEvent::Token { token, .. } => record.tokens.push(token.id),
                JobEvent::End(end) => record.end = Some(end),
            }
            drop(record);
            assert!(!panics, "a client's bug, as planned");
            if leaves { ControlFlow::Break(Halt::Cancelled) } else { ControlFlow::Continue(()) }
        })
    }
}

impl Order {
    /// Checks the end of the job against what it had to be; it may have failed of one of the device's `faults`.
    pub fn check(&self, faults: &AtomicUsize) {
        let record = self.record.lock().unwrap();
        assert_eq!(record.late, None, "an event for a client that had left");
        let (expected, reason) = &self.expected;
        assert!(expected.starts_with(&record.tokens), "{:?} instead of {expected:?}", record.tokens);
        match record.end.as_ref().expect("an end") {
            Ok(summary) if summary.finish_reason == FinishReason::Cancelled => {
                assert!(matches!(self.whim, Whim::Leaves(_) | Whim::Cancels), "{:?}", self.whim);
            }
            Ok(summary) => {
                assert_eq!((&record.tokens, summary.finish_reason), (expected, *reason));
                assert_eq!(summary.generated_tokens, expected.len());
                assert_eq!(summary.reuse.tokens() + summary.prefill_tokens, self.request.prompt.len());
            }
            Err(JobError::Panicked) => assert!(matches!(self.whim, Whim::Panics(_)), "a panic that nobody planned"),
            Err(error) if error.to_string().contains("as planned") => assert!(matches!(self.whim, Whim::Refuses(_))),
            Err(error) => {
                let one = faults.fetch_update(SeqCst, SeqCst, |faults| faults.checked_sub(1));
                assert!(one.is_ok(), "no fault for {error}");
            }
        }
    }
}

fn sampling(random: &mut Random) -> SamplingParams {
    let seeded = SamplingParams { seed: Some(random.below(100) as u64), ..SamplingParams::default() };
    match random.below(4) {
        0 => SamplingParams { presence_penalty: 1.0, repetition_penalty: 1.2, ..seeded },
        1 => SamplingParams { temperature: 0.7, top_k: 5, top_p: 0.9, ..seeded },
        2 => seeded,
        _ => SamplingParams { seed: seeded.seed, ..SamplingParams::greedy() },
    }
}
