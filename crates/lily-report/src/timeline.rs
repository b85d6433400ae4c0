//! One decode step launch by launch: a row for each kernel, time from left to right, and the first layers closer up.

use super::records::{Launch, Machine};
use super::svg::{Scale, Svg, grouped, round_steps};

const LEFT: f64 = 170.0;
const RIGHT: f64 = 790.0;
const ROW: f64 = 20.0;

/// The figure, if the machine has a record of a decode step's launches.
pub fn draw(machine: &Machine) -> Option<String> {
    let record = machine.kernels.last()?;
    let phase = record.phases.iter().find(|p| p.phase == "decode")?;
    let launches = phase.launches.as_ref()?;
    let some = closer(launches);
    let rows = (names(launches).len() + names(some).len()) as f64;
    let height = 200.0 + ROW * rows;
    let title = format!("One decode step on {}", record.origin.device);
    let mut svg = Svg::new(900.0, height, &title, "When each kernel of a decode step runs");
    svg.text(20.0, 28.0, "ink head", &title);
    let stages = launches.iter().map(|l| l.stage + 1).max().unwrap_or(0);
    let sum: f64 = launches.iter().map(|l| l.ms).sum();
    let about = format!(
        "{}, after {} tokens: {} launches in {stages} stages; commit {}",
        record.origin.checkpoint(),
        grouped(phase.context_tokens as f64),
        launches.len(),
        record.origin.commit
    );
    svg.text(20.0, 48.0, "soft small", &about);
    let about = format!(
        "One by one, each between two points in time, they take {sum:.2} ms; the step as it is run takes {:.2} ms",
        phase.step_ms.median
    );
    svg.text(20.0, 64.0, "soft small", &about);
    let bottom = lanes(&mut svg, 104.0, launches, "The whole step, ms", true);
    lanes(&mut svg, bottom + 62.0, some, "Its first four layers, us", false);
    Some(svg.finish())
}

/// The launches of the first four layers, each of which ends with its experts; all of them where there are fewer.
fn closer(launches: &[Launch]) -> &[Launch] {
    let ends: Vec<usize> = (1..launches.len()).filter(|i| launches[i - 1].kernel == "experts_down_step").collect();
    &launches[..ends.get(3).copied().unwrap_or(launches.len())]
}

/// Draws lanes from `top`, of the whole step in milliseconds or of a part of it in microseconds; where they end.
fn lanes(svg: &mut Svg, top: f64, launches: &[Launch], head: &str, whole: bool) -> f64 {
    let unit = if whole { 1.0 } else { 1e3 };
    let total: f64 = launches.iter().map(|l| unit * l.ms).sum();
    let x = Scale::linear((0.0, total), (LEFT, RIGHT));
    let kernels = names(launches);
    let bottom = top + ROW * kernels.len() as f64;
    svg.text(20.0, top - 8.0, "ink", head);
    for step in round_steps(total).into_iter().filter(|step| *step <= total) {
        svg.line([x.at(step), top, x.at(step), bottom], "grid");
        svg.text(x.at(step), bottom + 15.0, "soft small middle", &format!("{}", (100.0 * step).round() / 100.0));
    }
    for (i, kernel) in kernels.into_iter().enumerate() {
        let y = top + ROW * i as f64;
        svg.text(LEFT - 10.0, y + 14.0, "ink small end", kernel);
        let (mut at, mut sum) = (0.0, 0.0);
        for launch in launches {
            let time = unit * launch.ms;
            if launch.kernel == kernel {
                let left = x.at(at);
                let width = (x.at(at + time) - left).max(0.4);
                let hover = format!("{kernel}: {:.1} us, stage {}", 1e3 * launch.ms, launch.stage + 1);
                svg.rect([left, y + 3.0, width, ROW - 6.0], family(kernel), &hover);
                sum += time;
            }
            at += time;
        }
        let text = if whole { format!("{sum:.3} ms, {:.0} %", 100.0 * sum / total) } else { format!("{sum:.1} us") };
        svg.text(RIGHT + 8.0, y + 14.0, "soft small", &text);
    }
    svg.line([LEFT, bottom, RIGHT, bottom], "axis");
    bottom
}

/// Kernels in order of first use.
fn names(launches: &[Launch]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for launch in launches {
        if !names.contains(&launch.kernel.as_str()) {
            names.push(&launch.kernel);
        }
    }
    names
}

/// The colour: experts, mixers, what comes once.
fn family(kernel: &str) -> &'static str {
    match kernel {
        "embed" | "head" | "sample_scan" | "sample" => "f2",
        kernel if kernel.contains("expert") || kernel.contains("router") => "f1",
        _ => "f0",
    }
}
