"""The pools of phrasings, read from phrases/*.txt, and their split into training
and evaluation. A pool starts with "== NAME"; every line is one phrasing with
{slots} and [alternatives]. "NAME noun" and "NAME clause" hold what training
puts into the frames of grammar.py.

The split is a hash of the text and nothing else: the sixth of a pool with the
smallest digests (two at least) belongs to the evaluation, the rest to training."""
import functools
import itertools
import pathlib
import re
from dataclasses import dataclass, field

from grammar import ALTERNATIVES, digest, expand, normal

FOLDER = pathlib.Path(__file__).resolve().parent / "phrases"
ONE_IN = 6


@dataclass
class Pool:
    train: list = field(default_factory=list)
    held: list = field(default_factory=list)
    noun: list = field(default_factory=list)
    clause: list = field(default_factory=list)


def _sections():
    for path in sorted(FOLDER.glob("*.txt")):
        name, lines = None, []
        for line in path.read_text().splitlines():
            if line.startswith("== "):
                if name:
                    yield name, lines
                name, lines = line[3:], []
            elif line:
                lines.append(line)
        yield name, lines


@functools.cache
def pools():
    """{name: Pool}"""
    out = {}
    for name, lines in _sections():
        base, _, part = name.partition(" ") if name.endswith((" noun", " clause")) else (name, "", "")
        pool = out.setdefault(base, Pool())
        if part:
            setattr(pool, part, lines)
            continue
        if len(set(lines)) < len(lines):
            raise ValueError(f"pool {name}: a phrasing stands there twice")
        order = sorted(lines, key=lambda text: digest("phrasing", text))
        n = max(2, round(len(lines) / ONE_IN))
        pool.held, pool.train = order[:n], order[n:]
    return out


def spelled_out(template):
    """Every text that `expand` can make of a template."""
    parts = ALTERNATIVES.split(template)  # text, alternatives, text, ...
    choices = [p.split("|") if i % 2 else [p] for i, p in enumerate(parts)]
    return {expand("".join(c), None) for c in itertools.product(*choices)}


@functools.cache
def held_phrasings():
    """All phrasings of the evaluation, slots open, as `normal` sees them."""
    return frozenset(normal(text) for pool in pools().values() for t in pool.held for text in spelled_out(t))


def statistics():
    """Prints the sizes of the pools, and the words that hang on one phrasing only."""
    bare = lambda t: set(re.findall(r"[a-z']+", re.sub(r"\{\w+\}", "", t.lower())))
    total = {}
    for p in pools().values():
        for t in p.train + p.held:
            for w in bare(t):
                total[w] = total.get(w, 0) + 1
    for name, p in pools().items():
        lonely = sorted({w for t in p.train + p.held for w in bare(t) if total[w] == 1})
        print(f"{name}: {len(p.train)} training, {len(p.held)} held, {len(p.noun)} nouns, {len(p.clause)} clauses"
              + (f"; words in no other phrasing: {' '.join(lonely)}" if lonely else ""))
    print(f"{len(pools())} pools: {sum(len(p.train) for p in pools().values())} training, {sum(len(p.held) for p in pools().values())} held "
          f"({len(held_phrasings())} with alternatives spelled out)")
