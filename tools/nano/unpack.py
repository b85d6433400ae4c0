"""Reads the quantised files back into model.py's parameters (torch only), so
that training can go on from the model that ships."""
import torch
from safetensors.torch import load_file

from mlx_affine import GROUP


def _dequantise(codes, scales, biases):
    per_word = scales.shape[-1] * GROUP // codes.shape[-1]
    bits = 32 // per_word
    words = codes.to(torch.int64) & 0xFFFFFFFF
    shifts = torch.arange(0, 32, bits)
    q = ((words[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2).float()
    q = q.unflatten(-1, (-1, GROUP))
    return (q * scales.float()[..., None] + biases.float()[..., None]).flatten(-2)


def load_quantised(folder):
    """-> state dict with model.py's names, fp32."""
    raw, out = load_file(folder / "model.safetensors"), {}
    for name, w in raw.items():
        if name.endswith((".scales", ".biases")):
            continue
        base = name.removesuffix(".weight")
        if base + ".scales" in raw:
            w = _dequantise(w.view(torch.int32), raw[base + ".scales"], raw[base + ".biases"])
        w, name = w.float(), name.removeprefix("language_model.")
        if name.endswith("conv1d.weight"):
            w = w.movedim(2, 1).contiguous()
        elif w.dim() == 1 and "norm" in name and ".linear_attn." not in name:
            w = w - 1.0
        out[name] = w
    for name in [n for n in out if n.endswith("switch_mlp.gate_proj.weight")]:
        base = name.removesuffix("switch_mlp.gate_proj.weight")
        out[base + "experts.gate_up_proj"] = torch.cat([out.pop(name), out.pop(base + "switch_mlp.up_proj.weight")], 1)
        out[base + "experts.down_proj"] = out.pop(base + "switch_mlp.down_proj.weight")
    return out
