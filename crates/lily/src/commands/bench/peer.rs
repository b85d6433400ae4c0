//! Other engines beside lily: how each is started, what it is asked, and how its answer becomes an [`Arm`].

use super::arm::Arm;
use super::process::{self, Ended};
use super::spec::Spec;
use crate::failure::Failure;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

/// Drives MLX-LM, in a Python that has it.
const MLX_LM: &str = include_str!("mlx_lm.py");
/// Tokens of a chunk of llama.cpp: what was fastest wherever it was tried, and MLX-LM's own default.
const LLAMA_BATCH: &str = "2048";
/// Below so many tokens a run of llama.cpp takes a fraction of a second, and it is run this often at least.
const LLAMA_SHORT: usize = 4096;
const LLAMA_SHORT_REPS: usize = 15;

/// Which engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// MLX-LM, on the same checkpoint.
    MlxLm {
        /// The interpreter that has it.
        python: PathBuf,
    },
    /// llama.cpp's benchmark, on a file of its own.
    LlamaBench {
        /// The program.
        program: PathBuf,
    },
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path))) {
            ("mlx-lm", None) => Ok(Self::MlxLm { python: "python3".into() }),
            ("mlx-lm", Some(python)) if !python.is_empty() => Ok(Self::MlxLm { python: python.into() }),
            ("llama-bench", Some(program)) if !program.is_empty() => Ok(Self::LlamaBench { program: program.into() }),
            _ => Err("expected mlx-lm, mlx-lm=PYTHON or llama-bench=PATH".to_owned()),
        }
    }
}

impl Peer {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Peer::MlxLm { .. } => "MLX-LM",
            Peer::LlamaBench { .. } => "llama.cpp",
        }
    }

    /// Measures it once, in processes of its own. `model` is what it reads.
    ///
    /// # Errors
    /// If it cannot be started, fails, or answers something else than was asked; with its last words.
    pub fn measure(&self, model: &Path, spec: &Spec) -> Result<Arm, Failure> {
        let arm = match self {
            Peer::MlxLm { python } => mlx_lm(python, model, spec),
            Peer::LlamaBench { program } => llama_bench(program, model, spec),
        };
        arm.and_then(|arm| arm.check(spec).map(|()| arm))
            .map_err(|message| Failure::other(format_args!("{}: {message}", self.name())))
    }
}

fn mlx_lm(python: &Path, model: &Path, spec: &Spec) -> Result<Arm, String> {
    let question = serde_json::json!({
        "model": model,
        "tokens": spec.tokens,
        "lengths": spec.lengths,
        "decode": spec.decode,
        "reps": spec.reps,
        "figure_seconds": super::FIGURE_SECONDS,
        "warm_seconds": super::WARM_SECONDS,
        "warm_steps": super::WARM_STEPS,
    });
    let mut command = Command::new(python);
    let ended = process::run(command.args(["-c", MLX_LM]), question.to_string().into_bytes())?;
    answer(&ended)
}

/// What a process printed, if it ended well.
fn answer<T: for<'de> Deserialize<'de>>(ended: &Ended) -> Result<T, String> {
    if !ended.status.success() {
        return Err(format!("it failed ({}):\n{}", ended.status, ended.last_words()));
    }
    serde_json::from_slice(&ended.stdout).map_err(|error| {
        let printed = String::from_utf8_lossy(&ended.stdout);
        let printed: String = printed.trim().chars().take(200).collect();
        format!(
            "it printed something else than the JSON that was expected ({error}): {printed:?}\n{}",
            ended.last_words()
        )
    })
}

/// A line of llama-bench's results.
#[derive(Clone, Debug, Deserialize)]
struct LlamaResult {
    build_commit: String,
    build_number: i64,
    #[serde(default)]
    cpu_info: String,
    #[serde(default)]
    gpu_info: String,
    #[serde(default)]
    model_type: String,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    samples_ts: Vec<f64>,
}

fn llama_bench(program: &Path, model: &Path, spec: &Spec) -> Result<Arm, String> {
    let list = |wanted: &dyn Fn(&super::spec::Length) -> bool| {
        let lengths = spec.lengths.iter().filter(|length| wanted(length));
        lengths.map(|length| length.tokens.to_string()).collect::<Vec<_>>().join(",")
    };
    let steps = spec.decode.to_string();
    let mut results: Vec<LlamaResult> = Vec::new();
    for (short, reps) in [(true, spec.reps.max(LLAMA_SHORT_REPS)), (false, spec.reps)] {
        let prompts = list(&|length| length.prefill && (length.tokens < LLAMA_SHORT) == short);
        let depths = list(&|length| length.decode && (length.tokens < LLAMA_SHORT) == short);
        for [p, n, d] in [[&*prompts, "0", "0"], ["0", &*steps, &*depths]] {
            if p.is_empty() || d.is_empty() {
                continue;
            }
            let mut command = Command::new(program);
            command.arg("-m").arg(model).args(["-o", "json", "-fa", "1", "-b", LLAMA_BATCH, "-ub", LLAMA_BATCH]);
            command.args(["-r", &reps.to_string(), "-p", p, "-n", n, "-d", d]);
            if let Some(threads) = spec.threads {
                command.args(["-t", &threads.to_string()]);
            }
            results.extend(answer::<Vec<LlamaResult>>(&process::run(&mut command, Vec::new())?)?);
        }
    }
    Ok(arm_of_llama(&results, spec))
}

fn arm_of_llama(results: &[LlamaResult], spec: &Spec) -> Arm {
    let runs = |wanted: &dyn Fn(&LlamaResult) -> bool| {
        results.iter().find(|result| wanted(result)).map_or_else(Vec::new, |result| result.samples_ts.clone())
    };
    let lengths = spec.lengths.iter().map(|length| super::arm::ArmLength {
        tokens: length.tokens,
        prefill: runs(&|r| length.prefill && r.n_prompt == length.tokens && r.n_gen == 0),
        decode: runs(&|r| length.decode && r.n_prompt == 0 && r.n_depth == length.tokens),
        ..Default::default()
    });
    let mut arm = Arm { lengths: lengths.collect(), ..Arm::default() };
    if let Some(first) = results.first() {
        let device = if first.gpu_info.is_empty() { &first.cpu_info } else { &first.gpu_info };
        arm.device = device.clone();
        let version = format!("{} ({})", first.build_number, first.build_commit);
        arm.versions = [("build".to_owned(), version), ("model".to_owned(), first.model_type.clone())].into();
    }
    arm
}

#[cfg(test)]
mod tests {
    use super::super::spec::{Length, tests::spec};
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::{Mutex, MutexGuard};

    /// A script in a folder of its own. While it is there no other test starts a process: that one could for a moment hold the
    /// script open for writing, and the system refuses to run such a file.
    fn script(text: &str) -> (Folder, PathBuf) {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(|held| held.into_inner());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peer");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        (Folder { folder, _alone: alone }, path)
    }

    struct Folder {
        folder: tempfile::TempDir,
        _alone: MutexGuard<'static, ()>,
    }

    #[test]
    fn peers_are_named_with_what_runs_them() {
        assert_eq!("mlx-lm".parse(), Ok(Peer::MlxLm { python: "python3".into() }));
        assert_eq!("mlx-lm=v/bin/python".parse(), Ok(Peer::MlxLm { python: "v/bin/python".into() }));
        assert_eq!("llama-bench=x".parse(), Ok(Peer::LlamaBench { program: "x".into() }));
        for wrong in ["", "llama-bench", "llama-bench=", "mlx-lm=", "vllm"] {
            assert!(wrong.parse::<Peer>().unwrap_err().contains("llama-bench=PATH"), "{wrong}");
        }
    }

    #[test]
    fn mlx_lm_is_asked_for_the_same_tokens() {
        let (_folder, python) = script(
            r#"test "$1" = -c || exit 9
            question=$(cat)
            for part in '"model":"m"' '"tokens":[1,2,3,4,5,6,7,8]' '"decode":2' '"reps":1' '"warm_up":4'; do
                case "$question" in *"$part"*) ;; *) echo "$part: $question" >&2; exit 8;; esac
            done
            echo '{"versions": {"mlx": "1"}, "device": "gpu", "load_seconds": 1.5, "host_bytes": 7, "device_bytes": 8, "lengths": [
                {"tokens": 4, "prefill": [10.0], "decode": [], "generated": []},
                {"tokens": 8, "prefill": [20.0], "decode": [5.0], "generated": [[1, 2]]}]}'"#,
        );
        let arm = Peer::MlxLm { python }.measure(Path::new("m"), &spec()).unwrap();
        assert_eq!((arm.lengths[1].prefill[0], arm.lengths[1].decode[0]), (20.0, 5.0));
        assert_eq!((arm.load_seconds, arm.device_bytes), (Some(1.5), Some(8)));
    }

    #[test]
    fn llama_bench_is_run_for_prompts_and_for_depths() {
        let (folder, program) = script(
            r#"echo "$@" >> "$(dirname "$0")/calls"
            row() { echo "{\"build_commit\": \"abc\", \"build_number\": 7, \"cpu_info\": \"c\", \"gpu_info\": \"g\", \"model_type\": \"t\",
                \"n_prompt\": $1, \"n_gen\": $2, \"n_depth\": $3, \"avg_ts\": 1.0, \"samples_ts\": [$4]}"; }
            case "$*" in
            *"-p 4,8 -n 0 -d 0"*) echo "[$(row 4 0 0 40.5),$(row 8 0 0 80)]" ;;
            *"-p 0 -n 2 -d 8"*) echo "[$(row 0 2 8 9.25)]" ;;
            esac"#,
        );
        let arm = Peer::LlamaBench { program }.measure(Path::new("m.gguf"), &spec()).unwrap();
        let figures: Vec<_> = arm.lengths.iter().map(|l| (l.tokens, l.prefill.clone(), l.decode.clone())).collect();
        assert_eq!(figures, [(4, vec![40.5], vec![]), (8, vec![80.0], vec![9.25])]);
        assert_eq!((&*arm.device, &*arm.versions["build"]), ("g", "7 (abc)"));
        let calls = std::fs::read_to_string(folder.folder.path().join("calls")).unwrap();
        assert!(calls.contains("-m m.gguf -o json -fa 1 -b 2048 -ub 2048 -r 15 -p 4,8 -n 0 -d 0"), "{calls}");
        assert_eq!(calls.lines().count(), 2, "{calls}");
    }

    #[test]
    fn llama_bench_runs_short_lengths_more_often() {
        let (folder, program) = script(
            r#"echo "$@" >> "$(dirname "$0")/calls"
            row() { echo "[{\"build_commit\": \"abc\", \"build_number\": 7, \"n_prompt\": $1, \"n_gen\": 0, \"n_depth\": 0, \"samples_ts\": [9]}]"; }
            case "$*" in *"-p 2048 "*) row 2048 ;; *) row 4096 ;; esac"#,
        );
        let length = |tokens| Length { tokens, warm_up: tokens, prefill: true, decode: false };
        let asked = |reps| Spec { lengths: vec![length(2048), length(4096)], reps, ..spec() };
        let arm = llama_bench(&program, Path::new("m"), &asked(1)).unwrap();
        assert_eq!(arm.lengths.iter().map(|l| l.prefill.len()).collect::<Vec<_>>(), [1, 1]);
        llama_bench(&program, Path::new("m"), &asked(20)).unwrap();
        let calls = std::fs::read_to_string(folder.folder.path().join("calls")).unwrap();
        let reps: Vec<&str> = calls.lines().filter_map(|call| call.split("-r ").nth(1)?.split(" -n").next()).collect();
        assert_eq!(reps, ["15 -p 2048", "1 -p 4096", "20 -p 2048", "20 -p 4096"]);
    }

    #[test]
    fn what_goes_wrong_with_a_peer_is_told_in_its_words() {
        let check = |text: &str, parts: &[&str]| {
            let (_folder, path) = script(text);
            for peer in [Peer::MlxLm { python: path.clone() }, Peer::LlamaBench { program: path.clone() }] {
                let failure = peer.measure(Path::new("m"), &spec()).unwrap_err();
                for part in [parts, &[peer.name()]].concat() {
                    assert!(failure.message().contains(part), "{part:?} is not in {failure:?}");
                }
            }
        };
        check("echo first >&2; echo No module named mlx_lm >&2; exit 3", &["exit status: 3", "No module named mlx_lm"]);
        check("echo warning >&2; echo '{\"lengths\": '", &["something else than the JSON", "warning"]);
        check("cat > /dev/null", &["something else than the JSON"]);
        let absent = Peer::MlxLm { python: "no/such/python".into() };
        assert!(absent.measure(Path::new("m"), &spec()).unwrap_err().message().contains("cannot start no/such/python"));
    }

    #[test]
    fn an_answer_to_another_question_is_refused() {
        let check = |lengths: &str, part: &str| {
            let (_folder, python) =
                script(&format!("cat > /dev/null; echo '{{\"device\": \"d\", \"lengths\": {lengths}}}'"));
            let failure = Peer::MlxLm { python }.measure(Path::new("m"), &spec()).unwrap_err();
            assert!(failure.message().contains(part), "{part:?} is not in {failure:?}");
        };
        check("[]", "expected figures of 4, 8 tokens");
        let two = |decode: &str| {
            format!(
                "[{{\"tokens\": 4, \"prefill\": [1.0]}}, {{\"tokens\": 8, \"prefill\": [1.0], \"decode\": {decode}}}]"
            )
        };
        check(&two("[]"), "decode at 8: expected 1 runs or more, found 0");
        check(&two("[0.0]"), "decode at 8: expected rates above 0, found 0");
    }
}
