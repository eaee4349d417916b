"""Mutations that an attack from outside reported as unseen: where they are now, and the tests that must see them."""

from __future__ import annotations

import pathlib

from tools.mutations import Mutation

SPECIAL = "tests/test_special.py tests/kernels/test_families.py"
INVERSION = "tests/test_bochner.py tests/test_bochner_verdicts.py"
# module, what stands there, what comes in its place, tests
REPORTED = (
    # turns: the error term of the two-sum, a digit of pi beyond double, a carry of the product of integers
    ("_core/turns.py", "low + ((high - (both - shadow)) + (term - shadow))", "low", "tests/test_turns.py"),
    (
        "_core/turns.py",
        "14159265358979323846264338327950288",
        "14159265358979323846264338327950289",
        "tests/test_turns.py",
    ),
    ("_core/turns.py", "79821480865", "79821480866", "tests/test_turns.py"),
    (
        "_core/turns.py",
        "words.astype(np.int64) + carried.astype(np.int64)",
        "words.astype(np.int64)",
        "tests/test_turns.py",
    ),
    ("_core/turns.py", "rests - carried", "rests", "tests/test_turns.py"),
    # arrays
    ("_core/array.py", '"float32": "float64", "float64"', '"float32": "float32", "float64"', "tests/test_array.py"),
    # loops of rotation: bfloat16 rounded half up, a last digit of a polynomial
    (
        "_accel/cpu/rotation_rows.py",
        "builder.add(bits, odd)",
        "builder.add(bits, bits)",
        "tests/accel/test_rotation.py",
    ),
    (
        "_accel/cpu/rotation_rows.py",
        "_splat(_I32, 0x7FFF, lanes)",
        "_splat(_I32, 0x8000, lanes)",
        "tests/accel/test_rotation.py",
    ),
    ("_accel/cpu/circle.py", "-1.6968494702918826", "-1.6968494702918829", "tests/accel/test_sums.py"),
    ("_accel/cpu/circle.py", "3.7808689593022957", "3.7808689593022961", "tests/accel/test_sums.py"),
    ("_accel/cpu/circle.py", "0.24374971577130713", "0.24374971577130719", "tests/accel/test_rotation.py"),
    # sums: m2, lag 0, the order of the parts
    (
        "_accel/cpu/sums.py",
        "    return mean, m2\n\n\ndef _alike",
        "    return mean, m2 * 1.00001\n\n\ndef _alike",
        "tests/accel/test_sums.py",
    ),
    (
        "_accel/cpu/sums.py",
        "part[~np.any(lags[span], axis=1)] = turned.count  # known",
        "pass  # known",
        "tests/accel/test_sums.py",
    ),
    ("_accel/cpu/sums.py", "for part, plan in parts])", "for part, plan in parts[::-1]])", "tests/accel/test_sums.py"),
    # montecarlo, reading, offsets
    ("montecarlo.py", "(n - 3.0) / (n - 1.0)", "1.0", "tests/test_montecarlo.py"),
    ("heads/reading.py", "joint / ((n - 1.0) * (m - 1.0))", "joint / (n * m)", "tests/heads/test_reading.py"),
    ("heads/offsets.py", "(len(side) * (len(side) - 1.0))", "len(side) ** 2", "tests/heads/test_reading.py"),
    ("heads/offsets.py", "math.nan if peak.offset in (low, high) else stderr", "stderr", "tests/heads/test_reading.py"),
    # temperature: thresholds times 0.1
    ("heads/temperature.py", "_UNSURE = 2.0", "_UNSURE = 0.2", "tests/heads/test_temperature.py"),
    ("heads/temperature.py", "0.5 * np.sum(unsure", "0.05 * np.sum(unsure", "tests/heads/test_temperature.py"),
    ("heads/temperature.py", "< 1e-100:", "< 1e-101:", "tests/heads/test_temperature.py"),
    ("heads/temperature.py", "_LEAST = 1e-290", "_LEAST = 1e-291", "tests/heads/test_temperature.py"),
    # curves: < as <=
    ("analysis/curves.py", "if base <= 1.0:", "if base < 1.0:", "tests/analysis/test_curves.py"),
    (
        "analysis/curves.py",
        "(np.max(means) < level - doubt)",
        "(np.max(means) <= level - doubt)",
        "tests/analysis/test_curves.py",
    ),
    (
        "analysis/curves.py",
        "(np.min(means) > level + doubt)",
        "(np.min(means) >= level + doubt)",
        "tests/analysis/test_curves.py",
    ),
    ("analysis/curves.py", "means < level - doubt if", "means <= level - doubt if", "tests/analysis/test_curves.py"),
    (
        "analysis/curves.py",
        "else means > level + doubt)",
        "else means >= level + doubt)",
        "tests/analysis/test_curves.py",
    ),
    ("analysis/curves.py", "- level) <= doubt)", "- level) < doubt)", "tests/analysis/test_curves.py"),
    ("analysis/curves.py", "exact < level if", "exact <= level if", "tests/analysis/test_curves.py"),
    ("analysis/curves.py", "else exact >= level)", "else exact > level)", "tests/analysis/test_curves.py"),
    ("analysis/curves.py", "while start <= stop:", "while start < stop:", "tests/analysis/test_curves.py"),
    ("analysis/curves.py", "if log_ratio <= 1.0:", "if log_ratio < 1.0:", "tests/analysis/test_curves.py"),
    ("analysis/curves.py", "near = n * size <= _SERIES", "near = n * size < _SERIES", "tests/analysis/test_curves.py"),
    # spectrum, now inversion and lags: an octave fewer, an error margin of 4 as 1
    ("bochner/inversion.py", "np.arange(octaves + 1.0)", "np.arange(octaves)", INVERSION),
    ("bochner/inversion.py", "for _ in range(_REACH):", "for _ in range(_REACH - 1):", INVERSION),
    ("bochner/inversion.py", "error *= 4.0", "error *= 1.0", INVERSION),
    ("bochner/inversion.py", "return 4.0 * factor", "return 1.0 * factor", INVERSION),
    ("bochner/lags.py", "for octave in range(octaves + 1):", "for octave in range(octaves):", INVERSION),
    ("bochner/lags.py", "initial=-1)) + 1", "initial=-1))", INVERSION),
    # files, parameters, base
    ("_core/files.py", '"xb"', '"wb"', "tests/test_storage.py"),
    (
        "kernels/parameters.py",
        "abs(total - 1.0) > 1e-9",
        "abs(total - 1.0) > 1e-6",
        "tests/kernels/test_parameters.py tests/kernels/test_families.py tests/kernels/test_base.py",
    ),
    (
        "kernels/algebra.py",
        "<= 1e-12 * size",
        "<= 1e-6 * size",
        "tests/test_designs.py",
    ),
    # special: coefficients of series
    ("_core/special.py", "-1.18127457048702e-09", "-1.18127457048702e-08", SPECIAL),
    ("_core/special.py", "z * 31.0 / 18432", "z * 32.0 / 18432", SPECIAL),
    ("_core/special.py", "17.0 / 14336", "18.0 / 14336", SPECIAL),
    # frequencies: < as <=
    (
        "_core/arguments.py",
        'if not least <= number <= most:\n        raise ValueError(f"{name} is {show(value)}; expected a whole',
        'if not least < number <= most:\n        raise ValueError(f"{name} is {show(value)}; expected a whole',
        "tests/kernels/test_parameters.py",
    ),
    ("_core/arguments.py", "MOST = 2**32 - 1 ", "MOST = 2**32 ", "tests/kernels/test_parameters.py"),
    # validation, data, fits
    ("validation.py", "_ROUNDING = 1e-13", "_ROUNDING = 1e-12", "tests/test_validation.py"),
    ("bochner/data.py", "> 1e-28:", "> 0.0:", "tests/test_bochner.py"),
    ("analysis/fits.py", " or (r.high - x < _AT_LIMIT and r.end is None)", "", "tests/analysis/test_fits.py"),
    (
        "analysis/fits.py",
        "r.high - x < _AT_LIMIT and r.end is None",
        "r.high - x < _AT_LIMIT",
        "tests/analysis/test_fits.py",
    ),
    ("analysis/fits.py", "x - r.low < _AT_LIMIT or ", "", "tests/analysis/test_fits.py"),
    # rotation: checks of width
    ("_core/blocks.py", "if 2 * blocks > x.shape[-1]:", "if 2 * blocks > x.shape[-1] + 2:", "tests/test_rotation.py"),
    ("_core/blocks.py", "if q.shape[-1] != k.shape[-1]:", "if False:", "tests/test_rotation.py"),
    ("_core/blocks.py", "if x.ndim == 0 or x.shape[-1] % 2:", "if x.ndim == 0:", "tests/test_rotation.py"),
    ("rotation/turning.py", 'blocks.check_width(x, shape[-1], "frequencies")', "pass", "tests/test_rotation.py"),
    ("rotation/turning.py", 'blocks.check_width(x, shape[-1], "phases")', "pass", "tests/test_rotation.py"),
    ("rotation/turning.py", 'blocks.check_width(x, cos.shape[-1], "cos")', "pass", "tests/test_rotation.py"),
    # by meaning: a factor, a shape, a context, an end that were left out or taken for another
    (
        "scaling/shared.py",
        "given.attention_factor * attention_factor",
        "attention_factor",
        "tests/test_scaling.py::test_what_a_rope_holds_goes_through_a_scheme",
    ),
    (
        "scaling/shared.py",
        "given.attention_factor * attention_factor",
        "given.attention_factor",
        "tests/test_scaling.py::test_what_a_rope_holds_goes_through_a_scheme",
    ),
    (
        "scaling/shared.py",
        '1.0 if scheme == "dynamic" else float(',
        "float(",
        "tests/test_scaling.py::test_what_a_rope_holds_goes_through_a_scheme",
    ),
    (
        "scaling/schemes.py",
        "high + 0.001 if low == high else high",
        "high",
        "tests/test_scaling.py::test_yarn_is_its_formula",
    ),
    (
        "_core/checkpoints.py",
        " {host.dtype} {host.shape}",
        " {host.dtype}",
        "tests/test_checkpoints.py::test_lags_of_another_shape_are_another_question",
    ),
    (
        "_core/checkpoints.py",
        "number != _FORMAT or asked",
        "asked",
        "tests/test_checkpoints.py::test_what_is_not_a_checkpoint_is_refused",
    ),
    (
        "_core/checkpoints.py",
        " or done < 1 or",
        " or",
        "tests/test_checkpoints.py::test_what_is_not_a_checkpoint_is_refused",
    ),
    (
        "_core/archives.py",
        "if len({info.filename for info in listed}) < len(listed):",
        "if False:",
        "tests/test_archives.py::test_two_members_of_one_name_are_refused",
    ),
    (
        "_core/files.py",
        " and entry.is_file(follow_symlinks=False)",
        "",
        "tests/test_storage.py::test_only_files_are_removed_as_left_behind",
    ),
    (
        "_core/memory.py",
        "except np.exceptions.TooHardError:\n        return True",
        "except np.exceptions.TooHardError:\n        return False",
        "tests/test_memory.py::test_what_is_too_hard_to_decide_may_overlap",
    ),
    (
        "_core/memory.py",
        "(abs(step), length)",
        "(step, length)",
        "tests/test_memory.py::test_large_arrays_in_any_direction",
    ),
    (
        "_core/angles.py",
        "(np.abs(array.to_host(array.as_widest(one, xp))) for",
        "(array.to_host(array.as_widest(one, xp)) for",
        "tests/test_rotation.py::test_from_where_on_16_bits_warn",
    ),
    ("_core/angles.py", "_MISSED = 0.05", "_MISSED = 0.06", "tests/test_rotation.py::test_from_where_on_16_bits_warn"),
    (
        "_core/angles.py",
        "missed = 0.5 * array",
        "missed = array",
        "tests/test_rotation.py::test_from_where_on_16_bits_warn",
    ),
    (
        "_core/angles.py",
        "shift.ndim and shift.shape[-1] > 1:",
        "shift.ndim:",
        "tests/test_sums.py::test_a_shift_of_any_shape_where_a_sum_is_cut",
    ),
    (
        "_core/angles.py",
        "np.abs(host) < 2.0**63",
        "np.abs(host) <= 2.0**63",
        "tests/test_jax.py::test_whole_floats_that_no_integer_holds_do_not_wrap",
    ),
    (
        "frequencies/ladders.py",
        "(1.4 * max(n_blocks, 1))",
        "(1.4 * max(n_blocks, 2))",
        "tests/test_frequencies.py::test_xpos_scales_are_their_formula",
    ),
    (
        "frequencies/generators.py",
        "basis[:, 1::2] @ odd[:, order]",
        "basis[:, 1::2] @ odd[order].T",
        "tests/test_frequencies.py::test_from_generators_with_features_that_stand_still",
    ),
    (
        "rotation/placing.py",
        "first.ndim and first.shape != lengths.shape",
        "first.ndim and first.shape[-1:] != lengths.shape",
        "tests/test_placing.py::test_starts_are_one_number_or_one_a_sequence",
    ),
    (
        "kernels/families.py",
        "(0.5 * self.nu / (self.nu - 1.0) if self.nu > 1.0 else 0.0)",
        "0.5",
        "tests/kernels/test_families.py::test_how_matern_bends_at_0",
    ),
    (
        "_accel/cpu/rotation.py",
        "        return values.copy()",
        "        return values",
        "tests/test_rotation.py::test_out_may_lie_over_what_turns",
    ),
    (
        "_accel/cpu/rotation.py",
        "fine = fine and (y_high <= address + low or address + high <= y_low)",
        "pass",
        "tests/test_rotation.py::test_out_may_lie_over_what_turns",
    ),
    (
        "_accel/cpu/estimators.py",
        "tiles.append(min(n_lags, max(stop, tiles[-1] + 1)))",
        "tiles.append(n_lags)",
        "tests/accel/test_estimators.py::test_lags_in_any_number_of_tiles",
    ),
    (
        "designs/balancing.py",
        " - 2.0 * products[p[:, None], q]",
        "",
        "tests/test_balancing.py::test_exchanges_end_where_none_gains",
    ),
    (
        "heads/offsets.py",
        "peak.offset in (low, high)",
        "peak.offset == low",
        "tests/heads/test_reading.py::test_an_offset_at_an_end_of_the_range_has_no_error",
    ),
    ("heads/peaks.py", "> _APART * step)", ">= 0.0)", "tests/heads/test_peaks.py::test_one_peak_has_no_twin"),
    (
        "analysis/stretching.py",
        "np.where(self.turns < 1.0,",
        "np.where(self.turns <= 1.0,",
        "tests/analysis/test_planning.py::test_a_block_of_exactly_one_turn_saw_every_angle",
    ),
    (
        "analysis/stretching.py",
        "(self.turns >= 1.0)",
        "(self.turns > 1.0)",
        "tests/analysis/test_planning.py::test_a_block_of_exactly_one_turn_saw_every_angle",
    ),
    (
        "analysis/stretching.py",
        "(self.turns < 1.0) &",
        "(self.turns <= 1.0) &",
        "tests/analysis/test_planning.py::test_a_block_of_exactly_one_turn_saw_every_angle",
    ),
    ("models/values.py", "if width < heads:", "if width <= heads:", "tests/test_configs.py"),
    (
        "models/auditing.py",
        "np.max(size) > 1e12",
        "np.max(size) > 1e13",
        "tests/models/test_auditing.py::test_what_no_model_computes_is_uninitialised",
    ),
    (
        "models/auditing.py",
        "np.min(size) < 1e-30",
        "np.min(size) < 1e-31",
        "tests/models/test_auditing.py::test_what_no_model_computes_is_uninitialised",
    ),
    (
        "models/auditing.py",
        "1.0) > 4.0 * noise",
        "1.0) > 40.0 * noise",
        "tests/models/test_auditing.py::test_how_far_the_factor_of_a_table_may_be_off",
    ),
    (
        "models/auditing.py",
        "abs(reading.factor / rope.attention_factor - 1.0)",
        "reading.factor / rope.attention_factor - 1.0",
        "tests/models/test_auditing.py::test_how_far_the_factor_of_a_table_may_be_off",
    ),
    (
        "exports/exporting.py",
        "last * np.abs(omega)",
        "last * omega",
        "tests/exports/test_exporting.py::test_negative_frequencies_lose_what_positive_ones_do",
    ),
    (
        "exports/exporting.py",
        "np.abs(used.omega) * used.phase",
        "used.omega * used.phase",
        "tests/exports/test_exporting.py::test_negative_frequencies_lose_what_positive_ones_do",
    ),
    (
        "exports/exporting.py",
        "rope.context[0] if len(rope.context) == 1 else None",
        "rope.context[0]",
        "tests/exports/test_exporting.py::test_a_context_of_several_axes_has_to_be_said",
    ),
    (
        "exports/exporting.py",
        "np.abs(omega) > 1e-30",
        "omega > 1e-30",
        "tests/exports/test_exporting.py::test_negative_frequencies_lose_what_positive_ones_do",
    ),
    (
        "storage.py",
        "if unknown := set(metadata) - _ENTRIES[number]:",
        "if unknown := set():",
        "tests/test_storage.py::test_files_that_contradict_themselves",
    ),
    (
        "cli/plan.py",
        "window < (trained",
        "window <= (trained",
        "tests/test_plan_command.py::test_layers_with_a_window_are_left_out",
    ),
)

# what comes in the place of some of them, and why no test needs to see it
MAY_SURVIVE = {
    "0.24374971577130719": "equal: to rounding; it multiplies 4^-16 at most, and changes by 3e-17",
    "< 1e-101:": "equal: where lags cannot be distinguished phases are below 1e-144, and whole turns are above 6",
    "(np.max(means) <= level - doubt)": "equal: the direct sum then looks at a mean exactly there",
    "(np.min(means) >= level + doubt)": "equal: the direct sum then looks at a mean exactly there",
    "means <= level - doubt if": "equal: the direct sum then looks at a mean exactly there, and says the same of it",
    "else means >= level + doubt)": "equal: the direct sum then looks at a mean exactly there, and says the same of it",
    "- level) < doubt)": "equal: to rounding; a mean that is off by just the doubt may be on either side",
    "exact <= level if": "equal: to rounding; a mean that equals the level may be on either side",
    "else exact > level)": "equal: to rounding; a mean that equals the level may be on either side",
    "if log_ratio < 1.0:": "equal: to rounding; both branches hold where they meet",
    "near = n * size < _SERIES": "equal: to rounding; both branches hold where they meet",
    "z * 32.0 / 18432": "equal: to rounding; z is 1/400 at most, and its fourth power is multiplied by 5e-5 / a",
}


def mutations(root: pathlib.Path) -> list[tuple[Mutation, list[str]]]:
    """Those that are still there, with their tests."""
    found = []
    for module, before, after, tests in REPORTED:
        path = f"rfrope/{module}"
        source = (root / path).read_text("utf-8")
        if source.count(before) != 1:
            raise ValueError(f"{path} has {source.count(before)} of {before!r}; expected one")
        first, count = source[: source.index(before)].count("\n"), before.count("\n") + 1
        lines, changed = source.split("\n"), source.replace(before, after).split("\n")
        last = len(changed) - (len(lines) - first - count)
        kept, made = "\n".join(lines[first : first + count]), "\n".join(changed[first:last])
        found.append((Mutation(path, "reported", first + 1, kept, made, "reported"), tests.split()))
    return found


def reasons(root: pathlib.Path) -> dict[str, str]:
    """Why some of them may survive, by `Mutation.name`."""
    pairs = zip(mutations(root), REPORTED, strict=True)
    return {one.name: MAY_SURVIVE[after] for (one, _), (_, _, after, _) in pairs if after in MAY_SURVIVE}
