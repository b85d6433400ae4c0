"""Scores models/lily-nano, the quantised files, with MLX-LM on the CPU: greedy
decoding of the evaluation sets.

    python evaluate_mlx.py [--every 1] [--sets qa tool ...] [--wrong FILE]"""
import argparse
import json

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from tokenizers import Tokenizer

import scoring
from template import MODEL_DIR


def greedy(model, ids, stops, limit):
    cache, out = make_prompt_cache(model), []
    y = mx.array([ids])
    for _ in range(limit):
        token = int(mx.argmax(model(y, cache=cache)[0, -1]))
        out.append(token)
        if token in stops:
            break
        y = mx.array([[token]])
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--every", type=int, default=1, help="take every n-th case")
    ap.add_argument("--sets", nargs="*", default=scoring.SETS)
    ap.add_argument("--wrong", help="write the wrong answers to this file")
    a = ap.parse_args()
    mx.set_default_device(mx.cpu)
    model, _ = load_model(MODEL_DIR)
    tok = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    stops = {tok.token_to_id("<|im_end|>"), tok.token_to_id("<|endoftext|>")}
    results = []
    for name in a.sets:
        for text, row in scoring.load(name)[:: a.every]:
            ids = greedy(model, tok.encode(text).ids, stops, scoring.MAX_TOKENS)
            results.append((name, row, tok.decode([i for i in ids if i not in stops], skip_special_tokens=False), ids[-1] in stops))
    scoring.report(results)
    if a.wrong:
        wrong = [dict(set=s, text=t, last=r["messages"][-1]["content"], expect=r["expect"]) for s, r, t, done in results if not scoring.right(r, t, done)]
        with open(a.wrong, "w") as f:
            json.dump(wrong, f, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main()
