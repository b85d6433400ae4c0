//! Whose turn it is: prefill chunks and decode steps of several jobs, one after another on one device.
//!
//! - A job whose prompt is done and that has no token yet goes first: that costs no step.
//! - Decode steps go round. While prompts wait, every chunk is followed by a round of decode steps at least, and by as
//!   many as take half of the chunk's time: a third of the time belongs to the streams, and none of them starves.
//! - Chunks go by turns to the prompt that came first and to the one with least left, so that a short question does not
//!   wait for a long document, nor the document for ever for short questions. While there are streams, chunks are cut to
//!   what takes about [`CHUNK_AIM`], as a stream stands still for as long as a chunk takes.

use super::job::JobId;
use std::time::Duration;

/// Time that a chunk should take while somebody waits for tokens.
const CHUNK_AIM: Duration = Duration::from_millis(400);
/// No chunk is cut shorter: below this, time hardly depends on the length.
const CHUNK_LEAST_TOKENS: usize = 64;

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// So many tokens of its prompt are left to compute.
    Prompt { left_tokens: usize },
    /// Its prompt is computed, and it has no token.
    First,
    /// It has tokens.
    Stream,
}

/// What to do next, for the job of this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Compute a chunk of at most so many tokens.
    Chunk { job: usize, most_tokens: usize },
    /// Choose the next token.
    Token { job: usize },
}

#[derive(Default)]
pub(super) struct Turns {
    /// Decode steps, and time for them, that streams are owed since the last chunk.
    owed_steps: usize,
    owed: Duration,
    /// The job that had the last decode step.
    last: Option<JobId>,
    /// Whether the next chunk goes to the prompt with least left.
    shortest_next: bool,
    /// Time per token of the last chunk.
    token_time: Duration,
}

impl Turns {
    /// The next turn among `jobs`, which come in the order of their ids; `None` if there are none.
    pub fn next(&mut self, jobs: &[(JobId, Phase)]) -> Option<Turn> {
        if let Some(job) = jobs.iter().position(|(_, phase)| *phase == Phase::First) {
            return Some(Turn::Token { job });
        }
        let left = |&(_, phase): &(JobId, Phase)| match phase {
            Phase::Prompt { left_tokens } => Some(left_tokens),
            _ => None,
        };
        let stream = self.next_stream(jobs);
        let oldest = jobs.iter().position(|job| left(job).is_some());
        match (stream, oldest) {
            (Some(job), None) => Some(Turn::Token { job }),
            (Some(job), Some(_)) if self.owed_steps > 0 || !self.owed.is_zero() => Some(Turn::Token { job }),
            (_, Some(oldest)) => {
                let shortest = jobs.iter().enumerate().filter_map(|(i, job)| Some((left(job)?, i))).min();
                let job = shortest.filter(|_| self.shortest_next).map_or(oldest, |(_, job)| job);
                self.shortest_next = !self.shortest_next;
                let most_tokens = if stream.is_some() { self.aimed_tokens() } else { usize::MAX };
                Some(Turn::Chunk { job, most_tokens })
            }
            (None, None) => None,
        }
    }

    /// The stream after the one that had the last step.
    fn next_stream(&self, jobs: &[(JobId, Phase)]) -> Option<usize> {
        let streams = || jobs.iter().enumerate().filter(|(_, (_, phase))| *phase == Phase::Stream);
        let after = streams().find(|(_, (id, _))| self.last.is_none_or(|last| *id > last));
        after.or_else(|| streams().next()).map(|(index, _)| index)
    }

    /// The streams whose steps can be one step with that of `first`: those after it in the round, `most` of all.
    pub fn together(jobs: &[(JobId, Phase)], first: usize, most: usize) -> Vec<usize> {
        let round = (first..jobs.len()).chain(0..first);
        round.filter(|&job| jobs[job].1 == Phase::Stream).take(most).collect()
    }

    fn aimed_tokens(&self) -> usize {
        let tokens = CHUNK_AIM.as_nanos().checked_div(self.token_time.as_nanos());
        tokens.map_or(CHUNK_LEAST_TOKENS, |tokens| (tokens as usize).max(CHUNK_LEAST_TOKENS))
    }

    /// A chunk of `tokens` took so long, while there were `streams`.
    pub fn spent_on_chunk(&mut self, tokens: usize, time: Duration, streams: usize) {
        self.token_time = time / tokens.max(1) as u32;
        self.owed_steps = streams;
        self.owed = if streams > 0 { time / 2 } else { Duration::ZERO };
    }

    /// A decode step of `streams` streams took so long; `last` was the last of them in the round.
    pub fn spent_on_step(&mut self, last: JobId, streams: usize, time: Duration) {
        self.last = Some(last);
        self.owed_steps = self.owed_steps.saturating_sub(streams);
        self.owed = self.owed.saturating_sub(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    /// Runs turns on phases; a prompt becomes a stream when it is done. Returns what was done, one letter a turn.
    fn run(turns: &mut Turns, jobs: &mut [(JobId, Phase)], per_token: Duration, count: usize) -> String {
        let mut done = String::new();
        for _ in 0..count {
            let Some(turn) = turns.next(jobs) else { break };
            let streams = jobs.iter().filter(|(_, phase)| *phase == Phase::Stream).count();
            match turn {
                Turn::Chunk { job, most_tokens } => {
                    let Phase::Prompt { left_tokens } = jobs[job].1 else { panic!("a chunk without a prompt") };
                    let tokens = left_tokens.min(most_tokens).min(512);
                    turns.spent_on_chunk(tokens, per_token * tokens as u32, streams);
                    let left_tokens = left_tokens - tokens;
                    jobs[job].1 = if left_tokens == 0 { Phase::First } else { Phase::Prompt { left_tokens } };
                    done.push((b'A' + job as u8) as char);
                }
                Turn::Token { job } => {
                    if std::mem::replace(&mut jobs[job].1, Phase::Stream) == Phase::Stream {
                        turns.spent_on_step(jobs[job].0, 1, STEP);
                    }
                    done.push((b'a' + job as u8) as char);
                }
            }
        }
        done
    }

    fn jobs(phases: &[Phase]) -> Vec<(JobId, Phase)> {
        (0..).map(JobId).zip(phases.iter().copied()).collect()
    }

    #[test]
    fn streams_go_round_and_a_prompt_shares_with_them() {
        let mut turns = Turns::default();
        assert_eq!(turns.next(&[]), None);
        let mut all = jobs(&[Phase::Stream, Phase::Stream, Phase::Stream]);
        assert_eq!(run(&mut turns, &mut all, STEP, 7), "abcabca");
        // A chunk of 64 tokens takes 64 ms: 32 ms of steps at least follow, which are four. The next one is aimed at 400 ms,
        // and ends the prompt; its first token comes at once.
        all.push((JobId(3), Phase::Prompt { left_tokens: 64 + 400 }));
        let ms = Duration::from_millis(1);
        assert_eq!(run(&mut turns, &mut all, ms, 10), "DbcabDdcda");
    }

    #[test]
    fn streams_that_go_together_come_in_the_order_of_the_round() {
        let all = jobs(&[Phase::Stream, Phase::First, Phase::Stream, Phase::Stream]);
        assert_eq!(Turns::together(&all, 2, 8), [2, 3, 0]);
        assert_eq!(Turns::together(&all, 3, 2), [3, 0]);
        assert_eq!(Turns::together(&all, 0, 1), [0]);
    }

    #[test]
    fn a_round_of_steps_follows_however_short_the_chunk() {
        let mut turns = Turns::default();
        let mut all = jobs(&[Phase::Stream; 5]);
        all.push((JobId(9), Phase::Prompt { left_tokens: 10_000 }));
        let done = run(&mut turns, &mut all, Duration::from_nanos(1), 18);
        assert_eq!(done, "FabcdeFabcdeFabcde");
    }

    #[test]
    fn a_short_prompt_need_not_wait_for_a_long_one_nor_the_other_way_round() {
        let mut turns = Turns::default();
        let prompt = |left_tokens| Phase::Prompt { left_tokens };
        let mut all = jobs(&[prompt(512 * 6), prompt(512 * 2), prompt(100)]);
        assert_eq!(run(&mut turns, &mut all[..], STEP, 6), "ACcAcc");
        assert!(matches!(all[0].1, Phase::Prompt { .. }));
    }
}
