//! Speed by length: prefill and decoding side by side, lily and the engines beside it.

use super::records::{Machine, Series, commits};
use super::svg::{Mark, Scale, Svg, grouped, round_steps, tokens};

const MARKS: [Mark; 4] = [Mark::Circle, Mark::Square, Mark::Triangle, Mark::Diamond];
/// Colours of series; one less than there are marks, so that twelve series differ in one of the two at least.
const COLORS: usize = 3;
/// Where a row of the legend ends.
const LEGEND_END: f64 = 890.0;

/// The figure, if the machine has records of speed.
pub fn draw(machine: &Machine) -> Option<String> {
    let series = machine.series();
    let benches = machine.benches();
    let origin = &benches.first()?.origin;
    let title = format!("Speed by length on {}", origin.device);
    let mut svg = Svg::new(
        900.0,
        400.0,
        &title,
        "Tokens per second of prefill and of decoding by length, on a logarithmic axis of lengths",
    );
    svg.text(20.0, 28.0, "ink head", &title);
    svg.text(
        20.0,
        48.0,
        "soft small",
        &format!(
            "{}, batch 1; lily at commit {}",
            origin.checkpoint(),
            commits(benches.iter().map(|bench| &bench.origin))
        ),
    );
    legend(&mut svg, &series);
    let panels =
        [("Prefill, tokens/s", "tokens of the prompt", true), ("Decoding, tokens/s", "tokens of context", false)];
    for (i, (head, axis, prefill)) in panels.into_iter().enumerate() {
        let of = |s: &Series| if prefill { s.prefill.clone() } else { s.decode.clone() };
        panel(&mut svg, 62.0 + 450.0 * i as f64, head, axis, &series.iter().map(of).collect::<Vec<_>>(), &series);
    }
    Some(svg.finish())
}

/// Which series is which, in as many rows as they need.
fn legend(svg: &mut Svg, series: &[Series]) {
    let (mut x, mut y) = (20.0, 68.0);
    for (i, s) in series.iter().enumerate() {
        let name = if s.beside { s.engine.clone() } else { format!("{} (another day, see the record)", s.engine) };
        let width = 33.0 + 6.7 * name.len() as f64;
        if x > 20.0 && x + width > LEGEND_END {
            (x, y) = (20.0, y + 18.0);
        }
        svg.line([x, y, x + 26.0, y], &format!("line {}{}", color('s', i), dash(s)));
        svg.mark(mark(i), (x + 13.0, y), 4.5, &color('f', i), "");
        svg.text(x + 33.0, y + 4.5, "ink", &name);
        x += width + 29.0;
    }
}

fn mark(series: usize) -> Mark {
    MARKS[series % MARKS.len()]
}

/// The class that strokes (`s`) or fills (`f`) in a series' colour.
fn color(kind: char, series: usize) -> String {
    format!("{kind}{}", series % COLORS)
}

fn dash(series: &Series) -> &'static str {
    if series.beside { "" } else { " dash" }
}

fn panel(svg: &mut Svg, left: f64, head: &str, axis: &str, points: &[Vec<(usize, f64)>], series: &[Series]) {
    let (right, top, bottom) = (left + 370.0, 122.0, 348.0);
    let all = || points.iter().flatten();
    let (Some(least), Some(most)) = (all().map(|p| p.0.max(1)).min(), all().map(|p| p.0).max()) else { return };
    let steps = round_steps(all().map(|p| p.1).fold(0.0, f64::max));
    let x = Scale::log((least as f64 * 0.85, most.max(least + 1) as f64 / 0.85), (left, right));
    let y = Scale::linear((0.0, *steps.last().expect("steps")), (bottom, top));
    svg.text(left, top - 16.0, "ink", head);
    for step in &steps {
        svg.line([left, y.at(*step), right, y.at(*step)], if *step == 0.0 { "axis" } else { "grid" });
        svg.text(left - 8.0, y.at(*step) + 4.0, "soft small end", &grouped(*step));
    }
    let mut lengths: Vec<usize> = all().map(|p| p.0.max(1)).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let mut free = f64::MIN;
    for length in lengths {
        let at = x.at(length as f64);
        svg.line([at, bottom, at, bottom + 4.0], "axis");
        if at > free {
            svg.text(at, bottom + 18.0, "soft small middle", &tokens(length));
            free = at + 34.0;
        }
    }
    svg.text((left + right) / 2.0, bottom + 38.0, "soft small middle", axis);
    // The first series last, on top of the others.
    for (i, points) in points.iter().enumerate().rev() {
        let places: Vec<(f64, f64)> = points.iter().map(|(n, rate)| (x.at((*n).max(1) as f64), y.at(*rate))).collect();
        svg.path(&places, &format!("{}{}", color('s', i), dash(&series[i])));
        for (place, (n, rate)) in places.iter().zip(points) {
            let hover = format!("{}: {} tokens/s at {n}", series[i].engine, grouped(*rate));
            svg.mark(mark(i), *place, 4.5, &color('f', i), &hover);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::add;

    #[test]
    fn every_engine_is_drawn() {
        let mut machine = Machine::default();
        let record = |name: &str| {
            format!(
                r#"{{"commit": "c", "device": "d", "checkpoint": "m", "peer": {{"name": "{name}"}}, "lengths": [{{"tokens": 8,
                "prefill_tps": {{"median": 5, "min": 1, "max": 9}}, "peer_prefill_tps": {{"median": 3, "min": 1, "max": 9}}}}]}}"#
            )
        };
        let names = ["one", "two", "three", "four", "five"];
        for name in names {
            assert!(add(&mut machine, record(name).as_bytes()).is_ok());
        }
        let figure = draw(&machine).unwrap();
        for name in names {
            assert!(figure.contains(&format!(">{name}</text>")), "{name} has no row in the legend");
            assert!(figure.contains(&format!(">{name}: 3 tokens/s at 8<")), "{name} has no point");
        }
    }
}
