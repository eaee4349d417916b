"""The tests that run each line: a plug-in of pytest that writes it down, and what is made of it.

``RFROPE_LINES_TO=FILE python -m pytest -p tools.nearest``, with Python 3.12 or later, which can watch lines at little
cost.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import sys
import time
from typing import Any

WANTED = "RFROPE_LINES_TO"
# loops run compiled, where no line can be watched; torch is not in every environment
BY_HAND = {
    "rfrope/_accel/cpu/rotation_loops.py": ["tests/accel/test_rotation.py"],
    "rfrope/_accel/cpu/rotation_rows.py": ["tests/accel/test_rotation.py"],
    "rfrope/_accel/cpu/circle.py": ["tests/accel/test_rotation.py", "tests/accel/test_sums.py"],
    "rfrope/_accel/cpu/coefficient_loops.py": ["tests/accel/test_torch.py"],
    "rfrope/_accel/cpu/sums_loops.py": ["tests/accel/test_sums.py"],
    "rfrope/_accel/cpu/estimator_loops.py": ["tests/accel/test_estimators.py"],
    "rfrope/_accel/torch/rotation.py": ["tests/accel/test_torch.py"],
    "rfrope/_core/tensors.py": ["tests/accel/test_torch.py", "tests/test_array.py", "tests/layers/test_torch.py"],
    "rfrope/layers/torch.py": ["tests/layers/test_torch.py", "tests/layers/test_reading.py"],
    "rfrope/layers/reading.py": ["tests/layers/test_reading.py", "tests/layers/test_torch.py"],
    "rfrope/layers/graphs.py": ["tests/layers/test_torch.py", "tests/layers/test_onnx.py"],
    "rfrope/integrations/transformers.py": ["tests/integrations/test_transformers.py", "tests/test_transformers.py"],
    "rfrope/integrations/rotations.py": ["tests/integrations/test_transformers.py", "tests/test_transformers.py"],
}
OF_TORCH = (
    "coefficient_loops.py",
    "_accel/torch/rotation.py",
    "_core/tensors.py",
    "layers/torch.py",
    "layers/reading.py",
    "layers/graphs.py",
    "integrations/transformers.py",
    "integrations/rotations.py",
)
IMPORTING = 0.6  # seconds that a file of tests takes before its first one


class Watch:
    """Writes which lines of the package each test runs, and how long it takes."""

    def __init__(self, root: pathlib.Path, path: str) -> None:
        self.root, self.path, self.found = f"{root}/", path, {}
        self.lines: set[tuple[str, int]] = set()
        self.watching = sys.monitoring
        self.watching.use_tool_id(self.watching.COVERAGE_ID, "nearest")
        self.watching.register_callback(self.watching.COVERAGE_ID, self.watching.events.LINE, self._line)
        self.watching.set_events(self.watching.COVERAGE_ID, self.watching.events.LINE)

    def _line(self, code: Any, line: int) -> Any:
        if code.co_filename.startswith(self.root + "rfrope/"):
            self.lines.add((code.co_filename.removeprefix(self.root), line))
        return self.watching.DISABLE

    def pytest_runtest_protocol(self) -> None:
        self.lines = set()
        self.begun = time.process_time()
        self.watching.restart_events()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        lines = collections.defaultdict(list)
        for module, line in sorted(self.lines):
            lines[module].append(line)
        self.found[nodeid] = [time.process_time() - self.begun, lines]

    def pytest_sessionfinish(self) -> None:
        pathlib.Path(self.path).write_text(json.dumps(self.found), "utf-8")


def pytest_configure(config: Any) -> None:
    """Watch where it was asked for."""
    if path := os.environ.get(WANTED):
        config.pluginmanager.register(Watch(config.rootpath, path))


def read(path: pathlib.Path) -> dict[str, Any]:
    """What `Watch` wrote: for each test its seconds, and lines by module."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def tests(found: dict[str, Any], module: str, line: int, seconds: float) -> list[str]:
    """Tests that run a line, the quickest of each file first, as many as take so many seconds in all.

    A line that runs when the module is imported alone is nearest to what runs most of the module.
    """
    if module in BY_HAND:
        return BY_HAND[module]
    by_line = [(record[0], test) for test, record in found.items() if line in record[1].get(module, ())]
    if not by_line:
        most = sorted((-len(record[1].get(module, ())), record[0], test) for test, record in found.items())[:60]
        by_line = [(cost, test) for count, cost, test in most if count]
    ranks: collections.Counter[str] = collections.Counter()
    order = []
    for cost, test in sorted(by_line):
        file = test.partition("::")[0]
        ranks[file] += 1
        order.append((ranks[file] // 8, pathlib.Path(module).stem not in file, cost, test))
    taken: list[str] = []
    spent, files = 0.0, set()
    for _, _, cost, test in sorted(order):
        file = test.partition("::")[0]
        cost += 0.0 if file in files else IMPORTING
        if not taken or spent + cost <= seconds:
            taken.append(test)
            files.add(file)
            spent += cost
    return taken
