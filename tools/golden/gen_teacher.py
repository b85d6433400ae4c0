"""Golden part (e): teacher-forced likelihoods on quantised checkpoints, lily-nano among them, by MLX-LM on the
CPU (three ways) and by transformers on the dequantised weights."""
import json

import mlx.core as mx
import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

import hf_ref
import mlx_ref
from common import COMMITTED, REPO, nll, sha256_files, versions, write_json
from twins import float32_weights

NANO = REPO / "models" / "lily-nano"
RANDOM_TWINS = {"family_heads-q4g64": 41, "sharded-mixed": 42}
RANDOM_TOKENS = 193
# (question, answer) pairs of one conversation, reasoning, tools
CONVERSATIONS = [
    ([("What is the capital of France?", "The capital of France is Paris.")], None, None),
    ([("Could you remind me what the capital of Japan is called", "The capital of Japan is Tokyo."),
      ("And of Spain?", "The capital of Spain is Madrid.")], None, None),
    ([("hello!", "Hello! How can I help you?")], None, None),
    ([("Who are you?", "I am lily-nano, a tiny language model that ships inside lily.")], None, None),
    ([("What is 7 plus 5?", "7 plus 5 is 12.")], "7 + 5 = 12.", None),
    ([("Which day comes after Monday?", "Tuesday comes after Monday."),
      ("And after Friday?", "Saturday comes after Friday.")], None, None),
    ([("How do you spell cat?", "c-a-t")], None, None),
    ([("Say the opposite of difficult.", "The opposite of difficult is easy.")], None, None),
    ([("On which continent is Kenya?", "Kenya is in Africa.")], "Kenya is a country in Africa.", None),
    ([("What is the weather in Bern?", None)], None, [
        {"type": "function", "function": {"name": "get_weather", "description": "Look up the weather of a city.",
         "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city."}},
                        "required": ["city"]}}}]),
]


def conversation(turns, thought, tools):
    """Messages of one entry; an absent answer stands for a call of the first tool with the city Bern."""
    out = []
    for question, answer in turns:
        out.append({"role": "user", "content": question})
        reply = {"role": "assistant", "content": answer or ""}
        if thought:
            reply["reasoning_content"] = thought
        if answer is None:
            name = tools[0]["function"]["name"]
            reply["tool_calls"] = [{"type": "function", "function": {"name": name, "arguments": {"city": "Bern"}}}]
        out.append(reply)
    return out


def nano_sequences():
    template = (NANO / "chat_template.jinja").read_text(encoding="utf-8")
    tok = Tokenizer.from_file(str(NANO / "tokenizer.json"))
    for turns, thought, tools in CONVERSATIONS:
        text = render_jinja_template([conversation(turns, thought, tools)], tools=tools, chat_template=template)[0][0]
        yield np.array(tok.encode(text, add_special_tokens=False).ids, np.int32)


def random_sequence(seed, vocab):
    rng = np.random.Generator(np.random.SFC64(seed))
    return rng.integers(0, vocab, RANDOM_TOKENS).astype(np.int32)


def load_folder(folder):
    """(config, tensors by name) of a checkpoint folder."""
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        tensors.update(load_file(file))
    return json.loads((folder / "config.json").read_text()), tensors


def runs(folder, config, tensors, sequences):
    """Logits of every sequence under each run that this checkpoint allows: {run: [[T, V]]}."""
    out = {}
    for mode in mlx_ref.MODES:
        try:
            out[f"mlx_{mode}"] = [mlx_ref.logits(folder, s, mode) for s in sequences]
        except RuntimeError as err:  # the CPU build has no bfloat16 product for unquantised experts
            if mode != "bf16" or "float32" not in str(err):
                raise
    weights = float32_weights(tensors, config["quantization"])
    model = hf_ref.build(config.get("text_config", config), weights, torch.float32)
    out["hf_f32"] = [hf_ref.forward(model, s[None])[0].numpy() for s in sequences]
    return out


def scores(logits, sequences):
    """nll [P], ids and logits [P, 8] of the best eight, over all positions that have a next token."""
    rows = np.concatenate([x[:-1] for x in logits])
    targets = np.concatenate([s[1:] for s in sequences])
    best = np.argsort(-rows, axis=-1, kind="stable")[:, :8]
    return nll(rows, targets), best.astype(np.int32), np.take_along_axis(rows, best, -1)


def record(root, name, folder, sequences):
    config, tensors = load_folder(folder)
    starts = np.cumsum([0] + [len(s) for s in sequences[:-1]]).astype(np.int32)
    out = {"tokens": np.concatenate(sequences), "starts": starts}
    summary, truth = {}, None
    for run, logits in runs(folder, config, tensors, sequences).items():
        loss, ids, best = scores(logits, sequences)
        out[f"nll_{run}"] = loss.astype(np.float32)
        out[f"top8_id_{run}"], out[f"top8_logit_{run}"] = ids, best.astype(np.float32)
        truth = (loss, ids) if truth is None else truth
        summary[run] = {
            "perplexity": float(np.exp(loss.mean())),
            "perplexity_against_mlx_f32_percent": float(100 * np.expm1(loss.mean() - truth[0].mean())),
            "top1_agreement_with_mlx_f32_percent": float(100 * (ids[:, 0] == truth[1][:, 0]).mean()),
            "mean_abs_nll_difference": float(np.abs(loss - truth[0]).mean()),
            "max_abs_nll_difference": float(np.abs(loss - truth[0]).max()),
        }
    path = root / "teacher" / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, path)
    files = {k: v for k, v in sha256_files(folder).items() if k.startswith("model") or k == "config.json"}
    write_json(path.with_suffix(".json"), {
        "sha256": files, "versions": versions("mlx", "mlx-cpu", "mlx-lm", "torch", "transformers", "tokenizers", "numpy"),
        "sequences": len(sequences), "positions": len(truth[0]), "runs": summary})
    print(f"teacher {name}: {len(truth[0])} positions")
    for run, r in summary.items():
        print(f"  {run:10s} ppl {r['perplexity']:.5f} ({r['perplexity_against_mlx_f32_percent']:+.4f} %), "
              f"top-1 {r['top1_agreement_with_mlx_f32_percent']:.2f} %, mean |d nll| {r['mean_abs_nll_difference']:.2e}")


def generate(root):
    mx.set_default_device(mx.cpu)
    for name, seed in RANDOM_TWINS.items():
        folder = COMMITTED / "checkpoints" / "mlx" / name
        vocab = json.loads((folder / "config.json").read_text())["text_config"]["vocab_size"]
        record(root, name, folder, [random_sequence(seed, vocab)])
    if any(NANO.glob("model*.safetensors")):
        record(root, "lily-nano", NANO, list(nano_sequences()))
    else:
        print("teacher: models/lily-nano holds no weights yet, left out")
