"""RoPE in a module as Hugging Face shapes it: heads first, angles once for all layers."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import rope_xp


class Attention(nn.Module):
    def __init__(self, config: dict, layer_idx: int = 0):
        super().__init__()
        self.head_dim, self.layer_idx = config["head_dim"], layer_idx
        dim = config["hidden_size"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.q_proj = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, dim, bias=False)

    def forward(
        self, hidden_states: Tensor, angles: rope_xp.Angles, past_key_values=None
    ) -> Tensor:
        q, k, v = (
            project(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = angles.apply(q, k, axes="bhsd")  # (batch, heads, tokens, head_dim)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        tokens, keys = q.shape[2], k.shape[2]
        seen = torch.ones(tokens, keys, dtype=torch.bool, device=q.device).tril(keys - tokens)
        y = scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Layers(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        self.rope = rope_xp.from_hf_config(config)  # layout, base and scaling rule, by model_type
        self.layers = nn.ModuleList(
            Attention(config, i) for i in range(config["num_hidden_layers"])
        )
        self.head_dim = config["head_dim"]

    def forward(self, hidden_states: Tensor, position_ids: Tensor, past_key_values=None) -> Tensor:
        like = hidden_states[..., : self.head_dim]  # its dtype, device and length are read
        angles = self.rope.at(position_ids, like=like)
        for layer in self.layers:
            hidden_states = hidden_states + layer(hidden_states, angles, past_key_values)
        return hidden_states


CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "head_dim": 32,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "rope_theta": 500_000.0,
}


def main() -> None:
    torch.manual_seed(0)
    layers = Layers(CONFIG)
    x = torch.randn(2, 16, 256)
    position_ids = torch.stack([torch.arange(16), 1000 + torch.arange(16)])
    here = layers(x[:1], position_ids[:1])
    there = layers(x[:1], position_ids[1:])
    # Attention depends only on relative positions.
    torch.testing.assert_close(there, here, rtol=0, atol=1e-4)
    layers(x, position_ids).square().mean().backward()
    print(f"{layers.rope}\n1000 tokens on: {(there - here).abs().max():.0e} from the start")


if __name__ == "__main__":
    main()
