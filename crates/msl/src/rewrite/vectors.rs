//! Constructors, casts, literals and names, which OpenCL writes differently from Metal.

use super::RewriteError;
use super::tokens::{Kind, Tokens};
use std::collections::BTreeSet;

const SCALARS: [&str; 12] =
    ["float", "half", "bfloat", "int", "uint", "short", "ushort", "char", "uchar", "long", "ulong", "bool"];

/// Keywords of OpenCL that are names in Metal.
const RESERVED: [&str; 8] = ["local", "global", "private", "generic", "read_only", "write_only", "read_write", "pipe"];

/// Rewrites constructors, casts and literals of a file.
///
/// # Errors
/// If brackets do not match.
pub fn rewrite(tokens: &mut Tokens) -> Result<(), RewriteError> {
    let names = Names::of(tokens);
    for i in 0..tokens.list.len() {
        match tokens.list[i].kind {
            Kind::Number => number(tokens, i),
            Kind::Word if RESERVED.contains(&tokens.text(i)) && tokens.text(i + 1) != ":" => {
                tokens.list[i].out = format!("sm_name_{}", tokens.text(i));
            }
            Kind::Word => {
                constructor(tokens, &names, i)?;
                if tokens.text(i) == "static_cast" {
                    static_cast(tokens, i)?;
                }
            }
            Kind::Symbol if tokens.text(i) == "(" => cast(tokens, &names, i)?,
            _ => {}
        }
    }
    Ok(())
}

/// Type names that need help.
struct Names {
    /// Types whose constructors and casts are rewritten: vectors, their aliases, template parameters, half and bfloat.
    rewritten: BTreeSet<String>,
}

impl Names {
    fn of(tokens: &Tokens) -> Self {
        let vector = |t: &&str| ["2", "3", "4"].map(|n| format!("{t}{n}"));
        let mut rewritten: BTreeSet<String> = SCALARS.iter().flat_map(vector).collect();
        rewritten.extend(["half".to_owned(), "bfloat".to_owned()]);
        for i in 0..tokens.list.len() {
            let next = tokens.text(i + 1);
            match tokens.text(i) {
                "typename" | "class" if ["<", ","].contains(&tokens.before(i)) && tokens.is_word(i + 1) => {
                    rewritten.insert(next.to_owned());
                }
                "using" if tokens.text(i + 2) == "=" => {
                    let metal = tokens.text(i + 3) == "metal" && tokens.text(i + 4) == "::";
                    let type_name = tokens.text(if metal { i + 5 } else { i + 3 });
                    if type_name == "vec" || rewritten.contains(type_name) {
                        rewritten.insert(next.to_owned());
                    }
                }
                _ => {}
            }
        }
        Self { rewritten }
    }

    fn is_type(&self, name: &str) -> bool {
        self.rewritten.contains(name) || SCALARS.contains(&name)
    }
}

/// `1.0` is a float in Metal, `1.0bf` a bfloat.
fn number(tokens: &mut Tokens, i: usize) {
    let text = tokens.text(i).to_owned();
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let last = text.chars().last().unwrap_or_default();
    if hexadecimal {
        return;
    }
    if let Some(value) = text.strip_suffix("bf").or_else(|| text.strip_suffix("BF")) {
        tokens.list[i].out = format!("((bfloat){value}f)");
    } else if text.contains(['.', 'e', 'E']) && (last.is_ascii_digit() || last == '.') {
        tokens.list[i].out = format!("{text}f");
    }
}

/// Whether an expression, not a name, can follow this token.
fn expression_follows(tokens: &Tokens, before: usize) -> bool {
    match tokens.list.get(before) {
        None => false,
        Some(t) if t.kind == Kind::Word => ["return", "case", "else", "do"].contains(&t.text.as_str()),
        Some(t) => t.kind == Kind::Symbol && ![")", "]", ">"].contains(&t.text.as_str()),
    }
}

/// `float4(..)`, `T(..)`, `half(..)`, `vec<T, 4>(..)`.
fn constructor(tokens: &mut Tokens, names: &Names, i: usize) -> Result<(), RewriteError> {
    let before = tokens.before(i);
    if before == "operator" || before == "." || before == "->" {
        return Ok(());
    }
    let name = tokens.text(i).to_owned();
    if name == "vec" && tokens.text(i + 1) == "<" {
        let close = tokens.matching(i + 1)?;
        if tokens.text(close + 1) == "(" {
            let qualified = before == "::" && tokens.text(i.saturating_sub(2)) == "metal";
            if qualified {
                tokens.blank(i - 2..i);
            }
            tokens.list[i].out = "sm::make<metal::vec".into();
            tokens.list[close].out = "> >".into();
        }
    } else if names.rewritten.contains(&name) && tokens.text(i + 1) == "(" && before != "::" {
        tokens.list[i].out = format!("sm::make<{name}>");
    }
    Ok(())
}

/// `static_cast<T>(x)` on values.
fn static_cast(tokens: &mut Tokens, i: usize) -> Result<(), RewriteError> {
    let close = tokens.matching(i + 1)?;
    if !(i + 1..close).any(|j| ["*", "&"].contains(&tokens.text(j))) {
        tokens.list[i].out = "sm::cast".into();
    }
    Ok(())
}

/// The type in a cast `(T)` or `(vec<..>)` that opens at a token, and its closing parenthesis.
fn cast_type(tokens: &Tokens, names: &Names, open: usize) -> Option<(String, usize)> {
    let close = match tokens.text(open + 1) {
        "vec" if tokens.text(open + 2) == "<" => tokens.matching(open + 2).ok()? + 1,
        name if names.is_type(name) => open + 2,
        _ => return None,
    };
    if tokens.text(close) != ")" || open > 0 && !cast_may_follow(tokens, open - 1) {
        return None;
    }
    let operand = tokens.list.get(close + 1)?;
    let starts = operand.kind != Kind::Symbol || ["(", "-", "+", "!", "~", "*", "&"].contains(&operand.text.as_str());
    starts.then(|| (tokens.join(open + 1..close), close))
}

/// A cast may also follow the parentheses of `if (..)`, and a cast.
fn cast_may_follow(tokens: &Tokens, before: usize) -> bool {
    expression_follows(tokens, before) || tokens.text(before) == ")"
}

/// `(float4)x`, `(T)x`, `(half)x`.
fn cast(tokens: &mut Tokens, names: &Names, open: usize) -> Result<(), RewriteError> {
    let Some((name, close)) = cast_type(tokens, names, open) else { return Ok(()) };
    if SCALARS.contains(&name.as_str()) && !["half", "bfloat"].contains(&name.as_str()) {
        return Ok(());
    }
    let end = operand_end(tokens, names, close + 1)?;
    tokens.list[open].out = format!("sm::cast<{name}>(");
    tokens.blank(open + 1..close + 1);
    tokens.list[end - 1].out.push(')');
    Ok(())
}

/// One past the last token of a cast's operand.
fn operand_end(tokens: &Tokens, names: &Names, start: usize) -> Result<usize, RewriteError> {
    let mut i = start;
    while ["-", "+", "*", "&", "!", "~", "++", "--"].contains(&tokens.text(i)) {
        i += 1;
    }
    if tokens.text(i) == "(" {
        if let Some((_, close)) = cast_type(tokens, names, i) {
            return operand_end(tokens, names, close + 1);
        }
        i = tokens.matching(i)? + 1;
    } else {
        i += 1;
        loop {
            match tokens.text(i) {
                "::" => i += 2,
                "<" if ["as_type", "vec", "static_cast", "reinterpret_cast"].contains(&tokens.before(i)) => {
                    i = tokens.matching(i)? + 1;
                }
                _ => break,
            }
        }
    }
    loop {
        match tokens.text(i) {
            "[" | "(" => i = tokens.matching(i)? + 1,
            "." | "->" => i += 2,
            "++" | "--" => i += 1,
            _ => return Ok(i),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: &str) {
        let mut tokens = Tokens::parse(text).unwrap();
        rewrite(&mut tokens).unwrap();
        assert_eq!(tokens.render(), expect);
    }

    #[test]
    fn constructors() {
        check("y = float4(1, x.yz, 2);", "y = sm::make<float4>(1, x.yz, 2);");
        check("y = metal::vec<half, 2>(x);", "y = sm::make<metal::vec<half, 2> >(x);");
        check("using V = vec<T, 4>; y = V(x);", "using V = vec<T, 4>; y = sm::make<V>(x);");
        check("template <typename T> f() { return T(x); }", "template <typename T> f() { return sm::make<T>(x); }");
        check("operator float4() const", "operator float4() const");
        check("y = bfloat(x) + float(z);", "y = sm::make<bfloat>(x) + float(z);");
    }

    #[test]
    fn casts() {
        check("y = (float4)x.v[2] * z;", "y = sm::cast<float4>(x.v[2]) * z;");
        check("y = (half2)(float2)x;", "y = sm::cast<half2>(sm::cast<float2>(x));");
        check("y = (float)x; f(half);", "y = (float)x; f(half);");
        check("y = static_cast<half4>(x);", "y = sm::cast<half4>(x);");
        check("y = (vec<T, 4>)g(x) + 1;", "y = sm::cast<vec < T , 4 >>( g(x)) + 1;");
        check("p = static_cast<device float*>(q);", "p = static_cast<device float*>(q);");
    }

    #[test]
    fn literals() {
        check("a = 1.5 + 1e-3 + 2.0f + 3 + 0x1e + 1.0h + .5;", "a = 1.5f + 1e-3f + 2.0f + 3 + 0x1e + 1.0h + .5f;");
        check("a = 1.0bf;", "a = ((bfloat)1.0f);");
    }

    #[test]
    fn names() {
        check("local = global + private;", "sm_name_local = sm_name_global + sm_name_private;");
        check("private: int x;", "private: int x;");
    }
}
