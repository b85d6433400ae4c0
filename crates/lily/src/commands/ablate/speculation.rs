//! What speculative decoding would be worth: steps that check guesses beside plain steps, in pairs as everything here.
//!
//! Guesses come from three sources. Look-up proposes what followed the last tokens earlier in the text, so that how many are right is
//! a property of the text. Guesses that are all right, and guesses of which none is, are the two ends between which any
//! other source lies; from them follows how many guesses must be right to gain anything.

use super::pairs;
use crate::cli::AblateArgs;
use crate::failure::Failure;
use crate::measure::{self, Context, Guessing, Rate};
use lily_engine::engine::Engine;
use lily_engine::sampler::SamplingParams;
use serde::Serialize;

/// What was measured of steps of so many tokens at one context.
#[derive(Clone, Debug, Serialize)]
pub struct Speculation {
    /// Tokens of a step: one that is certain, the others guesses.
    pub rows: usize,
    /// Tokens of the context decoded after.
    pub tokens: usize,
    /// A plain step, in milliseconds.
    pub plain_step_ms: f64,
    /// By where the guesses come from.
    pub sources: Vec<Source>,
    /// Share of the guesses that must be right for steps that check them to be as fast as plain ones; none where no share is enough.
    /// Steps are taken to be a mixture of those whose guesses are all right and those of which none is.
    pub break_even: Option<f64>,
}

/// What was measured with guesses of one source.
#[derive(Clone, Debug, Serialize)]
pub struct Source {
    /// `look-up`, `all-right` or `none-right`.
    pub guesses: &'static str,
    /// Tokens per second with steps that check guesses.
    pub with: Rate,
    /// Tokens per second of plain decoding.
    pub without: Rate,
    /// How much faster guessing makes decoding, in percent, of every pair.
    pub percent: Rate,
    /// A step, in milliseconds.
    pub step_ms: f64,
    /// Guesses of a run, and those of them that were right.
    pub guessed: usize,
    pub accepted: usize,
    /// Tokens of a run.
    pub generated: usize,
}

/// The sources of guesses.
const SOURCES: [&str; 3] = ["look-up", "all-right", "none-right"];

/// Measures everything that is asked for, on an engine whose decode steps are long enough.
///
/// # Errors
/// If they are not, if guesses change what is chosen, or if the device fails.
pub fn measure(engine: &mut Engine, args: &AblateArgs) -> Result<Vec<Speculation>, Failure> {
    engine.switch(engine.own_mechanisms());
    let most = engine.model().verify_rows_max();
    if let Some(rows) = args.speculation.iter().find(|rows| **rows > most) {
        return Err(Failure::usage(format_args!(
            "--speculation {rows}: this model checks at most {most} tokens of a session in one step; use longer chunks (--chunk)"
        )));
    }
    let mut measured = Vec::new();
    for &tokens in args.measure.contexts() {
        let filled = measure::random_tokens(engine.model().shape.vocab, args.measure.seed, tokens);
        let (context, _) = Context::fill(engine, &filled)?;
        // Enough to guess from to the end.
        let most = args.speculation.iter().max().copied().unwrap_or(0);
        let text = context.decode(engine, args.measure.decode + 2 * most, &SamplingParams::greedy())?.tokens;
        for &rows in &args.speculation {
            let at = At { context: &context, text: &text, rows, args };
            let sources = SOURCES.map(|source| at.source(engine, source));
            let sources = sources.into_iter().collect::<Result<Vec<_>, _>>()?;
            let plain_step_ms = 1e3 / Rate::new(sources.iter().map(|s| s.without.median).collect()).median;
            let break_even = break_even(rows, plain_step_ms, sources[1].step_ms, sources[2].step_ms);
            measured.push(Speculation { rows, tokens, plain_step_ms, sources, break_even });
        }
    }
    Ok(measured)
}

/// Where and with how many tokens a step is measured.
struct At<'a> {
    context: &'a Context,
    /// What plain decoding gives there.
    text: &'a [u32],
    rows: usize,
    args: &'a AblateArgs,
}

impl At<'_> {
    fn source(&self, engine: &mut Engine, source: &'static str) -> Result<Source, Failure> {
        let (count, greedy) = (self.args.measure.decode, SamplingParams::greedy());
        let mut runs: Vec<Guessing> = Vec::new();
        let [with, without] = pairs(self.args.pairs, &mut |guessing| {
            if !guessing {
                return Ok(self.context.decode(engine, count, &greedy)?.tokens_per_second);
            }
            let run =
                self.context.decode_guessing(engine, count, &mut |text, done| self.guesses(source, text, done))?;
            check_run(self.rows, source, &run.tokens, self.text)?;
            let tokens_per_second = run.tokens_per_second();
            runs.push(run);
            Ok(tokens_per_second)
        })?;
        let percent = with.iter().zip(&without).map(|(with, without)| 100.0 * (with / without - 1.0)).collect();
        // The first is that of the pair that is not counted.
        let step_ms = Rate::new(runs[1..].iter().map(|run| 1e3 * run.seconds / run.steps as f64).collect()).median;
        let last = &runs[runs.len() - 1];
        Ok(Source {
            guesses: source,
            with: Rate::new(with),
            without: Rate::new(without),
            percent: Rate::new(percent),
            step_ms,
            guessed: last.guessed,
            accepted: last.accepted,
            generated: last.tokens.len(),
        })
    }

    /// Guesses of what follows a text whose last `done` tokens were generated.
    fn guesses(&self, source: &str, text: &[u32], done: usize) -> Vec<u32> {
        let right = &self.text[done..][..self.rows - 1];
        match source {
            "look-up" => look_up(text, self.rows - 1),
            "all-right" => right.to_vec(),
            // Another token whatever the right one is, and one that every vocabulary has.
            _ => right.iter().map(|token| u32::from(*token == 0)).collect(),
        }
    }
}

/// Refuses a run that did not choose what plain decoding does, which is `text`.
fn check_run(rows: usize, source: &str, tokens: &[u32], text: &[u32]) -> Result<(), Failure> {
    let same = tokens.iter().zip(text).take_while(|(a, b)| a == b).count();
    if same == tokens.len() {
        return Ok(());
    }
    Err(Failure::other(format_args!(
        "--speculation {rows}: with {source} guesses, token {} is {} and not {} as in plain decoding; guesses must change \
         nothing, so this is a bug of lily: please report it with this machine's name",
        same + 1,
        tokens[same],
        text[same]
    )))
}

/// At most so many tokens that followed where the text's last three tokens, or its last two, were last before.
fn look_up(text: &[u32], most: usize) -> Vec<u32> {
    let found = [3, 2].into_iter().filter(|n| *n < text.len()).find_map(|n| {
        let (earlier, last) = (&text[..text.len() - 1], &text[text.len() - n..]);
        earlier.windows(n).rposition(|window| window == last).map(|at| at + n)
    });
    found.map_or(Vec::new(), |at| text[at..].iter().copied().take(most).collect())
}

/// The share of guesses that must be right: with it, a step takes as long as plain steps to as many tokens.
fn break_even(rows: usize, plain_ms: f64, all_right_ms: f64, none_right_ms: f64) -> Option<f64> {
    let gained_ms = (rows - 1) as f64 * plain_ms + none_right_ms - all_right_ms;
    let share = (none_right_ms - plain_ms) / gained_ms;
    (gained_ms > 0.0 && share <= 1.0).then(|| share.max(0.0))
}

/// A table for people.
pub fn table(measured: &[Speculation]) -> String {
    let mut text = format!(
        "\n{:<28} {:>10} {:>10} {:>10} {:>20} {:>9} {:>9} {:>12}\n",
        "tokens/s", "with", "without", "effect", "min..max", "step, ms", "plain, ms", "right"
    );
    for s in measured {
        for source in &s.sources {
            text += &format!(
                "{:<28} {:>10.1} {:>10.1} {:>+8.1} % {:>20} {:>9.3} {:>9.3} {:>12}\n",
                format!("{} at {}, {}", s.rows, s.tokens, source.guesses),
                source.with.median,
                source.without.median,
                source.percent.median,
                format!("{:+.1}..{:+.1} %", source.percent.min, source.percent.max),
                source.step_ms,
                s.plain_step_ms,
                format!("{} of {}", source.accepted, source.guessed),
            );
        }
        text += &match s.break_even {
            Some(share) => format!("  gains from {:.0} % right guesses on\n", 100.0 * share),
            None => "  gains nothing with any guesses\n".to_owned(),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_choose_other_tokens_are_refused() {
        let check = |tokens: &[u32]| check_run(3, "look-up", tokens, &[5, 6, 7, 8]);
        assert!(check(&[5, 6, 7]).is_ok());
        let failure = check(&[5, 9, 7]).unwrap_err();
        for part in ["--speculation 3", "look-up", "token 2 is 9 and not 6", "please report"] {
            assert!(failure.message().contains(part), "{failure:?}");
        }
    }

    #[test]
    fn look_up_proposes_what_followed_last() {
        let check = |text: &[u32], most, expect: &[u32]| assert_eq!(look_up(text, most), expect, "{text:?}");
        check(&[1, 2, 3, 4, 5, 9, 1, 2, 3], 2, &[4, 5]);
        // Three tokens tell more than two, even if two were there later; the last place counts.
        check(&[1, 2, 3, 4, 8, 2, 3, 7, 1, 2, 3], 1, &[4]);
        check(&[2, 3, 4, 2, 3, 5, 2, 3], 4, &[5, 2, 3]);
        // A text that repeats itself at once.
        check(&[7, 7, 7], 3, &[7]);
        check(&[1, 2, 3, 4], 3, &[]);
        check(&[1], 3, &[]);
    }

    #[test]
    fn a_share_of_right_guesses_breaks_even() {
        let share = break_even(2, 1.0, 1.5, 1.75).unwrap();
        let step = 1.75 + share * (1.5 - 1.75);
        assert!((step - (1.0 + share)).abs() < 1e-12, "{share}");
        assert_eq!(break_even(2, 1.0, 2.5, 2.75), None);
        assert_eq!(break_even(5, 1.0, 0.5, 0.9), Some(0.0));
    }
}
