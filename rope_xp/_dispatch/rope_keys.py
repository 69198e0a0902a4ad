"""Keys of ropes in caches of calls.

Scaling may have many factors, as LongRoPE's has: to compare two equal ropes then takes longer than
to rotate a token. Each layer of a model may have a rope of its own. So equal ropes share a key that
is hashed and compared by identity, and each rope is looked up by value once.
"""

import weakref
from collections.abc import Hashable

from rope_xp._core.caches import BoundedCache
from rope_xp._core.forks import DICT_LOCK

_BY_VALUE = BoundedCache(f"{__name__}._BY_VALUE", 256)
_BY_ID = BoundedCache(f"{__name__}._BY_ID", 1024)
"""A weak reference to each rope, and its key. An id may be that of another rope that is gone."""


class _Key:
    __slots__ = ()


def find_key(rope: Hashable) -> Hashable:
    """Return the key of a rope, or the rope itself if it may change: by a class of the user."""
    if isinstance(rope, tuple):  # options of a function, or a rope with what it is for
        return rope
    found = _BY_ID.get(id(rope))
    if found is not None and found[0]() is rope:
        return found[1]  # type: ignore[no-any-return]  # the cache is untyped
    scaling = getattr(rope, "scaling", None)
    parts = rope, scaling, getattr(scaling, "scaling", None)  # RIFLEx has one of its own
    packages = {type(x).__module__.partition(".")[0] for x in parts if x is not None}
    if packages != {"rope_xp"}:
        return rope
    with DICT_LOCK:
        key = _BY_VALUE.get(rope) or _Key()
        _BY_VALUE.store(rope, key)
        _BY_ID.store(id(rope), (weakref.ref(rope), key))
    return key
