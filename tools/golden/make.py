"""Makes the golden references.

    python tools/golden/make.py                  all parts, written to tests/golden
    python tools/golden/make.py quantize template  some parts
    python tools/golden/make.py --check [PART..]   make them elsewhere and compare with what is committed

Checking wants equal bytes of everything discrete (checkpoints, codes, tokens, texts)
and float tensors within FLOAT_TOLERANCE, because BLAS differs between machines.
"""
import argparse
import importlib
import json
import sys
import tempfile
from pathlib import Path

import common

PARTS = ("transformers", "mlx", "quantize", "template", "tokenizer", "teacher")
FLOAT_TOLERANCE = 2e-3  # of the tensor's largest value


def compare_tensors(a, b):
    """Reasons why two safetensors files do not hold the same golden."""
    from safetensors.torch import load_file

    x, y = load_file(a), load_file(b)
    if x.keys() != y.keys():
        yield f"tensors {sorted(x.keys() ^ y.keys())} are in one file only"
        return
    for name in x:
        p, q = x[name], y[name]
        if p.shape != q.shape or p.dtype != q.dtype:
            yield f"{name}: {p.dtype} {list(p.shape)} against {q.dtype} {list(q.shape)}"
        elif not p.is_floating_point():
            if not bool((p == q).all()):
                yield f"{name}: values differ"
        elif p.numel() and "bf16" not in name:
            # bfloat16 runs amplify the last bit of BLAS through routing; their spread is in the JSON
            far = float((p - q).abs().max())
            if far > FLOAT_TOLERANCE * float(q.abs().max()):
                yield f"{name}: differs by {far:.3g}"


def check(made, committed):
    bad = []
    for new in sorted(p for p in made.rglob("*") if p.is_file()):
        rel = new.relative_to(made)
        old = committed / rel
        if not old.exists():
            bad.append(f"{rel}: not committed")
        elif new.suffix == ".safetensors" and rel.parts[0] not in ("checkpoints", "quantize"):
            bad += [f"{rel}: {why}" for why in compare_tensors(new, old)]
        elif new.suffix == ".json" and rel.parts[0] in ("transformers", "mlx", "teacher"):
            a, b = (json.loads(p.read_text()) for p in (new, old))
            if a.get("sha256") != b.get("sha256"):
                bad.append(f"{rel}: checkpoint hashes differ")
        elif new.read_bytes() != old.read_bytes():
            bad.append(f"{rel}: bytes differ")
    return bad


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    ap.add_argument("--check", action="store_true", help="compare instead of writing")
    args = ap.parse_args()
    for part in args.parts:
        if part not in PARTS:
            ap.error(f"unknown part {part!r}; known: {', '.join(PARTS)}")

    def run(root):
        for part in args.parts or PARTS:
            importlib.import_module(f"gen_{part}").generate(root)

    if not args.check:
        run(common.COMMITTED)
        return
    with tempfile.TemporaryDirectory() as tmp:
        run(Path(tmp))
        bad = check(Path(tmp), common.COMMITTED)
    for line in bad:
        print(line, file=sys.stderr)
    if bad:
        sys.exit(f"{len(bad)} differences")
    print("committed goldens are what the generators make")


if __name__ == "__main__":
    main()
