"""Golden part (a), quantised: MLX checkpoints and what MLX-LM (CPU) and transformers compute on them."""
import mlx.core as mx
import numpy as np
import torch
from safetensors.numpy import save_file

import checkpoint as ck
import hf_ref
import mlx_ref
from common import sha256_files, spread, versions, write_json
from shapes import BY_NAME
from twins import TWINS, float32_weights, make_twin


def run_modes(folder, tokens):
    out = {}
    for mode in mlx_ref.MODES:
        try:
            out[mode] = mlx_ref.logits(folder, tokens, mode)
        except RuntimeError as err:  # unquantised experts: the CPU build has no bfloat16 gather_mm
            if mode != "bf16" or "float32" not in str(err):
                raise
            print(f"  {folder.name}: no bf16 run: {err}")
    return out


def generate(root):
    mx.set_default_device(mx.cpu)
    for twin in TWINS:
        s = BY_NAME[twin.shape]
        tensors, block = make_twin(twin, s, ck.make_weights(s))
        folder = root / "checkpoints" / "mlx" / twin.name
        ck.write_checkpoint(folder, ck.config(s, block), tensors, twin.shards, "mlx")
        model = hf_ref.build(ck.text_config(s), float32_weights(tensors, block), torch.float32)
        prompt = hf_ref.choose_prompt(s, model).astype(np.int32)
        runs = run_modes(folder, prompt)
        gap = hf_ref.prompt_router_gap(s, model, prompt)
        hf = hf_ref.forward(model, prompt[None])[0].numpy()
        hf_greedy, _, least = hf_ref.greedy(model, prompt, hf_ref.GREEDY_TOKENS)
        greedy = mlx_ref.greedy(folder, prompt, hf_ref.GREEDY_TOKENS)
        keep = {"tokens": prompt, "router_gap": gap, "logits_f32": runs["f32"], "logits_bf16k": runs["bf16k"],
                "greedy": greedy}
        out = root / "mlx" / f"{twin.name}.safetensors"
        out.parent.mkdir(parents=True, exist_ok=True)
        save_file({k: np.ascontiguousarray(v) for k, v in keep.items()}, out)
        meta = {
            "checkpoint": f"checkpoints/mlx/{twin.name}",
            "sha256": sha256_files(folder),
            "versions": versions("mlx", "mlx-cpu", "mlx-lm", "torch", "transformers", "numpy", "safetensors"),
            "transformers_f32_vs_mlx_f32": spread(hf, runs["f32"]),
            "greedy_equal_in_both": bool((hf_greedy == greedy).all()),
            "least_router_gap": float(gap.min()),
            "least_top1_gap_greedy": least,
            **{f"{m}_vs_f32": spread(runs[m], runs["f32"]) for m in ("bf16k", "bf16") if m in runs},
        }
        write_json(out.with_suffix(".json"), meta)
        line = f"mlx {twin.name}: hf-mlx f32 max {meta['transformers_f32_vs_mlx_f32']['max_abs']:.2e}"
        for m in ("bf16k", "bf16"):
            if m in runs:
                b = meta[f"{m}_vs_f32"]
                line += f", {m} max {b['max_abs']:.3f} rms {b['rms']:.4f} top1 {b['top1_agreement']:.3f}"
        print(line, f"greedy equal {meta['greedy_equal_in_both']} gap {least:.4f}")
