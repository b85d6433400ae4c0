//! Decoding with tokens chosen on the device, the host one step ahead.
//!
//! Each decode step ends with the sampler's kernel for every session of it, which writes the token where the next step reads its
//! input. So the host submits step n + 1 before it knows the tokens of step n, and reads these while the device works: nobody
//! waits for the other. Two result slots alternate. What a session holds is what was submitted: the last token that was read
//! is part of it.

use super::{Engine, EngineError, ProgramKey};
use crate::backend::BackendError;
use crate::kernel::{
    IN_PROMPT, RESULT_WORDS, SAMPLE_ALL_MASKED, SAMPLE_FLAT, SAMPLE_NOT_FINITE, Step, USES_BIAS, USES_GENERATED,
    USES_SEEN,
};
use crate::plan::Slot;
use crate::sampler::{History, SampleError, Sampler, Token};
use crate::session::Session;

/// Generations whose tokens are chosen on the device.
pub struct Ahead<'a> {
    engine: &'a mut Engine,
    /// By their places in the step.
    sessions: Vec<&'a mut Session>,
    places: Vec<Place>,
    /// In the caller's order.
    results: Vec<Result<Token, SampleError>>,
    /// Whether the sessions' logits are those of the device's last step.
    stepped: bool,
}

/// What is known of a session of the step.
struct Place {
    /// Its number for the caller.
    index: usize,
    vocab: usize,
    /// Number of the draw whose result is read next.
    draw: usize,
}

impl Engine {
    /// Starts choosing tokens after what `sessions` hold, whose logits must be there, each by its sampler's parameters.
    ///
    /// # Errors
    /// If the device fails; the sessions are then empty.
    ///
    /// # Panics
    /// If there are no sessions, more than the model's batch, or one without logits or choice, or if this device does not
    /// choose tokens ([`crate::model::Traits::chooses_tokens`]): broken invariants of the generator.
    pub fn ahead<'a>(
        &'a mut self,
        sessions: Vec<&'a mut Session>,
        choices: &[(&Sampler, History<'_>)],
    ) -> Result<Ahead<'a>, EngineError> {
        assert!(self.model.traits.chooses_tokens, "this device leaves the choice of tokens to the host");
        assert_eq!(sessions.len(), choices.len(), "a choice for each session");
        // Sessions of one class side by side, so that the same few plans serve whoever comes.
        let mut sessions: Vec<(usize, &mut Session)> = sessions.into_iter().enumerate().collect();
        sessions.sort_by_key(|(_, session)| self.model.decode_class(session.tokens().len()).order());
        let place = |(index, _): &(usize, &mut Session)| {
            let (sampler, history) = choices[*index];
            Place { index: *index, vocab: sampler.vocab(), draw: history.generated.len() }
        };
        let places: Vec<Place> = sessions.iter().map(place).collect();
        let sessions: Vec<&mut Session> = sessions.into_iter().map(|(_, session)| session).collect();
        for (i, (place, session)) in places.iter().zip(&sessions).enumerate() {
            self.write_sampler(i, session, choices[place.index]);
        }
        let results = Vec::with_capacity(places.len());
        let key = ProgramKey::Choose { sessions: places.len() };
        let mut ahead = Ahead { engine: self, sessions, places, results, stepped: false };
        ahead.submit(key)?;
        Ok(ahead)
    }

    /// Tells the device what to choose the token of the session at this place of a step from, and how.
    pub(super) fn write_sampler(&mut self, place: usize, session: &Session, choice: (&Sampler, History<'_>)) {
        let (model, backend, (sampler, history)) = (&self.model, &mut self.backend, choice);
        let (params, slots) = (sampler.kernel_params(), model.choice_of(place));
        let logits = session.logits().expect("a session with logits");
        // The kernel moves the step on, to the position of the token it chooses.
        let step = Step { position: session.tokens().len() as u32 - 1, window: 1 - session.window };
        backend.write(model.step_of(place), bytemuck::bytes_of(&step));
        backend.write(slots.logits, bytemuck::cast_slice(logits));
        backend.write(slots.params, bytemuck::bytes_of(&params));
        backend.write(slots.draws, bytemuck::bytes_of(&(history.generated.len() as u32)));
        if params.uses & USES_BIAS != 0 {
            let mut bias = vec![0.0_f32; model.shape.vocab];
            sampler.params().logit_bias.iter().for_each(|(&token, &value)| bias[token as usize] = value);
            backend.write(slots.bias, bytemuck::cast_slice(&bias));
        }
        if params.uses & (USES_GENERATED | USES_SEEN) != 0 {
            let mut counts = vec![0_u32; model.shape.vocab];
            history.generated.iter().for_each(|&token| counts[token as usize] += 1);
            history.prompt.iter().for_each(|&token| counts[token as usize] |= IN_PROMPT);
            backend.write(slots.counts, bytemuck::cast_slice(&counts));
        }
    }
}

impl Drop for Ahead<'_> {
    /// However the generations end, nothing of them is under way when somebody else touches the device.
    fn drop(&mut self) {
        // An error of a step that nobody asks about any more has emptied the sessions, or the next step will meet it.
        let waited = self.engine.backend.wait();
        let _ = self.checked(waited);
    }
}

impl Ahead<'_> {
    /// The next token of each session; an error for one whose logits are such that no token can honestly be chosen. With
    /// `more`, the step after it is started first, if all contexts have room.
    ///
    /// # Errors
    /// If the device fails; the sessions are then empty.
    pub fn next(&mut self, more: bool) -> Result<&[Result<Token, SampleError>], EngineError> {
        let context_tokens = self.engine.model.context_tokens;
        let more = more && self.sessions.iter().all(|session| session.tokens().len() < context_tokens);
        if more {
            let class = |session: &&mut Session| self.engine.model.decode_class(session.tokens().len());
            let classes = self.sessions.iter().map(class).collect();
            self.submit(ProgramKey::Decode { classes, choose: true })?;
            self.stepped = true;
        }
        let waited = self.engine.backend.wait_until(usize::from(more));
        self.checked(waited)?;
        let nothing = Token { id: 0, logprob: 0.0 };
        self.results.clear();
        self.results.resize(self.places.len(), Ok(nothing));
        for i in 0..self.places.len() {
            let (token, result) = self.result(i);
            if more {
                self.sessions[i].extend(&[token]);
            }
            self.places[i].draw += 1;
            self.results[self.places[i].index] = result;
        }
        Ok(&self.results)
    }

    /// Ends the generations; the sessions then hold every token read but perhaps the last, with logits.
    ///
    /// # Errors
    /// If the device fails; the sessions are then empty.
    pub fn finish(mut self) -> Result<(), EngineError> {
        let waited = self.engine.backend.wait();
        self.checked(waited)?;
        if self.stepped {
            for (i, session) in self.sessions.iter_mut().enumerate() {
                let logits = self.engine.model.choice_of(i).logits;
                self.engine.backend.read(logits, bytemuck::cast_slice_mut(session.logits_mut()));
            }
        }
        Ok(())
    }

    fn submit(&mut self, key: ProgramKey) -> Result<(), EngineError> {
        let submitted = self.engine.submit(&mut self.sessions, key);
        self.checked(submitted)
    }

    /// Empties the sessions if their step failed.
    fn checked(&mut self, result: Result<(), BackendError>) -> Result<(), EngineError> {
        self.engine.emptied_if(&mut self.sessions, result)
    }

    /// The token of the oldest unread result of a place, and what is to be told of it.
    fn result(&self, place: usize) -> (u32, Result<Token, SampleError>) {
        let (slots, backend) = (self.engine.model.choice_of(place), &self.engine.backend);
        let Place { vocab, draw, .. } = self.places[place];
        let at = |slot: Slot, bytes: usize| slot.part((draw % 2) * bytes, bytes);
        let mut words = [0_u32; RESULT_WORDS as usize];
        backend.peek(at(slots.results, size_of_val(&words)), bytemuck::cast_slice_mut(&mut words));
        let mut logprob = 0.0_f32;
        backend.peek(at(slots.logprobs, 4), bytemuck::bytes_of_mut(&mut logprob));
        let id = words[0];
        (id, outcome(words, vocab).map(|()| Token { id, logprob }))
    }
}

/// Whether the words of a result are those of a token that was honestly chosen.
pub(super) fn outcome(words: [u32; RESULT_WORDS as usize], vocab: usize) -> Result<(), SampleError> {
    let [_, status, value, index] = words;
    let value = f32::from_bits(value);
    match status {
        SAMPLE_NOT_FINITE => Err(SampleError::NotFinite { index: index as usize, value }),
        SAMPLE_ALL_MASKED => Err(SampleError::AllMasked { count: vocab }),
        SAMPLE_FLAT => Err(SampleError::Flat { count: vocab, value }),
        _ => Ok(()),
    }
}
