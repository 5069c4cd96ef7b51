"""The tokenizer: made from the corpus, and read back from a GGUF file.

A byte-level tokenizer of the Qwen2 kind: the text is normalised to NFC, cut into pieces by a pattern, and the bytes of
each piece are merged. The special tokens come last.
"""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from corpus import document

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
N_DOCUMENTS = 20_000


def empty(model):
    """A tokenizer without special tokens around the model of the merges."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def add_special(tokenizer):
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer


def make(size):
    """A tokenizer of this many tokens, trained on the first documents."""
    tokenizer = empty(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )

    def texts():
        for number in range(N_DOCUMENTS):
            text = document(number)
            for special in SPECIAL:
                text = text.replace(special, "")
            yield text

    tokenizer.train_from_iterator(texts(), trainer)
    add_special(tokenizer)
    assert tokenizer.get_vocab_size() == size, "the corpus has too few words for this vocabulary"
    return tokenizer


def read(reader):
    """The tokenizer of an open GGUF file."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = reader.fields["tokenizer.ggml.merges"].contents()
    ids = {token: at for at, token in enumerate(tokens) if token not in SPECIAL}
    return add_special(empty(models.BPE(ids, [tuple(merge.split(" ")) for merge in merges])))
