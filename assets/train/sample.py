"""Lets the model of a GGUF file write: once greedily, and a few times by chance.

In: a prompt, `--chat` to put it into ChatML. Out: texts, each with its number of tokens and how it ended.
"""

import argparse

import torch

from export import STORY
from qwen3 import read_gguf
from tokenizer import SPECIAL, read


def as_chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


@torch.inference_mode()
def write(model, tokenizer, prompt, temperature, seed=0):
    """The text that follows the prompt, its number of tokens, and whether it ended by itself."""
    ids = tokenizer.encode(prompt).ids
    start = len(ids)
    stop = [tokenizer.token_to_id(text) for text in SPECIAL]
    generator = torch.Generator().manual_seed(seed)
    while len(ids) < model.shape.context:
        logits = model(torch.tensor([ids]))[0, -1]
        if temperature == 0:
            token = int(logits.argmax())
        else:
            token = int(torch.multinomial((logits / temperature).softmax(0), 1, generator=generator))
        if token in stop:
            return tokenizer.decode(ids[start:]), len(ids) - start, True
        ids.append(token)
    return tokenizer.decode(ids[start:]), len(ids) - start, False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default="Once upon a time")
    parser.add_argument("--model", default=STORY)
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--samples", type=int, default=2)
    options = parser.parse_args()
    model, reader = read_gguf(options.model)
    tokenizer = read(reader)
    prompt = as_chat(options.prompt) if options.chat else options.prompt
    for at in range(options.samples + 1):
        temperature = options.temperature if at else 0
        text, n_tokens, ended = write(model, tokenizer, prompt, temperature, seed=at)
        print(f"--- temperature {temperature}: {n_tokens} tokens, {'ended' if ended else 'cut off'}")
        print(("" if options.chat else options.prompt) + text)


if __name__ == "__main__":
    main()
