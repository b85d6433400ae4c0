"""Golden part (b): mlx.core.quantize on awkward bfloat16 matrices, for every bit width and group size."""
import mlx.core as mx
import numpy as np
import torch
from safetensors.torch import save_file

from common import versions, write_json
from twins import to_mx, to_torch

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
COLS = 384
SEED = 21


def rows():
    """(what the row exercises, 384 float32 values)."""
    rng = np.random.Generator(np.random.SFC64(SEED))

    def n():
        return rng.standard_normal(COLS)

    yield "normal, small", 0.02 * n()
    yield "normal, unit", n()
    yield "uniform", rng.uniform(-1, 1, COLS)
    yield "all zero", np.zeros(COLS)
    yield "negative zero", np.full(COLS, -0.0)
    yield "constant positive", np.full(COLS, 0.40625)
    yield "constant negative", np.full(COLS, -1.5)
    yield "constant, different in every 32", np.repeat(n()[:12], 32)
    yield "positive only", np.abs(n()) + 0.01
    yield "negative only", -np.abs(n()) - 0.01
    yield "far from zero, narrow", 100 + 0.5 * n()
    yield "far below zero, narrow", -100 + 0.5 * n()
    yield "least equals minus greatest", np.tile([-1.0, 1.0, 0.25, -0.5], 96)
    yield "one outlier", np.where(np.arange(COLS) % 128 == 77, 300.0, 0.01 * n())
    yield "one negative outlier", np.where(np.arange(COLS) % 128 == 5, -300.0, 0.01 * n())
    yield "single nonzero", np.where(np.arange(COLS) == 200, 0.75, 0.0)
    yield "huge", 1e30 * n()
    yield "tiny, above the scale floor", 1e-5 * n()
    yield "tiny, below the scale floor", 1e-8 * n()
    yield "subnormal in bfloat16", 1e-39 * n()
    yield "wide range", n() * 10.0 ** rng.uniform(-6, 3, COLS)
    yield "integers, ties when rounding", rng.integers(-8, 8, COLS).astype(float)
    yield "half steps, ties when rounding", rng.integers(-16, 16, COLS) / 2 + 0.25
    yield "two values", np.where(rng.random(COLS) < 0.5, -0.3, 0.7)
    yield "ramp", np.linspace(-1, 1, COLS)
    yield "ramp up from zero", np.linspace(0, 4, COLS)
    yield "heavy tails", rng.standard_t(2, COLS)
    yield "mostly zero", np.where(rng.random(COLS) < 0.9, 0.0, n())


def generate(root):
    mx.set_default_device(mx.cpu)
    labels, values = zip(*rows())
    w = torch.from_numpy(np.stack(values).astype(np.float32)).to(torch.bfloat16)
    out = {"input": w}
    for bits in BITS:
        for group in GROUPS:
            parts = mx.quantize(to_mx(w), group_size=group, bits=bits)
            for name, a in zip(("weight", "scales", "biases"), parts):
                out[f"b{bits}.g{group}.{name}"] = to_torch(a)
    # three axes, as the stacked experts have
    cube = w[:24].reshape(4, 6, COLS)
    for name, a in zip(("weight", "scales", "biases"), mx.quantize(to_mx(cube), group_size=64, bits=4)):
        out[f"cube.b4.g64.{name}"] = to_torch(a)
    folder = root / "quantize"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(out, folder / "quantize.safetensors")
    write_json(folder / "quantize.json", {
        "versions": versions("mlx", "mlx-cpu", "torch", "numpy", "safetensors"), "seed": SEED,
        "bits": BITS, "groups": GROUPS, "cols": COLS, "rows": labels,
        "tensors": "input [rows, cols] bf16; b{bits}.g{group}.weight u32, .scales bf16, .biases bf16; "
                   "cube.b4.g64.* is input[:24] seen as [4, 6, cols]",
    })
    print(f"quantize: {len(labels)} rows, {len(BITS) * len(GROUPS)} settings, "
          f"{(folder / 'quantize.safetensors').stat().st_size} bytes")
