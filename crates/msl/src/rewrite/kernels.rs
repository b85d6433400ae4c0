//! Entry functions: their parameters, their threadgroup variables, the wrappers that a host launches; and function
//! constants, which become globals that the host sets, or placeholders that it fills in.

use super::items::{Attribute, Item, ItemKind};
use super::tokens::Tokens;
use super::{ConstantText, KernelText, RewriteError, Target};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::ops::Range;

/// Builtin attributes and their names in sm/launch.h.
const BUILTINS: [&str; 11] = [
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
];

/// The function by which a kernel waits for those before it.
const WAIT: &str = "wait_for_inputs";

/// Types that a function constant may have.
const CONSTANT_TYPES: [&str; 7] = ["bool", "uint", "int", "float", "ushort", "short", "uchar"];

/// Most bytes of threadgroup memory: Metal's, and what kernels for NVIDIA's matrix units may take of a multiprocessor's.
fn threadgroup_bytes_max(target: Target) -> usize {
    match target {
        Target::SoftMetal => 32 << 10,
        Target::SoftNvidia | Target::Ptx => 224 << 10,
    }
}

/// What the generated end of the text exports.
pub struct Exports {
    /// Text to append.
    pub text: String,
    /// Kernels.
    pub kernels: Vec<KernelText>,
    target: Target,
}

/// Turns `constant T NAME [[function_constant(n)]];` into what the target has instead.
///
/// # Errors
/// If the type or index cannot be read, or an index is used twice.
pub fn function_constants(
    tokens: &mut Tokens,
    items: &[Item],
    target: Target,
) -> Result<Vec<ConstantText>, RewriteError> {
    let mut constants: Vec<ConstantText> = Vec::new();
    for item in items.iter().filter(|i| i.kind == ItemKind::Other) {
        let Some(at) = item.tokens.clone().find(|i| tokens.text(*i) == "function_constant") else { continue };
        let start = item.tokens.start;
        let (qualifier, type_name) = (tokens.text(start).to_owned(), tokens.text(start + 1).to_owned());
        if qualifier != "constant" || !CONSTANT_TYPES.contains(&type_name.as_str()) || item.nested {
            let wanted = "write `constant TYPE NAME [[function_constant(N)]];` at file level with TYPE one of ";
            return Err(tokens.error(start, format!("{wanted}{}", CONSTANT_TYPES.join(", "))));
        }
        let index = tokens
            .text(at + 2)
            .parse()
            .map_err(|_| tokens.error(at, "the index of a function constant is written as a decimal number"))?;
        if let Some(other) = constants.iter().find(|c| c.index == index) {
            return Err(tokens.error(at, format!("index {index} is taken by `{}`", other.name)));
        }
        match target {
            Target::SoftMetal | Target::SoftNvidia => tokens.list[start].out = "static __global".into(),
            Target::Ptx => {
                // A call wherever the name is used; its value stands in the assembly as a name that the host replaces.
                tokens.blank(item.tokens.clone());
                let name = &item.name;
                tokens.list[start].out = format!("SM_FUNCTION_CONSTANT({type_name}, {name}, {index})");
                for i in (0..tokens.list.len()).filter(|i| !item.tokens.contains(i)).collect::<Vec<_>>() {
                    if tokens.text(i) == name && ![".", "->"].contains(&tokens.before(i)) {
                        tokens.list[i].out = format!("sm_constant_{name}()");
                    }
                }
            }
        }
        constants.push(ConstantText { index, name: item.name.clone(), type_name });
    }
    Ok(constants)
}

/// Rewrites kernels and makes the wrappers.
///
/// # Errors
/// If a kernel has a form that the convention does not allow.
pub fn export(
    tokens: &mut Tokens,
    items: &[Item],
    attributes: &[Attribute],
    constants: &[ConstantText],
    target: Target,
) -> Result<Exports, RewriteError> {
    let uses = Uses::of(tokens, items);
    let mut templates = HashMap::new();
    let mut exports = Exports { text: String::new(), kernels: Vec::new(), target };
    for item in items {
        match &item.kind {
            ItemKind::Function { kernel: true, template, parameters, body } => {
                if item.nested {
                    return Err(tokens.error(item.tokens.start, "kernels stand at file level, not in a namespace"));
                }
                let head = item.tokens.start..parameters.start;
                let name = host_name(attributes, &head).unwrap_or_else(|| item.name.clone());
                let kernel = Kernel {
                    function: item.name.clone(),
                    parameters: kernel_parameters(tokens, attributes, parameters.clone())?,
                    constants: uses.constants(&item.name, constants),
                    waits: uses.reaches(&item.name).contains(WAIT),
                    threads_most: threads_most(attributes, &head),
                };
                mark_function(tokens, &head, parameters, *template);
                threadgroup_variables(tokens, body.clone(), threadgroup_bytes_max(target))?;
                if *template {
                    templates.insert(item.name.clone(), kernel);
                } else {
                    exports.add(tokens, item, &name, &item.name, &kernel)?;
                }
            }
            ItemKind::Function { body, .. } => refuse_threadgroup_variables(tokens, body.clone())?,
            ItemKind::Instantiation => {
                let (name, function) = instantiation(tokens, attributes, item)?;
                let base = function.split('<').next().unwrap_or_default().trim().to_owned();
                let kernel = templates.get(&base).ok_or_else(|| {
                    tokens.error(item.tokens.start, format!("no kernel template `{base}` stands above"))
                })?;
                exports.add(tokens, item, &name, &function, kernel)?;
                tokens.blank(item.tokens.clone());
            }
            _ => {}
        }
    }
    if target != Target::Ptx {
        exports.constants(constants);
    }
    Ok(exports)
}

/// A kernel function, template or not.
struct Kernel {
    function: String,
    parameters: Vec<Parameter>,
    constants: Vec<u32>,
    /// Whether it says itself where it waits for the kernels before it.
    waits: bool,
    /// Most threads of a threadgroup, where it says so: an expression.
    threads_most: Option<String>,
}

struct Parameter {
    name: String,
    /// Name in sm/launch.h.
    kind: String,
    /// Buffer index, or 0.
    index: u32,
}

impl Exports {
    /// Adds the wrapper of one kernel. `function` names it with its template arguments.
    fn add(
        &mut self,
        tokens: &Tokens,
        item: &Item,
        name: &str,
        function: &str,
        kernel: &Kernel,
    ) -> Result<(), RewriteError> {
        let start = item.tokens.start;
        let identifier = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !identifier || name.is_empty() {
            return Err(tokens.error(start, format!("host name `{name}` of `{}` is no identifier", kernel.function)));
        }
        if self.kernels.iter().any(|k| k.name == name) {
            return Err(tokens.error(start, format!("two kernels are called `{name}`")));
        }
        match self.target {
            Target::SoftMetal | Target::SoftNvidia => self.function(name, function, kernel),
            Target::Ptx => self.entry(name, function, kernel),
        }
        self.kernels.push(KernelText {
            name: name.to_owned(),
            parameters: kernel.parameters.iter().map(|p| p.name.clone()).collect(),
            constants: kernel.constants.clone(),
            waits: kernel.waits,
            place: tokens.list[start].place.clone(),
        });
        Ok(())
    }

    /// The call of a kernel's function by a thread `t`, and the description of its parameters.
    fn call(function: &str, kernel: &Kernel) -> (String, String) {
        let typed = |i: usize, p: &Parameter| {
            format!("sm::parameter_t<decltype({function}), {}>, sm::{}, {}", i + 1, p.kind, p.index)
        };
        let (mut arguments, mut described) = (String::from("*t"), String::new());
        for (i, parameter) in kernel.parameters.iter().enumerate() {
            let _ = write!(arguments, ", sm::argument<{}>(*t)", typed(i, parameter));
            let _ = write!(described, "sm::describe<{}>(), ", typed(i, parameter));
        }
        (format!("{function}({arguments})"), described)
    }

    /// The function that the software Metal calls for every thread.
    fn function(&mut self, name: &str, function: &str, kernel: &Kernel) {
        let exported = "extern \"C\" __attribute__((visibility(\"default\")))";
        let (call, described) = Self::call(function, kernel);
        let wait = if kernel.waits || self.target != Target::SoftNvidia { "" } else { "wait_for_inputs(); " };
        let _ = writeln!(self.text, "{exported} void sm_run_{name}(const SmThread* t) {{ {wait}{call}; }}");
        let _ = writeln!(
            self.text,
            "{exported} const __constant SmParameter sm_parameters_{name}[] = {{ {described}SmParameter{{}} }};"
        );
    }

    /// The entry of NVIDIA's assembly: the addresses of its buffers by value, then the argument struct by value.
    fn entry(&mut self, name: &str, function: &str, kernel: &Kernel) {
        let buffers = kernel.parameters.iter().filter(|p| p.kind == "BUFFER");
        let most = buffers.clone().map(|p| p.index + 1).max().unwrap_or(1);
        // The last buffer in constant memory; `sm::arguments_t` refuses any other.
        let args = kernel.parameters.iter().position(|p| p.kind == "BUFFER" && p.index + 1 == most).unwrap_or(0);
        let threads = kernel.threads_most.as_ref().map(|most| format!("SM_THREADS({most});")).unwrap_or_default();
        let started = if kernel.waits { "SM_STARTED;" } else { "SM_STARTED; wait_for_inputs();" };
        let _ = writeln!(
            self.text,
            "static_assert(sizeof(sm::Buffers<{most}>) == 8 * {most}, \"instantiated here\"); \
             extern \"C\" __kernel void sm_run_{name}(const sm::Buffers<{most}> buffers, \
             const sm::arguments_t<sm::parameter_t<decltype({function}), {}>> args) {{ \
             __local uchar sm_arena[16]; SmLaunch launch; SmThread who; {threads} {started} \
             sm::enter(launch, who, buffers, &args, sm_arena); const SmThread* t = &who; {}; }}",
            args + 1,
            Self::call(function, kernel).0
        );
    }

    /// Adds the function that sets function constants.
    fn constants(&mut self, constants: &[ConstantText]) {
        self.text.push_str("extern \"C\" __attribute__((visibility(\"default\")))\n");
        self.text.push_str("void sm_set_constant(uint index, uint value) {\n");
        for constant in constants {
            let ConstantText { index, name, type_name } = constant;
            let value =
                if type_name == "float" { "as_type<float>(value)".into() } else { format!("({type_name})value") };
            let _ = writeln!(self.text, "    if (index == {index}) {name} = {value};");
        }
        self.text.push_str("}\n");
    }
}

/// The string of a `host_name` attribute in the head of a declaration.
fn host_name(attributes: &[Attribute], head: &Range<usize>) -> Option<String> {
    let attribute = attributes.iter().find(|a| a.name == "host_name" && head.contains(&a.at))?;
    // Macros that paste names give several literals side by side.
    Some(attribute.value.split('"').skip(1).step_by(2).collect())
}

/// What a `max_total_threads_per_threadgroup` attribute in the head of a declaration says.
fn threads_most(attributes: &[Attribute], head: &Range<usize>) -> Option<String> {
    let stands = |a: &&Attribute| a.name == "max_total_threads_per_threadgroup" && head.contains(&a.at);
    attributes.iter().find(stands).map(|a| a.value.clone())
}

/// Name and function of `template [[host_name("n")]] [[kernel]] decltype(f<..>) f<..>;`.
fn instantiation(tokens: &Tokens, attributes: &[Attribute], item: &Item) -> Result<(String, String), RewriteError> {
    let form = "write `template [[host_name(\"n\")]] [[kernel]] decltype(f<..>) f<..>;`";
    let name = host_name(attributes, &item.tokens);
    let open = item.tokens.clone().find(|i| tokens.text(*i) == "decltype").map(|i| i + 1);
    let (Some(name), Some(open)) = (name, open) else { return Err(tokens.error(item.tokens.start, form)) };
    let close = tokens.matching(open)?;
    let (typed, named) = (tokens.join(open + 1..close), tokens.join(close + 1..item.tokens.end - 1));
    if typed != named {
        return Err(tokens.error(open, format!("`{typed}` and `{named}` differ; {form}")));
    }
    Ok((name, named))
}

/// Reads a kernel's parameters.
fn kernel_parameters(
    tokens: &Tokens,
    attributes: &[Attribute],
    range: Range<usize>,
) -> Result<Vec<Parameter>, RewriteError> {
    let mut parameters = Vec::new();
    for part in split_commas(tokens, range)? {
        let attribute = attributes.iter().find(|a| part.contains(&a.at)).ok_or_else(|| {
            tokens.error(part.start, "a kernel's parameter needs an attribute: a buffer or a builtin")
        })?;
        let name = (part.start..attribute.at).rev().find(|i| tokens.is_word(*i));
        let name = name.map_or(String::new(), |i| tokens.text(i).to_owned());
        let (kind, index) = match attribute.name.as_str() {
            "buffer" => {
                let index = attribute.value.parse().ok().filter(|i| *i < 31);
                let index = index.ok_or_else(|| tokens.error(part.start, "a buffer index is a number below 31"))?;
                ("BUFFER".to_owned(), index)
            }
            builtin if BUILTINS.contains(&builtin) => (builtin.to_ascii_uppercase(), 0),
            other => return Err(tokens.error(part.start, format!("a kernel's parameter cannot be `{other}`"))),
        };
        parameters.push(Parameter { name, kind, index });
    }
    Ok(parameters)
}

/// Ranges between the commas of a parameter list.
fn split_commas(tokens: &Tokens, range: Range<usize>) -> Result<Vec<Range<usize>>, RewriteError> {
    let (mut parts, mut start, mut i) = (Vec::new(), range.start, range.start);
    while i < range.end {
        match tokens.text(i) {
            "(" | "[" | "<" => i = tokens.matching(i)?,
            "," => {
                parts.push(start..i);
                start = i + 1;
            }
            _ => {}
        }
        i += 1;
    }
    if start < range.end {
        parts.push(start..range.end);
    }
    Ok(parts)
}

/// Makes a plain function of a kernel, with one more parameter in front: who the thread is.
fn mark_function(tokens: &mut Tokens, head: &Range<usize>, parameters: &Range<usize>, template: bool) {
    for i in head.clone().filter(|i| tokens.text(*i) == "kernel").collect::<Vec<_>>() {
        tokens.blank(i..i + 1);
    }
    if !template {
        let first = &mut tokens.list[head.start];
        first.out = format!("static {}", first.out);
    }
    let comma = if parameters.is_empty() { "" } else { ", " };
    tokens.list[parameters.start - 1].out = format!("(const SmThread& sm_thread{comma}");
}

/// Whether a declaration of a threadgroup variable (not of a pointer or reference) starts at a token; its end.
fn variable_end(tokens: &Tokens, i: usize) -> Option<usize> {
    if tokens.text(i) != "threadgroup" || !["{", "}", ";", ")"].contains(&tokens.before(i)) {
        return None;
    }
    let end = (i..tokens.list.len()).find(|j| tokens.text(*j) == ";")?;
    let pointer = (i..end).take_while(|j| tokens.text(*j) != "[").any(|j| ["*", "&", "("].contains(&tokens.text(j)));
    let aligned = tokens.text(i + 1) == "alignas";
    (!pointer || aligned).then_some(end)
}

/// Gives a kernel's threadgroup variables their places in the arena of the threadgroup.
fn threadgroup_variables(tokens: &mut Tokens, body: Range<usize>, bytes_max: usize) -> Result<(), RewriteError> {
    let (mut depth, mut i) = (0, body.start);
    let mut end_before = String::from("0");
    while i < body.end {
        match tokens.text(i) {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if let Some(end) = variable_end(tokens, i) {
            if depth != 1 {
                return Err(tokens.error(i, "threadgroup variables stand at the top level of the kernel's body"));
            }
            let text = place_variables(tokens, i..end, &mut end_before, bytes_max)?;
            tokens.blank(i..end + 1);
            tokens.list[i].out = text;
            i = end;
        }
        i += 1;
    }
    Ok(())
}

/// The text that stands for one declaration; `end_before` is the constant that says where the variables before it end.
fn place_variables(
    tokens: &Tokens,
    range: Range<usize>,
    end_before: &mut String,
    bytes_max: usize,
) -> Result<String, RewriteError> {
    let mut first = range.start + 1;
    if tokens.text(first) == "alignas" {
        first = tokens.matching(first + 1)? + 1;
    }
    // The name is the last word before the first dimension, comma or end.
    let stop =
        (first..range.end).find(|j| ["[", ",", "="].contains(&tokens.text(*j)) && angle_depth(tokens, first, *j) == 0);
    let name_at = stop.unwrap_or(range.end) - 1;
    let type_name = tokens.join(first..name_at);
    if !tokens.is_word(name_at) || type_name.is_empty() {
        return Err(tokens.error(range.start, "write `threadgroup TYPE name[N];`"));
    }
    let mut text = String::new();
    for part in split_commas(tokens, name_at..range.end)? {
        let name = tokens.text(part.start);
        if part.clone().any(|j| tokens.text(j) == "=") {
            return Err(tokens.error(part.start, "threadgroup variables have no initial value"));
        }
        let dimensions = tokens.join(part.start + 1..part.end);
        let _ = write!(
            text,
            "typedef {type_name} sm_type_{name}{dimensions}; \
             enum : uint {{ sm_begin_{name} = {end_before}, \
             sm_end_{name} = sm_begin_{name} + ((sizeof(sm_type_{name}) + 15) & ~15u) }}; \
             static_assert(sm_end_{name} <= {bytes_max}, \
             \"threadgroup memory of one kernel is at most {bytes_max} bytes\"); \
             threadgroup sm_type_{name}& {name} = \
             *(threadgroup sm_type_{name}*)(sm_thread.arena + sm_begin_{name}); \
             SM_ARENA_USED(sm_end_{name}); "
        );
        *end_before = format!("(uint)sm_end_{name}");
    }
    Ok(text)
}

/// How many template argument lists are open at a token, counted from `first`.
fn angle_depth(tokens: &Tokens, first: usize, at: usize) -> i32 {
    (first..at).map(|i| (tokens.text(i) == "<") as i32 - (tokens.text(i) == ">") as i32).sum()
}

/// Only kernels may declare threadgroup variables.
fn refuse_threadgroup_variables(tokens: &Tokens, body: Range<usize>) -> Result<(), RewriteError> {
    match body.clone().find(|i| variable_end(tokens, *i).is_some()) {
        Some(i) => Err(tokens.error(i, "threadgroup variables are declared in kernels; pass a pointer")),
        None => Ok(()),
    }
}

/// Which names every function or type of the file mentions.
struct Uses {
    names: HashMap<String, BTreeSet<String>>,
}

impl Uses {
    fn of(tokens: &Tokens, items: &[Item]) -> Self {
        let mut names: HashMap<String, BTreeSet<String>> = HashMap::new();
        for item in items.iter().filter(|i| i.kind != ItemKind::Instantiation) {
            let words = item.tokens.clone().filter(|i| tokens.is_word(*i)).map(|i| tokens.text(i).to_owned());
            names.entry(item.name.clone()).or_default().extend(words);
        }
        Self { names }
    }

    /// The functions and types that a function mentions, itself or through what it mentions, and all other words there.
    fn reaches(&self, function: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::from([function.to_owned()]);
        let mut open = vec![function.to_owned()];
        while let Some(name) = open.pop() {
            for mentioned in self.names.get(&name).into_iter().flatten() {
                if seen.insert(mentioned.clone()) && self.names.contains_key(mentioned) {
                    open.push(mentioned.clone());
                }
            }
        }
        seen
    }

    /// Indices of the constants that a function mentions, itself or through what it mentions.
    fn constants(&self, function: &str, constants: &[ConstantText]) -> Vec<u32> {
        let seen = self.reaches(function);
        constants.iter().filter(|c| seen.contains(&c.name)).map(|c| c.index).collect()
    }
}
