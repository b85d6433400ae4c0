//! All figures on one page that needs nothing else.

use super::Figure;
use super::records::Machine;
use super::svg::escape;

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>lily, measured</title>
<style>
body{font:16px/1.5 system-ui,-apple-system,'Segoe UI','Liberation Sans',sans-serif;max-width:940px;margin:2rem auto;padding:0 1rem;background:#fff;color:#1f2328}
figure{margin:1.5rem 0}svg{max-width:100%;height:auto}figcaption,li{color:#59636e;font-size:14px}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}figcaption,li{color:#9198a1}}
</style>
<h1>lily, measured</h1>
";

/// The page; machines have headings where they are several.
pub fn page(machines: &[Machine], figures: &[Figure], intro: &str) -> String {
    let mut page = format!("{HEAD}<p>{}</p>\n", escape(intro));
    for machine in machines {
        let of_machine: Vec<&Figure> = figures.iter().filter(|figure| figure.machine == machine.name).collect();
        if of_machine.is_empty() {
            continue;
        }
        if machines.len() > 1 {
            page += &format!("<h2>{}</h2>\n", escape(&machine.name));
        }
        for figure in of_machine {
            page += &format!("<figure>\n{}<figcaption>{}</figcaption>\n</figure>\n", figure.svg, caption(&figure.file));
        }
        if let Some(anchors) = &machine.anchors {
            let device = format!(
                "Other engines that did not take turns with lily: {}, on {}.",
                anchors.measured, anchors.device
            );
            page += &format!("<ul><li>{}</li></ul>\n", escape(&device));
        }
    }
    page
}

fn caption(file: &str) -> &'static str {
    match file.split('-').next() {
        Some("speed") => {
            "Medians; where an engine did not take turns with lily, a ratio is good to a few percent at best."
        }
        Some("roofline") => {
            "Data that a cache holds can be read faster than memory gives it: kernels above the line of memory have such data."
        }
        Some("step") => {
            "Each launch waits for the one before it here; in the step as it is run they may overlap, where the device can."
        }
        _ => "Effects of single mechanisms do not add up.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_shown_once_whatever_machines_are_called() {
        let machine = |name: &str| Machine { name: name.to_owned(), ..Machine::default() };
        let figure = |name: &str| Figure {
            file: format!("speed-{name}.svg"),
            machine: name.to_owned(),
            svg: format!("<svg>{name}</svg>"),
        };
        let page = page(&[machine("max"), machine("m5-max")], &[figure("max"), figure("m5-max")], "");
        let of_max = page.split("<h2>").nth(1).unwrap_or_default();
        assert!(of_max.contains("<svg>max</svg>") && !of_max.contains("m5-max"), "{page}");
        assert_eq!(page.matches("<figure>").count(), 2);
    }
}
