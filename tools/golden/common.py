"""Paths, hashes, versions and file helpers shared by every golden generator."""
import hashlib
import importlib.metadata as md
import json
import os
import platform
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

REPO = Path(__file__).resolve().parents[2]
COMMITTED = REPO / "tests" / "golden"


def versions(*packages):
    """The installed versions that a golden depends on, for its JSON record."""
    out = {"python": platform.python_version()}
    out.update({p: md.version(p) for p in packages})
    return out


def sha256_files(folder):
    """SHA-256 of every file of a checkpoint folder, by file name."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(Path(folder).iterdir()) if p.is_file()}


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(r, ensure_ascii=False) for r in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def spread(got, want):
    """How far two logit matrices [T, V] lie apart: the reason for a tolerance."""
    import numpy as np

    d = got.astype(np.float64) - want.astype(np.float64)
    return {
        "max_abs": float(np.abs(d).max()),
        "rms": float(np.sqrt((d * d).mean())),
        "logit_rms": float(np.sqrt((want.astype(np.float64) ** 2).mean())),
        "top1_agreement": float((got.argmax(-1) == want.argmax(-1)).mean()),
    }


def nll(logits, targets):
    """Negative log likelihood (nats) of each target under its logit row, in float64."""
    import numpy as np

    x = logits.astype(np.float64)
    top = x.max(-1)
    lse = np.log(np.exp(x - top[:, None]).sum(-1)) + top
    return lse - x[np.arange(len(targets)), targets]
