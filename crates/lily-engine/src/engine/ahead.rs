//! Decoding with the token chosen on the device, the host one step ahead.
//!
//! Each decode step ends with the sampler's kernel, which writes the token where the next step reads its input. So the
//! host submits step n + 1 before it knows token n, and reads token n while the device works: nobody waits for the other.
//! Two result slots alternate. What the session holds is what was submitted: the last token that was read is part of it.

use super::{Engine, EngineError, ProgramKey};
use crate::backend::BackendError;
use crate::kernel::{
    IN_PROMPT, RESULT_WORDS, SAMPLE_ALL_MASKED, SAMPLE_FLAT, SAMPLE_NOT_FINITE, Step, USES_BIAS, USES_GENERATED,
    USES_SEEN,
};
use crate::plan::Slot;
use crate::sampler::{History, SampleError, Sampler, Token};
use crate::session::Session;

/// A generation whose tokens are chosen on the device.
pub struct Ahead<'a> {
    engine: &'a mut Engine,
    session: &'a mut Session,
    vocab: usize,
    /// Number of the draw whose result is read next.
    draw: usize,
    /// Whether the session's logits are those of the device's last step.
    stepped: bool,
}

/// Why the next token cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum AheadError {
    /// The device failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The logits are broken.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

impl Engine {
    /// Starts choosing tokens after what `session` holds, whose logits must be there, by the sampler's parameters.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If the session has no logits, or this device does not choose tokens ([`crate::model::Traits::chooses_tokens`]): a
    /// broken invariant of the generator.
    pub fn ahead<'a>(
        &'a mut self,
        session: &'a mut Session,
        sampler: &Sampler,
        history: History<'_>,
    ) -> Result<Ahead<'a>, EngineError> {
        assert!(self.model.traits.chooses_tokens, "this device leaves the choice of tokens to the host");
        self.write_sampler(session, sampler, history);
        let mut ahead =
            Ahead { vocab: sampler.vocab(), engine: self, session, draw: history.generated.len(), stepped: false };
        ahead.submit(ProgramKey::Choose)?;
        Ok(ahead)
    }

    pub(super) fn write_sampler(&mut self, session: &Session, sampler: &Sampler, history: History<'_>) {
        let (scratch, backend) = (&self.model.scratch, &mut self.backend);
        let params = sampler.kernel_params();
        let logits = session.logits().expect("a session with logits");
        // The kernel moves the step on, to the position of the token it chooses.
        let step = Step { position: session.tokens().len() as u32 - 1, window: 1 - session.window };
        backend.write(scratch.step, bytemuck::bytes_of(&step));
        backend.write(scratch.logits, bytemuck::cast_slice(logits));
        backend.write(scratch.sampling, bytemuck::bytes_of(&params));
        backend.write(scratch.draws, bytemuck::bytes_of(&(history.generated.len() as u32)));
        if params.uses & USES_BIAS != 0 {
            let mut bias = vec![0.0_f32; self.model.shape.vocab];
            sampler.params().logit_bias.iter().for_each(|(&token, &value)| bias[token as usize] = value);
            backend.write(scratch.bias, bytemuck::cast_slice(&bias));
        }
        if params.uses & (USES_GENERATED | USES_SEEN) != 0 {
            let mut counts = vec![0_u32; self.model.shape.vocab];
            history.generated.iter().for_each(|&token| counts[token as usize] += 1);
            history.prompt.iter().for_each(|&token| counts[token as usize] |= IN_PROMPT);
            backend.write(scratch.counts, bytemuck::cast_slice(&counts));
        }
    }
}

impl Drop for Ahead<'_> {
    /// However the generation ends, nothing of it is under way when somebody else touches the device.
    fn drop(&mut self) {
        // An error of a step that nobody asks about any more has emptied the session, or the next step will meet it.
        let waited = self.engine.backend.wait();
        let _ = self.checked(waited);
    }
}

impl Ahead<'_> {
    /// The next token. With `more`, the step after it is started first, if the context has room.
    ///
    /// # Errors
    /// If the device fails, or the logits are such that no token can honestly be chosen.
    pub fn next(&mut self, more: bool) -> Result<Token, AheadError> {
        let more = more && self.session.tokens().len() < self.engine.model.context_tokens;
        if more {
            self.submit(ProgramKey::Ahead(self.engine.model.decode_class(self.session.tokens().len())))?;
            self.stepped = true;
        }
        let waited = self.engine.backend.wait_until(usize::from(more));
        self.checked(waited)?;
        let (token, [status, value, index]) = self.result();
        let value = f32::from_bits(value);
        if more {
            self.session.extend(&[token.id]);
        }
        self.draw += 1;
        match status {
            SAMPLE_NOT_FINITE => Err(SampleError::NotFinite { index: index as usize, value }.into()),
            SAMPLE_ALL_MASKED => Err(SampleError::AllMasked { count: self.vocab }.into()),
            SAMPLE_FLAT => Err(SampleError::Flat { count: self.vocab, value }.into()),
            _ => Ok(token),
        }
    }

    /// Ends the generation; the session then holds every token read but perhaps the last, with logits.
    ///
    /// # Errors
    /// If the device fails.
    pub fn finish(mut self) -> Result<(), EngineError> {
        let waited = self.engine.backend.wait();
        self.checked(waited)?;
        if self.stepped {
            let logits = self.session.logits_mut();
            self.engine.backend.read(self.engine.model.scratch.logits, bytemuck::cast_slice_mut(logits));
        }
        Ok(())
    }

    fn submit(&mut self, key: ProgramKey) -> Result<(), EngineError> {
        let submitted = self.engine.submit(self.session, key, 1);
        self.checked(submitted)
    }

    /// Empties the session if its step failed.
    fn checked(&mut self, result: Result<(), BackendError>) -> Result<(), EngineError> {
        self.engine.emptied_if(self.session, result)
    }

    /// The token of the oldest unread result, its status, and a logit with its index that tell more of an error.
    fn result(&self) -> (Token, [u32; 3]) {
        let (scratch, backend) = (&self.engine.model.scratch, &self.engine.backend);
        let at = |slot: Slot, bytes: usize| slot.part((self.draw % 2) * bytes, bytes);
        let mut words = [0_u32; RESULT_WORDS as usize];
        backend.peek(at(scratch.results, size_of_val(&words)), bytemuck::cast_slice_mut(&mut words));
        let mut logprob = 0.0_f32;
        backend.peek(at(scratch.logprobs, 4), bytemuck::bytes_of_mut(&mut logprob));
        (Token { id: words[0], logprob }, [words[1], words[2], words[3]])
    }
}
