//! What a request may ask of the sampler, and which values make sense.

use std::collections::BTreeMap;

use crate::checkpoint::GenerationConfig;
use thiserror::Error;

/// How to choose a token from logits. The default changes nothing: plain sampling at temperature 1, fresh entropy.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy decoding (the arg-max after bias and penalties).
    pub temperature: f32,
    /// Keep the `top_k` largest logits; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of most likely tokens that holds at least this share of the probability; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this many times as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Subtracted once from the logit of every token generated so far.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once per time it was generated.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of every distinct token of prompt and generated text; 1 is off.
    pub repetition_penalty: f32,
    /// Added to the logits of the named tokens.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Same seed, same draws; none takes fresh entropy from the operating system.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: BTreeMap::new(),
            seed: None,
        }
    }
}

/// A sampling parameter outside its range.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ParamsError {
    /// A number is NaN, infinite or out of range.
    #[error("{name} is {value}; it must be {range}")]
    OutOfRange {
        /// The parameter, as users spell it.
        name: &'static str,
        /// What was given.
        value: f32,
        /// What is accepted.
        range: &'static str,
    },
    /// `logit_bias` names a token that the model does not have.
    #[error("logit_bias names token {id}, but the vocabulary has {vocab} tokens (0 to {})", vocab - 1)]
    BiasToken {
        /// The token.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// Nothing to choose from.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
}

impl SamplingParams {
    /// Greedy decoding without penalties.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// How the makers of a checkpoint sample from it; plain sampling where they do not say.
    pub fn of_checkpoint(config: &GenerationConfig) -> Self {
        let plain = Self::default();
        let greedy = config.do_sample == Some(false);
        let temperature = if greedy { Some(0.0) } else { config.temperature };
        Self {
            temperature: temperature.unwrap_or(plain.temperature),
            top_k: config.top_k.unwrap_or(plain.top_k),
            top_p: config.top_p.unwrap_or(plain.top_p),
            min_p: config.min_p.unwrap_or(plain.min_p),
            presence_penalty: config.presence_penalty.unwrap_or(plain.presence_penalty),
            frequency_penalty: config.frequency_penalty.unwrap_or(plain.frequency_penalty),
            repetition_penalty: config.repetition_penalty.unwrap_or(plain.repetition_penalty),
            ..plain
        }
    }

    /// Checks every value; `vocab` is the number of tokens that may be drawn.
    ///
    /// # Errors
    /// The first value that is out of range, with the range.
    pub fn validate(&self, vocab: usize) -> Result<(), ParamsError> {
        if vocab == 0 {
            return Err(ParamsError::EmptyVocabulary);
        }
        let check = |name, value: f32, ok: bool, range| {
            // NaN fails every comparison, so `ok` is false for it.
            if ok { Ok(()) } else { Err(ParamsError::OutOfRange { name, value, range }) }
        };
        let t = self.temperature;
        // The reciprocal of a smaller number is not finite.
        let temperature_ok = t == 0.0 || (f32::MIN_POSITIVE..=100.0).contains(&t);
        check("temperature", t, temperature_ok, "0 (greedy) or a number up to 100")?;
        check("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        check("min_p", self.min_p, (0.0..1.0).contains(&self.min_p), "at least 0 and below 1")?;
        for (name, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            check(name, value, (-2.0..=2.0).contains(&value), "between -2 and 2")?;
        }
        let repetition = self.repetition_penalty;
        check(
            "repetition_penalty",
            repetition,
            (0.01..=100.0).contains(&repetition),
            "between 0.01 and 100; 1 is off",
        )?;
        for (&id, &bias) in &self.logit_bias {
            if id as usize >= vocab {
                return Err(ParamsError::BiasToken { id, vocab });
            }
            check("logit_bias", bias, bias.is_finite(), "a finite number")?;
        }
        Ok(())
    }

    /// True when the raw logits are not what is sampled from.
    pub(super) fn adjusts_logits(&self) -> bool {
        !self.logit_bias.is_empty() || self.counts_generated() || self.counts_prompt()
    }

    pub(super) fn counts_generated(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    pub(super) fn counts_prompt(&self) -> bool {
        self.repetition_penalty != 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_extremes_are_valid() {
        SamplingParams::default().validate(10).unwrap();
        SamplingParams::greedy().validate(1).unwrap();
        let params = SamplingParams {
            temperature: 100.0,
            top_p: f32::MIN_POSITIVE,
            min_p: 0.999,
            presence_penalty: -2.0,
            frequency_penalty: 2.0,
            repetition_penalty: 0.01,
            logit_bias: BTreeMap::from([(9, -100.0)]),
            ..Default::default()
        };
        params.validate(10).unwrap();
    }

    #[test]
    fn every_wrong_value_is_named() {
        let check = |set: fn(&mut SamplingParams), expect: &str| {
            let mut params = SamplingParams::default();
            set(&mut params);
            let message = params.validate(10).unwrap_err().to_string();
            assert!(message.contains(expect), "{message}");
        };
        check(|p| p.temperature = f32::NAN, "temperature is NaN; it must be 0 (greedy) or a number up to 100");
        check(|p| p.temperature = -1.0, "temperature is -1");
        check(|p| p.temperature = 1e-40, "temperature");
        check(|p| p.temperature = f32::INFINITY, "temperature is inf");
        check(|p| p.top_p = 0.0, "top_p is 0");
        check(|p| p.top_p = 1.5, "top_p is 1.5");
        check(|p| p.top_p = f32::NAN, "top_p is NaN");
        check(|p| p.min_p = 1.0, "min_p is 1");
        check(|p| p.min_p = -0.1, "min_p is -0.1");
        check(|p| p.presence_penalty = 2.5, "presence_penalty is 2.5");
        check(|p| p.frequency_penalty = f32::NAN, "frequency_penalty is NaN");
        check(|p| p.repetition_penalty = 0.0, "repetition_penalty is 0");
        check(|p| p.logit_bias = BTreeMap::from([(3, f32::NAN)]), "logit_bias is NaN");
        check(|p| p.logit_bias = BTreeMap::from([(10, 1.0)]), "logit_bias names token 10");
        assert_eq!(SamplingParams::default().validate(0), Err(ParamsError::EmptyVocabulary));
    }
}
