//! Sampling flags, and how they overlay the defaults of a checkpoint.

use clap::Args;
use lily_engine::checkpoint::GenerationConfig;
use lily_engine::sampler::SamplingParams;

/// Flags of every command that generates. What is not given is the checkpoint's own default (generation_config.json).
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling (what is not given: the checkpoint's own defaults)")]
pub struct SamplingArgs {
    /// Divides the logits; 0 always takes the most likely token
    #[arg(long, env = "LILY_TEMPERATURE", hide_env_values = true, value_name = "T")]
    pub temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, env = "LILY_TOP_K", hide_env_values = true, value_name = "K")]
    pub top_k: Option<u32>,
    /// Keep the fewest most likely tokens that hold this share of the probability
    #[arg(long, env = "LILY_TOP_P", hide_env_values = true, value_name = "P")]
    pub top_p: Option<f32>,
    /// Keep tokens at least this many times as likely as the most likely one
    #[arg(long, env = "LILY_MIN_P", hide_env_values = true, value_name = "P")]
    pub min_p: Option<f32>,
    /// Subtracted once from tokens generated before
    #[arg(
        long,
        env = "LILY_PRESENCE_PENALTY",
        hide_env_values = true,
        value_name = "X",
        allow_negative_numbers = true
    )]
    pub presence_penalty: Option<f32>,
    /// Subtracted from a token once for every time it was generated
    #[arg(
        long,
        env = "LILY_FREQUENCY_PENALTY",
        hide_env_values = true,
        value_name = "X",
        allow_negative_numbers = true
    )]
    pub frequency_penalty: Option<f32>,
    /// Weakens every token of prompt and answer; 1 is off
    #[arg(long, env = "LILY_REPETITION_PENALTY", hide_env_values = true, value_name = "X")]
    pub repetition_penalty: Option<f32>,
    /// Adds BIAS to the logit of token ID; may be repeated, or a list with commas
    #[arg(long, env = "LILY_LOGIT_BIAS", hide_env_values = true, value_name = "ID=BIAS", value_delimiter = ',',
          value_parser = parse_bias, allow_hyphen_values = true)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed, same text; without one every run differs
    #[arg(long, env = "LILY_SEED", hide_env_values = true, value_name = "N")]
    pub seed: Option<u64>,
    /// End the answer where this text would begin; may be repeated
    #[arg(long, env = "LILY_STOP", hide_env_values = true, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
    /// Most tokens to generate; without it, all that the context has room for
    #[arg(long, env = "LILY_MAX_TOKENS", hide_env_values = true, value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub max_tokens: Option<usize>,
    /// Let the model think before it answers [env: LILY_THINK=true or false]
    #[arg(long, overrides_with = "no_think")]
    think: bool,
    /// Let the model answer at once
    #[arg(long, overrides_with = "think")]
    no_think: bool,
    /// The environment's say: an argument of its own, as a flag must win over it and not conflict with it.
    #[arg(long, env = "LILY_THINK", hide = true)]
    think_by_default: Option<bool>,
}

impl SamplingArgs {
    /// What to sample with: the checkpoint's defaults, overlaid with what was given.
    pub fn params(&self, defaults: &GenerationConfig) -> SamplingParams {
        let base = SamplingParams::of_checkpoint(defaults);
        SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            logit_bias: self.logit_bias.iter().copied().collect(),
            seed: self.seed,
        }
    }

    /// Whether to think; `None` leaves it to the template.
    pub fn thinking(&self) -> Option<bool> {
        match (self.think, self.no_think) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => self.think_by_default,
        }
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || "expected ID=BIAS, such as 1234=-5".to_owned();
    let (id, bias) = text.split_once('=').ok_or_else(wrong)?;
    Ok((id.trim().parse().map_err(|_| wrong())?, bias.trim().parse().map_err(|_| wrong())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_overlay_the_checkpoint_which_overlays_plain_sampling() {
        let defaults = GenerationConfig { temperature: Some(0.7), top_k: Some(20), ..Default::default() };
        let args = SamplingArgs { top_k: Some(3), ..Default::default() };
        let params = args.params(&defaults);
        assert_eq!((params.temperature, params.top_k, params.top_p), (0.7, 3, 1.0));
    }

    #[test]
    fn a_checkpoint_that_does_not_sample_is_greedy_unless_told() {
        let defaults = GenerationConfig { do_sample: Some(false), temperature: Some(0.7), ..Default::default() };
        assert_eq!(SamplingArgs::default().params(&defaults).temperature, 0.0);
        let args = SamplingArgs { temperature: Some(1.0), ..Default::default() };
        assert_eq!(args.params(&defaults).temperature, 1.0);
    }

    #[test]
    fn a_bias_is_an_id_and_a_number() {
        assert_eq!(parse_bias("12=-0.5"), Ok((12, -0.5)));
        for wrong in ["12", "=1", "a=1", "1=b", "-1=1"] {
            assert!(parse_bias(wrong).unwrap_err().contains("ID=BIAS"), "{wrong}");
        }
    }
}
