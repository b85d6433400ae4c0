//! Rounds of a comparison: every engine once in each, by turns, and the refusal of figures that do not hold from one round
//! to the next.

use super::arm::{Arm, ArmLength};
use super::{DRIFT_MAX_PERCENT, Engines};
use crate::failure::Failure;
use crate::measure::Rate;
use std::collections::BTreeSet;

/// Runs `count` rounds. Which engine comes first alternates; `measure` gets the engine's index and gives what it measured.
///
/// # Errors
/// The first that `measure` gives.
pub fn alternate(
    engines: usize,
    count: usize,
    measure: &mut dyn FnMut(usize) -> Result<Arm, Failure>,
) -> Result<Engines, Failure> {
    let mut arms: Engines = vec![Vec::new(); engines];
    for round in 0..count {
        for place in 0..engines {
            let engine = if round % 2 == 0 { place } else { engines - 1 - place };
            arms[engine].push(measure(engine)?);
        }
    }
    Ok(arms)
}

/// A figure, with the runs of every round.
pub type Rounds = Vec<Vec<f64>>;

/// One figure of all rounds of an engine: `pick` takes its runs from what was measured in a round.
pub fn rounds(arms: &[Arm], pick: impl Fn(&Arm) -> &[f64]) -> Rounds {
    arms.iter().map(|arm| pick(arm).to_vec()).collect()
}

/// All runs of all rounds; `None` where it was not measured.
pub fn rate(rounds: &Rounds) -> Option<Rate> {
    let runs = rounds.concat();
    (!runs.is_empty()).then(|| Rate::new(runs))
}

/// How far the greatest median of a round is above the least, in percent.
pub fn drift_percent(rounds: &Rounds) -> f64 {
    let medians = rounds.iter().filter(|runs| !runs.is_empty()).map(|runs| Rate::new(runs.clone()).median);
    let (least, most) = medians.fold((f64::MAX, 0.0_f64), |(least, most), x| (least.min(x), most.max(x)));
    if most > 0.0 { 100.0 * (most / least - 1.0) } else { 0.0 }
}

/// Every figure of an engine, with its name and the index of its length; the last one has none.
fn figures(arms: &[Arm]) -> Vec<(String, Option<usize>, Rounds)> {
    let mut all = Vec::new();
    for (i, length) in arms[0].lengths.iter().enumerate() {
        let tokens = length.tokens;
        let mut add = |name: String, pick: &dyn Fn(&ArmLength) -> &[f64]| {
            all.push((name, Some(i), rounds(arms, |arm| pick(&arm.lengths[i]))));
        };
        add(format!("prefill of {tokens}"), &|length| &length.prefill);
        add(format!("decode at {tokens}"), &|length| &length.decode);
        add(format!("sampled decode at {tokens}"), &|length| &length.sampled);
        for (j, (sessions, _)) in length.batch.iter().enumerate() {
            add(format!("decode of {sessions} sessions at {tokens}"), &|length| &length.batch[j].1);
        }
    }
    all.push(("milliseconds to the first token".to_owned(), None, rounds(arms, |arm| &arm.own.first_token)));
    all
}

/// The greatest drift of all figures, in percent.
pub fn greatest_drift_percent(engines: &Engines) -> f64 {
    let all = engines.iter().flat_map(|arms| figures(arms));
    all.map(|(_, _, rounds)| drift_percent(&rounds)).fold(0.0, f64::max)
}

/// Leaves out every length at which a figure of any engine drifted from round to round, and the time to the first token if
/// that did. Gives what holds, and a line for each figure that drifted.
pub fn sift(names: &[&str], mut engines: Engines) -> (Engines, Vec<String>) {
    let (mut lines, mut lengths, mut first_token) = (Vec::new(), BTreeSet::new(), false);
    for (name, arms) in names.iter().zip(&engines) {
        for (figure, length, rounds) in figures(arms) {
            let drift = drift_percent(&rounds);
            if drift > DRIFT_MAX_PERCENT {
                let medians = rounds.iter().map(|runs| format!("{:.2}", Rate::new(runs.clone()).median));
                let medians = medians.collect::<Vec<_>>().join(", ");
                lines.push(format!("{name}, {figure}: {medians} ({drift:.1} % apart)"));
                lengths.extend(length);
                first_token |= length.is_none();
            }
        }
    }
    for arm in engines.iter_mut().flatten() {
        let mut index = 0..;
        arm.lengths.retain(|_| index.next().is_none_or(|i| !lengths.contains(&i)));
        if first_token {
            arm.own.first_token.clear();
        }
    }
    (engines, lines)
}

/// The failure of figures that drifted, with `rest`, which says what of the others.
pub fn refusal(drifted: &[String], rest: &str) -> Failure {
    Failure::other(format_args!(
        "refused, {rest}: medians of the rounds are more than {DRIFT_MAX_PERCENT} % apart:\n  {}\nclose other programs, let \
         the machine cool down and run it again; with more --reps rounds are steadier, and --rounds 1 shows figures of this \
         moment, without a record",
        drifted.join("\n  ")
    ))
}

/// Refuses greedy tokens of lily that are not always the same.
///
/// # Errors
/// With the first place.
pub fn check_tokens(lily: &[Arm]) -> Result<(), Failure> {
    for (i, length) in lily[0].lengths.iter().enumerate() {
        let mut runs = lily.iter().flat_map(|arm| &arm.lengths[i].generated);
        if let Some(first) = runs.next()
            && let Some(other) = runs.find(|tokens| *tokens != first)
        {
            let same = first.iter().zip(other).take_while(|(a, b)| a == b).count();
            return Err(Failure::other(format_args!(
                "refused, nothing was recorded: greedy decoding at {} gave other tokens in another run, from token {} on; the \
                 computation is not repeatable here, which is a bug of lily: please report it with this machine's name",
                length.tokens,
                same + 1
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(prefill: f64, decode: &[f64], tokens: &[u32]) -> Arm {
        let length = ArmLength {
            tokens: 64,
            prefill: vec![prefill],
            decode: decode.to_vec(),
            generated: vec![tokens.to_vec(); decode.len()],
            ..ArmLength::default()
        };
        Arm { lengths: vec![length], ..Arm::default() }
    }

    #[test]
    fn the_first_of_a_round_alternates() {
        let mut order = Vec::new();
        let engines = alternate(2, 3, &mut |engine| {
            order.push(engine);
            Ok(Arm { device: format!("{engine}.{}", order.len()), ..Arm::default() })
        });
        assert_eq!(order, [0, 1, 1, 0, 0, 1]);
        let devices: Vec<Vec<String>> =
            engines.unwrap().iter().map(|arms| arms.iter().map(|arm| arm.device.clone()).collect()).collect();
        assert_eq!(devices, [["0.1", "0.4", "0.5"], ["1.2", "1.3", "1.6"]]);
        let mut calls = 0;
        let failed = alternate(2, 2, &mut |_| {
            calls += 1;
            Err(Failure::other("no"))
        });
        assert_eq!((failed.unwrap_err().message(), calls), ("no", 1));
    }

    #[test]
    fn drift_is_between_medians_of_rounds() {
        assert_eq!(drift_percent(&vec![vec![64.0, 1.0, 900.0], vec![66.0]]), 3.125);
        assert_eq!(drift_percent(&vec![vec![66.0], vec![64.0], vec![65.0]]), 3.125);
        assert_eq!(drift_percent(&vec![vec![5.0, 50.0]]), 0.0);
        assert_eq!(drift_percent(&vec![vec![], vec![]]), 0.0);
        assert_eq!(rate(&vec![vec![1.0], vec![4.0, 2.0]]), Some(Rate::new(vec![1.0, 4.0, 2.0])));
        assert_eq!(rate(&vec![vec![], vec![]]), None);
    }

    #[test]
    fn lengths_that_drift_are_left_out_by_name() {
        let names = ["lily", "mlx-lm"];
        let steady = vec![arm(100.0, &[50.0], &[1]), arm(102.0, &[49.5], &[1])];
        let (kept, drifted) = sift(&names, vec![steady.clone()]);
        assert_eq!((kept[0][1].lengths.len(), drifted.len()), (1, 0));
        assert!((greatest_drift_percent(&kept) - 2.0).abs() < 1e-9);
        // The second of two lengths drifts in the peer.
        let two = |arm: &Arm, prefill: f64| {
            let other = ArmLength { tokens: 128, prefill: vec![prefill], ..ArmLength::default() };
            Arm { lengths: vec![arm.lengths[0].clone(), other], ..arm.clone() }
        };
        let lily = vec![two(&steady[0], 10.0), two(&steady[1], 10.1)];
        let peer = vec![two(&steady[0], 10.0), two(&steady[1], 9.69)];
        let (kept, drifted) = sift(&names, vec![lily, peer]);
        assert_eq!(drifted, ["mlx-lm, prefill of 128: 10.00, 9.69 (3.2 % apart)"]);
        for arm in kept.iter().flatten() {
            assert_eq!(arm.lengths.iter().map(|length| length.tokens).collect::<Vec<_>>(), [64]);
        }
        let failure = refusal(&drifted, "the others hold");
        assert!(failure.message().contains("refused, the others hold") && failure.message().contains("prefill of 128"));
    }

    #[test]
    fn other_tokens_of_lily_are_refused() {
        let rounds = |tokens: &[u32]| vec![arm(1.0, &[1.0, 1.0], &[5, 6, 7]), arm(1.0, &[1.0], tokens)];
        let failure = check_tokens(&rounds(&[5, 6, 8])).unwrap_err();
        assert!(
            failure.message().contains("decoding at 64") && failure.message().contains("from token 3"),
            "{failure:?}"
        );
        assert!(check_tokens(&rounds(&[5, 6, 7])).is_ok());
    }

    #[test]
    fn times_to_first_tokens_must_hold_too() {
        let timed = |milliseconds| {
            let mut arm = arm(1.0, &[1.0], &[1]);
            arm.own.first_token = vec![milliseconds];
            arm
        };
        let (kept, drifted) = sift(&["lily"], vec![vec![timed(10.0), timed(11.0)]]);
        assert!(drifted[0].contains("first token: 10.00, 11.00"), "{drifted:?}");
        assert!(kept[0].iter().all(|arm| arm.own.first_token.is_empty() && arm.lengths.len() == 1));
    }
}
