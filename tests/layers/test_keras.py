"""The layer of Keras: configurations, functional models, policies."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from support.layers import KERAS, ROPES, SCALED, assert_same, inputs, to_numpy
from support.lazily import Lazily
from support.programs import ROOT, environment

from rope_xp import RoPE, RopeError, scaling

keras = Lazily("keras")
layers = Lazily("rope_xp.layers.keras")


@dataclass(frozen=True)
class Own(scaling.Scaling):
    def frequencies(self, base, rotary_dim):
        return np.ones(rotary_dim // 2)


def test_scaling_of_a_user_is_not_saved():
    classes = {value for value in vars(scaling).values() if isinstance(value, type)}
    derived = {cls for cls in classes if issubclass(cls, scaling.Scaling)} - {scaling.Scaling}
    assert {type(rope.scaling) for rope in SCALED.values()} == derived
    with pytest.raises(RopeError, match=r"cannot save scaling = Own\(\): when a model is loaded"):
        layers.Rotary(RoPE(scaling=Own())).get_config()


@pytest.mark.parametrize("rope", SCALED.values(), ids=SCALED)
def test_every_scaling_is_saved_and_loaded(rope):
    data = keras.saving.serialize_keras_object(layers.Rotary(rope, axes="bshd", name="rotary"))
    assert data["registered_name"] == "rope_xp>Rotary"
    loaded = keras.saving.deserialize_keras_object(json.loads(json.dumps(data)))
    assert (loaded.rope, loaded.axes, loaded.name) == (rope, "bshd", "rotary")
    assert repr(loaded.rope) == repr(rope)


def test_functional_model_is_saved_and_loaded(tmp_path):
    rope = ROPES["sections"]
    q, k, positions = inputs(KERAS, rope)
    positions = positions[:, 0]  # Keras batches the first axis of all that goes in
    arguments = [
        keras.Input((None, 4, 16), name="q"),
        keras.Input((None, 2, 16), name="k"),
        keras.Input(batch_shape=(None,) * positions.ndim, dtype="int32", name="positions"),
    ]
    model = keras.Model(arguments, layers.Rotary(rope, name="rotary")(*arguments))
    assert [tuple(t.shape) for t in model.outputs] == [(None, None, 4, 16), (None, None, 2, 16)]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("rotary").rope == rope
    assert_same(model([q, k, positions]), rope.apply(q, k, positions))
    assert_same(loaded([q, k, positions]), rope.apply(q, k, positions))
    assert loaded.weights == []


# Keras 3.15 asks torch for arrays in a way that numpy 2.4 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_loaded_model_predicts_as_before_it_was_saved(tmp_path):
    keras.utils.set_random_seed(0)
    x, positions = keras.Input((6, 32)), keras.Input((6,), dtype="int32")
    heads = keras.layers.Reshape((6, 2, 16))(keras.layers.Dense(32)(x))
    q, _ = layers.Rotary(ROPES["half"])(heads, heads, positions)
    model = keras.Model([x, positions], keras.layers.Dense(1)(keras.layers.Flatten()(q)))
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((8, 6, 32)).astype("float32"), np.tile(np.arange(6), (8, 1))]
    before = [to_numpy(w.value).copy() for w in model.weights]
    model.fit(data, np.ones((8, 1), "float32"), verbose=0)
    after = [to_numpy(w.value) for w in model.weights]
    assert all(np.abs(a - b).max() > 0 for a, b in zip(after, before, strict=True))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    ours, theirs = (m.predict(data, verbose=0) for m in (loaded, model))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16"])
def test_policies_cast_neither_arrays_nor_positions(policy):
    rope = ROPES["half"]
    q, k, _ = inputs(KERAS, rope)
    at = KERAS.array(np.full((2, 5), 65_536.25, np.float32))  # 65536 in bfloat16
    narrow = [keras.ops.cast(x, "bfloat16") for x in (q, k)]
    assert_same(layers.Rotary(rope, dtype=policy)(*narrow, at), rope.apply(*narrow, at))
    keras.config.set_dtype_policy(policy)
    try:
        arguments = [keras.Input((5, heads, 16)) for heads in (4, 2)]
        arguments.append(keras.Input((5,), dtype="float32"))
        model = keras.Model(arguments, layers.Rotary(rope)(*arguments))
        for layer in (lambda x: model(x), lambda x: layers.Rotary(rope)(*x)):
            assert_same(layer([q, k, at]), rope.apply(q, k, at))
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.slow
def test_tests_of_keras_pass_on_its_other_backend():
    backend = {"torch": "jax", "jax": "torch"}[os.environ["KERAS_BACKEND"]]
    pytest.importorskip(backend)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-k", "functional or predicts", __file__],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(KERAS_BACKEND=backend),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
