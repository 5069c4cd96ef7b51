"""Makes the tokenizer and trains the model.

In: the corpus. Out, below `target/train`: `tokenizer.json`, and `weights.pt` with the shape and the weights. A run that
is cut off leaves the weights of its last checkpoint.
"""

import argparse
import itertools
import math
import time
from pathlib import Path

import numpy
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from corpus import document
from qwen3 import Qwen3, Shape
from tokenizer import SPECIAL, make

OUT = Path(__file__).resolve().parents[2] / "target" / "train"
TOKENS_A_STEP = 1024
# So many documents are drawn at a time and sorted by their length, so that little of a batch is padding.
N_SORTED = 1_000
# The numbers of the documents that are only measured begin at 0, those that are trained on here.
FIRST = 1_000_000
# The first part of a run is rich in documents that can only be guessed by looking back.
DRILL = 0.4
WARM_UP = 200
SECONDS_BETWEEN_CHECKPOINTS = 120


def batches(tokenizer, first, n_documents, longest, rng, is_drill=False):
    """Documents of similar length as the rows of arrays that are padded with -1, in random order."""
    end = tokenizer.token_to_id(SPECIAL[0])
    encodings = tokenizer.encode_batch([document(number, is_drill) for number in range(first, first + n_documents)])
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


def loss_of(model, batch):
    ids = torch.from_numpy(batch.astype(numpy.int64))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids[:, :-1].clamp(min=0))
    return functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--resume", action="store_true", help="go on from the weights of the last run")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = numpy.random.default_rng(options.seed)
    OUT.mkdir(parents=True, exist_ok=True)

    shape = Shape()
    if options.resume:
        tokenizer = Tokenizer.from_file(str(OUT / "tokenizer.json"))
    else:
        tokenizer = make(shape.vocabulary)
        tokenizer.save(str(OUT / "tokenizer.json"))
    held_out = batches(tokenizer, 0, 300, shape.context, rng)
    first = FIRST
    model = Qwen3(shape)
    if options.resume:
        model.load_state_dict(torch.load(OUT / "weights.pt", weights_only=True))
        # Another seed brings other documents.
        first += 10_000_000 * options.seed
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    decayed = [p for name, p in model.named_parameters() if p.dim() == 2 and "token_embd" not in name]
    free = [p for name, p in model.named_parameters() if p.dim() == 1 or "token_embd" in name]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    started = last_saved = time.time()
    queue, n_seen, smooth, done = [], 0, None, 0.0
    for step in itertools.count(1):
        # A cosine over the time that is given, as a machine that has other work may be slow for a while.
        done = min(1.0, (time.time() - started) / (60 * options.minutes))
        rate = options.rate * min(1, step / WARM_UP) * (0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        if not queue:
            queue = batches(tokenizer, first, N_SORTED, shape.context, rng, is_drill=done < DRILL)
            first += N_SORTED
        batch = queue.pop()
        n_seen += int((batch >= 0).sum())
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
        if step % 100 == 0 or done == 1.0:
            spent = time.time() - started
            print(f"step {step}: loss {smooth:.4f}, {n_seen} tokens, {spent:.0f} s", flush=True)
        if time.time() - last_saved > SECONDS_BETWEEN_CHECKPOINTS or done == 1.0:
            last_saved = time.time()
            with torch.no_grad():
                unseen = sum(loss_of(model, batch).item() for batch in held_out) / len(held_out)
            print(f"step {step}: held-out loss {unseen:.4f}", flush=True)
            torch.save(model.state_dict(), OUT / "weights.part")
            (OUT / "weights.part").rename(OUT / "weights.pt")
        if done == 1.0:
            break


if __name__ == "__main__":
    main()
