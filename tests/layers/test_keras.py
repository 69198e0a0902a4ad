"""The layer of Keras: configurations, functional models, policies."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from support.layers import ROPES, assert_same, inputs, put, to_numpy
from support.lazily import Lazily
from support.programs import ROOT, environment

from rope_xp import RoPE, RopeError, scaling

keras = Lazily("keras")
layers = Lazily("rope_xp.layers.keras")

AXIAL = RoPE.axial((8, 4, 4), bases=(1e2, 1e3, 1e4))
SCALED = {
    **{name: rope for name, rope in ROPES.items() if rope.scaling is not None},
    "linear": RoPE(scaling=scaling.Linear(2.0)),
    "ntk": RoPE(scaling=scaling.NTK(2.0)),
    "proportional": RoPE(scaling=scaling.Proportional(0.5)),
    "riflex": replace(AXIAL, scaling=scaling.RIFLEx(2, 42, AXIAL.scaling, axis=1)),
}


@pytest.mark.parametrize("rope", SCALED.values(), ids=SCALED)
def test_every_scaling_is_saved_and_loaded(rope):
    data = keras.saving.serialize_keras_object(layers.Rotary(rope, axes="bshd", name="rotary"))
    assert data["registered_name"] == "rope_xp>Rotary"
    loaded = keras.saving.deserialize_keras_object(json.loads(json.dumps(data)))
    assert (loaded.rope, loaded.axes, loaded.name) == (rope, "bshd", "rotary")
    assert repr(loaded.rope) == repr(rope)


@dataclass(frozen=True)
class Own(scaling.Scaling):
    def frequencies(self, base, rotary_dim):
        return np.ones(rotary_dim // 2)


def test_scaling_of_a_user_alone_is_not_saved():
    classes = {value for value in vars(scaling).values() if isinstance(value, type)}
    derived = {cls for cls in classes if issubclass(cls, scaling.Scaling)} - {scaling.Scaling}
    assert {type(rope.scaling) for rope in SCALED.values()} == derived
    with pytest.raises(RopeError, match=r"cannot save scaling = Own\(\): when a model is loaded"):
        layers.Rotary(RoPE(scaling=Own())).get_config()


# Keras 3.15 asks torch for arrays in a way that numpy 2.4 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_functional_model_trains_and_predicts_the_same_when_loaded(tmp_path):
    keras.utils.set_random_seed(0)
    x, positions = keras.Input((6, 32)), keras.Input((6,), dtype="int32")
    heads = keras.layers.Reshape((6, 2, 16))(keras.layers.Dense(32)(x))
    q, k = layers.Rotary(ROPES["half"], name="rotary")(heads, heads[:, :, :1], positions)
    assert [tuple(t.shape) for t in (q, k)] == [(None, 6, 2, 16), (None, 6, 1, 16)]
    flat = [keras.layers.Flatten()(y) for y in (q, k)]
    model = keras.Model([x, positions], keras.layers.Dense(1)(keras.layers.Concatenate()(flat)))
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((8, 6, 32)).astype("float32"), np.tile(np.arange(6), (8, 1))]
    before = [to_numpy(w.value).copy() for w in model.weights]
    model.fit(data, np.ones((8, 1), "float32"), verbose=0)
    after = [to_numpy(w.value) for w in model.weights]
    assert all(np.abs(a - b).max() > 0 for a, b in zip(after, before, strict=True))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("rotary").rope == ROPES["half"]
    ours, theirs = (m.predict(data, verbose=0) for m in (loaded, model))
    np.testing.assert_array_equal(ours, theirs)


def test_symbolic_keys_have_the_shape_of_the_cache_with_slots():
    x, cache = keras.KerasTensor((2, 5, 4, 16)), keras.KerasTensor((32, 2, 16), "float16")
    options = {"out": (None, cache), "slots": keras.KerasTensor((2, 5), "int32")}
    q, k = layers.Rotary(ROPES["half"]).compute_output_spec(x, x, **options)
    assert (q.shape, k.shape, k.dtype) == (x.shape, cache.shape, "float16")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16"])
def test_policies_cast_neither_arrays_nor_positions(policy):
    rope = ROPES["half"]
    q, k, _ = inputs("keras", rope)
    at = put("keras", np.full((2, 5), 65_536.25, np.float32))  # 65536 in bfloat16
    narrow = [keras.ops.cast(x, "bfloat16") for x in (q, k)]
    assert_same(layers.Rotary(rope, dtype=policy)(*narrow, at), rope.apply(*narrow, at))
    keras.config.set_dtype_policy(policy)
    try:
        arguments = [keras.Input(shape, dtype="float32") for shape in ((5, 4, 16), (5, 2, 16))]
        arguments.append(keras.Input((5,), dtype="float32"))
        model = keras.Model(arguments, layers.Rotary(rope)(*arguments))
        for layer in (model, lambda x: layers.Rotary(rope)(*x)):
            assert_same(layer([q, k, at]), rope.apply(q, k, at))
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.slow
def test_layer_passes_its_tests_on_the_other_backend_of_keras():
    backend = {"torch": "jax", "jax": "torch"}[os.environ["KERAS_BACKEND"]]
    pytest.importorskip(backend)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider"]
    options = {"env": environment(KERAS_BACKEND=backend), "cwd": ROOT, "timeout": 300}
    done = subprocess.run(
        [*command, "-k", "functional_model_trains or policies", __file__],
        **options,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    assert "3 passed" in done.stdout
