"""One table of a CUDA device: ``python -m benchmarks.gpu [--quick] [--json] [--output docs/_data/gpu_table.md]``.

Rotation against the device's own copy of the same array, estimators, peers, and the error of every result against
float64 on the CPU. Times are those of the device's events, everything measured in the same run. Exit code: 0, 1 if
something of rfrope failed or gave NaN, 2 without a CUDA device; then it prints what can be counted without one.
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
from benchmarks.gpu_jobs import FULL, OURS, QUICK, Arrays, Job, Place, Sizes, TorchArrays, device_jobs, table_error
from benchmarks.gpu_layers import CODE, COUNTED, counts, layers, machine_code
from benchmarks.peers import aligned, markdown
from benchmarks.rotation_peers import need
from benchmarks.timing import Missing

HEADINGS = ("job", "who", "median us", "least us", "rate", "unit", "of copy", "target", "error")
PACKAGES = ("numpy", "scipy", "numba", "ml_dtypes", "torch", "triton", "flash-attn")
FAILED = "FAILED"
ROUNDS, QUICK_ROUNDS = 100, 20
_MOST_SECONDS = 2.0  # for the rounds of one entry
_MINUTES = 9.0  # for all jobs: what would begin later is not measured
_FLUSHED = 2**28  # bytes that are read before every timed call: more than any cache
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


class CuPyClock:
    """Events of CuPy, on its current stream, and memory to read."""

    def __init__(self, cupy: Any) -> None:
        self._cuda, self._memory = cupy.cuda, cupy.zeros(_FLUSHED // 4, dtype=cupy.float32)

    def flush(self) -> None:
        """Queue a read of a large array."""
        self._memory.max()

    def mark(self) -> Any:
        """Queue an event."""
        event = self._cuda.Event()
        event.record()
        return event

    def between(self, start: Any, stop: Any) -> float:
        """Return the seconds from one event to another."""
        return 1e-3 * float(self._cuda.get_elapsed_time(start, stop))

    def wait(self) -> None:
        """Wait for all that is queued."""
        self._cuda.get_current_stream().synchronize()


class TorchClock:
    """The same of PyTorch, on CUDA or ROCm, where CuPy is missing."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._memory = torch, torch.zeros(_FLUSHED // 4, device="cuda")

    def flush(self) -> None:
        """Queue a read of a large array."""
        self._memory.max()

    def mark(self) -> Any:
        """Queue an event."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, stop: Any) -> float:
        """Return the seconds from one event to another."""
        return 1e-3 * float(start.elapsed_time(stop))

    def wait(self) -> None:
        """Wait for all that is queued."""
        self._torch.cuda.synchronize()


class DeviceTimer:
    """By events of the device, on the current stream of a library: that of the others, too, where it is the default.

    Before every call a large array is read. That empties the caches, and keeps the device busy while the host queues
    the call: otherwise the time between the events would be that of the host. Were it written, its lines would go back
    to memory during the call, at the cost of what reads.
    """

    def __init__(self, clock: CuPyClock | TorchClock) -> None:
        self._clock = clock

    def times(self, call: Callable[[int], Any], rounds: int) -> list[float]:
        """See `Timer`."""
        clock = self._clock
        for i in range(3):
            call(i)
        clock.wait()
        queued, whole = self._once(call)
        flushes = self._flushes(queued)
        rounds = max(3, min(rounds, int(_MOST_SECONDS / max(whole, 1e-6))))
        events = []
        for i in range(rounds):
            for _ in range(flushes):
                clock.flush()
            start = clock.mark()
            call(i)
            events.append((start, clock.mark()))
            if i % 16 == 15:  # a short queue
                clock.wait()
        clock.wait()
        return [clock.between(start, stop) for start, stop in events]

    def launches(self, call: Callable[[int], Any]) -> list[float]:
        """See `Timer`."""
        for i in range(10):
            call(i)
        times = []
        for _ in range(5):
            self._clock.wait()
            start = time.perf_counter()
            for i in range(_ENQUEUED):
                call(i)
            times.append((time.perf_counter() - start) / _ENQUEUED)
        self._clock.wait()
        return times

    def _once(self, call: Callable[[int], Any]) -> tuple[float, float]:
        """Seconds in which the host has queued a call, and in which the device has done it."""
        start = time.perf_counter()
        call(0)
        queued = time.perf_counter() - start
        self._clock.wait()
        return queued, time.perf_counter() - start

    def _flushes(self, seconds: float) -> int:
        """How many reads keep the device busy for twice as long."""
        start = self._clock.mark()
        for _ in range(10):
            self._clock.flush()
        stop = self._clock.mark()
        self._clock.wait()
        return max(1, min(50, math.ceil(2.0 * seconds / max(0.1 * self._clock.between(start, stop), 1e-6))))


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
    base: str = ""

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
            asked = f">= {self.target:.3g}{f' of {self.base}' if self.base else ''}"
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
    """Measure all entries of a job, the base first: medians, rates, fractions of the base, and errors."""
    lines: dict[str, Line] = {}
    order = sorted(job.entries, key=lambda who: who != job.base)
    for who in order:
        try:
            if who in skip:
                raise Missing("left out: the minutes were over")
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
        base = lines[job.base].median if job.base in lines else None
        fraction = None if base is None or who == job.base else base / median
        target, held = job.target if who == OURS else None, fraction if job.base in job.entries else job.work / median
        met = None if target is None or held is None else held >= target
        rate, beside = job.work / median, "" if fraction is None else job.base
        lines[who] = Line(
            job.name, job.kind, who, median, min(times), rate, job.unit, fraction, target, met, error, base=beside
        )
        del entry
        gc.collect()
    return [lines[who] for who in job.entries]


def report(lines: list[Line], accuracy: dict[str, float | str], head: list[str], command: str) -> str:
    """All of it as a fragment of Markdown."""
    parts = [f"<!-- Made by: {command} -->", "Made by:", f"```sh\n{command}\n```"]
    parts.append("\n".join(f"- {line}" for line in head))
    parts.append(
        "Medians and least times by the device's events (of the host's part of a call: by the host's clock). "
        '"Of copy" is the time of a copy of the same array (or of what the target names) over that of the entry, both '
        'medians. "Error" is '
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


def all_jobs(sizes: Sizes) -> list[Job]:
    """Return all jobs."""
    return [*device_jobs(sizes), *layers(sizes)]


def device() -> tuple[Place, Timer, list[str]]:
    """Return the current device of CuPy, or else of PyTorch, and lines that say what it is; or raise `Missing`."""
    from rfrope._backends.diagnostics import LIBRARIES

    def torch() -> Arrays:
        if not need("torch").cuda.is_available():
            raise Missing("torch.cuda.is_available() is False")
        return TorchArrays("cuda")

    (found,) = (one.run() for one in LIBRARIES if one.name == "CuPy")
    head = [machine.versions(PACKAGES), time.strftime("%Y-%m-%d")]
    if found.active:
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
        place = Place({"cupy": lambda: Arrays(cupy), "torch": torch}, int(properties["l2CacheSize"]))
        return place, DeviceTimer(CuPyClock(cupy)), [f"CuPy {found.detail}", *head]
    try:
        library = torch().xp
    except Missing as reason:
        raise Missing(f"CuPy: {found.reason}; PyTorch: {reason}") from None

    def missing() -> Arrays:
        raise Missing(f"CuPy: {found.reason}")

    properties = library.cuda.get_device_properties(0)
    place = Place({"cupy": missing, "torch": torch}, int(properties.L2_cache_size))
    return place, DeviceTimer(TorchClock(library)), [f"PyTorch: {properties.name}", *head]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller problems and fewer rounds")
    parser.add_argument("--jobs", metavar="REGEX", default="", help="only the jobs whose names it matches")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="after which no job begins (default: 9)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, help="write the tables there too, as Markdown")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    try:
        place, timer, head = device()
    except Missing as reason:
        print(f"python -m benchmarks.gpu: no CUDA device: {reason}; rfrope doctor says more", file=sys.stderr)
        for headings, table, of in ((COUNTED, counts, "PyTorch"), (CODE, machine_code, "Triton")):
            try:
                print(aligned([headings, *table()]))
            except Missing as absent:
                print(f"nothing is counted: {of} is {absent}", file=sys.stderr)
        return 2
    command, rounds = machine.command("benchmarks.gpu"), QUICK_ROUNDS if options.quick else ROUNDS
    lines, end = list[Line](), time.monotonic() + 60.0 * options.minutes
    if not options.json:
        print(command, *head, sep="\n", flush=True)
    for job in all_jobs(QUICK if options.quick else FULL):
        if re.search(options.jobs, job.name):
            skipped = tuple(job.entries) if time.monotonic() > end else ()
            lines += run(job, place, timer, rounds, skipped)
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
