"""Models as repositories of the Hub carry them in code of their own, of types that nobody knows."""

import types

import torch
from torch import nn

SIZES = {"width": 64, "heads": 4, "kv_heads": 2, "base": 5e4, "length": 512}


class Config:
    def __init__(self, **more):
        vars(self).update(SIZES, model_type="mine", rope_theta=SIZES["base"], **more)

    def to_dict(self):
        return {"max_position_embeddings": self.length, **vars(self)}


class Tables(nn.Module):
    """Tables of a given length, as Llama's code had them before positions were passed to it."""

    def __init__(self, config):
        super().__init__()
        head_dim = config.width // config.heads
        frequencies = config.base ** -(torch.arange(0, head_dim, 2) / head_dim)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, x, seq_len):
        angles = torch.outer(torch.arange(seq_len), self.inv_freq)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin, position_ids):
    cos, sin = (table[position_ids].unsqueeze(1) for table in (cos, sin))
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class Complex(nn.Module):
    """Complex numbers from positions, as Meta's code of Llama has them."""

    def __init__(self, config):
        super().__init__()
        self.base, self.head_dim = config.base, config.width // config.heads

    def forward(self, position_ids):
        steps = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        angles = position_ids[..., None] * self.base**-steps
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def apply_rotary_emb(x, freqs_cis):
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * freqs_cis[:, :, None]).flatten(-2).to(x.dtype)


def apply_rotary_double(q, k, cos, sin, position_ids):
    return apply_rotary_pos_emb(q, k, cos, -sin, position_ids)


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.linspace(0.5, 1.5, size)), 1e-5

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class LengthAttention(nn.Module):
    """Rotates heads before tokens, after a norm, from tables that it makes for each call."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.head_dim = config.width // config.heads
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.kv_heads * self.head_dim)
        self.q_norm, self.k_norm = RMSNorm(self.head_dim), RMSNorm(self.head_dim)
        self.rotary_emb = Tables(config)

    def forward(self, x, position_ids):
        q = self.q_norm(self.q(x).unflatten(-1, (self.heads, -1))).transpose(1, 2)
        k = self.k_norm(self.k(x).unflatten(-1, (self.kv_heads, -1))).transpose(1, 2)
        cos, sin = self.rotary_emb(k, seq_len=k.shape[-2])
        return self.attend(*apply_rotary_pos_emb(q, k, cos, sin, position_ids))

    def attend(self, q, k):
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        return (q @ k.mT).softmax(-1).matmul(k).transpose(1, 2).flatten(2)


class BackwardAttention(LengthAttention):
    """Turns by the negative angle."""

    def forward(self, x, position_ids):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.k(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        cos, sin = self.rotary_emb(k, seq_len=k.shape[-2])
        return self.attend(*apply_rotary_double(q, k, cos, sin, position_ids))


class ComplexAttention(LengthAttention):
    """Rotates half of a head, q and k one after the other, with tokens before heads."""

    def __init__(self, config):
        super().__init__(config)
        self.q_norm = self.k_norm = None
        half = types.SimpleNamespace(**vars(config) | {"width": config.width // 2})
        self.rotary_emb = Complex(half)

    def make_tables(self, position_ids):
        return self.rotary_emb(position_ids)

    def forward(self, x, position_ids):
        freqs_cis = self.make_tables(position_ids)
        arrays = []
        for project, heads in ((self.q, self.heads), (self.k, self.kv_heads)):
            rest, rotated = project(x).unflatten(-1, (heads, -1)).chunk(2, dim=-1)
            rotated = apply_rotary_emb(rotated, freqs_cis)
            arrays.append(torch.cat([rest, rotated], dim=-1).transpose(1, 2))
        return self.attend(*arrays)


class InlineAttention(ComplexAttention):
    """Makes its tables in no call of a module."""

    def make_tables(self, position_ids):
        return self.rotary_emb.forward(position_ids)


class Model(nn.Module):
    """Layers, of which some may have no attention."""

    def __init__(self, attention, layers=2, skipped=()):
        super().__init__()
        self.config = Config()
        torch.manual_seed(0)
        self.embed = nn.Embedding(64, SIZES["width"])
        self.layers = nn.ModuleList(
            nn.Identity() if i in skipped else attention(self.config) for i in range(layers)
        )

    def forward(self, input_ids, use_cache=False):
        x = self.embed(input_ids)
        ids = torch.arange(input_ids.shape[1])[None]
        for layer in self.layers:
            x = x + (layer(x) if isinstance(layer, nn.Identity) else layer(x, ids))
        return x
