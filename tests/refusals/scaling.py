"""Schemes for longer contexts."""

from rfrope import scaling

W = [1.0, 0.1, 0.01, 0.001]
KEY = "original_max_position_embeddings"
SHORT = {KEY: 64}
PAIR = {"factor": 2.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, **SHORT}
BOUNDS = "expected a positive number from 2**-100 to 2**100"
LADDER = "base is None, and frequencies are not a ladder base ** (-i / D) of two or more; pass base="
OFF = [1.0, 0.1, 0.01 * (1.0 + 1.2e-5), 0.001]  # not quite a ladder

ROWS = [
    (lambda: scaling.linear(W, 0.0), ValueError, "factor is 0.0; expected a positive finite number"),
    (lambda: scaling.linear(W, 5e-324), ValueError, f"factor is 5e-324; {BOUNDS}"),
    (lambda: scaling.proportional(W, factor=1e300), ValueError, f"factor is 1e+300; {BOUNDS}"),
    (lambda: scaling.linear(1.0, 2.0), ValueError, "frequencies is a single number; expected (D,), or (*H, D, k)"),
    (lambda: scaling.ntk([1.0], 2.0), ValueError, "frequencies has shape (1,); expected at least two"),
    (lambda: scaling.ntk([W], 2.0), ValueError, "frequencies has shape (1, 4); expected (D,)"),
    (lambda: scaling.dynamic_ntk(W, 2.0, seq_len=0, max_position_embeddings=8), ValueError,
     "seq_len is 0; expected a whole number from 1"),
    *(
        (lambda w=w: scaling.yarn(w, 2.0, **SHORT), ValueError, LADDER)
        for w in ([1.0, 0.3, 0.2], [1.0], [1.0, 0.0], OFF)
    ),
    (lambda: scaling.yarn([1.0, 1.0], 2.0, **SHORT), ValueError, "base is 1.0; expected a number above 1"),
    (lambda: scaling.yarn(W, 2.0, beta_fast=1.0, beta_slow=2.0, **SHORT), ValueError,
     "beta_fast is 1.0, beta_slow 2.0; expected the first not below the second"),
    (lambda: scaling.yarn(W, 2.0, mscale=-1.0, **SHORT), ValueError, "mscale is -1.0; expected a number from 0 to 2**"),
    (lambda: scaling.yarn(W, 2.0, attention_factor=0.0, **SHORT), ValueError, "attention_factor is 0.0; expected a p"),
    (lambda: scaling.longrope(W[:3], **PAIR), ValueError,
     "short_factor has shape (4,), but frequencies has (3,); expected one number for each frequency"),
    (lambda: scaling.longrope(W, **PAIR | {"long_factor": [1.0, 2.0, 0.0, 4.0]}), ValueError,
     "long_factor holds numbers that are 0 or not finite"),
    (lambda: scaling.longrope(W, **PAIR | {KEY: 1}), ValueError, f"{KEY} is 1; expected a whole number from 2"),
    (lambda: scaling.llama3(W, 2.0, low_freq_factor=4.0, high_freq_factor=1.0, **SHORT), ValueError,
     "low_freq_factor is 4.0, high_freq_factor 1.0; expected the first not above the second"),
    (lambda: scaling.riflex(W, period=0, length=9), ValueError, "period is 0; expected a whole number from 1"),
    (lambda: scaling.riflex(W, period=9, length=9, share=2.0), ValueError, "share is 2.0; expected a number from 0 to"),
    (lambda: scaling.scale_axis(W, 0, scaling.linear, 2.0), ValueError, "frequencies has shape (4,); expected (D, k)"),
    (lambda: scaling.scale_axis([W], 0, scaling.linear, 2.0), ValueError, "axis is 0, by which alone no block turns"),
    (lambda: scaling.scale_axis([W], 4, scaling.linear, 2.0), ValueError, "axis is 4; expected a whole number from 0"),
    (lambda: scaling.proportional(W, partial_rotary_factor=1.5), ValueError, "is 1.5; expected a number from 0 to 1"),
]  # fmt: skip
