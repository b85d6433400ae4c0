"""Random checkpoints of the family: weights from a seed, names and config.json
in the Hugging Face form. Does not run any model."""
import json
import zlib

import numpy as np
import torch
from safetensors.torch import save_file

VISION_AND_MTP = {
    "model.visual.patch_embed.proj.weight": (8, 3, 2, 4, 4),
    "model.visual.blocks.0.norm1.weight": (8,),
    "mtp.fc.weight": (16, 32),
    "mtp.layers.0.input_layernorm.weight": (16,),
}


def tensor_table(s):
    """(name, kind, shape) of every tensor, with the names of Qwen3_5MoeForCausalLM's state dict."""
    C, F, S, E = s.hidden, s.moe_inter, s.shared_inter, s.experts
    yield "model.embed_tokens.weight", "embed", (s.vocab, C)
    for i in range(s.layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", "norm", (C,)
        yield p + "post_attention_layernorm.weight", "norm", (C,)
        if s.is_linear(i):
            a = p + "linear_attn."
            yield a + "in_proj_qkv.weight", "matrix", (s.conv_width, C)
            yield a + "in_proj_z.weight", "matrix", (s.value_width, C)
            yield a + "in_proj_b.weight", "matrix", (s.lin_v_heads, C)
            yield a + "in_proj_a.weight", "matrix", (s.lin_v_heads, C)
            yield a + "conv1d.weight", "conv", (s.conv_width, 1, s.conv)
            yield a + "A_log", "a_log", (s.lin_v_heads,)
            yield a + "dt_bias", "dt", (s.lin_v_heads,)
            yield a + "norm.weight", "gain", (s.lin_v_dim,)
            yield a + "out_proj.weight", "out", (C, s.value_width)
        else:
            a = p + "self_attn."
            yield a + "q_proj.weight", "matrix", (2 * s.heads * s.head_dim, C)
            yield a + "k_proj.weight", "matrix", (s.kv_heads * s.head_dim, C)
            yield a + "v_proj.weight", "matrix", (s.kv_heads * s.head_dim, C)
            yield a + "q_norm.weight", "qk_norm", (s.head_dim,)
            yield a + "k_norm.weight", "qk_norm", (s.head_dim,)
            yield a + "o_proj.weight", "out", (C, s.heads * s.head_dim)
        m = p + "mlp."
        yield m + "gate.weight", "router", (E, C)
        yield m + "experts.gate_up_proj", "up", (E, 2 * F, C)
        yield m + "experts.down_proj", "out", (E, C, F)
        yield m + "shared_expert.gate_proj.weight", "up", (S, C)
        yield m + "shared_expert.up_proj.weight", "up", (S, C)
        yield m + "shared_expert.down_proj.weight", "out", (C, S)
        yield m + "shared_expert_gate.weight", "matrix", (1, C)
    yield "model.norm.weight", "norm", (C,)
    if not s.tied:
        yield "lm_head.weight", "matrix", (s.vocab, C)


def values(rng, kind, shape, s):
    """Weights that keep the residual stream, gates, decays and attention lively. A tied embedding is small:
    at unit size the last token's own row would win every arg-max."""
    n = rng.standard_normal(shape)
    fan = shape[-1] ** -0.5
    if kind in ("norm", "qk_norm"):  # gain - 1
        return (0.4 if kind == "qk_norm" else 0.0) + 0.15 * n
    if kind == "a_log":
        return np.log(rng.uniform(1.0, 16.0, shape))
    if kind == "dt":  # inverse softplus of a step log-uniform in [1e-3, 1e-1]
        dt = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), shape))
        return dt + np.log(-np.expm1(-dt))
    scale = {"embed": 2 * fan if s.tied else 1.0, "conv": 0.6, "gain": 0.1, "router": 4 * fan,
             "up": 1.5 * fan, "out": 1.2 * fan}
    return (1.0 if kind == "gain" else 0.0) + scale.get(kind, fan) * n


def make_weights(s):
    """State dict (torch, bfloat16 unless the shape keeps the decay float32), same bytes on every machine."""
    out = {}
    for name, kind, shape in tensor_table(s):
        rng = np.random.Generator(np.random.SFC64([s.seed, zlib.crc32(name.encode())]))
        w = values(rng, kind, shape, s)
        if s.faint_key_head and name == "model.layers.1.linear_attn.conv1d.weight":
            last = slice(s.key_width - s.lin_k_dim, s.key_width)
            w[last] *= 3e-3  # query channels of the last key head
            w[s.key_width:][last] *= 3e-3  # and its key channels
        keep = s.f32_decay and kind in ("a_log", "dt")
        out[name] = torch.from_numpy(w.astype(np.float32)).to(torch.float32 if keep else torch.bfloat16)
    return out


def file_names(s, weights):
    """The same tensors under the names that the shape's file uses."""
    out = {}
    for name, w in weights.items():
        if s.naming == "outer" and name.startswith("model."):
            name = "model.language_model." + name.removeprefix("model.")
        if s.naming == "split" and name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            for e in range(s.experts):
                gate, up = w[e].chunk(2, dim=0)
                out[f"{stem}{e}.gate_proj.weight"] = gate.contiguous()
                out[f"{stem}{e}.up_proj.weight"] = up.contiguous()
        elif s.naming == "split" and name.endswith("experts.down_proj"):
            stem = name.removesuffix("down_proj")
            for e in range(s.experts):
                out[f"{stem}{e}.down_proj.weight"] = w[e].contiguous()
        else:
            out[name] = w
    if s.extras:
        rng = np.random.Generator(np.random.SFC64([s.seed, 1]))
        for name, shape in VISION_AND_MTP.items():
            out[name] = torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(torch.bfloat16)
    return out


def text_config(s):
    return {
        "model_type": "qwen3_5_moe_text", "dtype": "bfloat16", "hidden_size": s.hidden,
        "num_hidden_layers": s.layers,
        "layer_types": ["linear_attention" if s.is_linear(i) else "full_attention" for i in range(s.layers)],
        "full_attention_interval": s.interval, "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "attn_output_gate": True,
        "attention_bias": False, "attention_dropout": 0.0, "linear_num_key_heads": s.lin_k_heads,
        "linear_num_value_heads": s.lin_v_heads, "linear_key_head_dim": s.lin_k_dim,
        "linear_value_head_dim": s.lin_v_dim, "linear_conv_kernel_dim": s.conv,
        "mamba_ssm_dtype": "float32", "num_experts": s.experts, "num_experts_per_tok": s.topk,
        "moe_intermediate_size": s.moe_inter, "shared_expert_intermediate_size": s.shared_inter,
        "mlp_only_layers": [], "rms_norm_eps": s.eps, "hidden_act": "silu", "vocab_size": s.vocab,
        "tie_word_embeddings": s.tied, "max_position_embeddings": 4096, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": None, "use_cache": True,
        "partial_rotary_factor": s.rotary,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": s.theta, "partial_rotary_factor": s.rotary,
            "mrope_section": [11, 11, 10], "mrope_interleaved": True,
        },
    }


def config(s, quantization=None):
    """config.json: the bare text config, or the image-text one that wraps it."""
    text = text_config(s)
    if s.naming == "outer" or quantization is not None:
        out = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
               "tie_word_embeddings": s.tied, "text_config": text}
    else:
        out = {"architectures": ["Qwen3_5MoeForCausalLM"], **text}
    if quantization is not None:
        out["quantization"] = out["quantization_config"] = quantization
    return out


def write_checkpoint(folder, cfg, tensors, shards, fmt):
    """config.json and one safetensors file, or several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / "config.json").write_text(json.dumps(cfg, indent=2) + "\n")
    meta = {"format": fmt}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata=meta)
        return
    names = sorted(tensors)
    index = {}
    for k in range(shards):
        # every shards-th name, so that one layer's tensors lie in several files
        part = {n: tensors[n] for n in names[k::shards]}
        file = f"model-{k + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / file, metadata=meta)
        index.update({n: file for n in part})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    body = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(body, indent=1) + "\n")
