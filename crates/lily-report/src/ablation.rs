//! What each mechanism is worth: a bar from 1 to how many times faster the phase is with it.

use super::records::{Anchors, Effect, Machine, commits};
use super::svg::{Mark, Scale, Svg, tokens};

const ROW: f64 = 24.0;
const LEFT: f64 = 240.0;
const RIGHT: f64 = 740.0;
/// Right ends of the two columns of numbers.
const COLUMNS: [f64; 2] = [806.0, 884.0];

/// The figure, if the machine has records of ablations. `published` are the effects that others report.
pub fn draw(machine: &Machine, published: Option<&Anchors>) -> Option<String> {
    let origin = &machine.ablations.last()?.origin;
    let effects = machine.effects();
    let sections: Vec<(&str, Vec<&Effect>)> = ["Prefill", "Prefill in other chunks, against the record's", "Decoding"]
        .into_iter()
        .map(|head| (head, effects.iter().copied().filter(|e| section(e) == head).collect::<Vec<_>>()))
        .filter(|(_, effects)| !effects.is_empty())
        .collect();
    let height = 138.0 + ROW * effects.len() as f64 + 30.0 * sections.len() as f64;
    let title = format!("What each mechanism is worth on {}", origin.device);
    let mut svg =
        Svg::new(900.0, height, &title, "How many times faster a phase is with a mechanism, on a logarithmic axis");
    svg.text(20.0, 28.0, "ink head", &title);
    let about = format!(
        "{}: lily with everything against lily without one mechanism, in pairs; commit {}",
        origin.checkpoint(),
        commits(machine.ablations.iter().map(|ablation| &ablation.origin))
    );
    svg.text(20.0, 48.0, "soft small", &about);
    svg.rect([20.0, 62.0, 22.0, 10.0], "f0", "");
    svg.text(49.0, 71.5, "ink small", "median of pairs, with the least and the greatest");
    if published.is_some() {
        svg.mark(Mark::Diamond, (356.0, 67.0), 4.5, "f1", "");
        svg.text(368.0, 71.5, "ink small", "published engine on an M5 Max, as its authors report it");
    }
    let most = effects.iter().map(|e| 1.0 + e.percent.max / 100.0).fold(1.5, f64::max);
    let least = effects.iter().map(|e| 1.0 + e.percent.min / 100.0).fold(0.92, f64::min);
    let x = Scale::log((least / 1.02, most * 1.05), (LEFT, RIGHT));
    let bottom = height - 40.0;
    for factor in
        [0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0].into_iter().filter(|f| (least..most * 1.05).contains(f))
    {
        svg.line([x.at(factor), 92.0, x.at(factor), bottom], if factor == 1.0 { "axis" } else { "grid" });
        svg.text(x.at(factor), bottom + 16.0, "soft small middle", &format!("{factor}x"));
    }
    svg.text((LEFT + RIGHT) / 2.0, bottom + 33.0, "soft small middle", "times faster with it");
    svg.text(COLUMNS[0], 88.0, "soft small end", "lily");
    if published.is_some() {
        svg.text(COLUMNS[1], 88.0, "soft small end", "published");
    }
    let mut y = 92.0;
    for (head, of_section) in sections {
        svg.text(20.0, y + 20.0, "ink", head);
        y += 30.0;
        for effect in order(of_section) {
            bar(&mut svg, &x, y, effect, published);
            y += ROW;
        }
    }
    Some(svg.finish())
}

/// The section of the figure that an effect belongs to.
fn section(effect: &Effect) -> &'static str {
    match effect.phase.as_str() {
        "prefill" if effect.mechanism.starts_with("chunks-of-") => "Prefill in other chunks, against the record's",
        "prefill" => "Prefill",
        _ => "Decoding",
    }
}

/// Mechanisms by their greatest effect, the lengths of one together.
fn order(mut effects: Vec<&Effect>) -> Vec<&Effect> {
    let most: Vec<(String, f64)> = effects.iter().map(|e| (e.mechanism.clone(), e.percent.median)).collect();
    let greatest = |name: &str| most.iter().filter(|(n, _)| n == name).map(|(_, p)| *p).fold(f64::MIN, f64::max);
    effects.sort_by(|a, b| {
        let by_effect = greatest(&b.mechanism).total_cmp(&greatest(&a.mechanism));
        by_effect.then(a.mechanism.cmp(&b.mechanism)).then(a.tokens.cmp(&b.tokens))
    });
    effects
}

fn bar(svg: &mut Svg, x: &Scale, y: f64, effect: &Effect, published: Option<&Anchors>) {
    let at = |percent: f64| x.at(1.0 + percent / 100.0);
    let (one, end) = (x.at(1.0), at(effect.percent.median));
    let middle = y + ROW / 2.0;
    svg.text(LEFT - 76.0, middle + 4.0, "ink small end", &effect.mechanism);
    svg.text(LEFT - 14.0, middle + 4.0, "soft small end", &tokens(effect.tokens));
    let hover = format!("{:+.1} to {:+.1} %", effect.percent.min, effect.percent.max);
    svg.rect([one.min(end), middle - 6.0, (end - one).abs().max(1.0), 12.0], "f0", &hover);
    let (low, high) = (at(effect.percent.min), at(effect.percent.max));
    svg.line([low, middle, high, middle], "axis");
    [low, high].iter().for_each(|end| svg.line([*end, middle - 4.0, *end, middle + 4.0], "axis"));
    let near = |tokens: usize| tokens.abs_diff(effect.tokens) * 10 <= effect.tokens;
    let theirs = published.iter().flat_map(|p| &p.mechanisms);
    let theirs = theirs.filter(|p| p.mechanism == effect.mechanism && p.phase == effect.phase).find(|p| near(p.tokens));
    svg.text(COLUMNS[0], middle + 4.0, "ink small end", &format!("{:+.1} %", effect.percent.median));
    if let Some(theirs) = theirs {
        let text = format!("{:+.1} %", theirs.percent);
        svg.mark(
            Mark::Diamond,
            (at(theirs.percent), middle),
            4.5,
            "f1",
            &format!("published: {text} at {}", theirs.tokens),
        );
        svg.text(COLUMNS[1], middle + 4.0, "ink small end", &text);
    }
}
