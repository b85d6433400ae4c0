//! Attributes and top-level declarations of a file.

use super::RewriteError;
use super::tokens::{Kind, Tokens};
use std::ops::Range;

/// One attribute of a `[[...]]` list.
#[derive(Clone, Debug)]
pub struct Attribute {
    /// Its name.
    pub name: String,
    /// Its arguments as text.
    pub value: String,
    /// First token of the list it stands in.
    pub at: usize,
}

/// Attributes that mean something here; every other is refused.
const ATTRIBUTES: [&str; 17] = [
    "kernel",
    "host_name",
    "buffer",
    "function_constant",
    "max_total_threads_per_threadgroup",
    "thread_position_in_grid",
    "threadgroup_position_in_grid",
    "thread_position_in_threadgroup",
    "thread_index_in_threadgroup",
    "simdgroup_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "threads_per_threadgroup",
    "threadgroups_per_grid",
    "threads_per_grid",
    "simdgroups_per_threadgroup",
    "threads_per_simdgroup",
    "maybe_unused",
];

/// Reads all attribute lists and blanks them: the compiler does not know them.
///
/// # Errors
/// If an attribute is unknown.
pub fn take_attributes(tokens: &mut Tokens) -> Result<Vec<Attribute>, RewriteError> {
    let mut attributes = Vec::new();
    let mut i = 0;
    while i < tokens.list.len() {
        if tokens.text(i) != "[" || tokens.text(i + 1) != "[" {
            i += 1;
            continue;
        }
        let end = tokens.matching(i)?;
        if tokens.text(end - 1) != "]" {
            i += 1;
            continue;
        }
        let mut at = i + 2;
        while at < end - 1 {
            let name = tokens.text(at).to_owned();
            if !ATTRIBUTES.contains(&name.as_str()) {
                return Err(tokens.error(at, format!("attribute `{name}` is not known here")));
            }
            let mut value = String::new();
            at += 1;
            if tokens.text(at) == "(" {
                let close = tokens.matching(at)?;
                value = tokens.join(at + 1..close);
                at = close + 1;
            }
            attributes.push(Attribute { name, value, at: i });
            if tokens.text(at) == "," {
                at += 1;
            }
        }
        tokens.blank(i..end + 1);
        i = end + 1;
    }
    Ok(attributes)
}

/// What a declaration is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// A function with its parameter list (between the parentheses) and its body (with braces).
    Function {
        /// Whether the host can launch it.
        kernel: bool,
        /// Whether it is a template.
        template: bool,
        /// Tokens between the parentheses.
        parameters: Range<usize>,
        /// Tokens of the body with its braces; empty for a mere declaration.
        body: Range<usize>,
    },
    /// `template [[host_name("n")]] [[kernel]] decltype(f<..>) f<..>;`
    Instantiation,
    /// A class, struct or enumeration with its body.
    Type,
    /// Anything else: variables, aliases, assertions.
    Other,
}

/// A top-level declaration.
#[derive(Clone, Debug)]
pub struct Item {
    /// What it is.
    pub kind: ItemKind,
    /// The name it declares; empty if it declares none.
    pub name: String,
    /// All its tokens.
    pub tokens: Range<usize>,
    /// Whether it stands in a namespace.
    pub nested: bool,
}

/// Finds all declarations at file or namespace level.
///
/// # Errors
/// If brackets do not match.
pub fn find(tokens: &Tokens, attributes: &[Attribute]) -> Result<Vec<Item>, RewriteError> {
    let mut items = Vec::new();
    let (mut i, mut depth) = (0, 0);
    while i < tokens.list.len() {
        if tokens.text(i) == "namespace" {
            let open = (i..tokens.list.len()).find(|j| ["{", ";", "="].contains(&tokens.text(*j)));
            if let Some(open) = open.filter(|j| tokens.text(*j) == "{") {
                depth += 1;
                i = open + 1;
                continue;
            }
        }
        if tokens.text(i) == "}" && depth > 0 {
            depth -= 1;
            i += 1;
            continue;
        }
        let item = declaration(tokens, attributes, i, depth > 0)?;
        i = item.tokens.end;
        items.push(item);
    }
    Ok(items)
}

/// The declaration that starts at a token.
fn declaration(tokens: &Tokens, attributes: &[Attribute], start: usize, nested: bool) -> Result<Item, RewriteError> {
    let template = tokens.text(start) == "template";
    let mut i = start;
    if template && tokens.text(start + 1) == "<" {
        i = tokens.matching(start + 1)? + 1;
    }
    let explicit = template && i == start;
    let is_type = |text: &str| ["struct", "class", "enum", "union"].contains(&text);
    let mut type_name = is_type(tokens.text(i)).then(|| {
        let named = (i + 1..tokens.list.len()).find(|j| tokens.is_word(*j) && tokens.text(*j) != "class");
        named.map_or(String::new(), |j| tokens.text(j).to_owned())
    });
    let (mut assigned, mut parameters) = (false, None::<Range<usize>>);
    let mut name = String::new();
    while i < tokens.list.len() {
        match tokens.text(i) {
            ";" => {
                let range = start..i + 1;
                let kind = if explicit {
                    ItemKind::Instantiation
                } else if type_name.is_some() {
                    ItemKind::Type
                } else {
                    ItemKind::Other
                };
                return Ok(Item { kind, name: type_name.take().unwrap_or(name), tokens: range, nested });
            }
            "=" => assigned = true,
            "(" => {
                let close = tokens.matching(i)?;
                let callee = tokens.before(i);
                if parameters.is_none() && !assigned && !["alignas", "decltype", "__attribute__"].contains(&callee) {
                    parameters = Some(i + 1..close);
                    name = callee.to_owned();
                }
                i = close;
            }
            "[" => i = tokens.matching(i)?,
            "{" => {
                let close = tokens.matching(i)?;
                if let (Some(parameters), false, None) = (&parameters, assigned, &type_name) {
                    let range = start..close + 1;
                    let kernel = is_kernel(tokens, attributes, start..parameters.start);
                    let kind =
                        ItemKind::Function { kernel, template, parameters: parameters.clone(), body: i..close + 1 };
                    return Ok(Item { kind, name, tokens: range, nested });
                }
                i = close;
            }
            _ if parameters.is_none() && !assigned && tokens.list[i].kind == Kind::Word => {
                name = tokens.text(i).to_owned();
            }
            _ => {}
        }
        i += 1;
    }
    Err(tokens.error(start, "a declaration does not end"))
}

/// Whether the head of a function says that it is a kernel.
fn is_kernel(tokens: &Tokens, attributes: &[Attribute], head: Range<usize>) -> bool {
    let marked = attributes.iter().any(|a| a.name == "kernel" && head.contains(&a.at));
    marked || head.clone().any(|i| tokens.text(i) == "kernel" && !tokens.list[i].out.is_empty())
}
