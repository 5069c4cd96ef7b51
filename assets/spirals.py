"""Trains the network of `examples/mlp.rs`: which of two spirals a point is on.

Needs numpy. Writes `spirals.safetensors` beside itself: the weights, 200 points that were not trained on, the spiral of
each, and what this program makes of them.
"""

import json
import struct
from pathlib import Path

import numpy as np

rng = np.random.default_rng(7)


def points(n):
    side = rng.integers(0, 2, n)
    t = np.sqrt(rng.uniform(0.02, 1, n)) * 2.2 * np.pi
    x = np.stack([np.cos(t + np.pi * side), np.sin(t + np.pi * side)], 1) * (t / 7)[:, None]
    return (x + rng.normal(0, 0.02, x.shape)).astype(np.float32), side


def forward(p, x):
    a = np.maximum(x @ p["w1"].T + p["b1"], 0)
    b = np.maximum(a @ p["w2"].T + p["b2"], 0)
    return a, b, b @ p["w3"].T + p["b3"]


sizes = [2, 64, 64, 2]
params = {}
for n, (fan_in, fan_out) in enumerate(zip(sizes, sizes[1:]), 1):
    params[f"w{n}"] = rng.normal(0, np.sqrt(2 / fan_in), (fan_out, fan_in))
    params[f"b{n}"] = np.zeros(fan_out)
moments = {k: [np.zeros_like(v), np.zeros_like(v)] for k, v in params.items()}
x, side = points(4000)
for step in range(1, 4001):
    pick = rng.integers(0, len(x), 256)
    a, b, y = forward(params, x[pick])
    e = np.exp(y - y.max(1, keepdims=True))
    d3 = e / e.sum(1, keepdims=True)
    d3[np.arange(256), side[pick]] -= 1
    d3 /= 256
    d2 = (d3 @ params["w3"]) * (b > 0)
    d1 = (d2 @ params["w2"]) * (a > 0)
    grads = {"w3": d3.T @ b, "b3": d3.sum(0), "w2": d2.T @ a, "b2": d2.sum(0), "w1": d1.T @ x[pick], "b1": d1.sum(0)}
    for k, g in grads.items():
        m, v = moments[k]
        m[:] = 0.9 * m + 0.1 * g
        v[:] = 0.999 * v + 0.001 * g * g
        rate = 0.003 * min(1, 2 * (1 - step / 4000) + 0.02)
        params[k] -= rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)

params = {k: v.astype(np.float32) for k, v in params.items()}
x, side = points(200)
scores = forward(params, x)[2].astype(np.float32)
print("right:", (scores.argmax(1) == side).mean())
tensors = {**params, "points": x, "sides": side.astype(np.int32), "scores": scores}
head, body = {}, b""
for name, value in tensors.items():
    kind = "I32" if value.dtype == np.int32 else "F32"
    head[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [len(body), len(body) + value.nbytes]}
    body += value.tobytes()
text = json.dumps(head).encode()
text += b" " * (-len(text) % 8)
Path(__file__).with_name("spirals.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
