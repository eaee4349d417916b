"""Fields of the table that says how the loops of a rotation go over memory; see `plans`."""

from __future__ import annotations

from rfrope._backends.layout import COLUMNS

# Fields of a plan before its table of axes
(
    BLOCKS,
    FEATURES,
    OUT_FEATURES,
    REST,
    POSITION_AXES,
    SOURCE,
    HAS_SHIFT,
    HAS_SCALE,
    INVERSE,
    FORM,
    CROSSED,
    IN_PLACE,
    STREAMING,
    ROWS_INSIDE,
    TILE,
    TILES,
    GROUP,
    GROUPS,
    SHARED,
    OUTER_AXES,
    SHARED_AXES,
    A_AXIS,
    B_AXIS,
    FILL,
    SHIFT_APART,
    BLOCK_STRIDES,
    ROW_AXIS,
) = (*range(26), 26 + COLUMNS)
HEADER = ROW_AXIS + COLUMNS
POSITIONS, PHASES, TABLE_64, TABLE_32 = range(4)
