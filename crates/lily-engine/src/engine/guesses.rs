//! One step of several tokens of a session, of which all but the first are guesses: those that greedy choice agrees with stay,
//! of the others nothing does.
//!
//! Generation does not use it: what it is worth is measured by `lily ablate --speculation`. Where guesses come from is
//! the caller's business.

use super::ahead::outcome;
use super::{Engine, EngineError, ProgramKey};
use crate::kernel::{RESULT_WORDS, SampleParams, Step};
use crate::sampler::{History, SampleError, Sampler, SamplingParams};
use crate::session::Session;

impl Engine {
    /// Extends `session` by the first of `tokens`, and by every guess after it that is what greedy choice gives after the tokens
    /// before; the session has no logits then. Gives what is chosen after each of these, so that guess `i` was right
    /// if there is a choice `i + 1`; no guess is right after logits that no token can honestly be chosen from.
    ///
    /// # Errors
    /// If the tokens do not fit the context or the vocabulary; the session is then unchanged. If the device fails; it is then
    /// empty.
    ///
    /// # Panics
    /// If there are no tokens, or more than [`crate::model::Model::verify_rows_max`]: a broken invariant of the caller.
    pub fn check_guesses(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
    ) -> Result<Vec<Result<u32, SampleError>>, EngineError> {
        let (position, rows) = (session.tokens().len(), tokens.len());
        self.check_fit(position + rows)?;
        self.check_ids(tokens)?;
        let before = (rows > 1).then(|| session.snapshot(&self.model));
        let on_device = self.model.traits.chooses_tokens;
        let classes = (position..position + rows).map(|position| self.model.decode_class(position)).collect();
        self.backend.write(self.model.scratch.tokens.first(4 * rows), bytemuck::cast_slice(tokens));
        if on_device {
            self.ask_for_greedy_choices(rows);
        }
        self.run_rows(session, rows, ProgramKey::Verify { classes, choose: on_device })?;
        let mut choices = if on_device { self.choices_of_device(rows) } else { self.choices_of_host(rows) };
        let guessed = tokens[1..].iter().zip(&choices);
        let right = 1 + guessed.take_while(|(guess, choice)| Ok(**guess) == **choice).count();
        if let Some(before) = before.filter(|_| right < rows) {
            session.put_recurrent(&self.model, &before);
            self.run_rows(session, rows, ProgramKey::Replay { tokens: right })?;
        }
        tokens[..right].iter().for_each(|token| session.extend(&[*token]));
        choices.truncate(right);
        Ok(choices)
    }

    /// Runs a plan whose rows are tokens of one session.
    fn run_rows(&mut self, session: &mut Session, rows: usize, key: ProgramKey) -> Result<(), EngineError> {
        let first = Step { position: session.tokens().len() as u32, window: session.window };
        let step = |i: u32| Step { position: first.position + i, window: first.window ^ (i % 2) };
        let steps: Vec<Step> = (0..rows as u32).map(step).collect();
        self.backend.write(self.model.scratch.steps.first(size_of_val(&steps[..])), bytemuck::cast_slice(&steps));
        let ran = self.submit(&mut [session], key).and_then(|()| self.backend.wait());
        self.emptied_if(&mut [session], ran)
    }

    fn ask_for_greedy_choices(&mut self, rows: usize) {
        let (scratch, vocab) = (&self.model.scratch, self.model.shape.vocab as u32);
        let params = vec![SampleParams::new(&SamplingParams::greedy(), vocab, 0); rows];
        self.backend.write(scratch.sampling.first(size_of_val(&params[..])), bytemuck::cast_slice(&params));
        self.backend.write(scratch.draws.first(4 * rows), bytemuck::cast_slice(&vec![0_u32; rows]));
    }

    fn choices_of_device(&self, rows: usize) -> Vec<Result<u32, SampleError>> {
        // Two results of each row, which alternate by the number of the draw.
        let mut results = vec![[[0_u32; RESULT_WORDS as usize]; 2]; rows];
        let slot = self.model.scratch.results.first(size_of_val(&results[..]));
        self.backend.read(slot, bytemuck::cast_slice_mut(&mut results));
        results.into_iter().map(|[first, _]| outcome(first, self.model.shape.vocab).map(|()| first[0])).collect()
    }

    fn choices_of_host(&self, rows: usize) -> Vec<Result<u32, SampleError>> {
        let vocab = self.model.shape.vocab;
        let mut sampler = Sampler::new(SamplingParams::greedy(), vocab).expect("greedy parameters are in range");
        let mut logits = vec![0.0_f32; vocab];
        let choose = |row| {
            self.backend.read(self.model.choice_of(row).logits, bytemuck::cast_slice_mut(&mut logits));
            Ok(sampler.sample(&logits, History::default())?.id)
        };
        (0..rows).map(choose).collect()
    }
}
