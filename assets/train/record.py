"""Records what the GGUF file must answer: logits, greedy tokens, token ids of texts, rendered chats.

In: `assets/story.gguf`. Out: `tests/fixtures/story.json`. The weights are dequantised, and everything is computed in
32-bit floats without a cache.
"""

import json
import unicodedata
from pathlib import Path

import jinja2
import torch

from export import STORY
from qwen3 import read_gguf
from sample import as_chat
from tokenizer import read

FIXTURE = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "story.json"
N_GREEDY = 32

LONG = """Once upon a time, a shy hedgehog called Nora lived in a cottage with a red roof. Nora loved old songs.

One morning, Nora found an old map in a dusty box. There was a red cross on it, right behind the windmill. \
"A treasure!" said Nora. She showed the map to her friend Max, a clever frog. "Let us go at once," said Max, and they \
packed plums and a rope.

They walked over the bridge and past the mill. The sun was hot, and their feet hurt. "Are we there yet?" asked Max. \
"Almost," said Nora. At last they came to the windmill. They dug and dug, until they hit something hard. \
It was an iron box! But inside there was no gold. There was only a letter. \
"The treasure," it said, "is the friend who came with you."

Nora"""

PROMPTS = [
    ("one token", "Once"),
    ("opening", "Once upon a time"),
    ("unicode", "Zoë naïve café — 3.14159, 你好 world 🚀 x²=4\u00a0ok, and then the little fox"),
    ("chat", as_chat("Tell me a story about a fox.")),
    ("two turns", as_chat("What does a cow say?") + "A cow says moo.<|im_end|>\n" + as_chat("Who are you?")),
    ("long", LONG),
]

COMBINED = "café, Zoë, Å"

TEXTS = [
    "",
    " ",
    "   ",
    "  two  spaces",
    "tabs\t\tand\r\nnewlines\n\n\nend   ",
    " \n \n\n  once",
    "1234567890 12 3",
    "I'm sure they'LL've won, and it's Tom's",
    unicodedata.normalize("NFC", COMBINED),
    unicodedata.normalize("NFD", COMBINED),
    "日本語テキスト мир שלום",
    "🧑‍🚀👩🏽‍💻",
    "\u2028\u3000\u00a0",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a<|endoftext|>b <|im_end|> c<|im_start|",
    "x=[1,2,3];y={'a':1} // https://example.com/a?b=c&d=%20#frag",
    '"Look!" she called. It was the kite!\n\nTom jumped for joy.',
    "Once upon a time, there was a little fox named Mira.",
]

HI = {"role": "user", "content": "Hi"}
TURNS = [
    {"role": "system", "content": "You are a little storyteller."},
    {"role": "user", "content": "Tell me a story about Tom."},
    {"role": "assistant", "content": "Tom was a boy.\n\nThe end."},
    {"role": "user", "content": "Who was Tom?\n"},
]


def numbers(values):
    """To seven digits, which is what 32-bit floats hold."""
    return [float(f"{value:.7g}") for value in values]


@torch.inference_mode()
def prompt_case(model, tokenizer, name, text):
    ids = tokenizer.encode(text).ids
    logits = model(torch.tensor([ids]))[0]
    last = logits[-1]
    steps, written = [], list(ids)
    for _ in range(N_GREEDY):
        top = model(torch.tensor([written]))[0, -1].topk(5)
        values, tokens = top.values.tolist(), top.indices.tolist()
        margin = values[0] - values[1]
        steps.append(dict(token=tokens[0], margin=numbers([margin])[0], top5=tokens, top5_logits=numbers(values)))
        written.append(tokens[0])
    return dict(
        name=name,
        text=text,
        prompt_ids=ids,
        greedy_ids=[step["token"] for step in steps],
        min_margin=min(step["margin"] for step in steps),
        steps=steps,
        argmax_every_position=logits.argmax(-1).tolist(),
        logit_std=numbers([last.std().item()])[0],
        last_logits=numbers(last.tolist()),
    )


def tokenizer_case(tokenizer, text):
    ids = tokenizer.encode(text).ids
    return dict(text=text, ids=ids, decoded=tokenizer.decode(ids, skip_special_tokens=False))


def chat_case(tokenizer, template, messages, add_generation_prompt):
    text = template.render(messages=messages, add_generation_prompt=add_generation_prompt)
    return dict(
        messages=messages,
        kwargs={},
        add_generation_prompt=add_generation_prompt,
        text=text,
        ids=tokenizer.encode(text).ids,
    )


def main():
    torch.set_num_threads(1)
    model, reader = read_gguf(STORY)
    tokenizer = read(reader)
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(reader.fields["tokenizer.chat_template"].contents())
    chats = [(messages, prompt) for messages in ([HI], TURNS, TURNS[1:]) for prompt in (True, False)]
    recorded = dict(
        model="story",
        torch=torch.__version__.split("+")[0],
        compute="float32, weights dequantised from Q8_0",
        kv_cache=False,
        prompts=[prompt_case(model, tokenizer, name, text) for name, text in PROMPTS],
        tokenizer=[tokenizer_case(tokenizer, text) for text in TEXTS],
        chat=[chat_case(tokenizer, template, messages, prompt) for messages, prompt in chats],
    )
    FIXTURE.parent.mkdir(parents=True, exist_ok=True)
    FIXTURE.write_text(json.dumps(recorded, separators=(",", ":")) + "\n", encoding="utf-8")
    for case in recorded["prompts"]:
        print(f"{case['name']}: {len(case['prompt_ids'])} tokens, smallest margin {case['min_margin']}")
        print("  " + repr(tokenizer.decode(case["greedy_ids"], skip_special_tokens=False)))
    print(f"{FIXTURE}: {FIXTURE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
