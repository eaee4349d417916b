"""Repair of a running model whose rotary buffers are uninitialised, cast or stale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import printable, show
from rfrope._core.results import Result
from rfrope.models.auditing import audit, judge, read_expected
from rfrope.models.buffers import COS, ROUNDED, SIN, TABLES, list_tensors, search_names
from rfrope.models.verdicts import Finding
from rfrope.rotation.rope import Rope

REPAIRED = ("uninitialised", "half precision", "frequencies", "rows")
_WIDE = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class Repair(Result):
    """Changes in the rotary buffers of a model.

    Attributes
    ----------
    changed : tuple of str
        Buffers with new values, and the faults of the old ones.
    left : tuple of Finding
        Faults that remain, since new values do not mend them: a width, a pairing, an attention factor, parameters.

    See Also
    --------
    models.repair, models.Finding

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.models.Repair(("rotary.inv_freq: values rounded to bfloat16",), ())
    >>> found.passed, str(found)
    (True, 'changed rotary.inv_freq: values rounded to bfloat16')
    """

    changed: tuple[str, ...]
    left: tuple[Finding, ...] = ()
    _also = ("passed",)

    @property
    def passed(self) -> bool:
        """True if nothing is wrong now."""
        return not self.left

    def __str__(self) -> str:
        lines = [f"changed {one}" for one in self.changed] or ["nothing was changed"]
        return "\n".join([*lines, *(f"still wrong: {one}" for one in self.left)])


def repair(model: Any, rope: Any = None) -> Repair:
    """Put the right values into the rotary buffers of a running model, and change nothing else.

    This replaces, in float32, frequencies and tables that are uninitialised (after the meta device, ``to_empty`` or
    FSDP), cast to half precision (by ``.bfloat16()``), or those of another config.

    Parameters
    ----------
    model : torch.nn.Module
    rope : Rope, frequencies, or config, optional
        See `audit`. Default: ``model.config``.

    Returns
    -------
    Repair
        With ``changed`` and ``left``.

    Raises
    ------
    ValueError
        See `audit`.
    TypeError
        If `model` is not a module.

    See Also
    --------
    models.audit, models.check, integrations.transformers.replace_rotary

    Notes
    -----
    A buffer stays on its device, or on that of the first parameter that has values, and stays persistent or not. Values
    that are right to float32 are not touched. Parameters are not changed, as they may have been learned. A scheme that
    depends on the length of the text is put into its state for a short one.

    Examples
    --------
    >>> import torch, rfrope  # doctest: +SKIP
    >>> model = torch.nn.Module()  # doctest: +SKIP
    >>> model.register_buffer("inv_freq", torch.zeros(8))  # doctest: +SKIP
    >>> print(rfrope.models.repair(model, rfrope.geometric(8)))  # doctest: +SKIP
    changed inv_freq: all values are 0: uninitialised, as after loading a model that was made on the meta device
    """
    if not hasattr(model, "named_modules"):
        raise TypeError(f"model is {show(model)}; expected a torch.nn.Module")
    meant, changed = read_expected(model, rope), []
    for prefix, part in model.named_modules():
        tensors = list_tensors(part)
        for buffer in search_names(prefix, tensors, part):
            name = buffer.name.rpartition(".")[2]
            judged = judge(buffer, meant, None)
            if judged is None or name in part._parameters:
                continue
            wrong = [one for one in judged[1] if one.kind in REPAIRED]
            if wrong and _write(model, part, name, judged[0]):
                changed.append(f"{buffer.name}: {wrong[0].text}")
            short = next(one for one in meant if one.source.model.name == judged[0].source.model.name)
            copied = "" if buffer.is_table else f"{name.removesuffix('inv_freq')}original_inv_freq"  # of transformers
            if copied in tensors and _is_stale(tensors[copied], short) and _write(model, part, copied, short):
                changed.append(printable(f"{prefix}.{copied}".lstrip(".") + ": short texts of a dynamic scheme"))
    return Repair(tuple(changed), audit(model, rope).findings)


def _is_stale(tensor: Any, rope: Rope) -> bool:
    """Return whether a copy of frequencies holds others."""
    if str(tensor.device) == "meta" or tuple(tensor.shape) != rope.frequencies.shape:
        return str(tensor.device) == "meta"
    found = array.to_host(tensor.double())
    return bool(np.any(~(np.abs(found - rope.frequencies) <= ROUNDED * np.abs(rope.frequencies))))


def _write(model: Any, part: Any, name: str, rope: Rope) -> bool:
    """Give a buffer, or a pair of them, its exact values; return whether its form is known."""
    names = [name, name.replace(COS[COS.index(name)], SIN[COS.index(name)])] if name in COS else [name]
    tensors = [list_tensors(part)[one] for one in names]
    made = _make(name, tensors[0], rope)
    if made is None:
        return False
    for one, tensor, values in zip(names, tensors, made, strict=True):
        xp, kind = array.namespace(model=tensor), array.dtype_name(tensor)
        kind = kind if kind in _WIDE else "complex64" if np.iscomplexobj(values) else "float32"
        new = array.from_host(values, xp, device=_place(model, tensor), dtype=getattr(xp, kind))
        if new.dtype == tensor.dtype and new.device == tensor.device:
            tensor.copy_(new)  # captured graphs read this memory
        elif one in part._buffers:
            part._buffers[one] = new
        else:
            setattr(part, one, new)
    return True


def _make(name: str, tensor: Any, rope: Rope) -> list[np.ndarray] | None:
    """Return exact values in the layout of a tensor: frequencies, a pair of cos and sin, or a table of both."""
    shape, width = tuple(tensor.shape), 2 * rope.n_blocks
    if not (name in COS or name in TABLES or name == "cache"):
        host = np.asarray(rope.frequencies, dtype=np.float64)
        return [host.reshape(shape)] if host.size == int(np.prod(shape)) else None
    is_complex, is_stacked = array.dtype_name(tensor).startswith("complex"), name not in COS and shape[-1] == 2
    cos, sin = rope.table(np.arange(int(np.prod(shape[: -2 if is_stacked else -1]))))
    if is_complex:
        parts = [cos + 1j * sin]
    elif is_stacked:
        parts = [np.stack([cos, sin], axis=-1)]
    elif name in TABLES:
        parts = [np.concatenate([cos, sin], axis=-1)]
    elif shape[-1] == width:
        parts = [np.tile(one, 2) if rope.pairing == "half" else np.repeat(one, 2, axis=-1) for one in (cos, sin)]
    else:
        parts = [cos, sin]
    return [one.reshape(shape) for one in parts] if parts[0].size == int(np.prod(shape)) else None


def _place(model: Any, tensor: Any) -> Any:
    """Return the device of a tensor; of one without values that of the model's first parameter with some."""
    if str(tensor.device) != "meta":
        return tensor.device
    return next((one.device for one in model.parameters() if str(one.device) != "meta"), "cpu")
