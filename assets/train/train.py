"""Makes the tokenizer and trains the model.

In: the corpus. Out, below `target/train`: `tokenizer.json`, and `weights.pt` with the shape and the weights. A run that
is cut off leaves the weights of its last checkpoint.
"""

import argparse
import math
import time
from pathlib import Path

import numpy
import torch
from torch.nn import functional

from corpus import document
from qwen3 import Qwen3, Shape
from tokenizer import SPECIAL, make

OUT = Path(__file__).resolve().parents[2] / "target" / "train"
TOKENS_A_STEP = 4096
# So many documents are drawn at a time and sorted by their length, so that little of a batch is padding.
N_SORTED = 20_000
# The numbers of the documents that are only measured begin at 0, those that are trained on here.
FIRST = 1_000_000


def batches(tokenizer, first, n_documents, longest, rng):
    """Documents of similar length as the rows of arrays that are padded with -1, in random order."""
    end = tokenizer.token_to_id(SPECIAL[0])
    encodings = tokenizer.encode_batch([document(number) for number in range(first, first + n_documents)])
    rows = [encoding.ids for encoding in encodings]
    # Some rows begin as if another document stood before them.
    rows = [[end] + row if rng.random() < 0.2 else row for row in rows]
    rows = sorted((row for row in rows if len(row) <= longest + 1), key=len, reverse=True)
    result = []
    while rows:
        n = max(1, TOKENS_A_STEP // len(rows[0]))
        batch, rows = rows[:n], rows[n:]
        filled = numpy.full((len(batch), len(batch[0])), -1, dtype=numpy.int16)
        for at, row in enumerate(batch):
            filled[at, : len(row)] = row
        result.append(filled)
    rng.shuffle(result)
    return result


def endless(tokenizer, longest, rng):
    """Batches of documents that are never seen twice."""
    first = FIRST
    while True:
        yield from batches(tokenizer, first, N_SORTED, longest, rng)
        first += N_SORTED


def loss_of(model, batch):
    ids = torch.from_numpy(batch.astype(numpy.int64))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids[:, :-1].clamp(min=0))
    return functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = numpy.random.default_rng(options.seed)
    OUT.mkdir(parents=True, exist_ok=True)

    shape = Shape()
    tokenizer = make(shape.vocabulary)
    tokenizer.save(str(OUT / "tokenizer.json"))
    held_out = batches(tokenizer, 0, 300, shape.context, rng)
    train = endless(tokenizer, shape.context, rng)

    model = Qwen3(shape)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    norms = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    started = time.time()
    n_seen = 0
    warm_up = min(100, options.steps // 10)
    for step in range(options.steps):
        cosine = 0.5 + 0.5 * math.cos(math.pi * step / options.steps)
        for group in optimizer.param_groups:
            group["lr"] = options.rate * min(1, (step + 1) / warm_up) * (0.02 + 0.98 * cosine)
        batch = next(train)
        n_seen += int((batch >= 0).sum())
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 49 or step + 1 == options.steps:
            print(f"step {step + 1}: loss {loss.item():.4f}, {n_seen} tokens, {time.time() - started:.0f} s", flush=True)
        if step % 250 == 249 or step + 1 == options.steps:
            with torch.no_grad():
                unseen = sum(loss_of(model, batch).item() for batch in held_out) / len(held_out)
            print(f"step {step + 1}: held-out loss {unseen:.4f}", flush=True)
            torch.save(model.state_dict(), OUT / "weights.part")
            (OUT / "weights.part").rename(OUT / "weights.pt")


if __name__ == "__main__":
    main()
