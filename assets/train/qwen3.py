"""Qwen3 written plainly, and its weights read back from a GGUF file.

In: a shape, and token ids. Out: logits. The names of the parameters are the names of the tensors in a GGUF file, so
nothing has to be renamed on the way out or in. There is no cache: every call computes every position.
"""

from dataclasses import dataclass

import numpy
import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    n_layers: int = 5
    hidden: int = 256
    n_heads: int = 6
    n_kv_heads: int = 2
    head_size: int = 64
    feed_forward: int = 512
    vocabulary: int = 1536
    context: int = 512
    theta: float = 10000.0
    epsilon: float = 1e-6


class Norm(nn.Module):
    """A row divided by its root mean square, and scaled."""

    def __init__(self, size: int, epsilon: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x):
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.epsilon)


def rotate(x, cos, sin):
    """Turns the pairs (i, i + half) of each head; `x` is [batch, head, position, element]."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


class Block(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        q_width, kv_width = shape.n_heads * shape.head_size, shape.n_kv_heads * shape.head_size
        self.attn_norm = Norm(shape.hidden, shape.epsilon)
        self.attn_q = nn.Linear(shape.hidden, q_width, bias=False)
        self.attn_k = nn.Linear(shape.hidden, kv_width, bias=False)
        self.attn_v = nn.Linear(shape.hidden, kv_width, bias=False)
        self.attn_q_norm = Norm(shape.head_size, shape.epsilon)
        self.attn_k_norm = Norm(shape.head_size, shape.epsilon)
        self.attn_output = nn.Linear(q_width, shape.hidden, bias=False)
        self.ffn_norm = Norm(shape.hidden, shape.epsilon)
        self.ffn_gate = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.hidden, bias=False)
        mask = torch.full((shape.context, shape.context), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def attention(self, x, cos, sin):
        batch, length, _ = x.shape

        def heads(projection, n_heads):
            return projection(x).view(batch, length, n_heads, self.shape.head_size).transpose(1, 2)

        q = rotate(self.attn_q_norm(heads(self.attn_q, self.shape.n_heads)), cos, sin)
        k = rotate(self.attn_k_norm(heads(self.attn_k, self.shape.n_kv_heads)), cos, sin)
        v = heads(self.attn_v, self.shape.n_kv_heads)
        group = self.shape.n_heads // self.shape.n_kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = (q * self.shape.head_size**-0.5) @ k.transpose(-1, -2)
        mixed = (scores + self.mask[:length, :length]).softmax(dim=-1) @ v
        return self.attn_output(mixed.transpose(1, 2).reshape(batch, length, -1))

    def feed_forward(self, x):
        return self.ffn_down(functional.silu(self.ffn_gate(x)) * self.ffn_up(x))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attn_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Qwen3(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.output_norm = Norm(shape.hidden, shape.epsilon)
        self.begin()
        half = shape.head_size // 2
        frequency = shape.theta ** -(torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(shape.context, dtype=torch.float64)[:, None] * frequency
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    @torch.no_grad()
    def begin(self):
        """Random weights. A head begins by copying what it looks at, so only where to look has to be learnt."""
        scale = self.shape.hidden**-0.5
        nn.init.normal_(self.token_embd.weight, std=scale)
        for block in self.blk:
            for layer in (block.attn_q, block.attn_k, block.attn_v, block.ffn_gate, block.ffn_up):
                nn.init.normal_(layer.weight, std=scale)
            nn.init.normal_(block.ffn_down.weight, std=0.2 * self.shape.feed_forward**-0.5)
            group = self.shape.n_heads // self.shape.n_kv_heads
            values = block.attn_v.weight.view(self.shape.n_kv_heads, self.shape.head_size, -1)
            copied = values.repeat_interleave(group, dim=0).reshape(-1, self.shape.hidden)
            block.attn_output.weight.copy_(0.1 * copied.T)

    def forward(self, ids):
        """Logits [batch, position, token] for ids [batch, position]."""
        length = ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, cos, sin)
        return functional.linear(self.output_norm(x), self.token_embd.weight)


def read_gguf(path):
    """The model of a GGUF file with its weights dequantised to 32-bit floats."""
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(path)
    value = lambda key: reader.fields[f"qwen3.{key}"].contents()
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    shape = Shape(
        n_layers=value("block_count"),
        hidden=value("embedding_length"),
        n_heads=value("attention.head_count"),
        n_kv_heads=value("attention.head_count_kv"),
        head_size=value("attention.key_length"),
        feed_forward=value("feed_forward_length"),
        vocabulary=len(reader.fields["tokenizer.ggml.tokens"].contents()),
        context=value("context_length"),
        theta=value("rope.freq_base"),
        epsilon=value("attention.layer_norm_rms_epsilon"),
    )
    model = Qwen3(shape)
    floats = {name: dequantize(tensor.data, tensor.tensor_type) for name, tensor in tensors.items()}
    model.load_state_dict({name: torch.from_numpy(numpy.array(x, dtype="f4")) for name, x in floats.items()})
    return model.eval(), reader
