//! `--explain-cache`: where a prompt parted from what was remembered, and in which message.
//!
//! Positions, numbers and roles only; no text of anybody's.

use lily_engine::cache::Reuse;
use lily_engine::prompt::Prompter;

/// Roles of messages. What a client wrote in the place of one is its own business.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Logs what became of one prompt in the cache.
pub(crate) fn log(request_id: &str, prompt: &[u32], reuse: &Reuse, prompter: &Prompter) {
    tracing::info!(target: "lily::cache", id = request_id, "{}", text(prompt, reuse, prompter));
}

fn text(prompt: &[u32], reuse: &Reuse, prompter: &Prompter) -> String {
    let mut text = format!(
        "{} of {} prompt tokens reused ({} from the session, {} from memory, {} from disk)",
        reuse.tokens(),
        prompt.len(),
        reuse.session_tokens,
        reuse.memory_tokens,
        reuse.disk_tokens
    );
    if let Some(divergence) = reuse.divergence {
        text += &format!(
            "; it parts from a remembered text of {} tokens at token {}",
            divergence.remembered_tokens, divergence.position
        );
        if let Some((number, role)) = message_at(prompt, divergence.position, prompter) {
            text += &format!(", in message {number} ({role})");
        }
    }
    text
}

/// Number (from 1, as the template has them) and role of the message that a token belongs to.
fn message_at(prompt: &[u32], position: usize, prompter: &Prompter) -> Option<(usize, &'static str)> {
    let tokenizer = prompter.tokenizer();
    let start = tokenizer.token_id("<|im_start|>")?;
    let before = &prompt[..prompt.len().min(position + 1)];
    let number = before.iter().filter(|&&token| token == start).count();
    let at = before.iter().rposition(|&token| token == start)?;
    let head = tokenizer.decode(&prompt[at + 1..prompt.len().min(at + 5)]);
    let named = head.split(|c: char| !c.is_ascii_alphabetic()).next()?;
    Some((number, ROLES.into_iter().find(|role| *role == named).unwrap_or("of no known role")))
}
