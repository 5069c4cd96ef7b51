#!/usr/bin/env python3
"""Whether a model answers as llama.cpp's greedy run of the same file does.

Usage: tests/greedy.py target/release/fusebox MODEL.gguf [--prompts N] [--tokens N] [fusebox's flags]

llama.cpp (`tests/peer.py`) computes each prompt with the answer of `fusebox run`, and says after each token which one it
would have taken. Where that is another, the two logits must be near each other: both programs round activations.
Fails where one is not.
"""

import argparse
import itertools
import json
import sys

from peer import Llama, library
from tables import told

TOPICS = [
    "the sea", "a small town", "mathematics", "the history of bread", "winter", "a train that is late",
    "the human heart", "an old computer", "music", "the moon",
]
BEGINNINGS = [
    "Here are three facts about {}:", "Once there was a girl who loved {}. One day", "Question: what is {}?\nAnswer:",
    "The most important thing to know about {} is that", "def describe():\n    # prints a text about {}\n",
]
# How far the logits of two tokens may be apart that both programs may take. Rounding moves one by some tenths.
MARGIN = 0.5


def main():
    parser = argparse.ArgumentParser(description="Compares greedy answers with llama.cpp's.")
    parser.add_argument("fusebox")
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=64)
    own, flags = parser.parse_known_args()
    lib = library()
    if lib is None:
        sys.exit("skipped: xllamacpp and numpy are not installed")
    asked = [beginning.format(topic) for topic, beginning in itertools.product(TOPICS, BEGINNINGS)][: own.prompts]
    end = json.loads(told(own.fusebox, "inspect", own.model, "--json"))["metadata"]["tokenizer.ggml.eos_token_id"]
    n_tokens, n_equal, n_same, margins = 0, 0, 0, []
    with Llama(lib, own.model, 512) as peer:
        for prompt in asked:
            command = [own.fusebox, "run", "-m", own.model, "--no-chat", "-p", prompt, "--temp", "0", "--json"]
            run = json.loads(told(*command, "-n", own.tokens, *flags))
            answer = run["tokens"] + [end] * (run["finish"] != "length")
            before = json.loads(told(own.fusebox, "tokens", "-m", own.model, "-p", prompt, "--json"))["tokens"]
            rows = peer.logits([*before, *answer[:-1]], len(before) - 1)
            apart = [row.max() - row[token] for row, token in zip(rows, answer)]
            n_tokens += len(apart)
            n_same += sum(one == 0 for one in apart)
            n_equal += max(apart) == 0
            margins += [one for one in apart if one > 0]
    print(f"{len(asked)} prompts, {n_tokens} tokens: {n_equal} answers equal, {n_same} tokens the same;", end=" ")
    print(f"of the others the logits are at most {max(margins, default=0):.3f} apart")
    sys.exit(int(max(margins, default=0) > MARGIN))


if __name__ == "__main__":
    main()
