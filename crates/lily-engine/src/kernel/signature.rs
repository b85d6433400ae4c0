//! Entry points of kernel texts: their names and what they bind to which index.
//!
//! Reads declarations of the form `kernel void name(...)`, which is all that the texts use; bodies and helper functions
//! are passed over. Whether a text compiles is not its business.

/// Address space of a bound buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// `device T*`.
    Device,
    /// `constant T&`.
    Constant,
}

/// A buffer parameter of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its `[[buffer(index)]]`.
    pub index: usize,
    /// Address space.
    pub space: Space,
    /// Whether what it points to is `const`.
    pub is_const: bool,
    /// Type of the elements, or name of the struct.
    pub element: String,
    /// Its name.
    pub name: String,
}

/// An entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Its name.
    pub name: String,
    /// Its buffers, in order of the text.
    pub buffers: Vec<Bound>,
}

/// All entry points of a text, in order.
pub fn signatures(text: &str) -> Vec<Signature> {
    let tokens = tokens(text);
    let words: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let starts = words.windows(4).enumerate().filter(|(_, w)| w[0] == "kernel" && w[1] == "void" && w[3] == "(");
    starts.map(|(i, w)| Signature { name: w[2].to_owned(), buffers: buffers(&words[i + 4..]) }).collect()
}

/// Names and single characters; comments and preprocessor lines are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in without_block_comments(text).lines().filter(|line| !line.trim_start().starts_with('#')) {
        let line = line.split("//").next().unwrap_or_default();
        let mut word = String::new();
        for c in line.chars().chain([' ']) {
            if c.is_alphanumeric() || c == '_' {
                word.push(c);
                continue;
            }
            if !word.is_empty() {
                found.push(std::mem::take(&mut word));
            }
            if !c.is_whitespace() {
                found.push(c.to_string());
            }
        }
    }
    found
}

fn without_block_comments(text: &str) -> String {
    let mut pieces = text.split("/*");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |all, piece| all + " " + piece.split_once("*/").map_or("", |(_, rest)| rest))
}

/// The buffers among the parameters that `words` starts with.
fn buffers(words: &[&str]) -> Vec<Bound> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (i, word) in words.iter().enumerate() {
        match *word {
            ")" if depth == 0 => {
                found.extend(buffer(&words[start..i]));
                break;
            }
            "," if depth == 0 => {
                found.extend(buffer(&words[start..i]));
                start = i + 1;
            }
            "(" | "[" | "<" => depth += 1,
            ")" | "]" | ">" => depth -= 1,
            _ => {}
        }
    }
    found
}

/// One parameter: `device const T* name [[buffer(3)]]`.
fn buffer(words: &[&str]) -> Option<Bound> {
    let attribute = words.iter().position(|w| *w == "[")?;
    let index = match words[attribute..] {
        ["[", "[", "buffer", "(", index, ..] => index.parse().ok()?,
        _ => return None,
    };
    let declared = &words[..attribute];
    let space = if declared.contains(&"constant") { Space::Constant } else { Space::Device };
    let is_const = space == Space::Constant || declared.contains(&"const");
    let skip = ["device", "constant", "const", "*", "&"];
    let mut names = declared.iter().filter(|w| !skip.contains(w));
    let (element, name) = (names.next()?.to_string(), names.next_back()?.to_string());
    Some(Bound { index, space, is_const, element, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_read() {
        let text = "
            // kernel void commented(device float* x [[buffer(0)]]) {}
            /* kernel void this_one(device float* x [[buffer(0)]]) {} */
            inline void helper(device float* x) {}
            kernel void first(
                device const bfloat* x [[buffer(0)]], // the rows
                device float *y [[buffer(1)]],
                constant FirstArgs& args [[buffer(2)]],
                uint3 group [[threadgroup_position_in_grid]]) { if (a < b && c > d) {} }
            kernel void second() {}";
        let bound = |index, space, is_const, element: &str, name: &str| Bound {
            index,
            space,
            is_const,
            element: element.into(),
            name: name.into(),
        };
        let first = vec![
            bound(0, Space::Device, true, "bfloat", "x"),
            bound(1, Space::Device, false, "float", "y"),
            bound(2, Space::Constant, true, "FirstArgs", "args"),
        ];
        let want =
            [Signature { name: "first".into(), buffers: first }, Signature { name: "second".into(), buffers: vec![] }];
        assert_eq!(signatures(text), want);
    }
}
