"""Models: what no probe, audit, comparison or config can make sense of."""

import constructed_models as made_up

from rfrope import models
from rfrope.models.layer_patterns import count_layers

TURN = made_up.model(made_up.PLAIN)


def one_axis(q, k, positions):
    return TURN(q, k, positions[..., 0])


ROWS = [
    # probe
    (lambda: models.probe(lambda q, k, p: q, head_dim=8), TypeError, "expected a pair"),
    (lambda: models.probe(lambda q, k, p: (q[..., :4], k), head_dim=8), ValueError,
     "apply gave queries of shape (1, 1, 40, 4); expected (1, 1, 40, 8)"),
    (lambda: models.probe(lambda q, k, p: (q, 3), head_dim=8), TypeError, "for keys; expected an array of real"),
    (lambda: models.probe(lambda q, k, p: q, head_dim=8, gives="scores"), ValueError, "apply gave scores of shape"),
    (lambda: models.probe(one_axis, made_up.QWEN2_VL, axes=1), ValueError, "axes is 1, and expected turns by 3"),
    # layers
    (lambda: count_layers({"n_layer": -1}), ValueError, "n_layer is -1; expected a whole number from 0"),
]  # fmt: skip
