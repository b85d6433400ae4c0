"""What the gated delta rule costs on an NVIDIA GPU when it is computed in blocks of rows, on matrix units, instead of row by row.

The scan of `delta_scan` is, for each value head, `S = decay S; u = beta (v - S k); S += u k^T; y = S q`, with an fp32 state
`S [Dv, Dk]`, bf16 keys, queries (scaled by 1/sqrt(Dk) before) and values. Value heads 2i and 2i+1 read key head i. With
`G_t` the product of a block's decays up to row t, and S the state before the block, its rows are

    (I + A) U = beta (V - G K S^T),     A_tj = beta_t G_t/G_j k_t.k_j  for j < t
    Y = G Q S^T + M U,                  M_tj = G_t/G_j q_t.k_j         for j <= t
    S' = G_end S + (G_end/G_j u_j)^T K

`prepare` does for all blocks at once what needs no state: A, its inverse `T = (I + A)^-1 beta`, and M. `scan` goes through the
blocks of a head one after another, for some rows of S ("columns": those of the values), which stay in registers, and computes
`U = T (V - G K S^T)`, Y and S' there. Its products have the state on the left, so that it, U and what leads to U are operands
in registers; or "upright" on the right, where fewer columns fill a matrix unit but operands go through shared memory.

Precisions: "bf16" rounds every operand of a product; "state" has the state as the sum of two bf16 numbers, two products;
"split" every operand that is not exact, up to three products; "tf32" has fp32 operands on tf32 units. The state itself, sums
and gates are fp32 in all of them.

Errors are |x - ref| / |ref| against the recurrence in fp64. Times are medians of CUDA graphs that go through several sets of
inputs, larger than the caches together. Rows are multiples of the block.

What bits cost. What a row rounds to depends on where its block begins: its sums are grouped by the block, and the state is
rounded as an operand at the block's start alone. An engine whose results do not depend on how a prompt is cut must then fix
blocks at positions. A cut inside a block keeps the state of the block's start besides the present one, and the keys, values
and gates of the block's rows so far; for the next rows the whole block is computed again from there.

    python bench/experiments/blocked_delta.py --out FILE
"""

import argparse
import json
import math
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.testing import do_bench_cudagraph
from triton.tools.tensor_descriptor import TensorDescriptor

# Rows of the blocks on the diagonal that are inverted row by row.
TILE = tl.constexpr(16)
DIM = 128
HEADS = 32
ROWS = (512, 2048, 4096)


@triton.jit
def dot(left, right, sums, UPRIGHT: tl.constexpr):
    """`sums + left right`; upright, left and sums are transposed."""
    return tl.dot(tl.trans(right), left, sums) if UPRIGHT else tl.dot(left, right, sums)


@triton.jit
def product(high, low, right, right_low, sums, LEFT: tl.constexpr, RIGHT: tl.constexpr, UPRIGHT: tl.constexpr):
    """The same where operands may have two parts, each multiplied; low by low is left out."""
    sums = dot(high, right, sums, UPRIGHT)
    sums = dot(low, right, sums, UPRIGHT) if LEFT == 2 else sums
    return dot(high, right_low, sums, UPRIGHT) if RIGHT == 2 else sums


@triton.jit
def parts(x, TYPE: tl.constexpr):
    """A number rounded, and what rounding took from it, rounded."""
    high = x.to(TYPE)
    return high, (x - high.to(tl.float32)).to(TYPE)


@triton.jit
def at(x, row, column, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the elements of a tile are, in a matrix with rows of `WIDTH`."""
    return x + (row + tl.arange(0, ROWS))[:, None] * WIDTH + (column + tl.arange(0, COLUMNS))[None, :]


@triton.jit
def store_parts(x, row, tile, rows, C: tl.constexpr, PARTS: tl.constexpr):
    """Both parts of a tile `[C, C]`; the low ones follow after all `rows`."""
    high, low = parts(tile, x.dtype.element_ty)
    tl.store(at(x, row, 0, C, C, C), high)
    if PARTS == 2:
        tl.store(at(x, row + rows, 0, C, C, C), low)


@triton.jit
def load_parts(x, row, rows, PARTS: tl.constexpr):
    """What `store_parts` stored, by a descriptor."""
    high = x.load([row, 0])
    return high, x.load([row + rows, 0]) if PARTS == 2 else high


@triton.jit
def ratios(sums, C: tl.constexpr):
    """What is left at a row `[t, ]` of what a row before it, or itself, `[, j]` has added."""
    i = tl.arange(0, C)
    return tl.exp(tl.where(i[:, None] >= i[None, :], sums[:, None] - sums[None, :], float("-inf")))


@triton.jit
def open_block(qk, decay, beta, gates, within, row, head, T, HEADS: tl.constexpr, C: tl.constexpr, PARTS: tl.constexpr):
    """The gates of a value head's block, and M. The gates are what is left of the state at each row, and at the end of what the
    row adds. The logarithms of the former and the betas come out."""
    rows = row + tl.arange(0, C)
    logs = tl.log(tl.maximum(tl.load(decay + rows * HEADS + head), 1e-37))
    sums = tl.cumsum(logs, 0)
    tl.store(gates + head * T + rows, tl.exp(sums))
    tl.store(gates + (HEADS + head) * T + rows, tl.exp(tl.sum(logs, 0) - sums))
    store_parts(within, head * T + row, qk * ratios(sums, C), HEADS * T, C, PARTS)
    return sums, tl.load(beta + rows * HEADS + head)


@triton.jit
def diagonal(kk, sums, beta, C: tl.constexpr):
    """The tiles on the diagonal of A, transposed, side by side: `[j, tile, t]`."""
    i = tl.arange(0, C)
    later = i[:, None] < i[None, :]
    ratio = tl.exp(tl.where(later, sums[None, :] - sums[:, None], float("-inf")))
    tiles = tl.reshape(kk * ratio * beta[None, :], [C // TILE, TILE, C // TILE, TILE])
    n = tl.arange(0, C // TILE)
    own = n[:, None, None, None] == n[None, None, :, None]
    return tl.permute(tl.sum(tl.where(own, tiles, 0.0), axis=2), [1, 0, 2])


@triton.jit
def invert(a, TILES: tl.constexpr):
    """The inverses of `I + A` of tiles `[j, tile, t]` as `[t, tile, j]`, a row after the other."""
    row = tl.arange(0, TILE)[:, None, None]
    column = tl.arange(0, TILE)[None, None, :]
    none = tl.zeros([TILE, TILES, TILE], tl.int32)
    x = tl.where(row == column + none, 1.0, 0.0)
    for i in range(1, TILE):
        of_row = tl.gather(a, none + i, axis=2)
        x -= tl.where(row == i, tl.sum(of_row * x, axis=0)[None, :, :], 0.0)
    return x


@triton.jit
def close_block(tiles, kk, sums, beta, solved, row, rows, C: tl.constexpr, PARTS: tl.constexpr):
    """From inverted tiles `[row, column in the tile]` of a value head's block to its T."""
    i = tl.arange(0, C)
    TYPE: tl.constexpr = solved.dtype.element_ty
    # Block forward substitution: with D the inverted diagonal and P = -D A below it, T = D + P T, as often as tiles are below.
    own = (i // TILE)[:, None, None] == tl.arange(0, C // TILE)[None, :, None]
    inverse = tl.reshape(tl.where(own, tl.expand_dims(tiles, 1), 0.0), [C, C])
    below = tl.where((i // TILE)[:, None] > (i // TILE)[None, :], kk * ratios(sums, C) * beta[:, None], 0.0)
    high, low = parts(-inverse, TYPE)
    right, right_low = parts(below, TYPE)
    none = tl.zeros([C, C], tl.float32)
    high, low = parts(product(high, low, right, right_low, none, PARTS, PARTS, False), TYPE)
    x = inverse
    for _ in tl.static_range(C // TILE - 1):
        right, right_low = parts(x, TYPE)
        x = product(high, low, right, right_low, inverse, PARTS, PARTS, False)
    store_parts(solved, row, x * beta[None, :], rows, C, PARTS)


@triton.jit
def prepare(q, k, decay, beta, gates, solved, within, T, HEADS: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
            PARTS: tl.constexpr):
    """A block of a key head, for the two value heads that read it."""
    row = tl.program_id(0) * C
    head = 2 * tl.program_id(1)
    keys = tl.load(at(k, row, head // 2 * D, HEADS // 2 * D, C, D))
    queries = tl.load(at(q, row, head // 2 * D, HEADS // 2 * D, C, D))
    qk = tl.dot(queries, tl.trans(keys))
    sums0, beta0 = open_block(qk, decay, beta, gates, within, row, head, T, HEADS, C, PARTS)
    sums1, beta1 = open_block(qk, decay, beta, gates, within, row, head + 1, T, HEADS, C, PARTS)
    kk = tl.dot(keys, tl.trans(keys))
    tiles = tl.join(diagonal(kk, sums0, beta0, C), diagonal(kk, sums1, beta1, C))
    tiles = tl.reshape(tl.permute(tiles, [0, 3, 1, 2]), [TILE, 2 * C // TILE, TILE])
    tiles = tl.reshape(tl.permute(invert(tiles, 2 * C // TILE), [1, 0, 2]), [2, C, TILE])
    tiles0, tiles1 = tl.split(tl.permute(tiles, [1, 2, 0]))
    close_block(tiles0, kk, sums0, beta0, solved, head * T + row, HEADS * T, C, PARTS)
    close_block(tiles1, kk, sums1, beta1, solved, (head + 1) * T + row, HEADS * T, C, PARTS)


@triton.jit
def turned(x, UPRIGHT: tl.constexpr):
    """From rows that go down to where they go in products, and back."""
    return x if UPRIGHT else tl.trans(x)


@triton.jit
def scan(q, k, v, gates, solved, within, state, last, y, T, HEADS: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
         BV: tl.constexpr, STATE: tl.constexpr, PARTS: tl.constexpr, UPRIGHT: tl.constexpr):
    """All blocks of `BV` rows of a head's state. What blocks read and write comes as descriptors."""
    head = tl.program_id(0) // (D // BV)
    column = tl.program_id(0) % (D // BV) * BV
    TYPE: tl.constexpr = solved.dtype
    ACROSS: tl.constexpr = 1 if UPRIGHT else 0
    s = turned(tl.load(at(state, head * D + column, 0, D, BV, D)), not UPRIGHT)
    none = turned(tl.zeros([C, BV], tl.float32), UPRIGHT)
    for first in range(0, T, C):
        to = head * T + first
        left_of_state = tl.expand_dims(tl.load(gates + to + tl.arange(0, C)), ACROSS)
        left_of_rows = tl.expand_dims(tl.load(gates + HEADS * T + to + tl.arange(0, C)), ACROSS)
        keys = k.load([first, head // 2 * D]).to(TYPE)
        high, low = parts(s, TYPE)
        t, t_low = load_parts(solved, to, HEADS * T, PARTS)
        values = turned(v.load([first, head * D + column]), UPRIGHT).to(tl.float32)
        known = product(high, low, tl.trans(keys), keys, none, STATE, 1, UPRIGHT)
        left, left_low = parts(values - known * left_of_state, TYPE)
        u = product(left, left_low, tl.trans(t), tl.trans(t_low), none, PARTS, PARTS, UPRIGHT)
        queries = q.load([first, head // 2 * D]).to(TYPE)
        m, m_low = load_parts(within, to, HEADS * T, PARTS)
        out = product(high, low, tl.trans(queries), queries, none, STATE, 1, UPRIGHT)
        high, low = parts(u, TYPE)
        out = product(high, low, tl.trans(m), tl.trans(m_low), out * left_of_state, PARTS, PARTS, UPRIGHT)
        y.store([first, head * D + column], turned(out, UPRIGHT).to(y.dtype))
        high, low = parts(u * left_of_rows, TYPE)
        s = product(high, low, keys, keys, s * tl.load(gates + to + C - 1), PARTS, 1, UPRIGHT)
    tl.store(at(last, head * D + column, 0, D, BV, D), turned(s, not UPRIGHT))


# The type of operands of products, and how many numbers of it stand for an element of the state, and for one of the other
# operands that are not exact.
PRECISIONS = {
    "bf16": (torch.bfloat16, 1, 1),
    "state": (torch.bfloat16, 2, 1),
    "split": (torch.bfloat16, 2, 2),
    "tf32": (torch.float32, 1, 1),
}


class Config(NamedTuple):
    """One way to launch the kernels: `columns` is `BV`, `warps` and `stages` are those of `scan`."""

    precision: str
    upright: bool = False
    block: int = 32
    columns: int = 64
    warps: int = 4
    stages: int = 3


SWEEP = [
    Config("bf16"),
    Config("bf16", columns=32, warps=2),
    Config("bf16", columns=128, warps=8),
    Config("bf16", block=16),
    Config("state"),
    Config("state", upright=True, block=64, columns=32),
    Config("split"),
    Config("split", upright=True, columns=32),
    Config("tf32", stages=2),
    Config("tf32", upright=True, block=64, columns=32, stages=2),
]


# What `delta_scan` reads.
Inputs = namedtuple("Inputs", "q k v decay beta state")


def draw(rows, heads, device, seed, alike=False):
    """Inputs as a model has them at its start; or with keys that differ little, hardly any decay and large betas."""
    g = torch.Generator(device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=g, device=device)

    k = 0.3 * normal(rows, heads // 2, DIM) + normal(heads // 2, DIM) if alike else normal(rows, heads // 2, DIM)
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (normal(rows, heads // 2, DIM), k))
    step, rate = torch.rand(2, heads, generator=g, device=device)
    step = 10 ** (2 * step - 3) * (1e-3 if alike else 1.0)
    bias = step + torch.log(-torch.expm1(-step))
    decay = torch.exp(-(1 + 15 * rate) * torch.nn.functional.softplus(normal(rows, heads) + bias))
    beta = torch.sigmoid(normal(rows, heads) + (3.0 if alike else 0.0))
    q, k, v = (x.bfloat16() for x in (q * DIM**-0.5, k, normal(rows, heads, DIM)))
    return Inputs(q, k, v, decay, beta, normal(heads, DIM, DIM))


def sequential(x, dtype):
    """Row by row: results and last state."""
    q, k = (t.to(dtype).repeat_interleave(2, 1)[:, :, None, :] for t in (x.q, x.k))
    v, decay, beta, s = (t.to(dtype) for t in (x.v, x.decay[:, :, None, None], x.beta[:, :, None], x.state))
    s, y = s.clone(), torch.empty_like(v)
    for t in range(len(v)):
        s *= decay[t]
        u = (v[t] - (s * k[t]).sum(-1)) * beta[t]
        s += u[:, :, None] * k[t]
        y[t] = (s * q[t]).sum(-1)
    return y, s


def errors(found, reference):
    """Relative errors of results and last state; not-a-number fails."""
    assert all(torch.isfinite(x).all() for x in found), "not all written, or not finite"
    norm = torch.linalg.vector_norm
    return [(norm(x.double() - ref) / norm(ref)).item() for x, ref in zip(found, reference)]


class Blocked:
    """The kernels of a configuration, with the memory that they need."""

    def __init__(self, config, x, results_type=torch.bfloat16):
        self.config, (rows, heads) = config, x.v.shape[:2]
        assert rows % config.block == 0

        def memory(width, dtype):
            return torch.full((heads * rows, width), math.nan, dtype=dtype, device=x.v.device)

        dtype, _, count = PRECISIONS[config.precision]
        self.gates = memory(2, torch.float32)
        self.solved, self.within = (memory(count * config.block, dtype).view(-1, config.block) for _ in range(2))
        self.last, self.y = torch.full_like(x.state, math.nan), memory(DIM, results_type).view(rows, heads, DIM)

    def launches(self, x):
        """Kernel, grid, arguments and options of each kernel."""
        c, (rows, heads) = self.config, x.v.shape[:2]
        _, state, count = PRECISIONS[c.precision]

        def tiles(matrix, columns):
            return TensorDescriptor.from_tensor(matrix.flatten(1), [c.block, columns])

        q, k, v, y = tiles(x.q, DIM), tiles(x.k, DIM), tiles(x.v, c.columns), tiles(self.y, c.columns)
        solved, within = tiles(self.solved, c.block), tiles(self.within, c.block)
        shape = dict(HEADS=heads, C=c.block, D=DIM, PARTS=count)
        return [
            (prepare, (rows // c.block, heads // 2), (x.q, x.k, x.decay, x.beta, self.gates, self.solved, self.within, rows),
             dict(shape, num_warps=c.block // 16)),
            (scan, (heads * (DIM // c.columns),), (q, k, v, self.gates, solved, within, x.state, self.last, y, rows),
             dict(shape, BV=c.columns, STATE=state, UPRIGHT=c.upright, num_warps=c.warps, num_stages=c.stages)),
        ]

    def run(self, x, only=("prepare", "scan")):
        for kernel, grid, args, options in self.launches(x):
            if kernel.__name__ in only:
                kernel[grid](*args, **options)
        return self.y, self.last

    def microseconds(self, sets, *only):
        """One pass over the rows, of graphs that go through all sets of inputs."""
        return 1e3 / len(sets) * do_bench_cudagraph(lambda: [self.run(x, only) for x in sets], 10, return_mode="median")


def compile_early(config, x):
    """Fills the cache of compiled kernels; what fails here fails again, and is reported, where it is measured."""
    for dtype in (torch.bfloat16, torch.float32):
        for kernel, grid, args, options in Blocked(config, x, dtype).launches(x):
            kernel.warmup(*args, grid=grid, **options)


def figures(config, sets, inputs, references):
    """Errors and times, or what failed. Errors are also those of results in fp32: rounding them hides what differs."""
    try:
        blocked = Blocked(config, sets[0])
        found = dict(rounded=errors(blocked.run(sets[0]), references["start"]))
        for kind, x in inputs.items():
            found[kind] = errors(Blocked(config, x, torch.float32).run(x), references[kind])
        kernels = [blocked.microseconds(sets, name) for name in ("prepare", "scan")]
        return dict(found, us=blocked.microseconds(sets, "prepare", "scan"), kernels=kernels)
    except Exception as e:
        return dict(failed=f"{type(e).__name__}: {str(e)[:300]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="file for all figures, JSON")
    out = parser.parse_args().out
    x = draw(ROWS[0], HEADS, "cuda", 0)
    # One alone first, which also loads the driver.
    compile_early(SWEEP[0], x)
    with ThreadPoolExecutor(len(SWEEP)) as pool:
        for c in SWEEP[1:]:
            pool.submit(compile_early, c, x)
    report = dict(card=torch.cuda.get_device_name(), torch=torch.__version__, triton=triton.__version__, heads=HEADS, rows={})
    for rows in ROWS:
        sets = [draw(rows, HEADS, "cuda", seed) for seed in range(4)]
        inputs = dict(start=sets[0], alike=draw(rows, HEADS, "cuda", 4, alike=True))
        references = {kind: sequential(x, torch.float64) for kind, x in inputs.items()}
        by_row = {kind: errors(sequential(x, torch.float32), references[kind]) for kind, x in inputs.items()}
        found = [dict(c._asdict(), **figures(c, sets, inputs, references)) for c in SWEEP]
        report["rows"][rows] = [dict(precision="fp32, row by row", **by_row), *found]
    with open(out, "w") as f:
        json.dump(report, f, indent=1)
    print(f"{report['card']}, {HEADS} heads, {ROWS} rows: us; of kernels and errors of results and state at 2,048 rows")
    for c, *found in zip(("fp32, row by row", *SWEEP), *report["rows"].values()):
        shown = dict(us=[f["us"] for f in found if "us" in f])
        shown.update((name, found[1][name]) for name in ("kernels", "start", "alike") if name in found[1])
        print(c, *{f["failed"] for f in found if "failed" in f}, sep="\n  ")
        print(" ", "; ".join(" ".join([name, *(f"{n:.4g}" for n in numbers)]) for name, numbers in shown.items() if numbers))


if __name__ == "__main__":
    main()
