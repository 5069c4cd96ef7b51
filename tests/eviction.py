#!/usr/bin/env python3
"""Renews what `docs/quality.md` says of eviction: two tables and a plot.

Usage: tests/eviction.py target/release/fusebox MODEL.gguf [--chunks N] [--needles N] [--text FILE] [--write]

Perplexity of the second half of chunks of 2048 tokens, where as much is kept as a row says; and how many words that
stand somewhere in a text of some 1400 tokens are found again at its end.
With --write the tables go into the document and the plot beside it, else the tables to standard output.
"""

import argparse
import json
import math
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tables import ROOT, records, table, told, write

PLOT = ROOT / "docs" / "eviction.svg"
CONTEXT = 2048
WINDOWS = [128, 256, 512, 1024]
# An eighth, a quarter and a half of the prompt.
CHOSEN = [128, 256, 512]
# Two commands run at a time.
ALONE = ["--threads", 1]
# Characters of a text, and a little less than a half and a quarter of its tokens.
HAY, KEPT = 5200, [672, 336]
SECRETS = {"Anna": "violin", "Boris": "copper", "Clara": "lantern", "David": "orchard", "Edith": "pepper", "Felix": "harbour"}


def sliding(window, first):
    return ["--evict", "sliding", "--window", window, "--keep-first", first, "--evict-below", 0]


def snapkv(window):
    return ["--evict", "snapkv", "--window", window, "--evict-below", 0]


def perplexities(fusebox, model, text, chunks):
    """A list of points for each policy, what is scored without any, and how many tokens that are."""

    def score(*flags):
        command = [fusebox, "perplexity", "-m", model, "-f", text, "-c", CONTEXT, "--chunks", chunks, "--json"]
        found = json.loads(told(*command, *ALONE, *flags))
        print(*flags, f"{found['perplexity']:.2f}", file=sys.stderr)
        return found

    whole = score()
    curves = {
        "sliding, with first tokens": [(n, score(*sliding(n, 4))["perplexity"]) for n in WINDOWS],
        "sliding, without": [(n, score(*sliding(n, 0))["perplexity"]) for n in WINDOWS],
        "snapkv": [(n, score(*snapkv(n))["perplexity"]) for n in CHOSEN],
    }
    return curves, whole


def needles(fusebox, model, text, n, folder):
    """How many of `n` words are found, for each policy."""
    policies = {"nothing evicted": []}
    for kept in KEPT:
        policies[f"sliding, {kept} and first tokens"] = sliding(kept, 4)
        policies[f"snapkv, {kept}"] = snapkv(kept)
    found = dict.fromkeys(policies, 0)
    n_tokens = []
    for number in range(n):
        start = 1700 * number % (len(text) - HAY)
        hay = text[start : start + HAY]
        # Deeper with every one, at the beginning of a line.
        at = hay.find("\n", int(HAY * (number + 0.5) / n))
        name, secret = list(SECRETS.items())[number % len(SECRETS)]
        # The first token of an answer follows the whole prompt, and is no part of the secret.
        sentence = f"The secret word of {name}"
        prompt = folder / "prompt"
        prompt.write_text(f"{hay[:at]}\n\n{sentence} is {secret}.\n{hay[at:]}\n\n{sentence}", encoding="utf-8")
        for policy, flags in policies.items():
            command = [fusebox, "run", "-m", model, "-f", prompt, "--no-chat", "-n", 5, "--temp", 0, "--json"]
            answer = json.loads(told(*command, *ALONE, *flags))
            n_tokens.append(answer["prompt_tokens"])
            found[policy] += secret in answer["text"]
        print(secret, found, file=sys.stderr)
    return found, round(sum(n_tokens) / len(n_tokens))


def plot(curves, whole):
    """Perplexity over what is kept, both by their logarithms."""
    width, height, left, top = 640, 320, 60, 20
    right, bottom = width - 190, height - 45
    all_values = [value for points in curves.values() for _, value in points] + [whole]
    low, high = math.log2(min(all_values) * 0.95), math.log2(max(all_values) * 1.05)
    first, last = math.log2(WINDOWS[0] * 0.9), math.log2(WINDOWS[-1] * 1.1)
    x = lambda n: left + (right - left) * (math.log2(n) - first) / (last - first)
    y = lambda value: bottom - (bottom - top) * (math.log2(value) - low) / (high - low)
    label = lambda x, y, text, anchor: f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{text}</text>'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#444"/>',
        label((left + right) / 2, height - 8, "tokens kept beside the first", "middle"),
        label(left, top - 6, "perplexity", "middle"),
    ]
    for n in WINDOWS:
        lines.append(label(x(n), bottom + 18, n, "middle"))
    step = 10 if max(all_values) - min(all_values) > 30 else 5
    for tick in range(step * math.ceil(2**low / step), int(2**high) + 1, step):
        lines.append(f'<path d="M{left} {y(tick):.1f}H{right}" stroke="#ddd"/>')
        lines.append(label(left - 6, y(tick) + 4, tick, "end"))
    lines.append(f'<path d="M{left} {y(whole):.1f}H{right}" stroke="#444" stroke-dasharray="5 4"/>')
    lines.append(label(right + 8, y(whole) + 4, "nothing evicted", "start"))
    for (name, points), colour in zip(curves.items(), ["#1f6fb4", "#c0392b", "#2e8b57"]):
        path = "L".join(f"{x(n):.1f} {y(value):.1f}" for n, value in points)
        lines.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        dots = "".join(f'<circle cx="{x(n):.1f}" cy="{y(value):.1f}" r="3"/>' for n, value in points)
        lines.append(f'<g fill="{colour}">{dots}</g>')
        n, value = points[-1]
        # Where both ends meet, the upper name is above its line.
        near = abs(y(value) - y(whole)) < 14
        lines.append(label(x(n) + 8, y(value) + (-8 if near else 4), name, "start"))
    return "\n".join([*lines, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fusebox")
    parser.add_argument("model")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--needles", type=int, default=12)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = given.text or records(folder)
        common = given.fusebox, given.model
        with ThreadPoolExecutor() as pool:
            scores = pool.submit(perplexities, *common, text, given.chunks)
            words = pool.submit(needles, *common, text.read_text(encoding="utf-8"), given.needles, folder)
            (curves, whole), (found, n_tokens) = scores.result(), words.result()
    kept = sorted({n for points in curves.values() for n, _ in points})
    cell = lambda points, n: next((f"{value:.1f}" for own, value in points if own == n), "–")
    rows = [[str(n), *(cell(points, n) for points in curves.values())] for n in kept]
    rows.append(["all", f"{whole['perplexity']:.1f} ± {whole['perplexity_error']:.1f}", "", ""])
    tables = {
        "eviction": f"Over {whole['tokens']} scored tokens:\n\n" + table(["tokens kept", *curves], rows),
        "needles": f"Of {given.needles} words, in texts of {n_tokens} tokens on average:\n\n"
        + table(["kept", "found"], [[policy, str(n)] for policy, n in found.items()]),
    }
    if not given.write:
        print("\n".join(tables.values()))
        return
    write("eviction.py", tables)
    PLOT.write_text(plot(curves, whole["perplexity"]), encoding="utf-8")


main()
