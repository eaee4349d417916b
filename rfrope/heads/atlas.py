"""Statistics of all heads of a model: the blocks that drive their scores, the effect of position alone, and sinks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core import angles, array
from rfrope._core.arguments import positive, whole
from rfrope._core.array import Array
from rfrope._core.results import Report, Result, Words, map_arrays, returned_as_given
from rfrope.analysis.fits import KernelFit, find_law
from rfrope.heads.documents import Head, Sums, sum_document
from rfrope.heads.peaks import peak_of_waves
from rfrope.rotation.rope import Rope, pairing_for, refuse_polar

_OUTLIER = 5.0  # times the median of a head's blocks; stronger blocks are outliers
_LARGEST = 1e50  # limit of features and scales, whose products are squared
_FEWEST = 3  # documents: the jackknife leaves one out, and an unbiased product needs two


@dataclass(frozen=True, eq=False)
class HeadEstimate(Result):
    """Estimates and their standard errors.

    Attributes
    ----------
    value, stderr : ndarray
        Of one shape. Errors are from a jackknife over documents.

    See Also
    --------
    heads.Atlas

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> found = rfrope.heads.HeadEstimate(np.array([0.5]), np.array([0.1]))
    >>> found.value / found.stderr
    array([5.])
    """

    value: np.ndarray
    stderr: np.ndarray


@dataclass(frozen=True, eq=False)
class Atlas(Result):
    """Statistics of H heads of D blocks on some documents; see `heads.atlas`.

    Attributes
    ----------
    layer, head : ndarray of int, (H,)
        Layer and number of each head. Default: layer 0.
    frequencies : ndarray, (D,) or (H, D), radians per position
        Frequencies of all heads, or of each.
    lags : ndarray, (n,), in units of position
        ``0, -1, ..., 1 - n``: KEY minus QUERY, for the n tokens that are not skipped.
    documents, tokens, skip, context : int
        Number of documents, of tokens of each, and of skipped tokens; positions for `partial`.
    variance : HeadEstimate, (H,)
        Variance of the score over the pairs of a document, averaged over documents.
    share : HeadEstimate, (H, D)
        Covariance of a block's part with the score, over `variance`. With `unturned` the sum is 1; a negative share
        means that the block works against the others.
    unturned : HeadEstimate, (H,)
        Share of all unrotated features.
    curve : HeadEstimate, (H, n)
        Score of the mean query and the mean key at each lag.
    by_lag : HeadEstimate, (H, n)
        Mean score at each lag over the pairs that occur at it.
    offset : HeadEstimate, (H,), in units of position
        Real lag at the maximum of `curve`; NaN if no block contributes.
    lag_explained : HeadEstimate, (H,)
        Fraction of `variance` that the lag alone explains.
    curve_explained : HeadEstimate, (H,)
        Fraction of `variance` that `curve` explains, up to a constant; negative if it is worse than a constant. NaN,
        like shares, if scores do not vary.
    concentration_q, concentration_k : HeadEstimate, (H, D)
        ``|E z|^2 / E |z|^2`` of each block as a complex number: 1 if it is the same in all tokens.
    strength : HeadEstimate, (H, D)
        Mean length of the query's block times that of the key's, with the scale.
    angle : HeadEstimate, (H, D), radians
        Angle from the mean query to the mean key, between -pi and pi.
    outlier : ndarray of bool, (H, D)
        True if `strength` is above 5 times the median of the head's blocks.
    partial : ndarray of bool, (D,) or (H, D), as `frequencies`
        True if a block completes no turn within `context`.
    sink : HeadEstimate, (H,)
        Attention on the first token, averaged over the later half of the queries.
    sink_key, sink_slow, sink_fast, sink_content : HeadEstimate, (H,)
        Parts of the first key's advantage over the mean of the others, for these queries: the difference of the key
        itself, the effect of its lag on the mean key through blocks that complete no turn in a document, through the
        other blocks, and the rest.
    order, norm_order : ndarray of int, (H, D)
        Order in which blocks are stilled (their rotation is removed): by `predicted`, and by ascending `strength`.
    predicted, change, norm_change : HeadEstimate, (H, D + 1)
        Root mean square change of a logit, less its mean over the keys of a query, with the first 0, 1, ..., D blocks
        stilled: predicted from means and covariances for `order`, measured for it, and measured for `norm_order`.

    See Also
    --------
    heads.atlas, heads.AtlasBuilder

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> rng, rope = np.random.default_rng(0), rfrope.Rope(rfrope.geometric(4))
    >>> found = atlas(*rng.standard_normal((2, 6, 2, 64, 8)), rope)
    >>> found.documents, found.head, found.lag_explained.value.shape
    (6, array([0, 1]), (2,))
    """

    layer: np.ndarray
    head: np.ndarray
    frequencies: np.ndarray
    lags: np.ndarray
    documents: int
    tokens: int
    skip: int
    context: int
    variance: HeadEstimate
    share: HeadEstimate
    unturned: HeadEstimate
    curve: HeadEstimate
    by_lag: HeadEstimate
    offset: HeadEstimate
    lag_explained: HeadEstimate
    curve_explained: HeadEstimate
    concentration_q: HeadEstimate
    concentration_k: HeadEstimate
    strength: HeadEstimate
    angle: HeadEstimate
    outlier: np.ndarray
    partial: np.ndarray
    sink: HeadEstimate
    sink_key: HeadEstimate
    sink_slow: HeadEstimate
    sink_fast: HeadEstimate
    sink_content: HeadEstimate
    order: np.ndarray
    norm_order: np.ndarray
    predicted: HeadEstimate
    change: HeadEstimate
    norm_change: HeadEstimate

    def removable_blocks(self, tolerance: float = 0.1) -> np.ndarray:
        """Return which blocks can be stilled together, as bool ``(H, D)``.

        They are the first of `order` for which the measured change plus twice its error is at most `tolerance`.
        """
        tolerance = positive("tolerance", tolerance)
        change, order = map_arrays(array.to_host, (self.change, self.order))
        count = np.sum(np.cumprod((change.value + 2.0 * change.stderr <= tolerance)[:, 1:], axis=1), axis=1)
        found = np.zeros(order.shape, bool)
        np.put_along_axis(found, order, np.arange(order.shape[1]) < count[:, None], axis=1)
        return found

    def nearest_laws(self) -> tuple[KernelFit | None, ...]:
        """Return the kernel nearest to the mean kernel of each set of frequencies: of each head, or one for all heads.

        It is the first of `analysis.fit_kernel` for the blocks that turn and lags within `context`, which takes about a
        second; None where none turns, or a context of fewer than 8 positions hardly tells kernels apart.
        """
        return tuple(find_law(one, self.context) for one in np.atleast_2d(array.to_host(self.frequencies)))

    def head_table(self) -> dict[str, np.ndarray]:
        """Return one row per head, as columns by name; each estimate is followed by its error, ``_stderr``."""
        self = map_arrays(array.to_host, self)
        half = self.order.shape[1] // 2
        table = {"layer": self.layer, "head": self.head} | self._columns(_OF_HEADS)
        table |= self._columns(("predicted", "change", "norm_change"), (slice(None), half), "_half")
        removable = np.sum(self.removable_blocks(), axis=1)
        return table | {"removable_blocks": removable, "outliers": np.sum(self.outlier, axis=1)}

    def block_table(self) -> dict[str, np.ndarray]:
        """Return one row per block of each head, as columns by name."""
        self = map_arrays(array.to_host, self)
        layer, head, block, frequency = (
            np.broadcast_to(one, self.order.shape)
            for one in (self.layer[:, None], self.head[:, None], np.arange(self.order.shape[1]), self.frequencies)
        )
        table = {"layer": layer, "head": head, "block": block, "frequency": frequency}
        table |= self._columns(("share", "concentration_q", "concentration_k", "strength", "angle"))
        table |= {"outlier": self.outlier, "partial": np.broadcast_to(self.partial, self.order.shape)}
        table |= {"removable_blocks": self.removable_blocks(), "rank": np.argsort(self.order, axis=1)}
        table |= {"norm_rank": np.argsort(self.norm_order, axis=1)}
        return {name: column.reshape(-1) for name, column in table.items()}

    def _columns(self, names: Sequence[str], at: Any = ..., ending: str = "") -> dict[str, np.ndarray]:
        estimates = ((f"{name}{ending}", getattr(self, name)) for name in names)
        return {
            title: values[at]
            for name, one in estimates
            for title, values in ((name, one.value), (f"{name}_stderr", one.stderr))
        }

    def report(self) -> Report:
        """Return the findings in words."""
        self = map_arrays(array.to_host, self)
        heads, blocks = self.order.shape
        seen, half = self.lag_explained.value, blocks // 2
        better = np.mean(self.change.value[:, half] < self.norm_change.value[:, half])
        lines = [
            f"Atlas of {heads} heads of {blocks} blocks, {self.documents} documents of {self.tokens} tokens",
            f"The lag alone explains {np.median(seen):.0%} of the variance of a head's logits (median), more than half "
            f"in {np.sum(seen > 0.5)} heads.",
            f"{np.sum(self.sink.value > 0.5)} heads put more than half of their attention on the first token.",
            f"{np.sum(self.outlier)} pairs of features are outliers; "
            f"{np.sum(self.outlier & self.partial)} of them complete no turn within {self.context} positions.",
            f"Stopping half of the blocks changes a logit by {np.median(self.change.value[:, half]):.3g} (median of "
            f"heads), or by {np.median(self.norm_change.value[:, half]):.3g} if chosen by norms; norms are worse in "
            f"{better:.0%} of the heads.",
        ]
        return Report([Words(lines)], lines[1])


_SINK = ("sink", "sink_key", "sink_slow", "sink_fast", "sink_content")
_OF_HEADS = ("variance", "unturned", "offset", "lag_explained", "curve_explained", *_SINK)


@returned_as_given
def atlas(
    q: Array, k: Array, rope: Any, *, scale: float | None = None, skip: int = 1, context: int | None = None
) -> Atlas:
    """Return statistics of every head from its queries and keys on some documents, with errors over the documents.

    Parameters
    ----------
    q, k : array_like, (documents, H, tokens, d) and (documents, G, tokens, d)
        Queries and keys before rotation, of tokens at positions 0, 1, ...; each key head is shared by H / G consecutive
        query heads. At least 3 documents.
    rope : Rope or array_like
        Frequencies of all heads, ``(D,)``, or of each, ``(H, D, 1)``; with sections for text, whose axes are equal.
        Features beyond 2D count unrotated.
    scale : float, optional
        Positive factor of q . k, beside the square of the attention factor. Default: ``1 / sqrt(d)``.
    skip : int
        Number of first tokens to exclude from all but the sinks: in most models the first key is unlike any other.
    context : int, optional
        Positions for `partial`. Default: those of the Rope, or the tokens of a document.

    Returns
    -------
    Atlas
        Its arrays are of the library and on the device of `q`; tables are of NumPy.

    Raises
    ------
    ValueError
        If shapes do not fit, there are fewer than 3 documents or too few tokens, a feature is NaN or infinite, the Rope
        is polar, or frequencies are of another number of heads or of several axes.
    TypeError
        If features are not real floating, or arrays are of different libraries.

    See Also
    --------
    heads.Atlas, heads.AtlasBuilder, integrations.transformers.atlas

    Notes
    -----
    Pairs are causal, and the variance is that within documents. A score is the sum of its blocks, so shares sum to 1,
    to rounding, even if blocks are correlated.

    `lag_explained` is the variance between lags over that of the scores. The square of a mean over few pairs is biased
    upwards, so the product of the means of two documents is averaged over all pairs of documents: unbiased for
    independent documents, and possibly negative. `curve_explained` is ``(2 Cov(S, c) - Var c) / Var S`` for the curve
    c, by which TriAttention (arXiv:2604.04921) reads heads: the mean score of waves with the amplitudes and phases of
    a head.

    Outlier pairs: Rotary Offset Features (arXiv:2503.01832) finds them at frequencies that complete no turn, `partial`.

    Softmax ignores a change common to all keys of a query, so it is subtracted. `order` adds the block with the
    smallest predicted increase at each step, including joint effects; MHA2MLA (arXiv:2502.14837) orders by ``|q| |k|``.
    The prediction assumes that queries and keys of a document are independent of each other and of their positions.

    The jackknife leaves out one document at a time, assumed independent; `order` and `norm_order` are kept.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> rng, rope = np.random.default_rng(0), rfrope.Rope(rfrope.geometric(4))
    >>> q, k = rng.standard_normal((2, 6, 2, 64, 8))
    >>> q[:, 1], k[:, 1] = 1.0, 3.0  # the second head is the same whatever the token is
    >>> found = atlas(q, k, rope)
    >>> found.lag_explained.value.round(2) + 0.0
    array([0., 1.])
    >>> found.share.value.sum(axis=1).round(12)
    array([1., 1.])
    """
    builder = AtlasBuilder(rope, scale=scale, skip=skip, context=context)
    space, _ = array.shared(q=q, k=k)
    read = [array.to_host(array.asarray(x, space, name=name), name) for name, x in (("q", q), ("k", k))]
    for name, x in zip("qk", read, strict=True):
        if x.ndim != 4:
            raise ValueError(f"{name} has shape {x.shape}; expected (documents, heads, tokens, d)")
    if len(read[0]) != len(read[1]):
        raise ValueError(f"q has {len(read[0])} documents and k {len(read[1])}; expected as many of each")
    for one_q, one_k in zip(*read, strict=True):
        builder.add(one_q, one_k)
    return builder.finish()


class AtlasBuilder:
    """Build an atlas from documents that come one at a time, keeping about ``H (2 D^2 + 2 tokens)`` numbers of each.

    Parameters
    ----------
    rope, scale, skip, context
        See `heads.atlas`.

    See Also
    --------
    heads.atlas, integrations.transformers.read_heads

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> builder = AtlasBuilder(rfrope.geometric(4))
    >>> for seed in range(3):
    ...     builder.add(*np.random.default_rng(seed).standard_normal((2, 2, 64, 8)))
    >>> builder.finish().share.value.shape
    (2, 4)
    """

    def __init__(self, rope: Any, *, scale: float | None = None, skip: int = 1, context: int | None = None) -> None:
        refuse_polar(rope, "rope", "an atlas is of queries and keys that turn")
        self.rope = rope if isinstance(rope, Rope) else Rope(rope)
        self.omega = angles.read_on_host(self.rope.frequencies, "rope", shapes="heads")[..., 0]
        self.scale = None if scale is None else positive("scale", scale, minimum=1.0 / _LARGEST, maximum=_LARGEST)
        self.skip, given = whole("skip", skip), self.rope.context
        context = given if context is None and isinstance(given, int) else context
        self.context = None if context is None else whole("context", context, 1)
        self._documents: list[Sums] = []
        self._shapes: tuple[tuple[int, ...], ...] = ()
        self._pairing = pairing_for(self.rope, None)
        self._heads: list[Head] = []

    def add(self, q: Array, k: Array) -> None:
        """Read one document: queries ``(H, tokens, d)`` and keys ``(G, tokens, d)``, of the same shapes for all.

        Raises
        ------
        ValueError, TypeError
            See `heads.atlas`.
        """
        q, k = (self._checked(name, x) for name, x in (("q", q), ("k", k)))
        if q.shape[1:] != k.shape[1:] or not len(k) or len(q) % len(k):
            raise ValueError(
                f"q has shape {q.shape} and k {k.shape}; expected H heads of queries and G of keys, H / G whole"
            )
        if not self._heads:
            if self.omega.ndim > 1 and len(self.omega) != len(q):
                raise ValueError(
                    f"rope has frequencies of {len(self.omega)} heads, but q has {len(q)}; expected as many"
                )
            factor = self.rope.attention_factor**2
            scale = factor * (q.shape[-1] ** -0.5 if self.scale is None else self.scale)
            self._shapes = (q.shape, k.shape)
            given = (self._pairing, scale, self.skip, q.shape[1], q.shape[-1] - 2 * self.omega.shape[-1])
            self._heads = [Head.prepare(one, *given) for one in np.atleast_2d(self.omega)]
        if self._shapes != (q.shape, k.shape):
            raise ValueError(
                f"q has shape {q.shape}, but {self._shapes[0]} in documents before; expected equal lengths"
            )
        self._documents.append(sum_document(q, k, self._heads))

    def _checked(self, name: str, x: Any) -> np.ndarray:
        host = array.to_host(array.asarray(x, array.namespace(**{name: x}), name=name), name)
        if host.dtype.kind != "f" and host.dtype.name != "bfloat16":
            raise TypeError(f"{name} has dtype {host.dtype.name}; expected real floating features")
        turned = 2 * self.omega.shape[-1]
        if host.ndim != 3 or host.shape[-1] < turned or host.shape[-1] % 2:
            expected = f"(heads, tokens, d) with an even d of at least {turned}"
            raise ValueError(f"{name} has shape {host.shape}; expected {expected}")
        pairing_for(self.rope, host, name)  # refuses models that do not rotate the first features
        if host.shape[1] < self.skip + 4:
            raise ValueError(
                f"{name} has {host.shape[1]} tokens; expected at least {self.skip + 4} with skip={self.skip}"
            )
        host = host.astype(np.float64)
        if not np.all(np.abs(host) <= _LARGEST):
            raise ValueError(f"{name} holds NaN or infinity, or magnitudes above 1e50; expected finite features")
        return host

    def finish(self, heads: Iterable[tuple[int, int]] | None = None) -> Atlas:
        """Return the atlas of the documents read so far.

        Parameters
        ----------
        heads : iterable of (int, int), optional
            Layer and number of each head. Default: layer 0.

        Raises
        ------
        ValueError
            If there are fewer than 3 documents, or another number of heads.
        """
        count = len(self._documents)
        if count < _FEWEST:
            raise ValueError(f"there are {count} documents; expected at least {_FEWEST}, for errors over documents")
        number, tokens = self._shapes[0][:2]
        named = [(0, i) for i in range(number)] if heads is None else [*heads]
        if len(named) != number:
            raise ValueError(f"heads has {len(named)} entries; expected {number}")
        places = np.asarray(named, np.int64).reshape(number, 2)
        context = tokens if self.context is None else self.context
        documents = Sums(*(np.stack(column) for column in zip(*self._documents, strict=True)))
        means = Sums(*(np.mean(one, axis=0) for one in documents))
        order = np.stack([greedy_order(one) for one in means.predicted])
        norm_order = np.argsort(means.norm_q * means.norm_k, axis=1, kind="stable")

        def read(sums: Sums, count: int) -> dict[str, np.ndarray]:
            changes = {"predicted": (sums.predicted, order), "change": (sums.measured, order)}
            changes |= {"norm_change": (sums.measured, norm_order)}
            return _read(self._heads, sums, count) | {name: _changes(*one) for name, one in changes.items()}

        estimates = _jackknife(read, documents, means)
        strength = estimates["strength"].value
        return Atlas(
            layer=places[:, 0],
            head=places[:, 1],
            frequencies=self.omega,
            lags=-np.arange(tokens - self.skip),
            documents=count,
            tokens=tokens,
            skip=self.skip,
            context=context,
            outlier=strength > _OUTLIER * np.median(strength, axis=1, keepdims=True),
            partial=np.abs(self.omega) * context < 2.0 * math.pi,
            order=order,
            norm_order=norm_order,
            **estimates,
        )


# -- from sums over documents to statistics ----------------------------------------------------------------------------


def _jackknife(
    read: Callable[[Sums, int], dict[str, np.ndarray]], documents: Sums, means: Sums
) -> dict[str, HeadEstimate]:
    """Return statistics of means over documents, with errors from leaving out one document at a time."""
    count, left = len(documents.level), []
    for one in range(count):
        rest = (mean + (mean - each[one]) / (count - 1.0) for mean, each in zip(means, documents, strict=True))
        left.append(read(Sums(*rest), count - 1))
    estimates = {}
    for name, value in read(means, count).items():
        apart = np.stack([one[name] for one in left]) - value
        if name == "angle":
            apart = np.angle(np.exp(1j * apart))
        apart = apart - np.mean(apart, axis=0)
        estimates[name] = HeadEstimate(value, np.sqrt((count - 1.0) / count * np.sum(apart * apart, axis=0)))
    return estimates


def _read(heads: Sequence[Head], sums: Sums, count: int) -> dict[str, np.ndarray]:
    """Return statistics from means over so many documents, named as in `Atlas`."""
    turned, n, counts = len(heads[0].omega), len(heads[0].counts), heads[0].counts
    weights, variance = counts / np.sum(counts), np.sum(sums.covariance, axis=1)
    z = heads[0].scale * np.conj(sums.centre_q) * sums.centre_k
    curves, offsets = [], []
    for i, mean in enumerate(z):  # each head's curve, ``Re z exp(i lag omega)``, and its peak
        own, part = heads[i % len(heads)], mean[:turned]
        curves.append(own.turn[:n].view(np.float64) @ mean.view(np.float64))
        turns = bool(np.any((np.abs(part) > 0.0) & (own.omega != 0.0)))
        offsets.append(peak_of_waves(own.omega, part.real, -part.imag, 1.0 - n, 0.0).offset if turns else math.nan)
    curve = np.stack(curves)
    apart = curve - np.sum(weights * curve, axis=1, keepdims=True)
    between = np.sum(weights * (count * sums.by_lag**2 - sums.by_lag_squared) / (count - 1.0), axis=1)
    by_curve = np.sum(weights * apart * (2.0 * sums.by_lag - apart), axis=1)
    return dict(zip(_SINK, sums.sink.T, strict=True)) | {
        "variance": variance,
        "share": _ratio(sums.covariance[:, :turned], variance[:, None]),
        "unturned": _ratio(np.sum(sums.covariance[:, turned:], axis=1), variance),
        "curve": curve,
        "by_lag": sums.by_lag + sums.level[:, None],
        "offset": np.asarray(offsets),
        "lag_explained": _ratio(between, variance),
        "curve_explained": _ratio(by_curve, variance),
        "concentration_q": _ratio(np.abs(sums.centre_q[:, :turned]) ** 2, sums.power_q),
        "concentration_k": _ratio(np.abs(sums.centre_k[:, :turned]) ** 2, sums.power_k),
        "strength": heads[0].scale * sums.norm_q * sums.norm_k,
        "angle": np.angle(z[:, :turned]),
    }


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return the quotient; NaN if the denominator is 0."""
    none = np.broadcast_to(whole, part.shape) == 0.0
    return np.where(none, math.nan, part / np.where(none, 1.0, whole))


def greedy_order(products: np.ndarray) -> np.ndarray:
    """Return the order of blocks in which each adds least to ``sum_ij products_ij`` over the set so far."""
    order: list[int] = []
    added = np.diagonal(products).copy()
    for _ in range(len(products)):
        best = int(np.argmin(added))
        order.append(best)
        added += 2.0 * products[best]
        added[order] = math.inf
    return np.asarray(order)


def _changes(products: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the root of the sum of products over the first 0, 1, ..., D blocks of an order."""
    heads = np.arange(len(order))[:, None, None]
    sums = products[heads, order[:, :, None], order[:, None, :]].cumsum(axis=1).cumsum(axis=2)
    found = np.sqrt(np.maximum(np.diagonal(sums, axis1=1, axis2=2), 0.0))
    return np.concatenate([np.zeros((len(order), 1)), found], axis=1)
