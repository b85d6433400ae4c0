//! A small SVG writer: text, lines, marks and scales, readable on light and on dark.
//!
//! Colours are classes, which the style sheet inside every file gives twice; a figure has its own ground, so that it
//! can be read on a page of the other kind. Coordinates are rounded, so that the same records give the same bytes.

use std::fmt::Write;

/// Colours by class, for light and for dark.
const COLORS: [(&str, &str, &str); 11] = [
    (".ground{fill:", "#ffffff", "#0d1117"),
    (".ink{fill:", "#1f2328", "#e6edf3"),
    (".soft{fill:", "#59636e", "#9198a1"),
    (".grid{stroke:", "#e4e8ec", "#262c36"),
    (".axis{stroke:", "#818b98", "#656c76"),
    (".f0{fill:", "#0969da", "#58a6ff"),
    (".f1{fill:", "#bc4c00", "#f0883e"),
    (".f2{fill:", "#1a7f37", "#3fb950"),
    (".s0{stroke:", "#0969da", "#58a6ff"),
    (".s1{stroke:", "#bc4c00", "#f0883e"),
    (".s2{stroke:", "#1a7f37", "#3fb950"),
];
const STYLE: &str = "\
text{font:13px system-ui,-apple-system,'Segoe UI','Liberation Sans',sans-serif}\
text.head{font-size:15px;font-weight:600}text.small{font-size:11.5px}text.end{text-anchor:end}text.middle{text-anchor:middle}\
.line{fill:none;stroke-width:2;stroke-linejoin:round}.grid,.axis,.thin{stroke-width:1}.thick{stroke-width:2}.dash{stroke-dasharray:5 4}.pale{opacity:.45}";

/// The style sheet of all figures.
pub fn style() -> String {
    let sheet = |dark: bool| COLORS.map(|(rule, light, night)| format!("{rule}{}}}", if dark { night } else { light }));
    format!("{STYLE}{}@media(prefers-color-scheme:dark){{{}}}", sheet(false).concat(), sheet(true).concat())
}

/// Shapes of marks; a series has one, beside its colour.
#[derive(Clone, Copy, Debug)]
pub enum Mark {
    Circle,
    Square,
    Triangle,
    Diamond,
}

/// A figure.
pub struct Svg {
    width: f64,
    height: f64,
    title: String,
    description: String,
    body: String,
}

impl Svg {
    /// An empty one; title and description are for those who cannot see it.
    pub fn new(width: f64, height: f64, title: &str, description: &str) -> Self {
        let mut svg =
            Self { width, height, title: escape(title), description: escape(description), body: String::new() };
        svg.rect([0.0, 0.0, width, height], "ground", "");
        svg
    }

    /// Text with its baseline at a point; among the classes, `end` and `middle` say where the point is.
    pub fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let _ = writeln!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escape(text));
    }

    /// A straight line.
    pub fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], class: &str) {
        let _ = writeln!(
            self.body,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
        );
    }

    /// A rectangle: left, top, width, height. `hover` is shown where a pointer rests.
    pub fn rect(&mut self, [x, y, width, height]: [f64; 4], class: &str, hover: &str) {
        let _ = write!(
            self.body,
            "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\" class=\"{class}\""
        );
        self.close("rect", hover);
    }

    /// A line through points.
    pub fn path(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(self.body, "<polyline points=\"{}\" class=\"line {class}\"/>", points.join(" "));
    }

    /// A mark around a point, `r` from its centre.
    pub fn mark(&mut self, mark: Mark, (x, y): (f64, f64), r: f64, class: &str, hover: &str) {
        let name = match mark {
            Mark::Circle => {
                let _ = write!(self.body, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r:.1}\" class=\"{class}\"");
                "circle"
            }
            Mark::Square => return self.rect([x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r], class, hover),
            Mark::Triangle | Mark::Diamond => {
                let corners = match mark {
                    Mark::Triangle => vec![(x, y - 1.2 * r), (x + 1.1 * r, y + 0.8 * r), (x - 1.1 * r, y + 0.8 * r)],
                    _ => vec![(x, y - 1.3 * r), (x + 1.3 * r, y), (x, y + 1.3 * r), (x - 1.3 * r, y)],
                };
                let points: Vec<String> = corners.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                let _ = write!(self.body, "<polygon points=\"{}\" class=\"{class}\"", points.join(" "));
                "polygon"
            }
        };
        self.close(name, hover);
    }

    fn close(&mut self, element: &str, hover: &str) {
        let _ = match hover {
            "" => writeln!(self.body, "/>"),
            hover => writeln!(self.body, "><title>{}</title></{element}>", escape(hover)),
        };
    }

    /// The whole file.
    pub fn finish(self) -> String {
        let Self { width, height, title, description, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             role=\"img\">\n<title>{title}</title>\n<desc>{description}</desc>\n<style>{}</style>\n{body}</svg>\n",
            style()
        )
    }
}

/// Text as markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Values to coordinates.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    values: (f64, f64),
    coordinates: (f64, f64),
    log: bool,
}

impl Scale {
    /// Equal steps for equal differences.
    pub fn linear(values: (f64, f64), coordinates: (f64, f64)) -> Self {
        Self { values, coordinates, log: false }
    }

    /// Equal steps for equal ratios.
    pub fn log(values: (f64, f64), coordinates: (f64, f64)) -> Self {
        Self { values, coordinates, log: true }
    }

    /// Where a value lies.
    pub fn at(&self, value: f64) -> f64 {
        let map = |v: f64| if self.log { v.ln() } else { v };
        let (low, high) = (map(self.values.0), map(self.values.1));
        let (from, to) = self.coordinates;
        from + (map(value) - low) / (high - low) * (to - from)
    }
}

/// Round values from 0 to at least `most`, four to six of them.
pub fn round_steps(most: f64) -> Vec<f64> {
    let rough = most / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].iter().map(|s| s * power).find(|s| *s >= rough).unwrap_or(10.0 * power);
    (0..=(most / step).ceil() as usize).map(|i| i as f64 * step).collect()
}

/// A count of tokens as people write it: 256, 4K.
pub fn tokens(count: usize) -> String {
    if count >= 1024 && count.is_multiple_of(1024) { format!("{}K", count / 1024) } else { grouped(count as f64) }
}

/// A whole number with commas.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            ["0", "999", "1,000", "19,204"],
            [0.0, 999.0, 1000.0, 19_204.4].map(grouped).each_ref().map(|s| &s[..])
        );
        assert_eq!([tokens(256), tokens(4096), tokens(130_000)], ["256", "4K", "130,000"]);
    }

    #[test]
    fn scales_meet_their_ends_and_steps_cover_what_is_asked() {
        let scale = Scale::log((1.0, 100.0), (0.0, 10.0));
        assert!([(1.0, 0.0), (10.0, 5.0), (100.0, 10.0)].iter().all(|(v, at)| (scale.at(*v) - at).abs() < 1e-9));
        for most in [0.9, 7.0, 463.0, 19_218.0] {
            let steps = round_steps(most);
            assert!(*steps.last().unwrap() >= most && (4..=7).contains(&steps.len()), "{most}: {steps:?}");
        }
    }

    #[test]
    fn markup_is_escaped() {
        let mut svg = Svg::new(10.0, 10.0, "a < b", "");
        svg.text(0.0, 0.0, "ink", "\"x\" & y");
        let text = svg.finish();
        assert!(text.contains("a &lt; b") && text.contains("&quot;x&quot; &amp; y"), "{text}");
    }
}
