"""Faults that somebody could make, and the tests that must notice them; see plant.py."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A file with other words in it, and where pytest must fail then."""

    file: str
    old: str
    """Occurs in the file once."""
    new: str
    tests: str
    """Node ids, separated by spaces. One of them at least must fail."""


KERNEL = "backends/rope_xp_backends/cpu/kernel.py"
TORCH = "backends/rope_xp_backends/torch"
KERNELS = "tests/backends/cpu/test_kernels.py"
OUT = "tests/core/test_out.py"
DERIVATIVES = "tests/backends/torch/test_op_derivatives.py"
SCALING = "tests/core/test_scaling.py"
CONFIGS = "tests/models/test_hf_rules.py"
ANALYSIS = "tests/papers/test_analysis.py"
FORMS = "tests/core/test_forms.py"
YARN = "rope_xp/scaling/_long_context.py"

GRAPHS = "tests/backends/triton/test_graphs.py"

FAULTS = (
    # --- graphs, and kernels that fail ---
    Fault(
        f"{TORCH}/bound.py",
        " or streams.capturing(arrays[0].device)",
        "",
        f"{GRAPHS}::test_graphs_keep_the_tables_that_they_read",
    ),
    Fault(
        f"{TORCH}/gpu.py",
        "hold((how.table, how.table_2, how.table_3, how.components))",
        "pass",
        f"{GRAPHS}::test_a_gradient_that_is_captured_by_itself_keeps_its_tables",
    ),
    Fault(
        "rope_xp/_dispatch/kernels.py",
        ' or "out of memory" in str(error).lower()',
        "",
        "tests/backends/triton/test_plans.py::test_short_memory_of_a_moment_costs_one_call",
    ),
    Fault(
        f"{TORCH}/op.py",
        "            ctx.set_materialize_grads(False)\n",
        "            pass\n",
        f"{DERIVATIVES}::test_no_gradient_is_made_of_what_a_loss_does_not_use",
    ),
    # --- results written past the caches ---
    Fault(KERNEL, "strides = y0 |", "strides = (y0 - before) |", f"{OUT}::test_past_the_caches"),
    Fault(
        KERNEL,
        "rotate_pairs(*what, stream=True)",
        "rotate_pairs(*what[:2], table[::-1], *what[3:], stream=True)",
        f"{KERNELS}::test_slices_that_fill_vectors",
    ),
    Fault(
        KERNEL,
        "rotate_pairs(*what, stream=True)",
        "rotate_pairs(*what[:2], table[::-1], *what[3:], stream=True)",
        "tests/backends/test_guarded.py::test_nothing_is_touched_beyond_an_array[streaming-433-12]",
    ),
    Fault(
        "backends/rope_xp_backends/cpu/pairs.py",
        "b.select(number, rounded, quiet)",
        "rounded",
        f"{KERNELS}::test_angles_that_are_no_numbers",
    ),
    Fault(
        f"{TORCH}/results.py",
        "        if made.stride(-1) == 1:\n            return made\n",
        "        return made\n",
        "tests/backends/torch/test_op.py::test_heads_that_are_one_beside_an_axis_of_length_1",
    ),
    # --- axes ---
    Fault(
        f"{TORCH}/op.py",
        "return angles.reshape(angles.shape[0], *(1,) * (ndim - angles.ndim), *angles.shape[1:])",
        "return angles",
        f"{DERIVATIVES}::test_vmap_of_batches_whose_positions_have_no_batch_axis",
    ),
    Fault(
        "rope_xp/_arguments/axes.py",
        "not batch or batch[-1] < tokens",
        "not batch or batch[0] < tokens",
        "tests/core/test_equivalence.py::test_axes",
    ),
    Fault(
        "rope_xp/_rotation/portable.py",
        "enumerate((*axes.batch, axes.tokens, len(order) - 1))",
        "enumerate((axes.tokens, *axes.batch, len(order) - 1))",
        "tests/core/test_equivalence.py::test_axes",
    ),
    # --- out= ---
    Fault("rope_xp/_arguments/out.py", "(i == j and mine.", "(mine.", f"{OUT}::test_refusals"),
    Fault(
        "rope_xp/_arguments/out.py",
        'zip(("cos", "sin"), read_too, strict=False)',
        'zip(("cos",), read_too, strict=False)',
        f"{OUT}::test_refusals",
    ),
    Fault(
        "rope_xp/_contract/memory.py",
        "start += step * (n - 1)\n",
        "end -= step * (n - 1)\n",
        f"{OUT}::test_backwards_into_a_part_of_what_is_read",
    ),
    # --- derivatives of angles ---
    Fault(
        "rope_xp/_contract/call.py",
        "return leaves(source.new) + leaves(source.old)",
        "return leaves(source.new)",
        f"{DERIVATIVES}::test_positions_have_gradients",
    ),
    Fault(
        "rope_xp/_contract/call.py",
        "return leaves(source.new) + leaves(source.old)",
        "return leaves(source.old)",
        f"{DERIVATIVES}::test_positions_have_gradients",
    ),
    Fault(
        f"{TORCH}/paths.py",
        "for leaf in leaves(source)",
        "for leaf in leaves(source)[:1]",
        f"{DERIVATIVES}::test_either_table_has_gradients_alone",
    ),
    Fault(
        "rope_xp/_arguments/positions.py",
        "part if wide else part.astype(np.float32)",
        "part.astype(np.float32)",
        "tests/core/test_angles.py::test_fractions_in_float64",
    ),
    # --- rules ---
    Fault(YARN, "min(high, rotary_dim - 1)", "min(high, rotary_dim // 2 - 1)", SCALING),
    Fault(YARN, "min(high, rotary_dim - 1)", "high", SCALING),
    Fault(YARN, "max(low, 0), min(", "low, min(", SCALING),
    Fault(YARN, "high += 0.001", "high += 0.0", SCALING),
    Fault(YARN, "if self.mscale and self", "if self.mscale is not None and self", SCALING),
    Fault(
        "rope_xp/scaling/_axial.py",
        "if rotary_dim % (2 * self.axes):",
        "if rotary_dim % self.axes:",
        SCALING,
    ),
    # --- configurations ---
    Fault(
        "rope_xp/hf/_keys.py",
        "(filled.get(name), *elsewhere, usual.get(name))",
        "(*elsewhere, filled.get(name), usual.get(name))",
        CONFIGS,
    ),
    Fault(
        "rope_xp/hf/_keys.py",
        "(filled.get(name), *elsewhere, usual.get(name))",
        "(filled.get(name), usual.get(name), *elsewhere)",
        CONFIGS,
    ),
    Fault(
        "rope_xp/hf/_keys.py",
        "(filled.get(name), *elsewhere, usual.get(name))",
        "(filled.get(name), *elsewhere)",
        CONFIGS,
    ),
    Fault(
        "rope_xp/hf/_sound.py",
        "start, last = i, last + chunk",
        "start, last = i, time + chunk",
        "tests/models/test_mrope_alone.py::test_videos_with_sound",
    ),
    Fault(
        "rope_xp/hf/_canvas.py",
        "np.where(i < n // 2, step * i, last - step * (np.float32(n - 1) - i))",
        "step * i",
        "tests/models/test_mrope_alone.py::test_what_lies_half_way_is_rounded_as_torch_does",
    ),
    Fault(
        "rope_xp/hf/_rules.py",
        'None if self.where.count(".") else self.config.get(TRAINED)',
        "self.config.get(TRAINED)",
        CONFIGS,
    ),
    Fault(
        "rope_xp/hf/_slices.py",
        "tuple(i % 3 for i, n in enumerate(sections)",
        "tuple(min(i, 2) for i, n in enumerate(sections)",
        CONFIGS,
    ),
    # --- the papers' functions ---
    Fault(
        "rope_xp/analysis/_curves.py",
        "    score *= rope.attention_factor**2\n    return (score + standing).",
        "    return ((score + standing) * rope.attention_factor**2).",
        ANALYSIS,
    ),
    Fault(
        "rope_xp/encodings/_buckets.py",
        "    relative = xp.clip(relative, -starts[-1], starts[-1])\n",
        "",
        "tests/papers/test_encodings_oracles.py",
    ),
    Fault(
        "rope_xp/attention/_products.py",
        """    return xp.matmul(
        heads_first(xp, q * scale, heads), xp.matrix_transpose(heads_first(xp, k, heads))
    )
""",
        """    return scale * xp.matmul(
        heads_first(xp, q, heads), xp.matrix_transpose(heads_first(xp, k, heads))
    )
""",
        "tests/papers/test_attention.py::test_scores_that_fit_once_they_are_scaled",
    ),
    # --- processes ---
    Fault(
        "backends/rope_xp_backends/cpu/threads.py",
        "done.set_result(work(start, stop))",
        "done.set_result(None)",
        "tests/backends/cpu/test_processes.py::test_a_rotation_while_the_interpreter_shuts_down",
    ),
    # --- tables for other engines, and layers ---
    Fault(
        "rope_xp/_tables/forms.py",
        "    if name not in _NARROW:\n",
        "    if name in _NARROW:\n        host = host.astype(np.float32)\n    else:\n",
        f"{FORMS}::test_no_number_of_a_table_is_rounded_twice",
    ),
    Fault(
        "rope_xp/_tables/forms.py",
        "bits | inexact",
        "bits",
        f"{FORMS}::test_rounding_to_16_bits_is_not_done_twice",
    ),
    Fault(
        "rope_xp/_tables/forms.py",
        'if layout == "interleaved":',
        'if layout == "half":',
        f"{FORMS}::test_each_form_is_that_of_its_engine",
    ),
    Fault(
        "rope_xp/_tables/forms.py",
        "np.arctan2(sin, cos)",
        "np.arctan(sin / cos)",
        f"{FORMS}::test_megatron_gets_angles_less_whole_turns",
    ),
    Fault(
        "rope_xp/layers/torch.py",
        "positions, axes=self.axes, k_positions=k_positions",
        "positions, k_positions=k_positions",
        "tests/layers/test_layers.py::test_axes_and_positions_of_keys",
    ),
    Fault(
        "rope_xp/layers/_learned.py",
        "moved if moved.dtype == x.dtype else x.to(moved.device)",
        "moved",
        "tests/layers/test_learned.py::test_round_trips_change_no_bit",
    ),
    Fault(
        "rope_xp/layers/_loaded.py",
        "2 * torch.finfo(found.dtype).eps",
        "16 * torch.finfo(found.dtype).eps",
        "tests/layers/test_torch.py::test_frequencies_of_a_checkpoint_are_compared",
    ),
    Fault(
        "rope_xp/layers/keras.py",
        '{"autocast": False, **options}',
        "options",
        "tests/layers/test_keras.py::test_policies_cast_neither_arrays_nor_positions",
    ),
    Fault(
        "rope_xp/layers/_saved.py",
        "for f in fields(own)",
        "for f in list(fields(own))[:1]",
        "tests/layers/test_keras.py::test_a_configuration_holds_all",
    ),
    Fault(
        "rope_xp/integrations/_drop_in.py",
        '"half" if columns == "halves" else "interleaved"',
        '"half"',
        "tests/models/test_drop_in.py::test_it_is_the_model_s_own_function",
    ),
)
