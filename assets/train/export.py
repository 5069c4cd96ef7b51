"""Writes the trained model as a GGUF file: matrices in Q8_0, norms in 32-bit floats.

In: `target/train/tokenizer.json` and `target/train/weights.pt`. Out: `assets/story.gguf`, or the path that is given.
"""

import json
import sys
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType, TokenType

from qwen3 import Shape
from tokenizer import SPECIAL
from train import OUT

STORY = Path(__file__).resolve().parents[1] / "story.gguf"
LARGEST = 4_000_000

# ChatML.
TEMPLATE = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def write(path):
    shape = Shape()
    stored = json.loads((OUT / "tokenizer.json").read_text(encoding="utf-8"))
    ids = dict(stored["model"]["vocab"])
    ids |= {token["content"]: token["id"] for token in stored["added_tokens"]}
    tokens = sorted(ids, key=ids.get)
    assert [ids[token] for token in tokens] == list(range(shape.vocabulary))

    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_type("model")
    writer.add_name("Fusebox Story")
    writer.add_license("MIT OR Apache-2.0")
    writer.add_size_label("4M")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_block_count(shape.n_layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_freq_base(shape.theta)
    writer.add_layer_norm_rms_eps(shape.epsilon)

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in stored["model"]["merges"]])
    # A story ends with the first, a turn of a chat with the second.
    writer.add_eos_token_id(ids["<|endoftext|>"])
    writer.add_eot_token_id(ids["<|im_end|>"])
    writer.add_bos_token_id(ids["<|endoftext|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    for name, weight in torch.load(OUT / "weights.pt", map_location="cpu", weights_only=True).items():
        data = weight.float().numpy()
        if data.ndim == 2:
            data = gguf.quantize(data, GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    size = Path(path).stat().st_size
    print(f"{path}: {size} bytes")
    assert size <= LARGEST, f"at most {LARGEST} bytes are wanted"


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else STORY)
