"""Quantised twins: the same random checkpoints in the MLX form, packed by
mlx.core.quantize, with overrides of every kind a config may hold. Also the way
back: float32 weights for transformers, so that both references run one model."""
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import torch


@dataclass(frozen=True)
class Twin:
    name: str
    shape: str
    bits: int
    group: int
    overrides: list = field(default_factory=list)  # (path suffix, entry); the first that matches wins
    shards: int = 1
    extras: bool = False  # vision and mtp tensors in the file, under MLX's names


ROUTER_8 = [("mlp.gate", {"group_size": 64, "bits": 8}), ("shared_expert_gate", {"group_size": 64, "bits": 8})]
ROUTER_8_G32 = [(p, {"group_size": 32, "bits": 8}) for p in ("mlp.gate", "shared_expert_gate")]

TWINS = [
    Twin("base-q4g64", "base", 4, 64, ROUTER_8),
    Twin("family_heads-q4g64", "family_heads", 4, 64, ROUTER_8),
    Twin("tied-q4g32", "tied", 4, 32, ROUTER_8_G32),
    # 8 bits unless named, 4 only for the routed experts; the router left unquantised
    Twin("experts-q8g32", "experts", 8, 32, [
        ("switch_mlp.gate_proj", {"group_size": 32, "bits": 4}), ("switch_mlp.up_proj", {"group_size": 32, "bits": 4}),
        ("switch_mlp.down_proj", {"group_size": 32, "bits": 4, "mode": "affine"}), ("mlp.gate", False)]),
    # entries that lack a field (group 64 then, whatever the global one), `true`, `false` at every depth
    Twin("sharded-mixed", "sharded", 4, 32, [
        ("mlp.gate", {"bits": 8}), ("shared_expert_gate", {"group_size": 64, "bits": 8, "mode": "affine"}),
        ("lm_head", {"bits": 8}), ("layers.0.linear_attn.in_proj_a", False),
        ("layers.0.linear_attn.in_proj_b", False), ("layers.3.self_attn.q_proj", False),
        ("layers.4.mlp.switch_mlp.down_proj", False), ("layers.1.linear_attn.out_proj", True)], 2, True),
    Twin("group128-q4g128", "group128", 4, 128, [
        ("mlp.gate", {"group_size": 128, "bits": 8}), ("shared_expert_gate", {"group_size": 128, "bits": 8})]),
    Twin("base-bits2356", "base", 6, 64, [
        ("switch_mlp.gate_proj", {"group_size": 64, "bits": 3}), ("switch_mlp.up_proj", {"group_size": 64, "bits": 5}),
        ("shared_expert.down_proj", {"group_size": 64, "bits": 5}), ("in_proj_z", {"group_size": 64, "bits": 2}),
        *ROUTER_8]),
]

VISION_AND_MTP = {"vision_tower.patch_embed.proj.weight": (8, 2, 4, 4, 3), "vision_tower.blocks.0.norm1.weight": (8,),
                  "language_model.mtp.fc.weight": (16, 32)}


def to_mx(t):
    """torch to mlx without loss, bfloat16 kept."""
    if t.dtype == torch.bfloat16:
        return mx.array(t.view(torch.uint16).numpy()).view(mx.bfloat16)
    return mx.array(t.numpy())


def to_torch(a):
    if a.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(a.view(mx.uint16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(a))


def mlx_modules(weights):
    """(module path, tensor or parameter name, tensor) under MLX's names, before quantisation: experts split into
    gate and up, conv moved to [C, taps, 1], norm gains stored directly (1 added in bfloat16, as the converter does)."""
    for name, w in weights.items():
        a = to_mx(w)
        path = "language_model." + name
        if path.endswith("experts.gate_up_proj"):
            stem = path.removesuffix("experts.gate_up_proj") + "switch_mlp."
            mid = a.shape[1] // 2
            yield stem + "gate_proj", "weight", a[:, :mid]
            yield stem + "up_proj", "weight", a[:, mid:]
        elif path.endswith("experts.down_proj"):
            yield path.removesuffix("experts.down_proj") + "switch_mlp.down_proj", "weight", a
        elif path.endswith("conv1d.weight"):
            yield path.removesuffix(".weight"), "weight", a.moveaxis(2, 1)
        elif path.endswith(("A_log", "dt_bias")):
            yield path.rsplit(".", 1)[0], path.rsplit(".", 1)[1], a
        else:
            gain = path.endswith(("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight"))
            yield path.removesuffix(".weight"), "weight", a + 1.0 if gain else a


def quantizes(path):
    return not path.endswith(("norm", "conv1d", "linear_attn"))


def entry_for(twin, path):
    """The override for a module path, or None when the global setting holds."""
    for suffix, entry in twin.overrides:
        if path.endswith(suffix):
            return entry
    return None


def make_twin(twin, s, weights):
    """(tensors by MLX name, the config's quantization block)."""
    block = {"group_size": twin.group, "bits": twin.bits, "mode": "affine"}
    out = {}
    for path, leaf, a in mlx_modules(weights):
        if not quantizes(path):
            out[f"{path}.{leaf}"] = a
            continue
        entry = entry_for(twin, path)
        if entry is not None:
            block[path] = entry
        if entry is False:
            out[f"{path}.weight"] = a
            continue
        bits, group = twin.bits, twin.group
        if isinstance(entry, dict):
            bits, group = entry.get("bits", 4), entry.get("group_size", 64)
        q, scales, biases = mx.quantize(a, group_size=group, bits=bits)
        out.update({f"{path}.weight": q, f"{path}.scales": scales, f"{path}.biases": biases})
    if twin.extras:
        rng = np.random.Generator(np.random.SFC64([s.seed, 3]))
        for name, shape in VISION_AND_MTP.items():
            out[name] = mx.array(rng.standard_normal(shape).astype(np.float32)).astype(mx.bfloat16)
    return {k: to_torch(mx.contiguous(v)) for k, v in out.items()}, block


def settings(block, path):
    """(bits, group) of a quantised module, read back from the config block."""
    entry = block.get(path, True)
    if entry is True:
        return block["bits"], block["group_size"]
    return entry.get("bits", 4), entry.get("group_size", 64)


def float32_weights(tensors, block):
    """The twin as a transformers state dict: code * scale + bias in float32, gain - 1, fused experts."""
    wide = {}
    for name, t in tensors.items():
        path, leaf = name.rsplit(".", 1)
        if not name.startswith("language_model.model.") and not name.startswith("language_model.lm_head"):
            continue
        if leaf in ("scales", "biases"):
            continue
        if f"{path}.scales" in tensors:
            bits, group = settings(block, path)
            scales, biases = (to_mx(tensors[f"{path}.{x}"]).astype(mx.float32) for x in ("scales", "biases"))
            a = mx.dequantize(to_mx(t), scales, biases, group_size=group, bits=bits)
        else:
            a = to_mx(t).astype(mx.float32)
        wide[name.removeprefix("language_model.")] = torch.from_numpy(np.array(a))
    out = {}
    for name, w in wide.items():
        if name.endswith("conv1d.weight"):
            w = w.permute(0, 2, 1).contiguous()
        elif name.endswith(("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight")):
            w = w - 1.0  # exact: a bfloat16 near 1, minus 1, in float32
        if name.endswith("switch_mlp.up_proj.weight"):
            continue
        if name.endswith("switch_mlp.gate_proj.weight"):
            up = wide[name.replace("gate_proj", "up_proj")]
            out[name.replace("switch_mlp.gate_proj.weight", "experts.gate_up_proj")] = torch.cat([w, up], dim=1)
        elif name.endswith("switch_mlp.down_proj.weight"):
            out[name.replace("switch_mlp.down_proj.weight", "experts.down_proj")] = w
        else:
            out[name] = w
    return out
