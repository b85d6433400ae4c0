"""Trains lily-nano within a wall-clock budget and writes bf16 safetensors
shards with transformers' parameter names.

    python train.py --data train.npz --out DIR --minutes 9

The learning rate and the quantisation-aware part follow elapsed time over the
budget, so the same command suits any device. Conversations are packed into
rows of --row tokens and isolated from each other (model.py). The weights are
saved before anything is scored; with --deadline they are saved by then."""
import argparse
import json
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F

import scoring
import template
from model import CONFIG, Nano
from unpack import load_quantised

QAT_FROM, QAT_FULL = 0.55, 0.60
SAVING = 5.0  # seconds kept for the last step and the writing of the weights
RARE, EMPHASIS = 1e-4, 4.0  # answer tokens seldomer than RARE weigh more, at most EMPHASIS times


def pack(tokens, lengths, row, rng, open_rows=12):
    """-> ids [R, row] (int16), seg [R, row] (uint8, 255 = padding), weight class
    of each position as a target (0 none, 1 prompt, 2 completion)."""
    ends = np.cumsum(lengths[:, 1].astype(np.int64))
    order = rng.permutation(np.flatnonzero(lengths[:, 1] <= row))
    place, number = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.uint8)
    rows, used = 0, []  # used: [row index, fill, conversations]
    sizes = lengths[:, 1].astype(int).tolist()
    for i in order.tolist():
        n = sizes[i]
        for u in used:
            if u[1] + n <= row:
                break
        else:
            if len(used) >= open_rows:
                used.remove(max(used, key=lambda u: u[1]))
            u = [rows, 0, 0]
            used.append(u)
            rows += 1
        place[i], number[i] = u[0] * row + u[1], u[2]
        u[1] += n
        u[2] += 1
    ids, seg, kind = np.zeros(rows * row, np.int16), np.full(rows * row, 255, np.uint8), np.zeros(rows * row, np.uint8)
    n = lengths[order, 1].astype(np.int64)
    inside = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
    to = np.repeat(place[order], n) + inside
    ids[to] = tokens[np.repeat(ends[order] - n, n) + inside]
    seg[to] = np.repeat(number[order], n)
    kind[to] = np.where(inside >= np.repeat(lengths[order, 0].astype(np.int64), n), 2, np.where(inside > 0, 1, 0))
    return (x.reshape(rows, row) for x in (ids, seg, kind))


def emphasis_of(ids, kind, vocab):
    """Weight of every token as an answer token: what is rarely an answer, such as a
    piece of a name to copy, counts more. [vocab]"""
    count = torch.bincount(ids[kind == 2].long(), minlength=vocab).float()
    return (RARE * count.sum() / count.clamp_min(1)).sqrt().clamp(1.0, EMPHASIS)


def loss_of(model, hidden, ids, kind, strength, prompt_weight, emphasis):
    logits = model.logits(hidden[:, :-1], strength).float()
    k = kind[:, 1:]
    weight = (k == 2).float() * emphasis[ids[:, 1:]] + prompt_weight * (k == 1).float()
    each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view_as(weight)
    done = (k == 2).float()
    return (each * weight).sum() / weight.sum(), (each.detach() * done).sum() / done.sum()


@torch.no_grad()
def generate(model, prompts, stops, max_tokens, device, tokens_per_batch=98_304):
    """Greedy continuation of token lists, by full forward passes of growing rows."""
    strength, out = torch.ones((), device=device), [None] * len(prompts)
    todo = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    while todo:
        width = (len(prompts[todo[0]]) + 64) // 64 * 64
        batch = []
        while todo and len(batch) < tokens_per_batch // (width + 64) and len(prompts[todo[0]]) <= width:
            batch.append(todo.pop(0))
        rows = {i: list(prompts[i]) for i in batch}
        live = list(batch)
        for _ in range(max_tokens):
            t = (max(len(rows[i]) for i in live) + 63) // 64 * 64
            ids = torch.zeros(len(live), t, dtype=torch.long)
            for j, i in enumerate(live):
                ids[j, : len(rows[i])] = torch.tensor(rows[i])
            last = torch.tensor([len(rows[i]) - 1 for i in live], device=device)
            ids = ids.to(device)
            hidden, _ = model(ids, torch.zeros_like(ids), strength, torch.bfloat16)
            best = model.logits(hidden[torch.arange(len(live), device=device), last], strength).float().argmax(-1).tolist()
            for i, token in zip(live, best):
                rows[i].append(token)
            live = [i for i in live if rows[i][-1] not in stops]
            if not live:
                break
        for i in batch:
            out[i] = rows[i][len(prompts[i]):]
    return out


def thin(cases, limit):
    return cases[:: max(1, len(cases) // limit)] if limit else cases


def evaluate(model, tok, device, sets=scoring.SETS, limit=None):
    cases = [(name, *case) for name in sets for case in thin(scoring.load(name), limit)]
    stops = {tok.token_to_id("<|im_end|>"), tok.token_to_id("<|endoftext|>")}
    texts = generate(model, [tok.encode(p).ids for _, p, _ in cases], stops, scoring.MAX_TOKENS, device)
    return [(name, row, tok.decode([t for t in ids if t not in stops], skip_special_tokens=False), ids[-1] in stops)
            for (name, _, row), ids in zip(cases, texts)]


def save(model, out, shard_bytes=15 << 20):
    from safetensors.torch import save_file
    shard, size, k = {}, 0, 1
    for name, p in model.state_dict().items():
        p = p.detach().to(torch.bfloat16).contiguous().cpu()
        if shard and size + p.numel() * 2 > shard_bytes:
            save_file(shard, out / f"part-{k}.safetensors")
            shard, size, k = {}, 0, k + 1
        shard[name] = p
        size += p.numel() * 2
    save_file(shard, out / f"part-{k}.safetensors")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--data", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--minutes", type=float, default=9)
    ap.add_argument("--deadline", type=float, help="Unix time by which the weights are saved, whatever --minutes says")
    ap.add_argument("--row", type=int, default=512)
    ap.add_argument("--rows", type=int, default=128, help="rows in a batch")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--init", help="folder of a quantised model to go on from; quantisation-aware from the first step")
    ap.add_argument("--prompt-weight", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--eval-limit", type=int, help="about so many cases per evaluation set, evenly spread")
    a = ap.parse_args()
    began = time.time()
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    rng = np.random.default_rng(a.seed)
    data = np.load(a.data)
    ids, seg, kind = (torch.from_numpy(x).to(a.device) for x in pack(data["tokens"], data["lengths"], a.row, rng))
    print(f"{len(ids)} rows of {a.row}, {100 * (seg != 255).float().mean():.1f} % full, packed in {time.time() - began:.1f} s", flush=True)
    model = Nano().to(a.device)
    if a.init:
        model.load_state_dict(load_quantised(pathlib.Path(a.init)))
    emphasis = emphasis_of(ids, kind, CONFIG["vocab_size"])
    run = model
    if not a.no_compile:
        for layer in model.model.layers:
            layer.compile()
    matrices = [p for p in model.parameters() if p.dim() > 1 and p.shape[-1] >= 64]
    others = [p for p in model.parameters() if not (p.dim() > 1 and p.shape[-1] >= 64)]
    opt = torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=others, weight_decay=0.0)],
                            lr=a.lr, betas=(0.9, 0.95), eps=1e-10, fused=a.device == "cuda")
    strength = torch.zeros((), device=a.device)
    step, epoch, order, log = 0, 0, torch.empty(0, dtype=torch.long), []
    clock, budget, shown = None, a.minutes * 60, []
    while True:
        if len(order) < a.rows:
            order, epoch = torch.from_numpy(rng.permutation(len(ids))), epoch + 1
        pick, order = order[: a.rows].to(a.device), order[a.rows:]
        x, s, k = ids[pick].long(), seg[pick].long(), kind[pick]
        part = 0.0 if clock is None else (time.time() - clock) / budget
        if part >= 1:
            break
        warm = min(1.0, (step + 1) / 150)
        lr = a.lr * warm * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * part)))
        for g in opt.param_groups:
            g["lr"] = lr
        strength.fill_(1.0 if a.init else min(1.0, max(0.0, (part - QAT_FROM) / (QAT_FULL - QAT_FROM))))
        hidden, balance = run(x, s, strength)
        loss, answer = loss_of(model, hidden, x, k, strength, a.prompt_weight, emphasis)
        (loss + 0.003 * balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        step += 1
        shown.append((answer.detach(), balance.detach(), norm))
        if step == 3:  # compilation is over: the budget starts here
            if a.device == "cuda":
                torch.cuda.synchronize()
            clock = time.time()
            if a.deadline:
                budget = max(1.0, min(budget, a.deadline - SAVING - clock))
            print(f"first steps (compilation) {clock - began:.1f} s, {budget:.0f} s to train", flush=True)
        if step % 100 == 0 or step == 20:
            m = torch.stack([torch.stack([v.float() for v in e]) for e in shown]).mean(0).tolist()
            shown = []
            t = time.time() - clock
            log.append(dict(step=step, seconds=round(t, 1), answer_loss=m[0], balance=m[1], grad_norm=m[2], lr=lr, qat=strength.item()))
            print(f"step {step} epoch {epoch} {t:.0f} s answer loss {m[0]:.4f} balance {m[1]:.3f} grad {m[2]:.2f} "
                  f"lr {lr:.2e} qat {strength.item():.2f} {(step - 3) * a.rows * a.row / t / 1e3:.0f} k tokens/s", flush=True)
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    save(model, out)
    trained = time.time() - began
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(str(template.MODEL_DIR / "tokenizer.json"))
    for layer in model.model.layers:
        layer._compiled_call_impl = None  # rows of many widths: plain execution
    for p in model.parameters():
        p.data = p.data.to(torch.bfloat16).float()  # score what was saved
    summary = dict(config=CONFIG, arguments=vars(a), steps=step, epochs=epoch, seconds_before_evaluation=trained,
                   torch=torch.__version__, device=torch.cuda.get_device_name() if a.device == "cuda" else "cpu",
                   peak_gib=torch.cuda.max_memory_allocated() / 2**30 if a.device == "cuda" else 0, log=log)
    (out / "train.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{step} steps, weights saved after {trained:.0f} s, peak {summary['peak_gib']:.1f} GiB", flush=True)
    results = evaluate(model, tok, a.device, limit=a.eval_limit)
    summary |= dict(seconds=time.time() - began, scores=scoring.report(results))
    (out / "train.json").write_text(json.dumps(summary, indent=1) + "\n")
    wrong = [dict(set=s, text=text, stopped=stop, last=row["messages"][-1]["content"], expect=row["expect"]) for s, row, text, stop in results if not scoring.right(row, text, stop)]
    (out / "wrong.json").write_text(json.dumps(wrong, indent=1, ensure_ascii=False) + "\n")
    print(f"{time.time() - began:.0f} s in all")


if __name__ == "__main__":
    main()
