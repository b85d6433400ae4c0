"""From the training run's shards to the two checkpoints, with MLX on the CPU.

    python export.py RUN_DIR [--bf16 DIR]

Writes models/lily-nano/{config.json,generation_config.json,model.safetensors}:
MLX affine 4-bit, group 64, router and shared-expert gate 8-bit, MLX names and
layout (direct norm gains, convolution [C, 4, 1], gate and up split). With
--bf16 also the unquantised checkpoint in Hugging Face form (fused gate_up,
norms stored as gain - 1, convolution [C, 1, 4]), which is what `lily quantize`
takes."""
import argparse
import json
import pathlib
import shutil

import mlx.core as mx

from model import CONFIG
from template import MODEL_DIR

GAIN_MINUS_ONE = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")


def text_config():
    c = CONFIG
    n, every = c["num_hidden_layers"], c["full_attention_interval"]
    keep = {k: v for k, v in c.items() if k not in ("partial_rotary_factor", "rope_theta")}
    return dict(
        model_type="qwen3_5_moe_text", **keep, attention_bias=False, attention_dropout=0.0, attn_output_gate=True, bos_token_id=None,
        dtype="bfloat16", eos_token_id=4087, hidden_act="silu", initializer_range=0.02,
        layer_types=["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(n)],
        mamba_ssm_dtype="float32", max_position_embeddings=4096, mlp_only_layers=[], output_gate_type="swish", pad_token_id=None,
        partial_rotary_factor=c["partial_rotary_factor"], rope_parameters=dict(
            mrope_interleaved=True, mrope_section=[11, 11, 10], partial_rotary_factor=c["partial_rotary_factor"],
            rope_theta=c["rope_theta"], rope_type="default"),
        router_aux_loss_coef=0.003, use_cache=True)


def config(quantized):
    out = dict(architectures=["Qwen3_5MoeForConditionalGeneration"], eos_token_id=[4089, 4087], language_model_only=True,
               model_type="qwen3_5_moe", text_config=text_config(), tie_word_embeddings=CONFIG["tie_word_embeddings"])
    if quantized:
        q = dict(group_size=64, bits=4, mode="affine")
        for i in range(CONFIG["num_hidden_layers"]):
            for part in ("gate", "shared_expert_gate"):
                q[f"language_model.model.layers.{i}.mlp.{part}"] = dict(group_size=64, bits=8)
        out |= dict(quantization=q, quantization_config=q)
    return out


GENERATION = dict(do_sample=True, temperature=0.1, top_k=20, top_p=0.95, eos_token_id=[4089, 4087], pad_token_id=4087)


def mlx_layout(weights):
    """transformers' names and layout -> MLX's, still unquantised."""
    out = {}
    for name, w in weights.items():
        if name.endswith(GAIN_MINUS_ONE):
            w = w + mx.array(1.0, w.dtype)
        if name.endswith("conv1d.weight"):
            w = w.moveaxis(2, 1)
        if name.endswith("experts.gate_up_proj"):
            base, half = name.replace("experts.gate_up_proj", "switch_mlp."), w.shape[1] // 2
            out[base + "gate_proj.weight"], out[base + "up_proj.weight"] = w[:, :half], w[:, half:]
        elif name.endswith("experts.down_proj"):
            out[name.replace("experts.down_proj", "switch_mlp.down_proj.weight")] = w
        else:
            out[name] = w
    return {"language_model." + k: mx.contiguous(v) for k, v in out.items()}


def quantize(weights):
    out = {}
    for name, w in weights.items():
        if w.ndim < 2 or name.endswith("conv1d.weight"):
            out[name] = w
            continue
        bits = 8 if name.endswith((".mlp.gate.weight", ".shared_expert_gate.weight")) else 4
        base = name.removesuffix(".weight")
        out[name], out[base + ".scales"], out[base + ".biases"] = mx.quantize(w, 64, bits)
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("run")
    ap.add_argument("--bf16", help="folder for the unquantised checkpoint")
    a = ap.parse_args()
    mx.set_default_device(mx.cpu)
    weights = {}
    for f in sorted(pathlib.Path(a.run).glob("*.safetensors")):
        weights |= mx.load(str(f))
    dump = lambda path, value: path.write_text(json.dumps(value, indent=2) + "\n")
    done = quantize(mlx_layout(weights))
    mx.save_safetensors(str(MODEL_DIR / "model.safetensors"), done, metadata={"format": "mlx"})
    dump(MODEL_DIR / "config.json", config(True))
    dump(MODEL_DIR / "generation_config.json", GENERATION)
    print(f"{sum(w.size for w in weights.values())} parameters, {(MODEL_DIR / 'model.safetensors').stat().st_size / 2**20:.2f} MiB quantised")
    if a.bf16:
        out = pathlib.Path(a.bf16)
        out.mkdir(parents=True, exist_ok=True)
        named = {("model.language_model." + k.removeprefix("model.") if k.startswith("model.") else k): v for k, v in weights.items()}
        mx.save_safetensors(str(out / "model.safetensors"), named, metadata={"format": "pt"})
        dump(out / "config.json", config(False))
        dump(out / "generation_config.json", GENERATION)
        for f in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(MODEL_DIR / f, out / f)


if __name__ == "__main__":
    main()
