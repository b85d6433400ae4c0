"""What the gated delta rule costs on an NVIDIA GPU when it is computed in blocks of rows, on matrix units, instead of row by row.

The scan of `delta_scan` is, for each value head, `S = decay S; u = beta (v - S k); S += u k^T; y = S q`, with an fp32 state
`S [Dv, Dk]`, bf16 keys, queries (scaled by 1/sqrt(Dk) before) and values. Value heads 2i and 2i+1 read key head i. With
`G_t` the product of a block's decays up to row t, and S the state before the block, its rows are

    (I + A) U = beta (V - G K S^T),     A_tj = beta_t G_t/G_j k_t.k_j  for j < t
    Y = G Q S^T + M U,                  M_tj = G_t/G_j q_t.k_j         for j <= t
    S' = G_end S + (G_end/G_j u_j)^T K

`prepare` does for all blocks at once what needs no state: A, its inverse `T = (I + A)^-1 beta`, and M. `scan` goes through the
blocks of a head one after another, for some rows of S ("columns": those of the values), which stay in registers. The form
"solve" computes `U = T (V - G K S^T)` there; the form "wy" has `prepare` compute `W = T G K` and `T V`, so that
`U = T V - W S^T` is one product away from the state. Results are computed by `scan` too, or by `results` from stored U and
states of all blocks' starts ("apart"). Products in `scan` have the state on the left, so that it, U and what leads to U
are operands in registers; or "upright" on the right, where fewer columns fill a matrix unit but operands go through shared
memory.

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
import contextlib
import json
import math
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# Rows of the blocks on the diagonal that are inverted row by row.
TILE = tl.constexpr(16)
DIM = 128
ROWS = (512, 2048, 4096)


@triton.jit
def product(high, low, right, right_low, sums, LEFT: tl.constexpr, RIGHT: tl.constexpr, UPRIGHT: tl.constexpr):
    """`sums + left right`, the parts of an operand that has two of them multiplied each; low by low is left out. Upright,
    left and sums are transposed."""
    if UPRIGHT:
        right = tl.trans(right)
        sums = tl.dot(right, high, sums, input_precision="tf32")
        if LEFT == 2:
            sums = tl.dot(right, low, sums)
        if RIGHT == 2:
            sums = tl.dot(tl.trans(right_low), high, sums)
    else:
        sums = tl.dot(high, right, sums, input_precision="tf32")
        if LEFT == 2:
            sums = tl.dot(low, right, sums)
        if RIGHT == 2:
            sums = tl.dot(high, right_low, sums)
    return sums


@triton.jit
def parts(x, TYPE: tl.constexpr):
    """A number rounded, and what rounding took from it, rounded."""
    high = x.to(TYPE)
    return high, (x - high.to(tl.float32)).to(TYPE)


@triton.jit
def load_tile(x, row, column, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TMA: tl.constexpr):
    """A tile of a matrix with rows of `WIDTH`, by its descriptor or pointer."""
    if TMA:
        tile = x.load([row, column])
    else:
        tile = tl.load(x + (row + tl.arange(0, ROWS))[:, None] * WIDTH + (column + tl.arange(0, COLUMNS))[None, :])
    return tile


@triton.jit
def load_tiles(x, row, WIDTH: tl.constexpr, rows, ROWS: tl.constexpr, PARTS: tl.constexpr, TMA: tl.constexpr):
    """Both parts of a tile of whole rows; the low ones follow after all `rows`."""
    high = load_tile(x, row, 0, WIDTH, ROWS, WIDTH, TMA)
    low = high
    if PARTS == 2:
        low = load_tile(x, row + rows, 0, WIDTH, ROWS, WIDTH, TMA)
    return high, low


@triton.jit
def store_tile(x, row, column, tile, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TMA: tl.constexpr):
    if TMA:
        x.store([row, column], tile.to(x.dtype))
    else:
        at = x + (row + tl.arange(0, ROWS))[:, None] * WIDTH + (column + tl.arange(0, COLUMNS))[None, :]
        tl.store(at, tile.to(x.dtype.element_ty))


@triton.jit
def store_tiles(x, row, tile, WIDTH: tl.constexpr, rows, ROWS: tl.constexpr, PARTS: tl.constexpr):
    high, low = parts(tile, x.dtype.element_ty)
    store_tile(x, row, 0, high, WIDTH, ROWS, WIDTH, False)
    if PARTS == 2:
        store_tile(x, row + rows, 0, low, WIDTH, ROWS, WIDTH, False)


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
    store_tiles(within, head * T + row, qk * ratios(sums, C), C, HEADS * T, C, PARTS)
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
def close_block(tiles, kk, keys, v, sums, beta, solved, fresh, row, head, T, HEADS: tl.constexpr, C: tl.constexpr,
                D: tl.constexpr, WY: tl.constexpr, PARTS: tl.constexpr):
    """From inverted tiles `[row, column in the tile]` of a value head's block to its T, or W and T V."""
    i = tl.arange(0, C)
    TYPE: tl.constexpr = solved.dtype.element_ty
    # Block forward substitution: with D the inverted diagonal and P = -D A below it, T = D + P T, as often as tiles are below.
    own = (i // TILE)[:, None, None] == tl.arange(0, C // TILE)[None, :, None]
    inverse = tl.reshape(tl.where(own, tl.expand_dims(tiles, 1), 0.0), [C, C])
    below = tl.where((i // TILE)[:, None] > (i // TILE)[None, :], kk * ratios(sums, C) * beta[:, None], 0.0)
    none = tl.zeros([C, C], tl.float32)
    high, low = parts(-inverse, TYPE)
    right, right_low = parts(below, TYPE)
    high, low = parts(product(high, low, right, right_low, none, PARTS, PARTS, False), TYPE)
    x = inverse
    for _ in tl.static_range(C // TILE - 1):
        right, right_low = parts(x, TYPE)
        x = product(high, low, right, right_low, inverse, PARTS, PARTS, False)
    x *= beta[None, :]
    to = head * T + row
    if WY:
        keys = keys.to(TYPE)
        none = tl.zeros([C, D], tl.float32)
        high, low = parts(x * tl.exp(sums)[None, :], TYPE)
        store_tiles(solved, to, product(high, low, keys, keys, none, PARTS, 1, False), D, HEADS * T, C, PARTS)
        high, low = parts(x, TYPE)
        values = load_tile(v, row, head * D, HEADS * D, C, D, False).to(TYPE)
        store_tiles(fresh, to, product(high, low, values, values, none, PARTS, 1, False), D, HEADS * T, C, PARTS)
    else:
        store_tiles(solved, to, x, C, HEADS * T, C, PARTS)


@triton.jit
def prepare(q, k, v, decay, beta, gates, solved, fresh, within, T, HEADS: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
            WY: tl.constexpr, PARTS: tl.constexpr):
    """A block of a key head, for the two value heads that read it."""
    row = tl.program_id(0) * C
    head = 2 * tl.program_id(1)
    keys = load_tile(k, row, head // 2 * D, HEADS // 2 * D, C, D, False)
    queries = load_tile(q, row, head // 2 * D, HEADS // 2 * D, C, D, False)
    qk = tl.dot(queries, tl.trans(keys))
    sums0, beta0 = open_block(qk, decay, beta, gates, within, row, head, T, HEADS, C, PARTS)
    sums1, beta1 = open_block(qk, decay, beta, gates, within, row, head + 1, T, HEADS, C, PARTS)
    kk = tl.dot(keys, tl.trans(keys))
    tiles = tl.join(diagonal(kk, sums0, beta0, C), diagonal(kk, sums1, beta1, C))
    tiles = tl.reshape(tl.permute(tiles, [0, 3, 1, 2]), [TILE, 2 * C // TILE, TILE])
    tiles = tl.reshape(tl.permute(invert(tiles, 2 * C // TILE), [1, 0, 2]), [2, C, TILE])
    tiles0, tiles1 = tl.split(tl.permute(tiles, [1, 2, 0]))
    close_block(tiles0, kk, keys, v, sums0, beta0, solved, fresh, row, head, T, HEADS, C, D, WY, PARTS)
    close_block(tiles1, kk, keys, v, sums1, beta1, solved, fresh, row, head + 1, T, HEADS, C, D, WY, PARTS)


@triton.jit
def along(x, UPRIGHT: tl.constexpr):
    """A number for each row of a block, where rows go across, or upright down."""
    if UPRIGHT:
        x = x[:, None]
    else:
        x = x[None, :]
    return x


@triton.jit
def turned(x, UPRIGHT: tl.constexpr):
    if not UPRIGHT:
        x = tl.trans(x)
    return x


@triton.jit
def scan(q, k, v, gates, solved, fresh, within, state, last, starts, updates, y, T, HEADS: tl.constexpr, C: tl.constexpr,
         D: tl.constexpr, BV: tl.constexpr, WY: tl.constexpr, APART: tl.constexpr, STATE: tl.constexpr, PARTS: tl.constexpr,
         TYPE: tl.constexpr, UPRIGHT: tl.constexpr, TMA: tl.constexpr):
    """All blocks of `BV` rows of a head's state."""
    head = tl.program_id(0) // (D // BV)
    column = tl.program_id(0) % (D // BV) * BV
    WIDTH: tl.constexpr = HEADS * D
    s = turned(load_tile(state, head * D + column, 0, D, BV, D, False), not UPRIGHT)
    for first in range(0, T, C):
        to = head * T + first
        left_of_state = tl.load(gates + to + tl.arange(0, C))
        left_of_rows = tl.load(gates + HEADS * T + to + tl.arange(0, C))
        keys = load_tile(k, first, head // 2 * D, WIDTH // 2, C, D, TMA).to(TYPE)
        high, low = parts(s, TYPE)
        none = turned(tl.zeros([C, BV], tl.float32), UPRIGHT)
        if WY:
            w, w_low = load_tiles(solved, to, D, HEADS * T, C, PARTS, TMA)
            u = turned(load_tile(fresh, to, column, D, C, BV, TMA), UPRIGHT).to(tl.float32)
            if PARTS == 2:
                u += turned(load_tile(fresh, HEADS * T + to, column, D, C, BV, TMA), UPRIGHT).to(tl.float32)
            u -= product(high, low, tl.trans(w), tl.trans(w_low), none, STATE, PARTS, UPRIGHT)
        else:
            t, t_low = load_tiles(solved, to, C, HEADS * T, C, PARTS, TMA)
            values = turned(load_tile(v, first, head * D + column, WIDTH, C, BV, TMA), UPRIGHT).to(tl.float32)
            known = product(high, low, tl.trans(keys), keys, none, STATE, 1, UPRIGHT)
            left, left_low = parts(values - known * along(left_of_state, UPRIGHT), TYPE)
            u = product(left, left_low, tl.trans(t), tl.trans(t_low), none, PARTS, PARTS, UPRIGHT)
        if APART:
            store_tile(starts, first // C * WIDTH + head * D + column, 0, turned(s, not UPRIGHT), D, BV, D, TMA)
            store_tile(updates, to, column, turned(u, UPRIGHT), D, C, BV, TMA)
        else:
            queries = load_tile(q, first, head // 2 * D, WIDTH // 2, C, D, TMA).to(TYPE)
            m, m_low = load_tiles(within, to, C, HEADS * T, C, PARTS, TMA)
            out = product(high, low, tl.trans(queries), queries, none, STATE, 1, UPRIGHT)
            out *= along(left_of_state, UPRIGHT)
            high, low = parts(u, TYPE)
            out = product(high, low, tl.trans(m), tl.trans(m_low), out, PARTS, PARTS, UPRIGHT)
            store_tile(y, first, head * D + column, turned(out, UPRIGHT), WIDTH, C, BV, TMA)
        high, low = parts(u * along(left_of_rows, UPRIGHT), TYPE)
        s = product(high, low, keys, keys, s * tl.load(gates + to + C - 1), PARTS, 1, UPRIGHT)
    store_tile(last, head * D + column, 0, turned(s, not UPRIGHT), D, BV, D, False)


@triton.jit
def results(q, gates, within, starts, updates, y, T, HEADS: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
            BV: tl.constexpr, STATE: tl.constexpr, PARTS: tl.constexpr):
    """`BV` columns of the results of a head's block, where `scan` left states and updates."""
    head = tl.program_id(1)
    column = tl.program_id(2) * BV
    row = tl.program_id(0) * C
    to = head * T + row
    TYPE: tl.constexpr = within.dtype.element_ty
    queries = load_tile(q, row, head // 2 * D, HEADS // 2 * D, C, D, False).to(TYPE)
    s = load_tile(starts, (tl.program_id(0) * HEADS + head) * D + column, 0, D, BV, D, False)
    high, low = parts(s.to(tl.float32), TYPE)
    none = tl.zeros([C, BV], tl.float32)
    out = product(queries, queries, tl.trans(high), tl.trans(low), none, 1, STATE, False)
    out *= tl.load(gates + to + tl.arange(0, C))[:, None]
    m, m_low = load_tiles(within, to, C, HEADS * T, C, PARTS, False)
    high, low = parts(load_tile(updates, to, column, D, C, BV, False).to(tl.float32), TYPE)
    out = product(m, m_low, high, low, out, PARTS, PARTS, False)
    store_tile(y, row, head * D + column, out, HEADS * D, C, BV, False)


class Precision(NamedTuple):
    """How operands of products are rounded."""

    type: torch.dtype
    # Numbers of that type that stand for an element of the state, and for one of the other operands that are not exact.
    state: int
    parts: int


PRECISIONS = {
    "bf16": Precision(torch.bfloat16, 1, 1),
    "state": Precision(torch.bfloat16, 2, 1),
    "split": Precision(torch.bfloat16, 2, 2),
    "tf32": Precision(torch.float32, 1, 1),
}


class Config(NamedTuple):
    """One way to launch the kernels: `columns` is `BV`, `warps` and `stages` are those of `scan`."""

    precision: str
    form: str = "solve"
    apart: bool = False
    upright: bool = False
    tma: bool = True
    block: int = 64
    columns: int = 64
    warps: int = 4
    stages: int = 3
    prepare_warps: int = 4

    def __str__(self):
        flags = "".join(f" {name}" for name in ("apart", "upright", "tma") if getattr(self, name))
        shape = f"block {self.block}, columns {self.columns}, warps {self.prepare_warps}/{self.warps}, stages {self.stages}"
        return f"{self.precision} {self.form}{flags}, {shape}"


SWEEP = [
    Config("bf16"),
    Config("bf16", tma=False),
    Config("bf16", stages=4),
    Config("bf16", prepare_warps=8),
    Config("bf16", columns=128, warps=8),
    Config("bf16", upright=True, columns=32),
    Config("bf16", upright=True, columns=32, tma=False),
    Config("bf16", upright=True, columns=32, warps=8),
    Config("bf16", upright=True, columns=64),
    Config("bf16", block=32, prepare_warps=2),
    Config("bf16", block=32, columns=32, upright=True, prepare_warps=2),
    Config("bf16", "wy"),
    Config("bf16", "wy", upright=True, columns=32),
    Config("bf16", apart=True),
    Config("bf16", "wy", apart=True),
    Config("bf16", "wy", apart=True, upright=True, columns=32),
    Config("state"),
    Config("state", upright=True, columns=32),
    Config("split"),
    Config("split", upright=True, columns=32, tma=False),
    Config("split", upright=True, columns=32, block=32, prepare_warps=2),
    Config("split", "wy", upright=True, columns=32, stages=2),
    Config("tf32", columns=64, stages=2),
    Config("tf32", upright=True, columns=32, stages=2),
]


class Inputs(NamedTuple):
    """What `delta_scan` reads."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor
    state: torch.Tensor


def draw(rows, heads, device, seed, alike=False):
    """Inputs as a model has them at its start; or with keys that differ little, hardly any decay and large betas."""
    g = torch.Generator(device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=g, device=device)

    def uniform(low, high):
        return low + (high - low) * torch.rand(heads, generator=g, device=device)

    keys = normal(rows, heads // 2, DIM) * (0.3 if alike else 1.0) + (normal(heads // 2, DIM) if alike else 0.0)
    queries = torch.nn.functional.normalize(normal(rows, heads // 2, DIM), dim=-1) * DIM**-0.5
    step = torch.exp(uniform(math.log(1e-3), math.log(1e-1))) * (1e-3 if alike else 1.0)
    bias = step + torch.log(-torch.expm1(-step))
    decay = torch.exp(-uniform(1.0, 16.0) * torch.nn.functional.softplus(normal(rows, heads) + bias))
    beta = torch.sigmoid(normal(rows, heads) + (3.0 if alike else 0.0))
    half = torch.bfloat16
    keys = torch.nn.functional.normalize(keys, dim=-1)
    return Inputs(queries.to(half), keys.to(half), normal(rows, heads, DIM).to(half), decay, beta, normal(heads, DIM, DIM))


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


class Blocked:
    """The kernels of a configuration, with the memory that they need."""

    def __init__(self, config, x, results_type=torch.bfloat16):
        self.config, p = config, PRECISIONS[config.precision]
        self.rows, self.heads = x.v.shape[:2]
        assert self.rows % config.block == 0
        wy = config.form == "wy"

        def memory(width, dtype):
            return torch.full((self.heads * self.rows * width,), math.nan, dtype=dtype, device=x.v.device)

        self.gates = memory(2, torch.float32)
        self.solved = memory(p.parts * (DIM if wy else config.block), p.type)
        self.fresh = memory(p.parts * DIM, p.type) if wy else self.solved
        self.within = memory(p.parts * config.block, p.type)
        self.last = torch.full_like(x.state, math.nan)
        kept = p.type if p.state * p.parts == 1 else torch.float32
        self.starts = memory(DIM * DIM // config.block, kept) if config.apart else self.last
        self.updates = memory(DIM, kept) if config.apart else self.last
        self.y = memory(DIM, results_type).view(self.rows, self.heads, DIM)

    def launches(self, x):
        """Kernel, grid, arguments and options of each kernel."""
        c, p, blocks = self.config, PRECISIONS[self.config.precision], self.rows // self.config.block
        shape = dict(HEADS=self.heads, C=c.block, D=DIM)
        wy = c.form == "wy"
        between = (self.solved, self.fresh, self.within)
        kept = (self.starts, self.updates, self.y)
        parts, types = dict(STATE=p.state, PARTS=p.parts), {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}

        def tiles(matrix, width, rows, columns):
            """A matrix as `scan` takes it."""
            return TensorDescriptor.from_tensor(matrix.view(-1, width), [rows, columns]) if c.tma else matrix

        keys, values, block, columns = self.heads // 2 * DIM, self.heads * DIM, c.block, c.columns
        wide = DIM if wy else block
        found = [
            (prepare, (blocks, self.heads // 2), (x.q, x.k, x.v, x.decay, x.beta, self.gates, *between, self.rows),
             dict(shape, WY=wy, PARTS=p.parts, num_warps=c.prepare_warps)),
            (scan, (self.heads * (DIM // columns),),
             (tiles(x.q, keys, block, DIM), tiles(x.k, keys, block, DIM), tiles(x.v, values, block, columns), self.gates,
              tiles(self.solved, wide, block, wide), tiles(self.fresh, DIM, block, columns),
              tiles(self.within, block, block, block), x.state, self.last, tiles(self.starts, DIM, columns, DIM),
              tiles(self.updates, DIM, block, columns), tiles(self.y, values, block, columns), self.rows),
             dict(shape, **parts, BV=columns, WY=wy, APART=c.apart, TYPE=types[p.type], UPRIGHT=c.upright, TMA=c.tma,
                  num_warps=c.warps, num_stages=c.stages)),
        ]
        if c.apart:
            found.append((results, (blocks, self.heads, 1), (x.q, self.gates, self.within, *kept, self.rows),
                          dict(shape, **parts, BV=DIM, num_warps=8)))
        return found

    def compile(self, x):
        for kernel, grid, args, options in self.launches(x):
            kernel.warmup(*args, grid=grid, **options)

    def run(self, x, only=None):
        for i, (kernel, grid, args, options) in enumerate(self.launches(x)):
            if only in (None, i):
                kernel[grid](*args, **options)

    def errors(self, x, reference):
        """|x - ref| / |ref| of results and last state; not-a-number fails."""
        self.run(x)
        return measure((self.y, self.last), reference)


def measure(found, reference):
    """Relative errors of results and last state."""
    errors = {}
    for name, x, ref in zip(("y", "state"), found, reference):
        assert torch.isfinite(x).all(), f"{name}: not all written, or not finite"
        errors[name] = (torch.linalg.vector_norm(x.double() - ref) / torch.linalg.vector_norm(ref)).item()
    return errors


def microseconds(blocked, sets, only=None, replays=30):
    """Median of one pass over the rows, of graphs that go through all sets of inputs."""
    blocked.run(sets[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x in sets:
            blocked.run(x, only)
    times = []
    for i in range(replays + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        # The first ones let the clock rise.
        times += [1e3 * start.elapsed_time(end) / len(sets)] if i >= 3 else []
    return statistics.median(times)


def guarded(what):
    """What comes out of it; what fails is reported there instead."""
    try:
        return what()
    except Exception as e:
        return dict(failed=f"{type(e).__name__}: {str(e)[:300]}")


def try_config(config, sets, reference):
    """Time and errors of a configuration."""
    blocked = Blocked(config, sets[0])
    return dict(errors=blocked.errors(sets[0], reference), us=microseconds(blocked, sets))


def compile_early(config, x):
    """Fills the cache of compiled kernels; what fails here fails again, and is reported, where it is measured."""
    with contextlib.suppress(Exception):
        Blocked(config, x).compile(x)


def sweep(heads, budget):
    """All configurations at 2,048 rows. Those that the budget of seconds does not cover are reported as such."""
    begin = time.time()
    sets = [draw(2048, heads, "cuda", seed) for seed in range(4)]
    # Not beside the compilers: its many small launches would wait for their turn.
    reference = sequential(sets[0], torch.float64)
    compile_early(SWEEP[0], sets[0])
    with ThreadPoolExecutor(12) as pool:
        wait([pool.submit(compile_early, c, sets[0]) for c in SWEEP[1:]], timeout=budget)
        print(f"compiled in {time.time() - begin:.0f} s", flush=True)
        found = {}
        for c in SWEEP:
            late = time.time() - begin > budget
            found[c] = dict(failed="no time left") if late else guarded(lambda c=c: try_config(c, sets, reference))
            print(f"{c}: {found[c]}", flush=True)
        pool.shutdown(cancel_futures=True)
    return found


def times(config, heads, rows):
    """All kernels of a configuration, and each."""
    sets = [draw(rows, heads, "cuda", seed) for seed in range(4)]
    blocked = Blocked(config, sets[0])
    kernels = {kernel.__name__: i for i, (kernel, *_) in enumerate(blocked.launches(sets[0]))}
    return dict(all=microseconds(blocked, sets), **{name: microseconds(blocked, sets, i) for name, i in kernels.items()})


def all_errors(best, heads, rows, alike):
    """Errors of the best configurations and of fp32 row by row. Results are in fp32 here: rounding them would hide what
    differs. They take more shared memory, so stages are few."""
    x = draw(rows, heads, "cuda", 9, alike)
    reference = sequential(x, torch.float64)
    found = {"row by row": measure(sequential(x, torch.float32), reference)}
    for name, c in best.items():
        c = c._replace(stages=min(c.stages, 3))
        found[name] = guarded(lambda c=c: Blocked(c, x, torch.float32).errors(x, reference))
    return found


def versions():
    """The card and what it runs with."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    return dict(card=torch.cuda.get_device_name(), driver=driver, torch=torch.__version__, triton=triton.__version__)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="file for all figures, JSON")
    parser.add_argument("--budget", type=float, default=50.0, help="seconds for the sweep")
    args = parser.parse_args()
    heads = 32
    report = dict(versions(), heads=heads)
    swept = sweep(heads, args.budget)
    report["sweep_2048"] = [dict(c._asdict(), **found) for c, found in swept.items()]
    best = {}
    for c, found in swept.items():
        if "us" in found and found["us"] < swept.get(best.get(c.precision), {}).get("us", math.inf):
            best[c.precision] = c
    report["best"] = {name: c._asdict() for name, c in best.items()}
    report["us"] = {name: {rows: guarded(lambda: times(c, heads, rows)) for rows in ROWS} for name, c in best.items()}
    report["errors"] = {
        kind: {rows: guarded(lambda: all_errors(best, heads, rows, kind == "alike")) for rows in ROWS}
        for kind in ("start", "alike")
    }
    with open(args.out, "w") as f:
        json.dump(report, f, indent=1)
    print(f"{report['card']}, {heads} heads; us by rows, then errors of results and state at 2,048 rows of either inputs")
    for name in ("row by row", *best):
        print(best.get(name, name))
        for rows, us in report["us"].get(name, {}).items():
            print(f"  {rows}:", ", ".join(f"{k} {t if k == 'failed' else round(t, 1)}" for k, t in us.items()))
        for kind, errors in report["errors"].items():
            at = errors[2048].get(name, errors[2048])
            print(f"  {kind}:", ", ".join(f"{k} {t if k == 'failed' else format(t, '.1e')}" for k, t in at.items()))


if __name__ == "__main__":
    main()
