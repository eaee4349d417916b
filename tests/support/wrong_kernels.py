"""Kernels that are wrong on purpose, and what statistical tests of right ones run over."""

import dataclasses
import math

import numpy as np

from rfrope import Kernel, kernels

EXAMPLES = [record.example for record in kernels.records() if record.name != "constant"]  # nothing varies there
MUTATIONS = {
    "none": lambda omega, u: omega,
    "scale 1 %": lambda omega, u: 1.01 * omega,
    "one sign": lambda omega, u: np.abs(omega),
    "cycles": lambda omega, u: omega / (2.0 * math.pi),
    "some zeros": lambda omega, u: np.where(u[..., :1] < 0.02, 0.0, omega),
    "one axis": lambda omega, u: omega[..., :1] + 0.0 * omega,
    "independent axes": lambda omega, u: np.concatenate([omega[..., :1], np.roll(omega[..., 1:], 1, axis=0)], axis=-1),
    "Phi_2 is Phi": lambda omega, u: omega,
}


@dataclasses.dataclass(frozen=True, repr=False)
class Wrong(Kernel):
    """The closed forms of one kernel, and frequencies that are another function of its draws."""

    name = "wrong"
    right: Kernel
    mutation: str = "none"

    @property
    def ndim(self):
        """As of the right one."""
        return self.right.ndim

    @property
    def n_columns(self):
        """As of the right one."""
        return self.right.n_columns

    def _phi(self, lags, xp):
        return self.right._phi(lags, xp)

    def phi2(self, lags):
        """Phi at twice the lag, but for the mutation that forgets it."""
        return self.right.phi(lags) if self.mutation == "Phi_2 is Phi" else super().phi2(lags)

    def _transport(self, u):
        return MUTATIONS[self.mutation](self.right._transport(u), u)
