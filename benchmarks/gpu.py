"""One table of a CUDA device: ``python -m benchmarks.gpu [--quick] [--json] [--output docs/gpu_table.md]``.

Rotation against the device's own copy of the same array, estimators, peers, and the error of every result against
float64 on the CPU. Times are those of the device's events, everything measured in the same run. Exit code: 0, 1 if
something of rfrope failed or gave NaN, 2 without a CUDA device.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import pathlib
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from benchmarks import machine
from benchmarks.gpu_jobs import COPY, FULL, OURS, QUICK, Arrays, Job, Place, TorchArrays, all_jobs, table_error
from benchmarks.peers import aligned, markdown
from benchmarks.rotation_peers import need
from benchmarks.timing import Missing

HEADINGS = ("job", "who", "median us", "least us", "rate", "unit", "of copy", "target", "error")
PACKAGES = ("numpy", "scipy", "numba", "ml_dtypes", "torch", "triton", "flash-attn", "cufinufft")
FAILED = "FAILED"
ROUNDS, QUICK_ROUNDS = 100, 20
_MOST_SECONDS = 5.0  # for the rounds of one entry
_FLUSHED = 2**28  # bytes that are written before every timed call: more than any cache
_ENQUEUED = 200  # calls in a row whose part on the host is timed: a queue holds some thousand kernels


class Timer(Protocol):
    """How calls are timed: on a device by its events, in tests by the clock of the host."""

    def times(self, call: Callable[[int], Any], rounds: int) -> list[float]:
        """Return the seconds of so many calls, each on its own, after some that warm up."""

    def launches(self, call: Callable[[int], Any]) -> list[float]:
        """Return the seconds that the host takes to queue a call: means over many in a row."""


class HostTimer:
    """For tests of this script: no measurement."""

    def times(self, call: Callable[[int], Any], rounds: int) -> list[float]:
        """See `Timer`."""
        call(0)
        return [self._time(call, i) for i in range(min(rounds, 2))]

    def launches(self, call: Callable[[int], Any]) -> list[float]:
        """See `Timer`."""
        return self.times(call, 2)

    @staticmethod
    def _time(call: Callable[[int], Any], i: int) -> float:
        start = time.perf_counter()
        call(i)
        return time.perf_counter() - start


class DeviceTimer:
    """By events of the device, on CuPy's current stream, which is also that of torch as long as both are the default.

    Before every call a large array is filled. That empties the caches, and keeps the device busy while the host queues
    the call: otherwise the time between the events would be that of the host.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._filler = cupy.empty(_FLUSHED, dtype=cupy.uint8)

    def times(self, call: Callable[[int], Any], rounds: int) -> list[float]:
        """See `Timer`."""
        cupy = self._cupy
        for i in range(3):
            call(i)
        self._wait()
        queued, whole = self._once(call)
        fills = self._fills(queued)
        rounds = max(3, min(rounds, int(_MOST_SECONDS / max(whole, 1e-6))))
        events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(rounds)]
        for i, (start, stop) in enumerate(events):
            for _ in range(fills):
                self._filler.fill(i % 256)
            start.record()
            call(i)
            stop.record()
            if i % 16 == 15:  # a short queue
                self._wait()
        self._wait()
        return [1e-3 * cupy.cuda.get_elapsed_time(start, stop) for start, stop in events]

    def launches(self, call: Callable[[int], Any]) -> list[float]:
        """See `Timer`."""
        for i in range(10):
            call(i)
        times = []
        for _ in range(5):
            self._wait()
            start = time.perf_counter()
            for i in range(_ENQUEUED):
                call(i)
            times.append((time.perf_counter() - start) / _ENQUEUED)
        self._wait()
        return times

    def _once(self, call: Callable[[int], Any]) -> tuple[float, float]:
        """Seconds in which the host has queued a call, and in which the device has done it."""
        start = time.perf_counter()
        call(0)
        queued = time.perf_counter() - start
        self._wait()
        return queued, time.perf_counter() - start

    def _fills(self, seconds: float) -> int:
        """How many fills keep the device busy for twice as long."""
        start, stop = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        start.record()
        for _ in range(10):
            self._filler.fill(1)
        stop.record()
        self._wait()
        each = 1e-4 * self._cupy.cuda.get_elapsed_time(start, stop)
        return max(1, min(50, math.ceil(2.0 * seconds / max(each, 1e-6))))

    def _wait(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()


@dataclass(frozen=True)
class Line:
    """One line of the table; what was not measured has a reason instead of figures."""

    job: str
    kind: str
    who: str
    median: float | None = None  # seconds
    least: float | None = None
    rate: float | None = None
    unit: str = ""
    of_copy: float | None = None
    target: float | None = None
    met: bool | None = None
    error: float | None = None
    reason: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether it failed, or gave NaN."""
        return self.reason.startswith(FAILED) or (self.error is not None and not math.isfinite(self.error))

    def as_data(self) -> dict[str, Any]:
        """Return the same for JSON, which has no NaN."""
        strange = {k: str(v) for k, v in asdict(self).items() if isinstance(v, float) and not math.isfinite(v)}
        return asdict(self) | strange

    def cells(self) -> tuple[str, ...]:
        """Text for the table."""
        if self.median is None or self.least is None or self.rate is None:
            return (self.job, self.who, "", "", "", "", "", "", f"not measured: {self.reason}")
        asked = ""
        if self.target is not None:
            asked = f">= {self.target:.3g}{' of copy' if self.of_copy is not None else ''}"
            asked += f": {'met' if self.met else 'MISSED'}"
        return (
            self.job,
            self.who,
            f"{1e6 * self.median:.4g}",
            f"{1e6 * self.least:.4g}",
            f"{self.rate:.3g}",
            self.unit,
            "" if self.of_copy is None else f"{self.of_copy:.3f}",
            asked,
            "" if self.error is None else f"{self.error:.2g}",
        )


def run(job: Job, place: Place, timer: Timer, rounds: int, skip: tuple[str, ...] = ()) -> list[Line]:
    """Measure all entries of a job, the copy first: medians, rates, fractions of the copy, and errors."""
    lines: dict[str, Line] = {}
    order = sorted(job.entries, key=lambda who: who != COPY)
    for who in order:
        try:
            if who in skip:
                raise Missing("left out")
            entry = job.entries[who](place)
            error = entry.error() if entry.error else None
            times = timer.launches(entry.call) if job.launch else timer.times(entry.call, rounds)
        except Missing as reason:
            lines[who] = Line(job.name, job.kind, who, reason=str(reason))
            continue
        except Exception as error:  # the others are to be measured all the same
            lines[who] = Line(job.name, job.kind, who, reason=f"{FAILED}: {type(error).__name__}: {error}"[:200])
            continue
        median = statistics.median(times)
        copied = lines[COPY].median if COPY in lines else None
        fraction = None if copied is None or who == COPY else copied / median
        target, held = job.target if who == OURS else None, fraction if COPY in job.entries else job.work / median
        met = None if target is None or held is None else held >= target
        rate = job.work / median
        lines[who] = Line(job.name, job.kind, who, median, min(times), rate, job.unit, fraction, target, met, error)
        del entry
        gc.collect()
    return [lines[who] for who in job.entries]


def report(lines: list[Line], accuracy: dict[str, float | str], head: list[str], command: str) -> str:
    """All of it as a fragment of Markdown."""
    parts = [f"<!-- Made by: {command} -->", "Made by:", f"```sh\n{command}\n```"]
    parts.append("\n".join(f"- {line}" for line in head))
    parts.append(
        "Medians and least times by the device's events (of the host's part of a call: by the host's clock). "
        '"Of copy" is the time of a copy of the same array over that of the entry, both medians. "Error" is '
        "||out - ref|| / ||ref|| on fresh random input, with memory for the result full of NaN before, against float64 "
        "on the CPU."
    )
    parts.append(markdown(HEADINGS, [line.cells() for line in lines]))
    parts.append("Accuracy: largest error of cos and sin at positions up to 2^53 - 1, against the CPU.")
    parts.append(markdown(("arrays", "error"), [(k, _number(v)) for k, v in accuracy.items()]))
    return "\n\n".join(parts) + "\n"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2g}"


def accuracies(place: Place) -> dict[str, float | str]:
    """Return the error of tables for each library, or why there is none."""
    found: dict[str, float | str] = {}
    for library in place.libraries:
        try:
            found[library] = table_error(place.arrays(library))
        except Missing as reason:
            found[library] = f"not measured: {reason}"
    return found


def device() -> tuple[Place, Timer, list[str]]:
    """Return the current CUDA device, and lines that say what it is, or raise `Missing` with the reason."""
    from rfrope._backends.findings import LIBRARIES

    (probe,) = (probe for probe in LIBRARIES if probe.name == "CuPy")
    found = probe.run()
    if not found.active:
        raise Missing(f"CuPy: {found.reason}")
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    head = [
        f"CuPy {found.detail}",
        machine.versions(PACKAGES),
        time.strftime("%Y-%m-%d"),
    ]

    def torch() -> Arrays:
        if not need("torch").cuda.is_available():
            raise Missing("torch.cuda.is_available() is False")
        return TorchArrays("cuda")

    place = Place({"cupy": lambda: Arrays(cupy), "torch": torch}, int(properties["l2CacheSize"]))
    return place, DeviceTimer(cupy), head


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller problems and fewer rounds")
    parser.add_argument("--jobs", metavar="REGEX", default="", help="only the jobs whose names it matches")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, help="write the tables there too, as Markdown")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    try:
        place, timer, head = device()
    except Missing as reason:
        print(f"python -m benchmarks.gpu: no CUDA device: {reason}; rfrope doctor says more", file=sys.stderr)
        return 2
    command, rounds = machine.command("benchmarks.gpu"), QUICK_ROUNDS if options.quick else ROUNDS
    lines: list[Line] = []
    if not options.json:
        print(command, *head, sep="\n", flush=True)
    for job in all_jobs(QUICK if options.quick else FULL):
        if re.search(options.jobs, job.name):
            lines += run(job, place, timer, rounds)
            if not options.json:
                print(f"\n{aligned([HEADINGS, *(line.cells() for line in lines if line.job == job.name)])}", flush=True)
    accuracy = accuracies(place)
    if options.json:
        print(
            json.dumps(
                {"command": command, "head": head, "lines": [line.as_data() for line in lines], "accuracy": accuracy}
            )
        )
    else:
        print(f"\nLargest error of cos and sin at positions up to 2^53 - 1: {accuracy}")
    if options.output:
        options.output.write_text(report(lines, accuracy, head, command), "utf-8")
    return int(any(line.who == OURS and line.is_wrong for line in lines))


if __name__ == "__main__":
    sys.exit(main())
