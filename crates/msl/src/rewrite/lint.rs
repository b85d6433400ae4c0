//! Rules of Apple's compiler that clang does not know.
//!
//! Pointers and references name their address space; there is no double, recursion, goto, exception, virtual function
//! or allocation.

use super::RewriteError;
use super::items::{Item, ItemKind};
use super::tokens::Tokens;
use std::collections::BTreeSet;

/// Words that no kernel may use, and what to do instead.
const FORBIDDEN: [(&str, &str); 14] = [
    ("double", "Metal has no double; use float"),
    ("goto", "Metal has no goto"),
    ("virtual", "Metal has no virtual functions"),
    ("throw", "Metal has no exceptions"),
    ("try", "Metal has no exceptions"),
    ("catch", "Metal has no exceptions"),
    ("new", "Metal has no allocation"),
    ("delete", "Metal has no allocation"),
    ("dynamic_cast", "Metal has no run-time types"),
    ("typeid", "Metal has no run-time types"),
    ("thread_local", "Metal has no thread_local"),
    ("asm", "inline assembly is not portable"),
    ("thread_elements", "which lane holds which element of a SIMD-group matrix is not specified"),
    ("volatile", "a volatile access orders nothing; use atomics or barriers"),
];

const SPACES: [&str; 4] = ["device", "threadgroup", "constant", "thread"];

/// Types that the language or its library names.
const TYPES: [&str; 17] = [
    "void", "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "bfloat", "float",
    "size_t", "uint8_t", "uint32_t", "auto",
];

/// Checks a file.
///
/// # Errors
/// At the first breach.
pub fn check(tokens: &Tokens, items: &[Item]) -> Result<(), RewriteError> {
    for i in 0..tokens.list.len() {
        if let Some((word, advice)) = FORBIDDEN.iter().find(|(word, _)| *word == tokens.text(i)) {
            return Err(tokens.error(i, format!("`{word}`: {advice}")));
        }
    }
    let types = type_names(tokens, items);
    for i in 1..tokens.list.len() {
        if ["*", "&"].contains(&tokens.text(i)) {
            pointer(tokens, &types, i)?;
        }
    }
    recursion(tokens, items)
}

/// Names that stand for a type somewhere in the file.
fn type_names(tokens: &Tokens, items: &[Item]) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = TYPES.iter().map(|t| (*t).to_owned()).collect();
    for scalar in TYPES {
        names.extend(["2", "3", "4"].iter().flat_map(|n| [format!("{scalar}{n}"), format!("packed_{scalar}{n}")]));
    }
    names.extend(["atomic_uint", "atomic_int", "atomic_float"].map(str::to_owned));
    names.extend(items.iter().filter(|i| i.kind == ItemKind::Type).map(|i| i.name.clone()));
    for i in 0..tokens.list.len() {
        let declares = ["typename", "class", "struct", "using"].contains(&tokens.text(i));
        if declares && tokens.is_word(i + 1) && tokens.text(i + 1) != "namespace" {
            names.insert(tokens.text(i + 1).to_owned());
        }
    }
    names
}

/// A `*` or `&` right after a type makes a pointer or reference, whose address space must be named.
fn pointer(tokens: &Tokens, types: &BTreeSet<String>, at: usize) -> Result<(), RewriteError> {
    // What stands between the start of the declaration and here.
    let mut first = at;
    let mut angles = 0;
    while first > 0 {
        match tokens.text(first - 1) {
            ">" => angles += 1,
            "<" if angles > 0 => angles -= 1,
            "::" => {}
            "," if angles > 0 => {}
            _ if angles > 0 => {}
            _ if tokens.is_word(first - 1) => {}
            _ => break,
        }
        first -= 1;
    }
    let words: Vec<&str> = (first..at).filter(|i| tokens.is_word(*i)).map(|i| tokens.text(i)).collect();
    let last = tokens.before(at);
    let is_type = match last {
        ">" => words.iter().any(|w| ["vec", "simdgroup_matrix", "tensor", "array", "atomic", "matrix"].contains(w)),
        "const" => true,
        word => types.contains(word) || SPACES.contains(&word),
    };
    // `a * b` in an expression has a value before the star; `(T)*p` is a cast of a value.
    if !is_type || tokens.text(at + 1) == "=" || words.iter().any(|w| SPACES.contains(w)) || words.contains(&"return") {
        return Ok(());
    }
    let kind = if tokens.text(at) == "*" { "pointer" } else { "reference" };
    let advice = "write device, threadgroup, constant or thread before it";
    Err(tokens.error(at, format!("this {kind} to `{}` names no address space; {advice}", tokens.join(first..at))))
}

/// No function may reach itself.
fn recursion(tokens: &Tokens, items: &[Item]) -> Result<(), RewriteError> {
    for item in items {
        let ItemKind::Function { body, .. } = &item.kind else { continue };
        let mut open = vec![item.name.clone()];
        let mut seen = BTreeSet::new();
        let calls = |name: &str| -> Vec<String> {
            let bodies = items.iter().filter(|i| i.name == name).filter_map(|i| match &i.kind {
                ItemKind::Function { body, .. } => Some(body.clone()),
                _ => None,
            });
            bodies.flatten().filter(|i| is_call(tokens, *i)).map(|i| tokens.text(i).to_owned()).collect()
        };
        while let Some(name) = open.pop() {
            for callee in calls(&name) {
                // An overload may call another one of its name with other arguments.
                let overloads = items.iter().filter(|i| i.name == callee && is_function(i)).count();
                if callee == item.name && overloads == 1 {
                    return Err(
                        tokens.error(body.start, format!("`{}` calls itself; Metal has no recursion", item.name))
                    );
                }
                if overloads > 0 && seen.insert(callee.clone()) {
                    open.push(callee);
                }
            }
        }
    }
    Ok(())
}

fn is_function(item: &Item) -> bool {
    matches!(item.kind, ItemKind::Function { .. })
}

/// Whether a name that is no member is called at a token, with or without template arguments.
fn is_call(tokens: &Tokens, i: usize) -> bool {
    if !tokens.is_word(i) || [".", "->", "::"].contains(&tokens.before(i)) {
        return false;
    }
    let mut next = i + 1;
    if tokens.text(next) == "<" {
        let Ok(close) = tokens.matching(next) else { return false };
        next = close + 1;
    }
    tokens.text(next) == "("
}
