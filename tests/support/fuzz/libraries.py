"""The libraries and paths that are fuzzed, each with what its arrays can be."""

import contextlib
import importlib
import importlib.util
from dataclasses import dataclass

import numpy as np
import pytest
from rope_xp_backends.cpu import native
from rope_xp_backends.numpy import paths

import rope_xp
from support.fuzz import memory
from support.targets import ALL_FLOATS, numpy_dtype

_SMALL = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
INTEGERS = (*_SMALL, "int64", "uint64")


@dataclass(frozen=True)
class Library:
    """Arrays of a library, on one of its paths."""

    name: str
    module: str
    path: str | None = None  # or None for the choice that the library makes
    floats: tuple[str, ...] = ALL_FLOATS
    integers: tuple[str, ...] = INTEGERS
    any_memory: bool = False  # whether arrays may go backwards, lie anywhere, be byte-swapped
    shared: bool = True  # whether its arrays lie in the memory of numpy's that they are made from
    streaming: bool = False
    share: int = 1  # of the examples of others it has one in so many, as it compiles for each

    def __str__(self):
        return self.name

    @property
    def writes(self):
        return self.module != "jax.numpy"

    def make(self, x):
        if self.module == "numpy":
            return x
        if self.module == "torch":
            return memory.as_torch(x)
        plain = np.ascontiguousarray(x).reshape(x.shape)
        return importlib.import_module(self.module).asarray(plain)

    def back(self, x):
        if self.module == "torch" and str(x.dtype) == "torch.bfloat16":
            torch = importlib.import_module("torch")
            return x.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
        return np.asarray(x)

    @contextlib.contextmanager
    def chosen(self):
        """Take the path, on several threads and in many chunks."""
        with pytest.MonkeyPatch.context() as patch, rope_xp.use_path(self.path):
            patch.setattr(paths, "CHUNK_BYTES", 1 << 8)
            before = {}
            if self.streaming and native.module:
                patch.setenv("ROPE_XP_NUM_THREADS", "3")
                names = ("large_bytes", "release_bytes", "thread_elements")
                before = {name: native.module.tune(name, 1) for name in names}
            yield
            for name, value in before.items():
                native.module.tune(name, value)


LIBRARIES = (
    Library("numpy", "numpy", any_memory=True),
    Library("numpy-streaming", "numpy", any_memory=True, streaming=True),
    Library("numpy-chunked", "numpy", "chunked", any_memory=True),
    Library("numpy-portable", "numpy", "portable", any_memory=True),
    Library("torch", "torch"),
    Library("torch-portable", "torch", "portable"),
    Library("array-api-strict", "array_api_strict", floats=("float32", "float64"), shared=False),
    Library("jax", "jax.numpy", None, ALL_FLOATS[:3], _SMALL, shared=False, share=10),
)


def _row(library):
    name = library.module.partition(".")[0]
    absent = importlib.util.find_spec(name) is None
    skip = pytest.mark.skipif(absent, reason=f"{name} is not installed")
    return pytest.param(library, marks=skip, id=library.name)


fuzzed = pytest.mark.parametrize("library", list(map(_row, LIBRARIES)))
