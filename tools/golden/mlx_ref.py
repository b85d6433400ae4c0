"""Runs a checkpoint folder through MLX-LM on the CPU in one of three ways:

f32    scales, biases, vectors and activations in float32: the truth.
bf16k  the bfloat16 graph, but matrix products, attention, RoPE, sigmoid and softplus
       compute in float32 inside and round once: "bfloat16 at kernel boundaries".
bf16   as shipped. The CPU build's quantised product sums in bfloat16, which costs
       1 % at 64 inputs and 5 % at 2,048, so it measures that build's noise only.
"""
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

MODES = ("f32", "bf16k", "bf16")


def load(folder, mode):
    model, _ = load_model(Path(folder))
    if mode == "f32":
        model.set_dtype(mx.float32)
    return model


def wide(x):
    return x.astype(mx.float32) if isinstance(x, mx.array) and x.dtype == mx.bfloat16 else x


def once_rounded(fn):
    """fn computed in float32 on widened inputs, its result rounded once to the first input's type."""

    def call(x, *args, **kw):
        args = [wide(a) for a in args]
        kw = {k: wide(v) for k, v in kw.items()}
        return fn(wide(x), *args, **kw).astype(x.dtype)

    return call


@contextmanager
def float32_inside():
    """MLX's bfloat16 primitives replaced by ones that round once, for the duration."""
    spots = [(mx, n) for n in ("quantized_matmul", "gather_qmm", "gather_mm", "sigmoid", "logaddexp")]
    spots += [(mx.fast, n) for n in ("scaled_dot_product_attention", "rope")]
    saved = [getattr(m, n) for m, n in spots]
    for (m, n), fn in zip(spots, saved):
        setattr(m, n, once_rounded(fn))
    try:
        yield
    finally:
        for (m, n), fn in zip(spots, saved):
            setattr(m, n, fn)


@contextmanager
def setting(mode):
    """Compilation is off so that replaced primitives are not missed; on the CPU it changes no value."""
    mx.disable_compile()
    if mode == "bf16k":
        with float32_inside():
            yield
    else:
        yield


def logits(folder, tokens, mode):
    """Logits [T, V] in float32 of one pass over the tokens."""
    with setting(mode):
        out = load(folder, mode)(mx.array(np.asarray(tokens))[None])[0].astype(mx.float32)
        return np.array(out)


def greedy(folder, prompt, count):
    """count tokens by argmax in float32, with MLX-LM's own cache."""
    with setting("f32"):
        model = load(folder, "f32")
        cache = model.make_cache()
        step, tokens = mx.array(np.asarray(prompt))[None], []
        for _ in range(count):
            row = model(step, cache=cache)[0, -1]
            tokens.append(int(mx.argmax(row).item()))
            step = mx.array([[tokens[-1]]])
        return np.array(tokens, np.int32)
