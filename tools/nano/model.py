"""The model in plain torch, written for fast training: parameter names and
maths are those of transformers' Qwen3_5MoeForCausalLM (verify.py compares
logits). Differences in form only:

- several conversations share one row; `seg` numbers them, and attention,
  convolution and recurrent state stop at their borders;
- the experts are computed densely and masked by the router's top-8 weights,
  which at this size is faster than gathering;
- every quantised matrix passes through MLX's affine quantisation with a
  straight-through gradient, blended in by `strength` (0 = off, 1 = on).
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from mlx_affine import fake_quantize

CONFIG = dict(vocab_size=4096, hidden_size=256, num_hidden_layers=8, full_attention_interval=4, num_attention_heads=8,
              num_key_value_heads=1, head_dim=256, partial_rotary_factor=0.25, rope_theta=1e7, linear_num_key_heads=2,
              linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
              num_experts=40, num_experts_per_tok=8, moe_intermediate_size=64, shared_expert_intermediate_size=64,
              rms_norm_eps=1e-6, tie_word_embeddings=True)
CHUNK = 64


class Weight(nn.Module):
    """A quantised matrix (or a stack of them) called `weight`."""

    def __init__(self, *shape, bits=4, std=0.02):
        super().__init__()
        self.bits = bits
        self.weight = nn.Parameter(torch.randn(shape) * std)

    def get(self, s, dtype):
        return fake_quantize(self.weight, self.bits, s).to(dtype)

    def forward(self, x, s):
        return F.linear(x, self.get(s, x.dtype))


class Gain(nn.Module):
    """RMS norm whose stored weight is gain - 1 (or the gain itself, `direct`)."""

    def __init__(self, dim, direct=False, eps=1e-6):
        super().__init__()
        self.direct, self.eps = direct, eps
        self.weight = nn.Parameter(torch.ones(dim) if direct else torch.zeros(dim))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (self.weight if self.direct else 1.0 + self.weight)).to(x.dtype)


def delta_rule(q, k, v, g, beta):
    """Chunked gated delta rule, fp32. q, k, v [B, H, T, D]; g (log decay), beta
    [B, H, T]. The state before the first token is zero. T is a multiple of CHUNK."""
    b, h, t, d = q.shape
    q, k, v = (x.reshape(b, h, t // CHUNK, CHUNK, -1) for x in (q, k, v))
    g, beta = (x.reshape(b, h, t // CHUNK, CHUNK) for x in (g, beta))
    vb, kb = v * beta[..., None], k * beta[..., None]
    cum = g.cumsum(-1)
    upper = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    decay = (cum[..., :, None] - cum[..., None, :]).masked_fill(upper, float("-inf")).exp()
    kt = k.transpose(-1, -2)
    system = (kb @ kt) * decay
    inner = (q @ kt) * decay
    rhs = torch.cat([vb, kb * cum.exp()[..., None]], -1)
    solved = torch.linalg.solve_triangular(system, rhs, upper=False, unitriangular=True)
    u, w = solved.split([vb.shape[-1], kb.shape[-1]], -1)
    q = q * cum.exp()[..., None]
    k = k * (cum[..., -1:] - cum).exp()[..., None]
    last = cum[..., -1].exp()[..., None, None]
    state = torch.zeros(b, h, d, v.shape[-1], device=q.device)
    out = []
    for i in range(t // CHUNK):
        new = u[:, :, i] - w[:, :, i] @ state
        out.append(q[:, :, i] @ state + inner[:, :, i] @ new)
        state = state * last[:, :, i] + k[:, :, i].transpose(-1, -2) @ new
    return torch.cat(out, 2)


class LinearAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        h = c["hidden_size"]
        self.kd = c["linear_num_key_heads"] * c["linear_key_head_dim"]
        self.vd = c["linear_num_value_heads"] * c["linear_value_head_dim"]
        nv = c["linear_num_value_heads"]
        self.in_proj_qkv, self.in_proj_z = Weight(2 * self.kd + self.vd, h), Weight(self.vd, h)
        self.in_proj_b, self.in_proj_a = Weight(nv, h), Weight(nv, h)
        self.conv1d = nn.Module()
        self.conv1d.weight = nn.Parameter(torch.empty(2 * self.kd + self.vd, 1, c["linear_conv_kernel_dim"]).uniform_(-0.5, 0.5))
        self.A_log = nn.Parameter(torch.empty(nv).uniform_(1, 16).log())
        dt = torch.exp(torch.empty(nv).uniform_(-6.9, -2.3))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.norm = Gain(c["linear_value_head_dim"], direct=True)
        self.out_proj = Weight(h, self.vd, std=0.02 / (2 * c["num_hidden_layers"]) ** 0.5)

    def conv(self, x, seg):
        w = self.conv1d.weight[:, 0].to(x.dtype)
        n = w.shape[-1]
        y = x * w[:, n - 1]
        for back in range(1, n):
            same = (seg[:, back:] == seg[:, :-back])[..., None]
            y = y + F.pad(x[:, :-back] * same, (0, 0, back, 0)) * w[:, n - 1 - back]
        return F.silu(y)

    def forward(self, x, seg, start, s):
        c = self.c
        b, t, _ = x.shape
        nk, nv, d = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_key_head_dim"]
        q, k, v = self.conv(self.in_proj_qkv(x, s), seg).split([self.kd, self.kd, self.vd], -1)
        heads = lambda y, n: y.reshape(b, t, n, d).transpose(1, 2).float()
        unit = lambda y: y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + 1e-6)
        q, k = (unit(heads(y, nk)).repeat_interleave(nv // nk, 1) for y in (q, k))
        beta = self.in_proj_b(x, s).float().sigmoid()
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x, s).float() + self.dt_bias)
        g = g - 40.0 * start[..., None]  # exp(-40): a new conversation forgets the one before
        with torch.autocast(x.device.type, enabled=False):
            o = delta_rule(q * d ** -0.5, k, heads(v, nv), g.transpose(1, 2), beta.transpose(1, 2))
        o = self.norm(o.transpose(1, 2).to(x.dtype))
        z = self.in_proj_z(x, s).reshape(b, t, nv, d)
        o = (o.float() * F.silu(z.float())).to(x.dtype)
        return self.out_proj(o.reshape(b, t, -1), s)


class FullAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        h, n, g, d = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj, self.k_proj, self.v_proj = Weight(2 * n * d, h), Weight(g * d, h), Weight(g * d, h)
        self.o_proj = Weight(h, n * d, std=0.02 / (2 * c["num_hidden_layers"]) ** 0.5)
        self.q_norm, self.k_norm = Gain(d), Gain(d)

    def forward(self, x, mask, rope, s):
        c = self.c
        b, t, _ = x.shape
        n, g, d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        q, gate = self.q_proj(x, s).view(b, t, n, 2 * d).chunk(2, -1)
        q = rotate(self.q_norm(q).transpose(1, 2), rope)
        k = rotate(self.k_norm(self.k_proj(x, s).view(b, t, g, d)).transpose(1, 2), rope)
        v = self.v_proj(x, s).view(b, t, g, d).transpose(1, 2)
        scores = (q.reshape(b, g, n // g * t, d) @ k.transpose(-1, -2)).view(b, n, t, t)
        p = (scores.float() * d ** -0.5).masked_fill(~mask[:, None], float("-inf")).softmax(-1).to(x.dtype)
        o = (p.view(b, g, n // g * t, t) @ v).view(b, n, t, d).transpose(1, 2)
        return self.o_proj((o * gate.sigmoid()).reshape(b, t, -1), s)


def rotate(x, rope):
    cos, sin = rope
    n = cos.shape[-1]
    y, rest = x[..., :n], x[..., n:]
    a, b = y.chunk(2, -1)
    return torch.cat([y * cos + torch.cat([-b, a], -1) * sin, rest], -1)


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        e, f, h = c["num_experts"], c["moe_intermediate_size"], c["hidden_size"]
        self.gate_up_proj = nn.Parameter(torch.randn(e, 2 * f, h) * 0.02)
        self.down_proj = nn.Parameter(torch.randn(e, h, f) * 0.02 / (2 * c["num_hidden_layers"]) ** 0.5)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        h, f = c["hidden_size"], c["shared_expert_intermediate_size"]
        self.gate = Weight(c["num_experts"], h, bits=8)
        self.experts = Experts(c)
        self.shared_expert = nn.Module()
        self.shared_expert.gate_proj, self.shared_expert.up_proj = Weight(f, h), Weight(f, h)
        self.shared_expert.down_proj = Weight(h, f, std=0.02 / (2 * c["num_hidden_layers"]) ** 0.5)
        self.shared_expert_gate = Weight(1, h, bits=8)

    def forward(self, x, s):
        c = self.c
        p = self.gate(x, s).float().softmax(-1)
        top, index = p.topk(c["num_experts_per_tok"], -1)
        weights = torch.zeros_like(p).scatter(-1, index, top / top.sum(-1, keepdim=True))
        used = (weights.detach() > 0).float().mean((0, 1)) / c["num_experts_per_tok"]
        balance = c["num_experts"] * (used * p.mean((0, 1))).sum()
        w = fake_quantize(self.experts.gate_up_proj, 4, s).to(x.dtype)
        f = w.shape[1] // 2
        a = F.silu(F.linear(x, w[:, :f].flatten(0, 1))) * F.linear(x, w[:, f:].flatten(0, 1))
        a = (a.unflatten(-1, (-1, f)) * weights.to(x.dtype)[..., None]).flatten(-2)
        down = fake_quantize(self.experts.down_proj, 4, s).to(x.dtype)
        y = F.linear(a, down.transpose(0, 1).flatten(1))
        e = self.shared_expert
        z = e.down_proj(F.silu(e.gate_proj(x, s)) * e.up_proj(x, s), s)
        return y + self.shared_expert_gate(x, s).sigmoid() * z, balance


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.full = (index + 1) % c["full_attention_interval"] == 0
        self.input_layernorm, self.post_attention_layernorm = Gain(c["hidden_size"]), Gain(c["hidden_size"])
        if self.full:
            self.self_attn = FullAttention(c)
        else:
            self.linear_attn = LinearAttention(c)
        self.mlp = Mlp(c)

    def forward(self, x, seg, start, mask, rope, s):
        y = self.input_layernorm(x)
        x = x + (self.self_attn(y, mask, rope, s) if self.full else self.linear_attn(y, seg, start, s))
        y, balance = self.mlp(self.post_attention_layernorm(x), s)
        return x + y, balance


class Inner(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = Weight(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.norm = Gain(c["hidden_size"])


class Nano(nn.Module):
    def __init__(self, c=CONFIG):
        super().__init__()
        self.c = c
        self.model = Inner(c)
        if not c["tie_word_embeddings"]:
            self.lm_head = Weight(c["vocab_size"], c["hidden_size"])

    def forward(self, ids, seg, s, dtype=torch.bfloat16):
        """ids, seg [B, T] -> (hidden [B, T, C] after the last norm, balance loss)."""
        c, t = self.c, ids.shape[1]
        start = torch.ones_like(seg, dtype=torch.float32)
        start[:, 1:] = (seg[:, 1:] != seg[:, :-1]).float()
        mask = (seg[:, :, None] == seg[:, None, :]) & torch.ones(t, t, dtype=torch.bool, device=ids.device).tril()
        n = int(c["head_dim"] * c["partial_rotary_factor"])
        freq = c["rope_theta"] ** (-torch.arange(0, n, 2, device=ids.device).float() / n)
        angle = torch.arange(t, device=ids.device).float()[:, None] * torch.cat([freq, freq])
        rope = angle.cos().to(dtype), angle.sin().to(dtype)
        x = F.embedding(ids, self.model.embed_tokens.get(s, dtype))
        balance = 0.0
        for layer in self.model.layers:
            x, extra = layer(x, seg, start, mask, rope, s)
            balance = balance + extra
        return self.model.norm(x), balance / len(self.model.layers)

    def logits(self, hidden, s):
        head = self.model.embed_tokens if self.c["tie_word_embeddings"] else self.lm_head
        return head(hidden, s)
