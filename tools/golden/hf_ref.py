"""Runs transformers' Qwen3_5MoeForCausalLM on a state dict and records what it
computes: residual stream and mixer output of every layer, routing, logits, greedy
continuation. Float32 with weights widened from bfloat16 is the truth; the bfloat16
run only tells how wide a tolerance has to be."""
import numpy as np
import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

PROMPT_TOKENS = 40
GREEDY_TOKENS = 32
CANDIDATES = 128
FINALISTS = 4


def build(config, weights, dtype):
    """The model of a text config, in eval mode, with exactly these weights; a missing or unknown name is an error."""
    config = {k: v for k, v in config.items() if k not in ("dtype", "quantization", "quantization_config")}
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**config)).eval()
    sd = {k: v.to(torch.float32) for k, v in weights.items()}
    if config.get("tie_word_embeddings", False):
        sd["lm_head.weight"] = sd["model.embed_tokens.weight"]
    model.load_state_dict(sd, strict=True)
    return model.to(dtype)


class Taps:
    """Forward hooks that keep layer outputs, mixer outputs and router logits of the last forward."""

    def __init__(self, model):
        self.hidden, self.mixer, self.router, self.handles = {}, {}, {}, []
        for i, layer in enumerate(model.model.layers):
            mixer = layer.linear_attn if hasattr(layer, "linear_attn") else layer.self_attn
            self.tap(layer, self.hidden, i)
            self.tap(mixer, self.mixer, i)
            self.tap(layer.mlp.gate, self.router, i)

    def tap(self, module, store, i):
        def hook(_, __, out):
            store[i] = (out[0] if isinstance(out, tuple) else out).detach()

        self.handles.append(module.register_forward_hook(hook))

    def remove(self):
        for h in self.handles:
            h.remove()


@torch.no_grad()
def forward(model, tokens):
    """Logits [B, T, V] of one pass over whole sequences [B, T], no cache."""
    return model(input_ids=torch.as_tensor(np.asarray(tokens), dtype=torch.long), use_cache=False).logits


def router_gap(logits, k):
    """Distance between the last chosen and the first rejected expert's logit."""
    top = logits.float().topk(k + 1, dim=-1).values
    return top[..., k - 1] - top[..., k]


@torch.no_grad()
def greedy(model, prompt, count):
    """count tokens by argmax with the cache, the logits [count, V] each was taken from, and the least
    distance between best and second-best logit."""
    out = model(input_ids=torch.as_tensor(prompt, dtype=torch.long)[None], use_cache=True)
    cache, tokens, rows = out.past_key_values, [], []
    for _ in range(count):
        rows.append(out.logits[0, -1].float())
        tokens.append(int(rows[-1].argmax()))
        out = model(input_ids=torch.tensor([[tokens[-1]]]), past_key_values=cache, use_cache=True)
    rows = torch.stack(rows)
    top = rows.topk(2, dim=-1).values
    return np.array(tokens, np.int32), rows.numpy(), float((top[:, 0] - top[:, 1]).min())


@torch.no_grad()
def choose_prompt(s, model):
    """Of many random prompts, one whose routing and greedy choices are far from ties, so that a correct
    implementation with other rounding takes the same discrete decisions."""
    rng = np.random.Generator(np.random.SFC64([s.seed, 2]))
    prompts = rng.integers(0, s.vocab, (CANDIDATES, PROMPT_TOKENS))
    taps = Taps(model)
    forward(model, prompts)
    gaps = torch.stack([router_gap(g.view(CANDIDATES, PROMPT_TOKENS, -1), s.topk) for g in taps.router.values()])
    taps.remove()
    best = gaps.amin(dim=(0, 2)).argsort(descending=True)[:FINALISTS]
    return max((prompts[i] for i in best.tolist()), key=lambda p: greedy(model, p, GREEDY_TOKENS)[2])


@torch.no_grad()
def prompt_router_gap(s, model, prompt):
    """router_gap of every layer and position [L, T]."""
    taps = Taps(model)
    forward(model, prompt[None])
    taps.remove()
    return np.stack([router_gap(g.view(len(prompt), -1), s.topk).numpy() for g in taps.router.values()])


@torch.no_grad()
def decode_logits(model, tokens):
    """Logits of every position from one-token steps with the cache: the recurrent form of DeltaNet."""
    cache, rows = None, []
    for t in tokens:
        out = model(input_ids=torch.tensor([[int(t)]]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0, -1].float().numpy())
    return np.stack(rows)


def record(s, model, prompt):
    """All tensors of a case's golden file."""
    taps = Taps(model)
    logits = forward(model, prompt[None])[0].float().numpy()
    out = {"tokens": prompt.astype(np.int32), "logits": logits}
    embed = model.model.embed_tokens(torch.as_tensor(prompt, dtype=torch.long))
    out["embed"] = embed.detach().float().numpy()
    gaps = []
    for i in range(s.layers):
        out[f"hidden.{i}"] = taps.hidden[i][0].float().numpy()
        out[f"mixer.{i}"] = taps.mixer[i][0].float().numpy()
        routed = taps.router[i].view(PROMPT_TOKENS, -1).float()
        out[f"experts.{i}"] = routed.topk(s.topk, dim=-1).indices.to(torch.int32).numpy()
        gaps.append(router_gap(routed, s.topk).numpy())
    taps.remove()
    out["router_gap"] = np.stack(gaps)
    out["greedy"], out["greedy_logits"], least = greedy(model, prompt, GREEDY_TOKENS)
    return out, least
