//! The table of mutations: its format, and how one is applied to a text.
//!
//! `## file` opens the mutations of a file, `@ class: tests` opens one. Its lines are a patch without line numbers. They are
//! looked for in the text, where they must occur exactly once, so that the table cannot fall behind the text unnoticed.

use anyhow::{Context, Result, bail, ensure};

/// One change to one file.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// File of kernels/.
    pub file: String,
    /// What kind of mistake it is.
    pub class: String,
    /// Tests that should see it.
    pub tests: Vec<String>,
    /// Why no test can see it, if so.
    pub reason: Option<String>,
    before: Vec<String>,
    after: Vec<String>,
    /// Index of the first line that changes.
    changed: usize,
}

/// A text with one mutation.
pub struct Mutated {
    /// The text.
    pub text: String,
    /// Number of its first line that changed.
    pub line: usize,
}

/// Reads a table.
///
/// # Errors
/// If a line means nothing, or a mutation changes nothing.
pub fn parse(table: &str) -> Result<Vec<Mutation>> {
    let mut mutations: Vec<Mutation> = Vec::new();
    let mut file = None;
    for (number, line) in table.lines().enumerate() {
        let context = || format!("line {} of the table: `{line}`", number + 1);
        if let Some(name) = line.strip_prefix("## ") {
            file = Some(name.to_owned());
        } else if let Some(head) = line.strip_prefix("@ ") {
            let (class, tests) = head.split_once(": ").with_context(context)?;
            mutations.push(Mutation {
                file: file.clone().with_context(context)?,
                class: class.to_owned(),
                tests: tests.split(' ').map(str::to_owned).collect(),
                reason: None,
                before: Vec::new(),
                after: Vec::new(),
                changed: usize::MAX,
            });
        } else if !line.is_empty() && !line.starts_with('#') {
            let mutation = mutations.last_mut().with_context(context)?;
            add_line(mutation, line).with_context(context)?;
        }
    }
    for mutation in &mutations {
        let (file, class) = (&mutation.file, &mutation.class);
        ensure!(mutation.changed != usize::MAX, "a mutation of {file} ({class}) changes nothing");
    }
    Ok(mutations)
}

fn add_line(mutation: &mut Mutation, line: &str) -> Result<()> {
    let (mark, text) = line.split_at_checked(1).context("it begins with no ASCII character")?;
    if mark != " " && mark != "=" {
        mutation.changed = mutation.changed.min(mutation.before.len());
    }
    match mark {
        " " => {
            mutation.before.push(text.to_owned());
            mutation.after.push(text.to_owned());
        }
        "-" => mutation.before.push(text.to_owned()),
        "+" => mutation.after.push(text.to_owned()),
        "=" => mutation.reason = Some(text.trim().to_owned()),
        _ => bail!("it begins with none of `## `, `@ `, ` `, `-`, `+` and `=`"),
    }
    Ok(())
}

impl Mutation {
    /// Applies it to the text of its file.
    ///
    /// # Errors
    /// If its lines are not there, or more than once.
    pub fn apply(&self, text: &str) -> Result<Mutated> {
        let lines: Vec<&str> = text.lines().collect();
        let starts: Vec<usize> = (0..(lines.len() + 1).saturating_sub(self.before.len()))
            .filter(|&i| lines[i..i + self.before.len()] == self.before[..])
            .collect();
        let [start] = starts[..] else {
            let (file, class, count) = (&self.file, &self.class, starts.len());
            bail!("{file} has these lines {count} times instead of once ({class}):\n{}", self.before.join("\n"));
        };
        let after = self.after.iter().map(String::as_str);
        let mutated: Vec<&str> = lines[..start]
            .iter()
            .copied()
            .chain(after)
            .chain(lines[start + self.before.len()..].iter().copied())
            .collect();
        Ok(Mutated { text: mutated.join("\n") + "\n", line: start + self.changed + 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "# Of no meaning.\n## a.h\n@ lost write: one two\n x = 1;\n-y = 2;\n z = 3;\n= nobody reads y\n";

    #[test]
    fn a_mutation_is_applied_where_its_lines_are() {
        let mutation = &parse(TABLE).unwrap()[0];
        assert_eq!((mutation.file.as_str(), mutation.class.as_str()), ("a.h", "lost write"));
        assert_eq!(mutation.tests, ["one", "two"]);
        assert_eq!(mutation.reason.as_deref(), Some("nobody reads y"));
        let mutated = mutation.apply("w = 0;\nx = 1;\ny = 2;\nz = 3;\n").unwrap();
        assert_eq!((mutated.text.as_str(), mutated.line), ("w = 0;\nx = 1;\nz = 3;\n", 3));
    }

    #[test]
    fn a_table_that_is_not_true_is_an_error() {
        let mutation = &parse(TABLE).unwrap()[0];
        let once = "x = 1;\ny = 2;\nz = 3;\n";
        for text in ["", "x = 1;\nz = 3;\n", &once.repeat(2)] {
            assert!(mutation.apply(text).is_err(), "{text}");
        }
        for table in
            ["@ class: test\n-x\n", "## a.h\n-x\n", "## a.h\n@ class: test\n x\n", "## a.h\n@ class: test\n*x\n"]
        {
            assert!(parse(table).is_err(), "{table}");
        }
    }

    /// The table fits the kernels.
    #[test]
    fn every_mutation_can_be_applied() {
        let root = crate::root();
        let mutations = super::super::table(&root).unwrap();
        for mutation in &mutations {
            let file = root.join(super::super::KERNELS).join(&mutation.file);
            let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            mutation.apply(&text).unwrap_or_else(|e| panic!("{e:#}"));
        }
    }
}
