"""Mutations that an attack from outside reported as unseen: where they are now, and the tests that must see them."""

from __future__ import annotations

import pathlib

from tools.mutations import Mutation

# module, what stands there, what comes in its place, tests
REPORTED = (
    ("_core/turns.py", "low + ((high - (both - shadow)) + (term - shadow))", "low", "tests/test_turns.py"),
    ("_core/array.py", '"float32": "float64", "float64"', '"float32": "float32", "float64"', "tests/test_array.py"),
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
    (
        "_accel/cpu/sums.py",
        "    return mean, m2\n\n\ndef _alike",
        "    return mean, m2 * 1.00001\n\n\ndef _alike",
        "tests/accel/test_sums.py",
    ),
    ("_accel/cpu/sums.py", "for part, plan in parts])", "for part, plan in parts[::-1]])", "tests/accel/test_sums.py"),
    ("montecarlo.py", "(n - 3.0) / (n - 1.0)", "1.0", "tests/test_montecarlo.py"),
    ("heads/reading.py", "joint / ((n - 1.0) * (m - 1.0))", "joint / (n * m)", "tests/heads/test_reading.py"),
    ("heads/offsets.py", "(len(side) * (len(side) - 1.0))", "len(side) ** 2", "tests/heads/test_reading.py"),
    ("heads/offsets.py", "math.nan if peak.offset in (low, high) else stderr", "stderr", "tests/heads/test_reading.py"),
    ("_core/files.py", '"xb"', '"wb"', "tests/test_storage.py"),
    (
        "kernels/parameters.py",
        "abs(total - 1.0) > 1e-9",
        "abs(total - 1.0) > 1e-6",
        "tests/kernels/test_parameters.py tests/kernels/test_families.py tests/kernels/test_base.py",
    ),
    ("validation.py", "_ROUNDING = 1e-13", "_ROUNDING = 1e-12", "tests/test_validation.py"),
    ("bochner/data.py", "> 1e-28:", "> 0.0:", "tests/test_bochner.py"),
    ("_core/blocks.py", "if 2 * blocks > x.shape[-1]:", "if 2 * blocks > x.shape[-1] + 2:", "tests/test_rotation.py"),
)


def mutations(root: pathlib.Path) -> list[tuple[Mutation, list[str]]]:
    """Those that are still there, with their tests."""
    found = []
    for module, before, after, tests in REPORTED:
        path = f"rfrope/{module}"
        source = (root / path).read_text("utf-8")
        if source.count(before) != 1:
            raise ValueError(f"{path} has {source.count(before)} of {before!r}; expected one")
        line, end = source[: source.index(before)].count("\n"), before.count("\n") + 1
        changed = source.replace(before, after).split("\n")[line]
        assert end == 1 or changed != source.split("\n")[line]
        found.append((Mutation(path, "reported", line + 1, source.split("\n")[line], changed), tests.split()))
    return found
