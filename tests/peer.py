"""llama.cpp, by its C interface, for the scripts that compare with it.

The library is that of the package `xllamacpp`, which the index has as a wheel: `pip install xllamacpp numpy`.
"""

import ctypes
import importlib.util
import sys
from pathlib import Path

POINTER, INT = ctypes.POINTER, ctypes.c_int32


class Batch(ctypes.Structure):
    """`llama_batch`."""

    _fields_ = [
        ("n_tokens", INT),
        ("token", POINTER(INT)),
        ("embd", POINTER(ctypes.c_float)),
        ("pos", POINTER(INT)),
        ("n_seq_id", POINTER(INT)),
        ("seq_id", POINTER(POINTER(INT))),
        ("logits", POINTER(ctypes.c_int8)),
    ]


class Parameters(ctypes.Structure):
    """The parameters of a model or of a context: more room than either has. Those of a context begin with its size."""

    _fields_ = [("context", ctypes.c_uint32), ("others", ctypes.c_uint32 * 255)]


RETURNS = {
    "llama_model_default_params": Parameters,
    "llama_context_default_params": Parameters,
    "llama_model_load_from_file": ctypes.c_void_p,
    "llama_init_from_model": ctypes.c_void_p,
    "llama_model_get_vocab": ctypes.c_void_p,
    "llama_get_memory": ctypes.c_void_p,
    "llama_get_logits": POINTER(ctypes.c_float),
    "llama_batch_init": Batch,
}


def library():
    """llama.cpp's library, or none where a package is missing."""
    packages = [importlib.util.find_spec(name) for name in ("xllamacpp", "numpy")]
    if None in packages:
        return None
    [path] = Path(packages[0].submodule_search_locations[0]).glob("xllamacpp*.so")
    found = ctypes.CDLL(str(path))
    for name, kind in RETURNS.items():
        getattr(found, name).restype = kind
    return found


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def silent(*_):
    """Takes what llama.cpp says."""


class Llama:
    """A model of llama.cpp, as it runs without options."""

    def __init__(self, found, path, context):
        self.library = found
        found.llama_log_set(silent, None)
        found.llama_backend_init()
        model = found.llama_model_load_from_file(str(path).encode(), found.llama_model_default_params())
        if not model:
            sys.exit(f"{path}: llama.cpp does not open it")
        self.model = ctypes.c_void_p(model)
        parameters = found.llama_context_default_params()
        parameters.context = context
        self.context = ctypes.c_void_p(found.llama_init_from_model(self.model, parameters))
        self.memory = ctypes.c_void_p(found.llama_get_memory(self.context))
        vocabulary = ctypes.c_void_p(found.llama_model_get_vocab(self.model))
        self.n_vocab = found.llama_vocab_n_tokens(vocabulary)
        self.batch = found.llama_batch_init(context, 0, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.library.llama_batch_free(self.batch)
        self.library.llama_free(self.context)
        self.library.llama_model_free(self.model)

    def logits(self, tokens, first):
        """The logits after each token of a text from the `first` on."""
        import numpy

        self.library.llama_memory_clear(self.memory, True)
        batch = self.batch
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at], batch.logits[at] = int(token), at, at >= first
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
        code = self.library.llama_decode(self.context, batch)
        if code:
            sys.exit(f"llama.cpp does not compute {len(tokens)} tokens: {code}")
        rows = self.library.llama_get_logits(self.context)
        return numpy.ctypeslib.as_array(rows, (len(tokens) - first, self.n_vocab)).astype("f8")
