//! Kernels under the roof of their machine: FLOPs for each byte that must be moved, and FLOPs a second reached alone.

use super::records::{Kernel, Machine, Phase};
use super::svg::{Mark, Scale, Svg, grouped};

const LEFT: f64 = 78.0;
const RIGHT: f64 = 870.0;
const TOP: f64 = 122.0;
const BOTTOM: f64 = 530.0;
/// Kernels with a smaller share of their step are left out.
const SHARE_MIN: f64 = 0.01;

/// A box that is taken: left, top, right, bottom.
type Taken = [f64; 4];

/// The figure, if the machine has a record of kernels.
pub fn draw(machine: &Machine) -> Option<String> {
    let record = machine.kernels.last()?;
    let flops = machine.anchors.as_ref().and_then(|anchors| anchors.bf16_flops);
    let title = format!("Kernels under the roof of {}", record.origin.device);
    let mut svg = Svg::new(
        900.0,
        580.0,
        &title,
        "FLOPs a second by FLOPs a byte, both logarithmic, with the limits of memory and of arithmetic",
    );
    svg.text(20.0, 28.0, "ink head", &title);
    let about = format!("{}; commit {}", record.origin.checkpoint(), record.origin.commit);
    svg.text(20.0, 48.0, "soft small", &about);
    let about = "Launches of a kernel back to back, bytes and FLOPs by its contract; areas by share of the step, those under 1 % left out";
    svg.text(20.0, 64.0, "soft small", about);
    let mut legend = 20.0;
    for (i, phase) in record.phases.iter().enumerate() {
        svg.mark(mark(i), (legend + 6.0, 84.0), 5.0, &format!("f{i}"), "");
        let text = match phase.rows {
            1 => format!("{}, after {} tokens", phase.phase, grouped(phase.context_tokens as f64)),
            rows => format!(
                "{}, {} tokens after {}",
                phase.phase,
                grouped(rows as f64),
                grouped(phase.context_tokens as f64)
            ),
        };
        svg.text(legend + 18.0, 88.5, "ink small", &text);
        legend += 50.0 + 6.2 * text.len() as f64;
    }
    let shown: Vec<(usize, &Kernel, f64)> =
        record.phases.iter().enumerate().flat_map(|(i, phase)| shares(i, phase)).collect();
    let intensity = |k: &Kernel| k.flops / k.bytes();
    let reached = |k: &Kernel| k.flops / (k.alone_ms / 1e3);
    let range = |of: &dyn Fn(&Kernel) -> f64| {
        let values = shown.iter().map(|(_, k, _)| of(k)).filter(|v| *v > 0.0);
        values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)))
    };
    let (xs, ys) = (range(&intensity), range(&reached));
    let top = flops.unwrap_or(ys.1).max(ys.1);
    let x = Scale::log((decade(xs.0), 10.0 * decade(xs.1)), (LEFT, RIGHT));
    let y = Scale::log((decade(ys.0), 2.0 * top), (BOTTOM, TOP));
    axes(&mut svg, &x, &y, (decade(xs.0), 10.0 * decade(xs.1)), (decade(ys.0), 2.0 * top));
    let mut taken = roof(&mut svg, &x, &y, (decade(xs.0), 10.0 * decade(xs.1)), record.bandwidth, flops);
    let places: Vec<(f64, f64)> = shown.iter().map(|(_, k, _)| (x.at(intensity(k)), y.at(reached(k)))).collect();
    for ((phase, kernel, share), place) in shown.iter().zip(&places) {
        let r = 3.5 + 14.0 * share.sqrt();
        let hover = format!(
            "{} ({}): {:.1} GB/s, {:.2} TFLOP/s, {:.1} % of the step",
            kernel.kernel,
            record.phases[*phase].phase,
            kernel.bytes() / kernel.alone_ms / 1e6,
            reached(kernel) / 1e12,
            100.0 * share
        );
        svg.mark(mark(*phase), *place, r, &format!("f{phase} pale"), &hover);
        svg.mark(Mark::Circle, *place, 2.0, &format!("f{phase}"), "");
        let half = 0.8 * r;
        taken.push([place.0 - half, place.1 - half, place.0 + half, place.1 + half]);
    }
    for ((_, kernel, share), place) in shown.iter().zip(&places) {
        label(&mut svg, &mut taken, *place, 3.5 + 14.0 * share.sqrt(), &kernel.kernel);
    }
    Some(svg.finish())
}

fn mark(phase: usize) -> Mark {
    if phase == 0 { Mark::Circle } else { Mark::Square }
}

/// The kernels of a phase that count, with their share of its time alone.
fn shares(phase: usize, of: &Phase) -> Vec<(usize, &Kernel, f64)> {
    let total: f64 = of.kernels.iter().map(|k| k.alone_ms).sum();
    let all = of.kernels.iter().filter(|k| k.flops > 0.0).map(|k| (phase, k, k.alone_ms / total));
    all.filter(|(_, _, share)| *share >= SHARE_MIN).collect()
}

/// The power of ten at or below a value.
fn decade(value: f64) -> f64 {
    10_f64.powf(value.log10().floor())
}

fn axes(svg: &mut Svg, x: &Scale, y: &Scale, xs: (f64, f64), ys: (f64, f64)) {
    let decades = |(low, high): (f64, f64)| {
        let (from, to) = (low.log10().round() as i32, high.log10().floor() as i32);
        (from..=to).map(|power| 10_f64.powi(power))
    };
    for value in decades(xs) {
        svg.line([x.at(value), TOP, x.at(value), BOTTOM], "grid");
        svg.text(
            x.at(value),
            BOTTOM + 18.0,
            "soft small middle",
            &if value < 1.0 { format!("{value}") } else { grouped(value) },
        );
    }
    for value in decades(ys) {
        svg.line([LEFT, y.at(value), RIGHT, y.at(value)], "grid");
        svg.text(LEFT - 8.0, y.at(value) + 4.0, "soft small end", &rate(value));
    }
    svg.line([LEFT, BOTTOM, RIGHT, BOTTOM], "axis");
    svg.text((LEFT + RIGHT) / 2.0, BOTTOM + 38.0, "soft small middle", "FLOPs for each byte");
    svg.text(20.0, TOP - 12.0, "soft small", "FLOP/s");
}

/// FLOPs a second with a unit.
fn rate(flops: f64) -> String {
    match flops {
        f if f >= 1e12 => format!("{} T", f / 1e12),
        f if f >= 1e9 => format!("{} G", f / 1e9),
        f => format!("{} M", f / 1e6),
    }
}

/// Draws the limits; what their names take.
fn roof(svg: &mut Svg, x: &Scale, y: &Scale, xs: (f64, f64), bandwidth: f64, flops: Option<f64>) -> Vec<Taken> {
    let mut taken = Vec::new();
    let ridge = flops.map_or(xs.1, |flops| (flops / bandwidth).min(xs.1));
    let (from, to) =
        ((x.at(xs.0), y.at(xs.0 * bandwidth).min(BOTTOM)), (x.at(ridge), y.at(ridge * bandwidth).max(TOP)));
    svg.line([from.0, from.1, to.0, to.1], "axis thick");
    // The name lies above the line, left of its upper part.
    let text = format!("memory, {} GB/s as measured", grouped(bandwidth / 1e9));
    let (at, width) = ((from.0 + 0.62 * (to.0 - from.0), from.1 + 0.62 * (to.1 - from.1)), 6.2 * text.len() as f64);
    svg.text(at.0 - 10.0, at.1 - 6.0, "soft small end", &text);
    taken.push([at.0 - 10.0 - width, at.1 - 18.0, at.0 - 10.0, at.1]);
    // Along the line nothing is written.
    for i in 0..=60 {
        let part = f64::from(i) / 60.0;
        let (x, y) = (from.0 + part * (to.0 - from.0), from.1 + part * (to.1 - from.1));
        taken.push([x - 2.0, y - 2.0, x + 2.0, y + 2.0]);
    }
    if let Some(flops) = flops.filter(|flops| *flops / bandwidth < xs.1) {
        svg.line([x.at(flops / bandwidth), y.at(flops), x.at(xs.1), y.at(flops)], "axis thick");
        let text = format!("bf16 products, {:.0} TFLOP/s as measured", flops / 1e12);
        svg.text(RIGHT - 4.0, y.at(flops) - 7.0, "soft small end", &text);
        taken.push([RIGHT - 4.0 - 6.2 * text.len() as f64, y.at(flops) - 20.0, RIGHT, y.at(flops) + 3.0]);
    }
    taken
}

/// Writes a name beside a mark where nothing is yet, with a line to it where that is further away.
fn label(svg: &mut Svg, taken: &mut Vec<Taken>, (x, y): (f64, f64), r: f64, name: &str) {
    let width = 6.6 * name.len() as f64;
    let mut candidates = Vec::new();
    for step in 0..24 {
        // Right and left of the mark, at its height and ever further above and below.
        let away = 13.0 * f64::from((step + 1) / 2) * if step % 2 == 0 { 1.0 } else { -1.0 };
        let gap = r + 4.0 + if step > 0 { 14.0 } else { 0.0 };
        candidates.push((x + gap, y + 4.0 + away));
        candidates.push((x - gap - width, y + 4.0 + away));
    }
    let free = |(left, base): &(f64, f64)| {
        let area = [*left - 1.0, base - 10.0, left + width + 1.0, base + 3.0];
        let inside = area[0] > LEFT && area[2] < RIGHT + 20.0 && area[1] > TOP && area[3] < BOTTOM;
        inside && taken.iter().all(|t| t[2] < area[0] || t[0] > area[2] || t[3] < area[1] || t[1] > area[3])
    };
    let Some(place) = candidates.iter().copied().find(free) else { return };
    if (place.1 - 4.0 - y).abs() > 1.0 {
        let end = if place.0 > x { place.0 - 2.0 } else { place.0 + width + 2.0 };
        svg.line([x, y, end, place.1 - 4.0], "thin axis");
    }
    svg.text(place.0, place.1, "ink small", name);
    taken.push([place.0 - 1.0, place.1 - 10.0, place.0 + width + 1.0, place.1 + 3.0]);
}
