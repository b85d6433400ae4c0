"""Judges model.py and mlx_affine.py against the references: logits equal to
transformers' Qwen3_5MoeForCausalLM on the same weights in fp32, packed rows
equal to single ones, and quantisation equal to mlx.core.quantize bit for bit."""
import sys

import torch

from mlx_affine import affine, dequantize
from model import CONFIG, Nano


def text_config(c):
    from transformers import Qwen3_5MoeTextConfig
    keep = {k: v for k, v in c.items() if k not in ("partial_rotary_factor", "rope_theta", "full_attention_interval")}
    kinds = ["full_attention" if (i + 1) % c["full_attention_interval"] == 0 else "linear_attention" for i in range(c["num_hidden_layers"])]
    return Qwen3_5MoeTextConfig(**keep, layer_types=kinds, rope_parameters=dict(
        rope_type="default", rope_theta=c["rope_theta"], partial_rotary_factor=c["partial_rotary_factor"], mrope_section=[11, 11, 10]))


def against_transformers(state=None):
    from transformers import Qwen3_5MoeForCausalLM
    torch.manual_seed(0)
    mine = Nano()
    if state:
        mine.load_state_dict(state)
    else:  # random gains and larger weights, so that every term matters
        for name, p in mine.named_parameters():
            if "norm" in name:
                p.data += 0.1 * torch.randn_like(p)
            elif p.dim() > 1 and "conv" not in name:
                p.data *= 4
    theirs = Qwen3_5MoeForCausalLM(text_config(CONFIG)).float().eval()
    absent = theirs.load_state_dict(mine.state_dict(), strict=False)
    assert absent.missing_keys == (["lm_head.weight"] if CONFIG["tie_word_embeddings"] else []) and not absent.unexpected_keys, absent
    a, b = torch.randint(0, 4000, (1, 75)), torch.randint(0, 4000, (1, 53))
    zero = torch.zeros(())
    with torch.no_grad():
        row, seg = torch.cat([a, b], 1), torch.cat([torch.zeros_like(a), torch.ones_like(b)], 1)
        packed = mine.logits(mine(row, seg, zero, torch.float32)[0], zero)
        for part, ids in ((packed[:, :75], a), (packed[:, 75:], b)):
            want = theirs(ids).logits
            gap = (part - want).abs().max() / want.abs().max()
            print(f"logits: {gap:.2e} of the largest |logit| {want.abs().max():.2f}")
            assert gap < 2e-4


def against_mlx():
    import mlx.core as mx
    import numpy as np
    for bits in (4, 8):
        w = torch.randn(96, 256).to(torch.bfloat16)
        w[0] = 0
        w[1, :64] = 1.5
        codes, scale, bias = affine(w, bits)
        x = mx.array(w.float().numpy()).astype(mx.bfloat16)
        q, s, b = mx.quantize(x, 64, bits)
        raw = np.array(q).view(np.uint8)
        got = np.stack([raw & 15, raw >> 4], -1).reshape(96, -1) if bits == 4 else raw
        assert (codes.flatten(-2).numpy() == got).all(), bits
        assert (scale[..., 0].numpy() == np.array(s.astype(mx.float32))).all()
        assert (bias[..., 0].numpy() == np.array(b.astype(mx.float32))).all()
        d = np.array(mx.dequantize(q, s, b, 64, bits).astype(mx.float32))
        print(f"{bits}-bit codes, scales, biases equal to mlx; dequantised differs by at most {np.abs(d - dequantize(w, bits).numpy()).max():.1e} (bf16 rounding)")


if __name__ == "__main__":
    against_mlx()
    against_transformers(torch.load(sys.argv[1]) if len(sys.argv) > 1 else None)
