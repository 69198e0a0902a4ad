"""Find code in transformers that reads cos and sin in ways that patching does not replace."""

from collections.abc import Iterator
from types import FunctionType

import torch

from rope_xp._core.errors import RopeError
from rope_xp.integrations import _methods

ALONE = "patch(model, rotation=False) replaces only the rotary modules"
_TABLES = frozenset({"cos", "sin", "freqs_cis"})  # variables of code that reads tables
_TUPLES = _TABLES | {"position_embeddings", "rotary_pos_emb"}  # parameters that take them
# Classes that have such names and rotate nothing by the tables of a patched module.
_HARMLESS = {
    "lasr.modeling_lasr.LasrEncoder",  # passes them on to its attention
    "gemma4.modeling_gemma4.Gemma4TextModel",  # passes on those of the last tokens
    "gemma4_unified.modeling_gemma4_unified.Gemma4UnifiedTextModel",
    # The tables of these are of modules that are not patched.
    "esmfold2.modeling_esmfold2.EsmFold2DiffusionModule",
    "wav2vec2_bert.modeling_wav2vec2_bert.Wav2Vec2BertSelfAttention",
}


def check_readers(kind: type) -> None:
    """Check that the methods of a class which read tables call functions that rotate."""
    # Others would read tables of float32 in a model of 16 bits.
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name.removeprefix("transformers.models.") in _HARMLESS:
        return
    for base in kind.__mro__[: kind.__mro__.index(torch.nn.Module)]:
        for name, member in vars(base).items():
            method = getattr(member, "__func__", member)  # of a static method
            if not isinstance(method, FunctionType) or _methods.rotations_called(method):
                continue
            parts = _methods.wrapped_functions(method)
            if reader := next((text for part in parts for text in _describe_readers(part)), None):
                raise RopeError(
                    f"cannot patch {base.__name__}.{name}: {reader}, and no function that is "
                    f"replaced rotates there; {ALONE}"
                )


def _describe_readers(function: FunctionType) -> Iterator[str]:
    for code in _methods.inner_codes(function.__code__):
        for variable in (*code.co_varnames, *code.co_cellvars):
            if variable in _TABLES:
                yield f"it reads {variable}"
        for name in code.co_names:
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType):
                inner = called.__code__
                if not _TUPLES.isdisjoint(inner.co_varnames[: inner.co_argcount]):
                    yield f"it calls {name}"


def explain_missing_angles(model: torch.nn.Module) -> str:
    for kind in dict.fromkeys(map(type, model.modules())):
        members = (member for base in kind.__mro__ for member in vars(base).values())
        methods = (member for member in members if isinstance(member, FunctionType))
        parts = (part for method in methods for part in _methods.wrapped_functions(method))
        if name := next((name for part in parts for name in _methods.rotation_names(part)), None):
            return (
                f"{kind.__name__} calls {name}, but reads cos and sin from its own table. "
                "patch replaces modules that compute them, which have inv_freq among their buffers"
            )
    return (
        "none of its modules computes angles (such modules have inv_freq among their "
        "buffers). If its positions are not rotary, as in BERT and GPT-2, there is nothing to "
        "patch. If it does rotate, rope_xp.testing.identify shows which RoPE its function computes"
    )
