"""rfrope: kernel engineering for rotary position embeddings.

Choose a shift-invariant kernel Phi, draw the frequencies that realise it, rotate q and k with them on any array
library, and see the attention score's mean and variance proven: ``E S = (q . k) Phi(lag)``.

Conventions: frequencies are radians per unit of position, lags are KEY minus QUERY, rotations are counter-clockwise,
and the backend comes from the arrays.
"""

import lazy_loader

__version__ = "0.3.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names are in __init__.pyi
