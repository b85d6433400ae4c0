"""The tiny checkpoint shapes. Each is chosen to break one assumption that the
35B shape would let pass: other head counts and sizes, tied head, interval 2,
key and value heads equal, key and value sizes unequal, a last layer that is not
full attention, an epsilon that is not the l2 norm's."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    name: str
    seed: int
    hidden: int = 64
    vocab: int = 256
    layers: int = 4
    interval: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary: float = 0.25
    theta: float = 1e7
    lin_k_heads: int = 2
    lin_v_heads: int = 4
    lin_k_dim: int = 32
    lin_v_dim: int = 32
    conv: int = 4
    experts: int = 8
    topk: int = 2
    moe_inter: int = 64
    shared_inter: int = 64
    tied: bool = False
    eps: float = 1e-6
    naming: str = "text"  # text: model.layers; outer: model.language_model.layers; split: one tensor per expert
    shards: int = 1
    f32_decay: bool = False  # A_log and dt_bias kept float32 in the file
    extras: bool = False  # also carries vision and mtp tensors, to be left alone
    faint_key_head: bool = False  # one key head so small that the l2 epsilon shows
    committed: bool = True  # False: only its quantised twin is committed

    def is_linear(self, i):
        return (i + 1) % self.interval != 0

    @property
    def key_width(self):
        return self.lin_k_heads * self.lin_k_dim

    @property
    def value_width(self):
        return self.lin_v_heads * self.lin_v_dim

    @property
    def conv_width(self):
        return 2 * self.key_width + self.value_width


SHAPES = [
    Shape("base", 11, faint_key_head=True),
    # the head sizes of the 35B: 8 query heads on one kv head of 256, DeltaNet 128 x 128
    Shape("family_heads", 12, layers=2, interval=2, heads=8, kv_heads=1, head_dim=256, lin_k_heads=1,
          lin_v_heads=2, lin_k_dim=128, lin_v_dim=128, topk=4, naming="outer"),
    Shape("tied", 13, hidden=96, vocab=320, interval=2, heads=2, kv_heads=2, rotary=0.5, theta=1e4,
          lin_v_heads=2, topk=4, moe_inter=32, shared_inter=96, tied=True),
    Shape("experts", 14, layers=2, interval=2, heads=4, kv_heads=1, head_dim=32, rotary=0.5, lin_k_heads=1,
          lin_v_heads=2, lin_k_dim=64, lin_v_dim=64, experts=32, topk=8, moe_inter=32, shared_inter=32,
          naming="split"),
    Shape("sharded", 15, vocab=384, layers=5, heads=6, kv_heads=3, head_dim=32, lin_v_dim=64, experts=12,
          topk=3, moe_inter=32, shared_inter=128, eps=1e-3, naming="outer", shards=3, f32_decay=True,
          extras=True),
    Shape("group128", 16, hidden=128, layers=2, interval=2, heads=2, kv_heads=1, lin_v_heads=2, lin_k_dim=64,
          lin_v_dim=64, moe_inter=128, shared_inter=128, committed=False),
]
BY_NAME = {s.name: s for s in SHAPES}
