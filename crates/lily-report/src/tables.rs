//! Tables and figures in the texts, between two comments that name them: what is written there comes from records.

use super::records::{Kernel, Kernels, Machine, Phase, Rate, Series, Source, commits};
use super::svg::{grouped, tokens};
use crate::{KINDS, ReportError};

/// Stages of lily's decode step of the published model, which docs/performance.md has from `lily plan`.
const STAGES: f64 = 244.0;
/// What the least is that a token of that model moves after 4,096, by the same.
const BYTES_AT_4096: f64 = 1882.2e6;
/// Stands where there is no record.
const NOT_YET: &str = "Not measured yet.\n";

/// Puts everything that `text` asks for into it; `figures` are the addresses of all figures, seen from the text.
///
/// # Errors
/// If it asks for something that there is no record for.
pub fn fill(text: &str, machines: &[Machine], figures: &[String]) -> Result<String, ReportError> {
    const BEGIN: &str = "<!-- from records: ";
    const END: &str = "<!-- end -->";
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(" -->\n").unwrap_or((after.lines().next().unwrap_or_default(), ""));
        let failed = |message| ReportError::Table { name: name.to_owned(), message };
        let (_, after) =
            after.split_once(END).ok_or_else(|| failed("expected `-->` and, on a later line, `<!-- end -->`"))?;
        let (kind, machine) = name.split_once(' ').unwrap_or((name, ""));
        let machine = machines.iter().find(|m| m.name == machine);
        let table = machine.and_then(|machine| match kind {
            "speed" => speed(machine),
            "decode" => Some(decode(machine).unwrap_or_else(|| NOT_YET.to_owned())),
            "model" => model(machine, machines),
            "kernels" => Some(kernels(machine).unwrap_or_else(|| NOT_YET.to_owned())),
            "chunks" => Some(chunks(machine).unwrap_or_else(|| NOT_YET.to_owned())),
            "speculation" => Some(speculation(machine).unwrap_or_else(|| NOT_YET.to_owned())),
            kind => kind.strip_prefix("figure-").and_then(|kind| figure(kind, &machine.name, figures)),
        });
        let table = table.ok_or_else(|| failed("no record gives this"))?;
        filled += &format!("{before}{BEGIN}{name} -->\n\n{table}\n{END}");
        rest = after;
    }
    Ok(filled + rest)
}

/// Speed by length: lily, the others, and lily's ratio to the fastest of them.
fn speed(machine: &Machine) -> Option<String> {
    let series = machine.series();
    let (lily, others) = series.split_first()?;
    let mut lengths: Vec<usize> = lily.prefill.iter().chain(&lily.decode).map(|p| p.0).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let mut table = String::from("| Tokens |");
    for phase in ["Prefill", "Decoding"] {
        table += &format!(" {phase}: lily |");
        others.iter().for_each(|s| table += &format!(" {} |", s.engine));
        table += if others.is_empty() { "" } else { " ratio |" };
    }
    let columns = table.matches('|').count() - 1;
    table += &format!("\n|{}\n", "---:|".repeat(columns));
    for length in lengths {
        table += &format!("| {} |", tokens(length));
        for prefill in [true, false] {
            let of = |s: &Series| {
                let points = if prefill { &s.prefill } else { &s.decode };
                points.iter().find(|p| p.0 == length).map(|p| p.1)
            };
            let cell = |rate: Option<f64>| rate.map_or(" |".to_owned(), |r| format!(" {} |", number(r)));
            table += &cell(of(lily));
            others.iter().for_each(|s| table += &cell(of(s)));
            let best = others.iter().filter_map(of).reduce(f64::max);
            if !others.is_empty() {
                let ratio = of(lily).zip(best).map(|(ours, theirs)| ours / theirs);
                table += &ratio.map_or(" |".to_owned(), |r| format!(" {r:.2} |"));
            }
        }
        table.push('\n');
    }
    let benches = machine.benches();
    let origin = &benches.first()?.origin;
    table += &format!(
        "\nMedians, tokens/s; the ratio is to the fastest of the others. lily at commit {} on {}, {}.",
        commits(benches.iter().map(|bench| &bench.origin)),
        origin.device,
        origin.checkpoint()
    );
    let names = |beside: bool| -> Vec<&str> {
        others.iter().filter(|s| s.beside == beside).map(|s| s.engine.as_str()).collect()
    };
    if !names(true).is_empty() {
        table += &format!(" {} took turns with lily.", names(true).join(" and "));
    }
    if let (Some(anchors), false) = (&machine.anchors, names(false).is_empty()) {
        let (engines, day, device) = (names(false).join(" and "), &anchors.measured, &anchors.device);
        table += &format!(" {engines} on {day} on {device}, so that a ratio to them is good to a few percent at best.");
    }
    Some(table + "\n")
}

/// Decoding by lily alone: one session, what of the bandwidth it takes, with sampling, and several sessions together.
fn decode(machine: &Machine) -> Option<String> {
    let benches = machine.benches();
    let lengths = || benches.iter().flat_map(|bench| &bench.lengths).filter(|length| length.decode_tps.is_some());
    let mut sessions: Vec<usize> = lengths().flat_map(|length| &length.batches).map(|batch| batch.sessions).collect();
    sessions.sort_unstable();
    sessions.dedup();
    let mut table = String::from("| Context | One session | of the bandwidth | sampled |");
    sessions.iter().for_each(|count| table += &format!(" {count} sessions |"));
    table += &format!("\n|{}\n", "---:|".repeat(4 + sessions.len()));
    let cell = |rate: Option<f64>| rate.map_or(" |".to_owned(), |rate| format!(" {} |", number(rate)));
    for length in lengths() {
        table += &format!("| {} |", tokens(length.tokens));
        table += &cell(length.decode_tps.as_ref().map(|rate| rate.median));
        table += &length.bandwidth_share.map_or(" |".to_owned(), |share| format!(" {:.0} % |", 100.0 * share));
        table += &cell(length.sampled_tps.as_ref().map(|rate| rate.median));
        for count in &sessions {
            let of = length.batches.iter().find(|batch| batch.sessions == *count);
            table += &cell(of.map(|batch| batch.tps.median));
        }
        table.push('\n');
    }
    lengths().next()?;
    let origins = benches.iter().map(|bench| &bench.origin);
    Some(format!("{table}\nMedians, tokens/s of all sessions together. lily at commit {}.\n", commits(origins)))
}

fn figure(kind: &str, machine: &str, figures: &[String]) -> Option<String> {
    let address = figures.iter().find(|address| address.ends_with(&format!("/{kind}-{machine}.svg")));
    match address {
        Some(address) => Some(format!("![{kind} on {machine}]({address})\n")),
        None => KINDS.contains(&kind).then(|| NOT_YET.to_owned()),
    }
}

/// Kernels with what they reach, phase by phase, the slowest first.
fn kernels(machine: &Machine) -> Option<String> {
    let record = machine.kernels.last()?;
    let flops = machine.anchors.as_ref().and_then(|anchors| anchors.bf16_flops);
    Some(record.phases.iter().map(|phase| phase_table(record, phase, flops)).collect::<Vec<_>>().join("\n"))
}

fn phase_table(record: &Kernels, phase: &Phase, flops: Option<f64>) -> String {
    let step = &phase.step_ms;
    let what = if phase.phase == "decode" {
        "One token".to_owned()
    } else {
        format!("A chunk of {} tokens", grouped(phase.rows as f64))
    };
    let context = grouped(phase.context_tokens as f64);
    let mut table = format!("{what} after {context}: {:.3} ms ({:.3} to {:.3}).\n\n", step.median, step.min, step.max);
    table += "| Kernel | launches | ms within | ms alone | MB | GB/s alone | of a copy | TFLOP/s alone | of bf16 products |\n\
              |---|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    let mut kernels: Vec<&Kernel> = phase.kernels.iter().collect();
    kernels.sort_by(|a, b| b.within_ms.total_cmp(&a.within_ms));
    for k in kernels {
        let per_second = |amount: f64| amount / (k.alone_ms / 1e3);
        table += &format!(
            "| `{}` | {} | {:.3} | {:.3} | {:.1} | {} | {:.0} % | {:.2} | {} |\n",
            k.kernel,
            k.launches,
            k.within_ms,
            k.alone_ms,
            k.bytes() / 1e6,
            grouped(per_second(k.bytes()) / 1e9),
            100.0 * per_second(k.bytes()) / record.bandwidth,
            per_second(k.flops) / 1e12,
            flops.map_or(String::new(), |flops| format!("{:.1} %", 100.0 * per_second(k.flops) / flops))
        );
    }
    table
}

/// Lengths of prefill chunks, each against that of its record.
fn chunks(machine: &Machine) -> Option<String> {
    let mut table = String::from(
        "| Chunks of | Tokens | Tokens/s | In chunks of | Tokens/s | Effect | Pairs |\n|---:|---:|---:|---:|---:|---:|---|\n",
    );
    let mut origins = Vec::new();
    for ablation in &machine.ablations {
        let effects = ablation.effects.iter().filter_map(|e| Some((e.mechanism.strip_prefix("chunks-of-")?, e)));
        for (rows, effect) in effects {
            let chunk = rows.parse().map_or_else(|_| rows.to_owned(), tokens);
            table += &format!(
                "| {chunk} | {} | {} | {} | {} | {} |\n",
                tokens(effect.tokens),
                number(effect.with.median),
                tokens(ablation.chunk_tokens),
                number(effect.without.median),
                in_pairs(&effect.percent)
            );
            origins.push(&ablation.origin);
        }
    }
    (!origins.is_empty()).then(|| format!("{table}\nlily at commit {}.\n", commits(origins.into_iter())))
}

/// Steps that check guesses beside plain ones.
fn speculation(machine: &Machine) -> Option<String> {
    let mut table = String::from(
        "| Tokens of a step | Context | Guesses | Guesses that were right | Tokens/s | Plain | Effect | Pairs | A step, ms | A plain step |\n\
         |---:|---:|---|---:|---:|---:|---:|---|---:|---:|\n",
    );
    let measured = machine.ablations.iter().flat_map(|ablation| &ablation.speculation);
    let mut ends = String::new();
    for s in measured {
        for source in &s.sources {
            table += &format!(
                "| {} | {} | {} | {} | {} | {} | {} | {:.3} | {:.3} |\n",
                s.rows,
                grouped(s.tokens as f64),
                source.guesses,
                share(source),
                number(source.with.median),
                number(source.without.median),
                in_pairs(&source.percent),
                source.step_ms,
                s.plain_step_ms
            );
        }
        let needed = s.break_even.map_or("no share of right guesses is enough".to_owned(), |share| {
            format!("from {:.0} % right guesses on it gains", 100.0 * share)
        });
        ends += &format!("- {} tokens a step at {}: {needed}.\n", s.rows, grouped(s.tokens as f64));
    }
    let with = machine.ablations.iter().filter(|ablation| !ablation.speculation.is_empty());
    let commits = commits(with.map(|ablation| &ablation.origin));
    (!ends.is_empty()).then(|| format!("{table}\n{ends}\nlily at commit {commits}.\n"))
}

fn share(source: &Source) -> String {
    match source.guessed {
        0 => "none was made".to_owned(),
        guessed => format!("{} of {guessed}", source.accepted),
    }
}

/// The median effect of pairs, and the least and the greatest.
fn in_pairs(percent: &Rate) -> String {
    format!("{:+.1} % | {:+.1} to {:+.1} %", percent.median, percent.min, percent.max)
}

fn number(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.1}") } else { grouped(rate) }
}

/// A model of decoding on a machine that was not measured: the time to move the bytes, and a time for each stage that the
/// published engine's own figures give.
fn model(machine: &Machine, machines: &[Machine]) -> Option<String> {
    let anchors = machine.anchors.as_ref()?;
    let published = anchors.engines.iter().find(|e| e.engine == "published engine")?;
    let stages = anchors.decode_stages?;
    let published_bytes = |machine: &&Machine| {
        let bytes = machine.bytes_per_token();
        bytes.len() > 1 && (line(&bytes, 4096) / BYTES_AT_4096 - 1.0).abs() < 0.05
    };
    let measured = machines.iter().find(published_bytes)?;
    let bytes = measured.bytes_per_token();
    let floor = |context: usize| line(&bytes, context) / anchors.copy_bandwidth;
    let theirs = median(published.decode.iter().map(|(n, rate)| (1.0 / rate - floor(*n)) / stages).collect());
    let bandwidth = measured.benches().first()?.bandwidth;
    let lily = measured.series().swap_remove(0).decode;
    let run_stages = measured.decode_stages().unwrap_or(STAGES);
    let ours = median(lily.iter().map(|(n, rate)| (1.0 / rate - line(&bytes, *n) / bandwidth) / run_stages).collect());
    let by_model = |context: usize, stages: f64, stage: f64| 1.0 / (floor(context) + stages * stage);
    let mut table = String::from(
        "| Context | MB a token | limit of the bandwidth | published engine, reported | the same by the model | error | lily by the model |\n\
         |---:|---:|---:|---:|---:|---:|---:|\n",
    );
    let mut worst = 0.0_f64;
    for (context, rate) in &published.decode {
        let modelled = by_model(*context, stages, theirs);
        let error = 100.0 * (modelled / rate - 1.0);
        worst = worst.max(error.abs());
        let (low, high) = (by_model(*context, STAGES, ours), by_model(*context, STAGES, theirs));
        table += &format!(
            "| {} | {} | {:.0} | {rate} | {modelled:.0} | {error:+.1} % | {:.0} to {:.0} |\n",
            tokens(*context),
            grouped(line(&bytes, *context) / 1e6),
            1.0 / floor(*context),
            low.min(high),
            low.max(high)
        );
    }
    Some(format!(
        "{table}\nTokens/s. The model: a token takes its bytes over {:.0} GB/s, and so long for every stage of the plan; the published engine is taken to move \
         lily's bytes. From the published \
         engine's reported speeds and {stages:.0} stages follow {:.1} us for a stage (the median of the contexts), with which the model meets these \
         speeds within {worst:.0} %. lily's plan has {STAGES:.0} stages; its figures here are those with {:.1} us, which its own speeds on {} \
         give in the same way (of {run_stages:.0} stages there), and those with the published engine's. That lily's kernels cost either on a Mac is an assumption that nothing has \
         tested, so the error of the last column is not known.\n",
        anchors.copy_bandwidth / 1e9,
        1e6 * theirs,
        1e6 * ours,
        measured.name
    ))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

/// The line through the first and the last of some points, at `x`.
fn line(points: &[(usize, f64)], x: usize) -> f64 {
    let (first, last) = (points[0], points[points.len() - 1]);
    let slope = (last.1 - first.1) / (last.0 as f64 - first.0 as f64);
    first.1 + slope * (x as f64 - first.0 as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ablations_have_tables_of_chunks_and_of_guesses() {
        let machine = |record: &str| {
            let mut machine = Machine { name: "here".into(), ..Machine::default() };
            crate::records::add(&mut machine, record.as_bytes()).unwrap();
            machine
        };
        let text =
            "<!-- from records: chunks here -->\n<!-- end -->\n<!-- from records: speculation here -->\n<!-- end -->";
        let rate = r#"{"median": 90.5, "min": 1, "max": 99}"#;
        let record = format!(
            r#"{{"commit": "c", "device": "d", "checkpoint": "m", "chunk_tokens": 2048, "effects": [
            {{"mechanism": "chunks-of-256", "phase": "prefill", "tokens": 8192, "with": {rate}, "without": {rate}, "percent": {rate}}}],
            "speculation": [{{"rows": 3, "tokens": 4096, "plain_step_ms": 1.5, "break_even": 0.75, "sources": [{{"guesses": "look-up",
            "with": {rate}, "without": {rate}, "percent": {rate}, "step_ms": 2.25, "guessed": 9, "accepted": 4}}]}}]}}"#
        );
        let filled = fill(text, &[machine(&record)], &[]).unwrap();
        for row in [
            "| 256 | 8K | 90.5 | 2K | 90.5 | +90.5 % | +1.0 to +99.0 % |\n",
            "| 3 | 4,096 | look-up | 4 of 9 | 90.5 | 90.5 | +90.5 % | +1.0 to +99.0 % | 2.250 | 1.500 |\n",
            "- 3 tokens a step at 4,096: from 75 % right guesses on it gains.\n",
        ] {
            assert!(filled.contains(row), "{filled}");
        }
        let without = r#"{"commit": "c", "device": "d", "checkpoint": "m", "effects": []}"#;
        assert_eq!(fill(text, &[machine(without)], &[]).unwrap().matches(NOT_YET).count(), 2);
    }

    #[test]
    fn decoding_has_a_table_of_its_own() {
        let rate = |median: f64| format!(r#"{{"median": {median}, "min": 1, "max": 9}}"#);
        let record = format!(
            r#"{{"commit": "c", "device": "d", "checkpoint": "m", "lengths": [
            {{"tokens": 512, "decode_tps": {}, "bandwidth_share": 0.344}}, {{"tokens": 256, "prefill_tps": {}}},
            {{"tokens": 4096, "decode_tps": {}, "sampled_tps": {}, "batches": [{{"sessions": 2, "tps": {}}}]}}]}}"#,
            rate(800.4),
            rate(1.0),
            rate(700.0),
            rate(690.0),
            rate(1200.0)
        );
        let mut machine = Machine { name: "here".into(), ..Machine::default() };
        let text = "<!-- from records: decode here -->\n<!-- end -->";
        assert!(fill(text, &[machine.clone()], &[]).unwrap().contains(NOT_YET));
        machine.benches.push(serde_json::from_str(&record).unwrap());
        let filled = fill(text, &[machine], &[]).unwrap();
        let rows = "| 512 | 800 | 34 % | | |\n| 4K | 700 | | 690 | 1,200 |\n\nMedians";
        assert!(filled.contains(rows) && filled.contains("sampled | 2 sessions |\n"), "{filled}");
    }

    #[test]
    fn tables_are_put_where_they_are_asked_for() {
        let record = r#"{"commit": "c", "device": "d", "checkpoint": "m", "peer": {"name": "other"}, "lengths": [
            {"tokens": 1024, "prefill_tps": {"median": 3000, "min": 1, "max": 9}, "peer_prefill_tps": {"median": 1500, "min": 1, "max": 9}}]}"#;
        let mut machine = Machine { name: "here".into(), ..Machine::default() };
        machine.benches.push(serde_json::from_str(record).unwrap());
        let text = "a\n<!-- from records: speed here -->\nold\n<!-- end -->\nb\n";
        let filled = fill(text, &[machine.clone()], &[]).unwrap();
        assert!(filled.contains("| 1K | 3,000 | 1,500 | 2.00 | | | |\n") && !filled.contains("old"), "{filled}");
        assert_eq!(fill(&filled, &[machine.clone()], &[]).unwrap(), filled);
        let figures = ["figures/speed-here.svg".to_owned()];
        let with = fill(&text.replace("speed here", "figure-speed here"), &[machine.clone()], &figures).unwrap();
        assert!(with.contains("![speed on here](figures/speed-here.svg)"), "{with}");
        for none in ["speed there", "figure-nothing here"] {
            assert!(fill(&text.replace("speed here", none), &[machine.clone()], &figures).is_err(), "{none}");
        }
    }
}
