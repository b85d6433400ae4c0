//! `cargo xtask mutants`: whether the tests of kernels and plan would notice a mistake, by making some.
//!
//! Each mutation of xtask/mutants/kernels.diff is made in a copy of the kernels below target/mutants, and the conformance
//! cases that should see it run on the software Metal. Kernel text is read at run time, so that a mutation costs the
//! compilation of its own file only. Faults of plans are made at run time by a test of lily-engine (tests/plan_faults).
//! The report is on stdout. What no test sees must say why.

mod patch;

use anyhow::{Context, Result, bail, ensure};
use patch::Mutation;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The table of mutations, and the folder whose files they change.
const TABLE: &str = "xtask/mutants/kernels.diff";
const KERNELS: &str = "kernels";
/// Where everything goes.
const FOLDER: &str = "target/mutants";
/// How long the tests of a mutation may take. It is far more than any needs, and what hangs is seen too.
const LIMIT: Duration = Duration::from_secs(300);
/// Mutations that ci makes.
const SAMPLE: usize = 8;
/// Least share of mutations that must be seen.
const SEEN_LEAST: f64 = 0.95;

/// How the tests of a mutation went.
enum Outcome {
    /// These are red.
    Red(Vec<String>),
    /// All are green.
    Green,
    /// The tests died or hung.
    Broken(&'static str),
}

/// A mutation with what came of it.
struct Made {
    mutation: Mutation,
    line: usize,
    outcome: Outcome,
    time: Duration,
}

/// Makes all faults of plans and all mutations of the kernels, or only those of one file.
pub fn run(root: &Path, only: Option<&str>) -> Result<()> {
    let mut mutations = table(root)?;
    mutations.retain(|m| only.is_none_or(|file| m.file == file));
    ensure!(!mutations.is_empty(), "no mutation is of {}; name a file of kernels/", only.unwrap_or(KERNELS));
    let plans = if only.is_none() { plan_faults(root) } else { Ok(()) };
    let tests = kernel_tests(root)?;
    green(root, &tests, &mutations)?;
    judge(root, &tests, &mutations).and(plans)
}

/// Makes a few mutations of the kernels, drawn anew whenever the kernels or the table change. The cases must be known to be
/// green without.
pub fn sample(root: &Path) -> Result<()> {
    let mut left = table(root)?;
    left.retain(|m| m.reason.is_none());
    let mut seed: u64 = 0xcbf2_9ce4_8422_2325;
    for file in files(&root.join(KERNELS))?.into_iter().chain([root.join(TABLE)]) {
        fs::read(&file)?.into_iter().for_each(|byte| seed = (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    }
    let mut drawn = Vec::new();
    for _ in 0..SAMPLE.min(left.len()) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        drawn.push(left.swap_remove((seed >> 33) as usize % left.len()));
    }
    judge(root, &kernel_tests(root)?, &drawn)
}

fn table(root: &Path) -> Result<Vec<Mutation>> {
    let text = fs::read_to_string(root.join(TABLE)).with_context(|| TABLE.to_owned())?;
    patch::parse(&text).with_context(|| TABLE.to_owned())
}

/// Runs the test that makes faults in plans, and passes its report on.
fn plan_faults(root: &Path) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--locked", "--package", "lily-engine", "--test", "plan_faults", "--", "--nocapture"]);
    let output = cargo.current_dir(root).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.starts_with("plan: "))
        .for_each(|l| println!("{l}"));
    ensure!(output.status.success(), "faults of plans: the test says which");
    Ok(())
}

/// Whether the cases are green without a mutation.
fn green(root: &Path, tests: &Path, mutations: &[Mutation]) -> Result<()> {
    let mut cases: Vec<&String> = mutations.iter().flat_map(|m| &m.tests).collect();
    cases.sort();
    cases.dedup();
    eprintln!("mutants: {} cases without a mutation, which must be green", cases.len());
    let sound = each(&cases, |i, case| {
        let log = root.join(FOLDER).join(format!("green-{i}.log"));
        let outcome = run_cases(tests, &root.join(KERNELS), std::slice::from_ref(*case), &log)?;
        ensure!(
            matches!(outcome, Outcome::Green),
            "the case {case} is red without any mutation; see {}",
            log.display()
        );
        Ok(())
    });
    sound.into_iter().collect()
}

/// Makes mutations, reports, and fails if too many are not seen, or one without a reason.
fn judge(root: &Path, tests: &Path, mutations: &[Mutation]) -> Result<()> {
    let start = Instant::now();
    eprintln!("mutants: {} mutations of the kernels", mutations.len());
    let made = each(mutations, |i, mutation| make(root, tests, i, mutation));
    let made = made.into_iter().collect::<Result<Vec<Made>>>()?;
    report(&made, start.elapsed())
}

/// Does something with each of a list on as many threads as there are processors; results are in the list's order.
fn each<T: Sync, R: Send>(list: &[T], work: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let i = next.fetch_add(1, Ordering::Relaxed)
                    && i < list.len()
                {
                    let result = work(i, &list[i]);
                    done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Makes one mutation in a copy of the kernels and runs its cases.
fn make(root: &Path, tests: &Path, index: usize, mutation: &Mutation) -> Result<Made> {
    let start = Instant::now();
    let (from, folder) = (root.join(KERNELS), root.join(FOLDER));
    let copy = folder.join(format!("kernels-{index}"));
    let mut line = 0;
    for file in files(&from)? {
        let text = fs::read_to_string(&file)?;
        let name = file.strip_prefix(&from).context("a file of kernels/")?;
        let text = if name == Path::new(&mutation.file) {
            let mutated = mutation.apply(&text)?;
            line = mutated.line;
            mutated.text
        } else {
            text
        };
        let to = copy.join(name);
        fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
        fs::write(&to, text).with_context(|| to.display().to_string())?;
    }
    let outcome = run_cases(tests, &copy, &mutation.tests, &folder.join(format!("{index}.log")))
        .with_context(|| format!("{}:{line} ({})", mutation.file, mutation.class))?;
    fs::remove_dir_all(&copy)?;
    let made = Made { mutation: mutation.clone(), line, outcome, time: start.elapsed() };
    println!("{}", made.line());
    Ok(made)
}

impl Made {
    fn line(&self) -> String {
        let place = format!("{}:{}", self.mutation.file, self.line);
        let seen = match &self.outcome {
            Outcome::Red(cases) => format!("red: {}", cases.join(", ")),
            Outcome::Broken(how) => format!("red: {how}, {}", self.mutation.tests.join(", ")),
            Outcome::Green => "SURVIVED".to_owned(),
        };
        format!("{place:<30} {:<16} {:>6.1} s  {seen}", self.mutation.class, self.time.as_secs_f64())
    }

    fn survived(&self) -> bool {
        matches!(self.outcome, Outcome::Green)
    }
}

/// Runs cases on the kernels of a folder, in a process of their own.
fn run_cases(tests: &Path, kernels: &Path, cases: &[String], log: &Path) -> Result<Outcome> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    let mut child = Command::new(tests)
        .args(["--exact", "--test-threads=1"])
        .args(cases)
        .env("LILY_KERNELS", kernels)
        .stdout(file.try_clone()?)
        .stderr(file)
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| tests.display().to_string())?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            return Ok(Outcome::Broken("hangs"));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = String::from_utf8_lossy(&fs::read(log)?).into_owned();
    ensure!(
        text.contains(&format!("running {} test", cases.len())),
        "the tests of soft-metal do not have each of {}",
        cases.join(", ")
    );
    ensure!(!text.contains("cannot compile "), "the mutated text is not valid:\n{text}");
    let red = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    let red: Vec<String> = text.lines().filter_map(red).collect();
    Ok(match (status.success(), red.is_empty()) {
        (true, _) => Outcome::Green,
        (false, false) => Outcome::Red(red),
        (false, true) => Outcome::Broken("dies"),
    })
}

/// Builds the conformance tests of the software Metal.
fn kernel_tests(root: &Path) -> Result<PathBuf> {
    fs::create_dir_all(root.join(FOLDER))?;
    let mut cargo = Command::new("cargo");
    cargo.args([
        "test",
        "--locked",
        "--package",
        "soft-metal",
        "--test",
        "kernels",
        "--no-run",
        "--message-format=json",
    ]);
    let output = cargo.current_dir(root).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "the tests of soft-metal cannot be built");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let executable = text.lines().find_map(|line| line.split_once("\"executable\":\"")?.1.split('"').next());
    Ok(PathBuf::from(executable.context("cargo names no executable; is this Linux on x86-64?")?))
}

/// All files below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() { files.extend(self::files(&path)?) } else { files.push(path) }
    }
    files.sort();
    Ok(files)
}

fn report(made: &[Made], time: Duration) -> Result<()> {
    let survivors: Vec<&Made> = made.iter().filter(|m| m.survived()).collect();
    let seen = made.len() - survivors.len();
    let share = seen as f64 / made.len() as f64;
    println!("{seen} of {} mutations seen, {:.1} %, in {:.0} s", made.len(), 100.0 * share, time.as_secs_f64());
    for survivor in &survivors {
        let reason = survivor.mutation.reason.as_deref().unwrap_or("NO REASON GIVEN");
        println!("{}:{} survives: {reason}", survivor.mutation.file, survivor.line);
    }
    if let Some(stale) = made.iter().find(|m| m.mutation.reason.is_some() && !m.survived()) {
        bail!("{}:{} is seen after all: take its reason out of the table", stale.mutation.file, stale.line);
    }
    let unexplained = survivors.iter().filter(|m| m.mutation.reason.is_none()).count();
    if unexplained > 0 {
        bail!("{unexplained} survivors: write a case that sees them, or the reason why none can into {}", TABLE);
    }
    ensure!(share >= SEEN_LEAST, "at least {:.0} % must be seen", 100.0 * SEEN_LEAST);
    Ok(())
}
