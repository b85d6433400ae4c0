//! One decode step of several sessions: matrices are read once for all of them.

use super::{Engine, EngineError, ProgramKey};
use crate::kernel::Step;
use crate::model::DecodeClass;
use crate::session::Session;

impl Engine {
    /// Extends session `i` by token `i`, all in one step; their logits are in the sessions afterwards, the same bits that
    /// [`Engine::decode`] gives each alone. `meanwhile` runs while the device computes, where the device works beside the
    /// host.
    ///
    /// # Errors
    /// If a context is full or an id unknown; the sessions are then unchanged. If the device fails; they are then empty.
    ///
    /// # Panics
    /// If there are no sessions, more than the model's batch, or not as many tokens: broken invariants of the scheduler.
    pub fn decode_batch<R>(
        &mut self,
        sessions: &mut [&mut Session],
        tokens: &[u32],
        meanwhile: impl FnOnce() -> R,
    ) -> Result<R, EngineError> {
        assert_eq!(sessions.len(), tokens.len(), "a token for each session");
        if let [session] = sessions {
            return self.decode_while(session, tokens[0], meanwhile);
        }
        self.check_ids(tokens)?;
        for session in &*sessions {
            self.check_fit(session.tokens().len() + 1)?;
        }
        // Sessions of one class side by side, so that the same few plans serve whoever comes.
        let class = |session: &Session| self.model.decode_class(session.tokens().len());
        let mut batch: Vec<(DecodeClass, &mut Session, u32)> =
            sessions.iter_mut().zip(tokens).map(|(session, token)| (class(session), &mut **session, *token)).collect();
        batch.sort_by_key(|(class, ..)| class.order());
        let classes = batch.iter().map(|(class, ..)| *class).collect();
        let steps: Vec<Step> = batch
            .iter()
            .map(|(_, session, _)| Step { position: session.tokens().len() as u32, window: session.window })
            .collect();
        let tokens: Vec<u32> = batch.iter().map(|(.., token)| *token).collect();
        let mut sessions: Vec<&mut Session> = batch.into_iter().map(|(_, session, _)| session).collect();
        self.step_all(&mut sessions, classes, &steps, &tokens, meanwhile)
    }

    fn step_all<R>(
        &mut self,
        sessions: &mut [&mut Session],
        classes: Vec<DecodeClass>,
        steps: &[Step],
        tokens: &[u32],
        meanwhile: impl FnOnce() -> R,
    ) -> Result<R, EngineError> {
        let (scratch, rows) = (&self.model.scratch, tokens.len());
        self.backend.write(scratch.steps.first(size_of_val(steps)), bytemuck::cast_slice(steps));
        self.backend.write(scratch.tokens.first(4 * rows), bytemuck::cast_slice(tokens));
        let started = self.submit(sessions, ProgramKey::Decode { classes, choose: false });
        let result = meanwhile();
        let run = started.and_then(|()| self.backend.wait());
        self.emptied_if(sessions, run)?;
        for (i, (session, token)) in sessions.iter_mut().zip(tokens).enumerate() {
            session.extend(&[*token]);
            let logits = self.model.choice_of(i).logits;
            self.backend.read(logits, bytemuck::cast_slice_mut(session.logits_mut()));
        }
        Ok(result)
    }
}
