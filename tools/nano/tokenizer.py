"""Trains the byte-level BPE of lily-nano: NFC, a pre-tokenisation in which a run
of letters never takes the space, quote or "=" before it along, and the family's
control tokens. A name has therefore the same tokens in a question, in a JSON
schema and in a call, and copying it is copying tokens. Digits stand alone; the
glue of JSON (`": "`, `"}, "`) stays together. Chat tokens are special; think and
tool tokens are not, so that they decode as text."""
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCAB = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)(?!\p{L})|[\p{L}\p{M}]+|\p{N}|[\]}\"]*[:,] [\[{\"]*"
         r"|[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(texts, out_dir):
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    # Control tokens are added after training, so that they get the last ids.
    plain = []
    for t in texts:
        for s in SPECIAL + PLAIN:
            t = t.replace(s, "\n")
        plain.append(t)
    tok.train_from_iterator(plain, trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL) - len(PLAIN), min_frequency=2, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tok.add_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    tok.add_tokens([AddedToken(s, special=False, normalized=False) for s in PLAIN])
    tok.save(str(out_dir / "tokenizer.json"))
    config = {
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "errors": "replace",
        "model_max_length": 4096, "split_special_tokens": False, "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {
            str(tok.token_to_id(s)): {"content": s, "lstrip": False, "normalized": False, "rstrip": False,
                                      "single_word": False, "special": s in SPECIAL} for s in SPECIAL + PLAIN},
    }
    (out_dir / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"{tok.get_vocab_size()} entries; " + ", ".join(f"{s} {tok.token_to_id(s)}" for s in SPECIAL + PLAIN))
