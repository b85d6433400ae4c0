"""MLX's affine quantisation in torch: groups along the last axis, scales and
biases in bf16, codes from the unrounded scale. `fake_quantize` is the same with
a straight-through gradient, for quantisation-aware training."""
import torch

GROUP = 64


def affine(w, bits):
    """bf16-rounded weights [..., n] -> codes, scales, biases by group of 64."""
    g = w.to(torch.bfloat16).float().unflatten(-1, (-1, GROUP))
    bins = (1 << bits) - 1
    lo, hi = g.amin(-1, keepdim=True), g.amax(-1, keepdim=True)
    low_edge = lo.abs() > hi.abs()
    scale = ((hi - lo) / bins).clamp_min(1e-7)
    scale = torch.where(low_edge, scale, -scale)
    edge = torch.where(low_edge, lo, hi)
    q0 = (edge / scale).round()
    nonzero = q0 != 0
    scale = torch.where(nonzero, edge / torch.where(nonzero, q0, torch.ones_like(q0)), scale)
    bias = torch.where(nonzero, edge, torch.zeros_like(edge))
    codes = ((g - bias) / scale).round().clamp(0, bins)
    return codes, scale.to(torch.bfloat16).float(), bias.to(torch.bfloat16).float()


def dequantize(w, bits):
    codes, scale, bias = affine(w, bits)
    return (codes * scale + bias).flatten(-2)


def fake_quantize(w, bits, strength):
    """w at strength 0, its quantised value at strength 1; gradient as for w."""
    with torch.no_grad():
        shift = (dequantize(w, bits) - w) * strength
    return w + shift
