"""The rotation as a kernel of Triton: queries and keys, forwards and backwards, in one launch and one pass.

Phases are whole numbers in units of 2^-64 of a turn, which wrap as turns do: a frequency becomes such a number from the
bits of its float64, a position multiplies it, the top bits say the quadrant, and what is left of it meets polynomials
in float32. Nothing is computed in float64, which many devices have slowly or not at all.

A program turns a tile of tokens of one sequence, for some heads that share its phases; these are formed once.
"""

from __future__ import annotations

import triton
import triton.language as tl

# 1/(2 pi) in units of 2^-128, as two words
_TURN_HIGH = tl.constexpr(0x28BE60DB9391054A)
_TURN_LOW = tl.constexpr(0x7F09D5F47D4D3770)
_TWO_PI = tl.constexpr(6.283185307179586)
# sin(a) = a + a^3 P(a^2) and cos(a) = 1 - a^2/2 + a^4 Q(a^2) for |a| <= pi/4, to 3e-9 (Cephes, sinf.c and cosf.c)
_SIN_1, _SIN_2, _SIN_3 = (tl.constexpr(x) for x in (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4))
_COS_1, _COS_2, _COS_3 = (tl.constexpr(x) for x in (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5))

# layouts of features, and what sums are wanted of them
HALF, INTERLEAVED, MAGNITUDES = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _float_parts(x):
    """Sign, 53 bits m and exponent s of float32 or float64 numbers ``m 2^-s``; s is below -63 where there is none.

    Of float64 the bits will do, for devices that have no such numbers.
    """
    if x.dtype == tl.float64 or x.dtype == tl.uint64:
        bits = x.to(tl.int64, bitcast=True)
        raised = (bits >> 52) & 0x7FF
        whole = bits & 0xFFFFFFFFFFFFF
        m = tl.where(raised > 0, whole | 0x10000000000000, whole)
        s = 1075 - tl.maximum(raised, 1)
        negative = bits < 0
    else:
        bits = x.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64)
        raised = (bits >> 23) & 0xFF
        whole = bits & 0x7FFFFF
        m = tl.where(raised > 0, whole | 0x800000, whole) << 29
        s = tl.where(raised == 0xFF, -972, 179 - tl.maximum(raised, 1))
        negative = bits < 0
    return negative, m.to(tl.uint64), s.to(tl.int32)


@triton.jit
def _narrow(x):
    """Return the float32 next to a number, without an instruction of float64."""
    if x.dtype == tl.float64:
        negative, m, s = _float_parts(x)
        low = tl.minimum(tl.maximum(-s, -126), 127)
        power = (low + 127 << 23).to(tl.float32, bitcast=True)
        more = tl.minimum(tl.maximum(-s - low, -126), 127)
        found = m.to(tl.float32) * power * (more + 127 << 23).to(tl.float32, bitcast=True)
        found = tl.where((s == -972) & (m != 0x10000000000000), float("nan"), found)
        return tl.where(negative, -found, found)
    return x.to(tl.float32)


@triton.jit
def _turns(x):
    """Radians in turns: the word in units of 2^-64, what it lacks (0 to 1 units), and whole units of 2^-32.

    Words wrap at a turn; the units of 2^-32 wrap at 2^32 turns. NaN from 2^53 radians on.
    """
    negative, m, s = _float_parts(x)
    high, low = tl.full((), _TURN_HIGH, tl.uint64), tl.full((), _TURN_LOW, tl.uint64)
    product = m * high
    p_1 = product + tl.umulhi(m, low + tl.zeros_like(m))
    p_2 = tl.umulhi(m, high + tl.zeros_like(m)) + (p_1 < product).to(tl.uint64)
    # the product, in units of 2^(-64 - s), shifted by s
    none = tl.zeros_like(m)
    far, lost = s >= 64, s >= 128
    top = tl.where(far, none, p_2)
    middle = tl.where(lost, none, tl.where(far, p_2, p_1))
    bottom = tl.where(far & (s < 128), p_1, none)
    by = (s & 63).to(tl.uint64)
    word = ((middle >> by) | ((top << 1) << (63 - by))).to(tl.int64)
    part = (bottom >> by) | ((middle << 1) << (63 - by))
    rest = (part >> 40).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
    coarse = ((word.to(tl.uint64) >> 32) | ((top >> by) << 32)).to(tl.int64)
    rest = tl.where(s < 0, float("nan"), rest)
    return tl.where(negative, -word, word), tl.where(negative, -rest, rest), tl.where(negative, -coarse, coarse)


@triton.jit
def _add_product(units, rest, position, frequencies, step, mask):
    """Add a position times frequencies to phases: units of 2^-64 of a turn, and what they lack.

    Frequencies are radians (or the bits of their float64), or two words: turns of a step, and of 2^26 steps, for
    positions that are integers.
    """
    prepared: tl.constexpr = frequencies.dtype.element_ty == tl.int64
    frequency = tl.load(frequencies, mask=mask, other=0)
    if prepared:
        far = tl.load(frequencies + step, mask=mask, other=0)
        units += (position & 0x3FFFFFF) * frequency + (position >> 26) * far
    elif position.dtype.is_floating():
        word, lack, coarse = _turns(frequency)
        negative, m, s = _float_parts(position)
        by = tl.minimum(tl.maximum(s, 0), 63).to(tl.uint64)
        up = tl.minimum(tl.maximum(-s, 0), 63).to(tl.uint64)
        whole = tl.where(s < 64, (m >> by) << up, tl.zeros_like(m)).to(tl.int64)
        over = tl.minimum(tl.maximum(s - 64, 0), 63).to(tl.uint64)
        part = tl.where(s < 64, (m << 1) << (63 - by), m >> over)
        part = tl.where((s > 0) & (s < 128), part, tl.zeros_like(m))
        fine, part = (part & 0xFFFFFFFF).to(tl.int64).to(tl.float32), (part >> 32).to(tl.int64)
        whole, part = tl.where(negative, -whole, whole), tl.where(negative, -part, part)
        units += whole * word + part * coarse
        rest += tl.where(s < -63, float("nan"), whole.to(tl.float32)) * lack
        rest += tl.where(negative, -fine, fine) * (coarse.to(tl.float32) * 2.3283064365386963e-10)
    else:
        word, lack, _ = _turns(frequency)
        units += position * word
        rest += position.to(tl.float32) * lack
    return units, rest


@triton.jit
def _cos_sin(units, rest):
    """Cos and sin of phases: the quadrant from the top bits, and polynomials of what is left."""
    quarters = (units + (1 << 61)) >> 62
    left = ((units - (quarters << 62)) >> 32).to(tl.int32).to(tl.float32) * 2.3283064365386963e-10
    a = (left + rest * 5.421010862427522e-20) * _TWO_PI
    z = a * a
    sin = a + a * z * (_SIN_1 + z * (_SIN_2 + z * _SIN_3))
    cos = 1.0 - 0.5 * z + z * z * (_COS_1 + z * (_COS_2 + z * _COS_3))
    quadrant = quarters.to(tl.int32) & 3
    odd = (quadrant & 1) != 0
    first, second = tl.where(odd, sin, cos), tl.where(odd, cos, sin)
    first = tl.where(((quadrant + 1) & 2) != 0, -first, first)
    return first, tl.where((quadrant & 2) != 0, -second, second)


@triton.jit
def _load_blocks(at, step, valid, D: tl.constexpr, BLOCKS: tl.constexpr, LAYOUT: tl.constexpr):
    """First and second features of blocks, from the addresses of rows, in float32; second ones of magnitudes are 0."""
    if LAYOUT == INTERLEAVED:
        column = tl.arange(0, 2 * BLOCKS)[None, None, :]
        found = tl.load(at + column.to(tl.int64) * step, mask=valid & (column < 2 * D), other=0.0)
        first, second = tl.split(tl.reshape(found, (found.shape[0], found.shape[1], BLOCKS, 2)))
        return first.to(tl.float32), second.to(tl.float32)
    column = tl.arange(0, BLOCKS)[None, None, :]
    mask = valid & (column < D)
    first = tl.load(at + column.to(tl.int64) * step, mask=mask, other=0.0).to(tl.float32)
    if LAYOUT == MAGNITUDES:
        return first, tl.zeros_like(first)
    return first, tl.load(at + (column + D).to(tl.int64) * step, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store_blocks(at, step, first, second, valid, D: tl.constexpr, BLOCKS: tl.constexpr, LAYOUT: tl.constexpr):
    """Store features of blocks at the addresses of rows; of magnitudes the first alone."""
    kind = at.dtype.element_ty
    if LAYOUT == INTERLEAVED:
        column = tl.arange(0, 2 * BLOCKS)[None, None, :]
        both = tl.join(first.to(kind), second.to(kind))
        both = tl.reshape(both, (first.shape[0], first.shape[1], 2 * BLOCKS))
        tl.store(at + column.to(tl.int64) * step, both, mask=valid & (column < 2 * D))
    else:
        column = tl.arange(0, BLOCKS)[None, None, :]
        mask = valid & (column < D)
        tl.store(at + column.to(tl.int64) * step, first.to(kind), mask=mask)
        if LAYOUT == HALF:
            tl.store(at + (column + D).to(tl.int64) * step, second.to(kind), mask=mask)


@triton.jit
def _softplus(x):
    """``log(1 + exp(x))`` to the digits that small results have: the logarithm as ``log(w) e / (w - 1)``, w = 1 + e."""
    e = tl.exp(-tl.abs(x))
    w = 1.0 + e
    rounded = w - 1.0
    logarithm = tl.where(rounded == 0.0, e, tl.log(w) * (e / tl.where(rounded == 0.0, 1.0, rounded)))
    return tl.maximum(x, 0.0) + logarithm


@triton.jit
def _turn_heads(
    x, y, z, x_steps, y_steps, z_steps, batch, head, heads, token, tokens, cos, sin,
    D: tl.constexpr, HEADS: tl.constexpr, LAYOUTS: tl.constexpr, SOFTPLUS: tl.constexpr, COPIED: tl.constexpr,
    SUMS: tl.constexpr,
):  # fmt: skip
    """Turn some heads, from one on, by ready cos and sin; sums of products of a gradient x with features z."""
    TOKENS: tl.constexpr = cos.shape[1]
    BLOCKS: tl.constexpr = cos.shape[2]
    LAYOUT: tl.constexpr = LAYOUTS[0]
    OUT: tl.constexpr = LAYOUTS[1]
    row = tl.arange(0, TOKENS)[None, :, None].to(tl.int64)
    x += batch * x_steps[0] + token * x_steps[2]
    y += batch * y_steps[0] + token * y_steps[2]
    dots, crosses = tl.zeros_like(cos), tl.zeros_like(cos)
    for start in range(0, heads, HEADS):
        member = start + tl.arange(0, HEADS)[:, None, None]
        valid = (member < heads) & (token + row < tokens)
        number = (head + member).to(tl.int64)
        x_at, y_at = x + number * x_steps[1] + row * x_steps[2], y + number * y_steps[1] + row * y_steps[2]
        first, second = _load_blocks(x_at, x_steps[3], valid, D, BLOCKS, LAYOUT)
        if SUMS or (SOFTPLUS and OUT == MAGNITUDES):
            z_at = z + batch * z_steps[0] + number * z_steps[1] + token * z_steps[2] + row * z_steps[2]
            z_1, z_2 = _load_blocks(z_at, z_steps[3], valid, D, BLOCKS, OUT)
            if SUMS:
                m = _softplus(z_1) if SOFTPLUS else z_1
                dots += tl.sum(m * first + z_2 * second, 0, keep_dims=True)
                crosses += tl.sum(m * second - z_2 * first, 0, keep_dims=True)
        if SOFTPLUS and LAYOUT == MAGNITUDES:
            first = _softplus(first)
        turned, other = first * cos - second * sin, first * sin + second * cos
        if SOFTPLUS and OUT == MAGNITUDES:
            turned = turned / (1.0 + tl.exp(-z_1))
        _store_blocks(y_at, y_steps[3], turned, other, valid, D, BLOCKS, OUT)
        if COPIED > 0:
            column = tl.arange(0, triton.next_power_of_2(COPIED))[None, None, :]
            mask = valid & (column < COPIED)
            after, behind = D if LAYOUT == MAGNITUDES else 2 * D, D if OUT == MAGNITUDES else 2 * D
            copied = tl.load(x_at + (column + after).to(tl.int64) * x_steps[3], mask=mask)
            tl.store(y_at + (column + behind).to(tl.int64) * y_steps[3], copied, mask=mask)
    return dots, crosses


@triton.jit
def _load_position(positions, at, step, row, token, tokens, offset, COUNTED: tl.constexpr):
    """Positions of the rows of a tile, on one axis: loaded, counted from an offset, or both."""
    if positions is None:
        found = token + row + offset
    else:
        found = tl.load(positions + at + (token + row) * step, mask=token + row < tokens, other=0)
        if COUNTED:
            found = found.to(tl.int64) + token + row + offset
        elif not found.dtype.is_floating():
            found = found.to(tl.int64) + offset
    return found


@triton.jit
def _form_cos_sin(
    positions, frequencies, shift, scale, p_steps, f_steps, s_steps, e_steps, batch, head, group, token, tokens,
    shifted, offset, factor,
    D: tl.constexpr, AXES: tl.constexpr, COUNTED: tl.constexpr, BACK: tl.constexpr, DIVIDED: tl.constexpr,
    TOKENS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Cos and sin of a tile, times the scale."""
    row, column = tl.arange(0, TOKENS)[None, :, None], tl.arange(0, BLOCKS)[None, None, :]
    inside = (column < D) & (token + row < tokens)
    units, rest = tl.zeros((1, TOKENS, BLOCKS), tl.int64), tl.zeros((1, TOKENS, BLOCKS), tl.float32)
    PARTS: tl.constexpr = 1 if frequencies is None else 2 if frequencies.dtype.element_ty == tl.int64 else 1
    set_of, head = (head // group).to(tl.int64), head.to(tl.int64)  # 32 bits may not hold their products with strides
    for axis in tl.static_range(AXES):
        at = batch * p_steps[0] + head * p_steps[1] + axis * p_steps[3]
        position = _load_position(positions, at, p_steps[2], row, token, tokens, offset, COUNTED)
        at = batch * f_steps[0] + set_of * f_steps[1] + axis * PARTS * f_steps[3]
        at = frequencies + at + column.to(tl.int64) * f_steps[2]
        units, rest = _add_product(units, rest, position, at, f_steps[3], column < D)
    if shift is not None:
        at = batch * s_steps[0] + head * s_steps[1] + (token + row) * s_steps[2] + column.to(tl.int64) * s_steps[3]
        word, lack, _ = _turns(tl.load(shift + at, mask=tl.where(shifted, inside, False), other=0.0))
        units, rest = units + word, rest + lack
    cos, sin = _cos_sin(units, rest)
    if scale is not None:
        at = batch * e_steps[0] + head * e_steps[1] + (token + row) * e_steps[2] + column.to(tl.int64) * e_steps[3]
        e = _narrow(tl.load(scale + at, mask=inside, other=1.0))
        factor = factor / e if DIVIDED else factor * e
    return cos * factor, (-sin if BACK else sin) * factor


@triton.jit
def _leave_sums(
    sums, along, radial, shifted, positions, p_at, p_steps, token, tokens, offset,
    D: tl.constexpr, AXES: tl.constexpr, COUNTED: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Sum over the tokens of a tile, and write what is wanted of the gradients of frequencies, shift and scale."""
    row = tl.arange(0, along.shape[1])[None, :, None]
    column = tl.arange(0, along.shape[2])[None, :]
    if SUMS & 1:
        for axis in tl.static_range(AXES):
            at = p_at + axis * p_steps[3]
            position = _load_position(positions, at, p_steps[2], row, token, tokens, offset, COUNTED)
            found = tl.sum(along * _narrow(position), 1)
            tl.store(sums + axis * D + column, found, mask=column < D)
        sums += AXES * D
    if SUMS & 2:
        tl.store(sums + column, tl.where(shifted, tl.sum(along, 1), 0.0), mask=column < D)
        sums += D
    if SUMS & 4:
        tl.store(sums + column, tl.sum(radial, 1), mask=column < D)


@triton.jit(do_not_specialize=["offset"])
def turn(
    q, q_out, q_in, k, k_out, k_in, positions, frequencies, shift, scale, sums,
    q_batch, q_head, q_token, q_feature, k_batch, k_head, k_token, k_feature,
    q_out_batch, q_out_head, q_out_token, q_out_feature, k_out_batch, k_out_head, k_out_token, k_out_feature,
    q_in_batch, q_in_head, q_in_token, q_in_feature, k_in_batch, k_in_head, k_in_token, k_in_feature,
    p_batch, p_head, p_token, p_axis, f_batch, f_head, f_block, f_axis,
    s_batch, s_head, s_token, s_block, e_batch, e_head, e_token, e_block,
    tokens, batches, q_heads, k_heads, q_each, k_each, q_group, k_group, offset, factor,
    D: tl.constexpr, AXES: tl.constexpr, COUNTED: tl.constexpr, BACK: tl.constexpr, DIVIDED: tl.constexpr,
    LAYOUT: tl.constexpr, OUT: tl.constexpr, SOFTPLUS: tl.constexpr, COPIED: tl.constexpr,
    SUMS: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Turn queries, and keys if there are any.

    Parameters
    ----------
    q, q_out, k, k_out : pointers
        Features and results, with strides of batch, head, token and feature.
    q_in, k_in : pointers or None
        Where q and k are gradients: the features that had been turned, of whose layout the results are.
    positions, frequencies, shift, scale : pointers or None
        With strides. The shift is of keys, or of queries where there are no keys. Without frequencies (AXES is 0) it
        is the phases themselves.
    sums : pointer or None
        What each program leaves of its tokens and heads, for each block, as the bits of SUMS say: gradients of the
        frequencies on each axis (1), of the shift (2), and of the logarithm of the scale (4).
    tokens, batches, q_heads, k_heads : int
        How many there are.
    q_each, k_each, q_group, k_group : int
        Heads of a program, and heads that share a set of frequencies.
    offset, factor : int, float
        Added to positions that are counted; multiplies cos and sin.
    """
    BLOCKS: tl.constexpr = triton.next_power_of_2(D)
    pid, tiles = tl.program_id(0), tl.cdiv(tokens, TOKENS)
    q_chunks = tl.cdiv(q_heads, q_each)
    chunks = q_chunks if k is None else q_chunks + tl.cdiv(k_heads, k_each)
    token = (pid % tiles).to(tl.int64) * TOKENS
    chunk, batch = (pid // tiles) % chunks, (pid // tiles // chunks).to(tl.int64)
    are_keys = chunk >= q_chunks
    each, group = tl.where(are_keys, k_each, q_each), tl.where(are_keys, k_group, q_group)
    head = tl.where(are_keys, chunk - q_chunks, chunk) * each
    held = tl.minimum(each, tl.where(are_keys, k_heads, q_heads) - head)
    are_shifted = are_keys | (k is None)
    p_steps = (p_batch, p_head, p_token, p_axis)
    cos, sin = _form_cos_sin(
        positions, frequencies, shift, scale, p_steps, (f_batch, f_head, f_block, f_axis),
        (s_batch, s_head, s_token, s_block), (e_batch, e_head, e_token, e_block), batch, head, group, token, tokens,
        are_shifted, offset, factor, D, AXES, COUNTED, BACK, DIVIDED, TOKENS, BLOCKS,
    )  # fmt: skip
    dots, crosses = tl.zeros_like(cos), tl.zeros_like(cos)
    if are_keys:
        if k is not None:
            dots, crosses = _turn_heads(
                k, k_out, k_in, (k_batch, k_head, k_token, k_feature),
                (k_out_batch, k_out_head, k_out_token, k_out_feature),
                (k_in_batch, k_in_head, k_in_token, k_in_feature), batch, head, held, token, tokens, cos, sin,
                D, HEADS, (LAYOUT, OUT), SOFTPLUS, COPIED, SUMS > 0,
            )  # fmt: skip
    else:
        dots, crosses = _turn_heads(
            q, q_out, q_in, (q_batch, q_head, q_token, q_feature),
            (q_out_batch, q_out_head, q_out_token, q_out_feature), (q_in_batch, q_in_head, q_in_token, q_in_feature),
            batch, head, held, token, tokens, cos, sin, D, HEADS, (LAYOUT, OUT), SOFTPLUS, COPIED, SUMS > 0,
        )  # fmt: skip
    if SUMS > 0:
        sign: tl.constexpr = 1.0 if BACK else -1.0
        along, radial = sign * (cos * crosses + sin * dots), sign * (cos * dots - sin * crosses)
        # sets of frequencies, then chunks of queries and of keys in each, then sequences and tiles
        q_parts = tl.cdiv(q_group, q_each)
        parts = q_parts if k is None else q_parts + tl.cdiv(k_group, k_each)
        line = (head // group) * parts + tl.where(are_keys, q_parts, 0) + (head % group) // each
        line = (line.to(tl.int64) * batches + batch) * tiles + pid % tiles
        slots: tl.constexpr = (SUMS & 1) * AXES + (SUMS >> 1 & 1) + (SUMS >> 2)
        _leave_sums(
            sums + line * slots * D, along, radial, are_shifted, positions,
            batch * p_batch + head.to(tl.int64) * p_head, p_steps, token, tokens, offset, D, AXES, COUNTED, SUMS,
        )  # fmt: skip
