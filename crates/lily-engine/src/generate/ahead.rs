//! Several generations under way at once, whose tokens the device chooses: a step of all is always under way while the host looks
//! at the tokens of the last one.

use super::GenerateError;
use super::generation::{Generation, Pause};
use crate::engine::{Engine, EngineError};
use crate::sampler::Token;
use crate::session::Session;
use std::ops::ControlFlow;

/// Runs generations until one of them ends or `on_token`, which gets the number of its generation, breaks: the set is
/// another then. Nothing happens where one has ended already. Gives how it went for each.
///
/// # Errors
/// If the device fails; the sessions are then empty.
///
/// # Panics
/// If they are none, or more than a step has room for, or the device does not choose their tokens
/// ([`Generation::can_run_ahead`]): broken invariants of the caller.
pub(crate) fn run(
    engine: &mut Engine,
    running: &mut [(&mut Generation, &mut Session)],
    on_token: &mut dyn FnMut(usize, Token) -> ControlFlow<Pause>,
) -> Result<Vec<Result<(), GenerateError>>, EngineError> {
    let mut results: Vec<Result<(), GenerateError>> = running.iter().map(|_| Ok(())).collect();
    let mut ended = false;
    running.iter_mut().for_each(|(generation, _)| ended |= generation.ended());
    if ended {
        return Ok(results);
    }
    catch_up(engine, running)?;
    let (mut generations, sessions): (Vec<&mut Generation>, Vec<&mut Session>) =
        running.iter_mut().map(|(generation, session)| (&mut **generation, &mut **session)).unzip();
    let choices: Vec<_> = generations.iter().map(|generation| generation.choice()).collect();
    let mut ahead = engine.ahead(sessions, &choices)?;
    let mut goes_on = true;
    while goes_on {
        let chosen = ahead.next(generations.iter().all(|generation| generation.wants_more()))?;
        for (i, (generation, token)) in generations.iter_mut().zip(chosen).enumerate() {
            match generation.take_chosen(token, &mut |token| on_token(i, token)) {
                Ok(this_goes_on) => goes_on &= this_goes_on,
                Err(error) => (results[i], goes_on) = (Err(error), false),
            }
        }
    }
    ahead.finish()?;
    Ok(results)
}

/// Takes the last tokens into the sessions that do not have them yet.
fn catch_up(engine: &mut Engine, running: &mut [(&mut Generation, &mut Session)]) -> Result<(), EngineError> {
    let mut tokens = Vec::new();
    let mut behind: Vec<&mut Session> = Vec::new();
    for (generation, session) in running {
        if let Some(token) = generation.due(session) {
            tokens.push(token);
            behind.push(session);
        }
    }
    if behind.is_empty() { Ok(()) } else { engine.decode_batch(&mut behind, &tokens, || ()) }
}
