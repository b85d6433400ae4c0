"""Golden part (a): tiny checkpoints in the Hugging Face form and what transformers computes on them."""
import numpy as np
import torch
from safetensors.numpy import save_file

import checkpoint as ck
import hf_ref
from common import sha256_files, spread, versions, write_json
from shapes import SHAPES


def least_top1_gap(logits):
    two = np.sort(logits, axis=-1)[:, -2:]
    return float((two[:, 1] - two[:, 0]).min())


def generate(root):
    for s in SHAPES:
        if not s.committed:
            continue
        weights = ck.make_weights(s)
        folder = root / "checkpoints" / "hf" / s.name
        ck.write_checkpoint(folder, ck.config(s), ck.file_names(s, weights), s.shards, "pt")
        model = hf_ref.build(ck.text_config(s), weights, torch.float32)
        prompt = hf_ref.choose_prompt(s, model)
        tensors, least = hf_ref.record(s, model, prompt)
        steps = hf_ref.decode_logits(model, prompt)
        half = hf_ref.build(ck.text_config(s), weights, torch.bfloat16)
        bf16 = hf_ref.forward(half, prompt[None])[0].float().numpy()
        out = root / "transformers" / f"{s.name}.safetensors"
        out.parent.mkdir(parents=True, exist_ok=True)
        save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, out)
        last = tensors[f"hidden.{s.layers - 1}"]
        meta = {
            "checkpoint": f"checkpoints/hf/{s.name}",
            "sha256": sha256_files(folder),
            "versions": versions("torch", "transformers", "numpy", "safetensors"),
            "seed": s.seed,
            "one_token_steps_vs_one_pass_f32": spread(steps, tensors["logits"]),
            "bf16_vs_f32": spread(bf16, tensors["logits"]),
            "least_router_gap": float(tensors["router_gap"].min()),
            "least_top1_gap_prompt": least_top1_gap(tensors["logits"]),
            "least_top1_gap_greedy": least,
            "distinct_greedy_tokens": len(set(tensors["greedy"].tolist())),
            "last_hidden_rms": float(np.sqrt((last.astype(np.float64) ** 2).mean())),
        }
        write_json(out.with_suffix(".json"), meta)
        b = meta["bf16_vs_f32"]
        print(f"transformers {s.name}: steps vs pass {meta['one_token_steps_vs_one_pass_f32']['max_abs']:.2e}, "
              f"bf16 max {b['max_abs']:.3f} rms {b['rms']:.4f} of {b['logit_rms']:.3f} top1 {b['top1_agreement']:.3f}, "
              f"router gap {meta['least_router_gap']:.4f}, greedy gap {least:.4f}, "
              f"greedy distinct {meta['distinct_greedy_tokens']}, hidden rms {meta['last_hidden_rms']:.2f}")
