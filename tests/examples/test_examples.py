"""Examples: the short versions of what they show, and what they write."""

import pathlib
import pickle
import re
import subprocess
import sys
import types

import numpy as np
import pytest
from campaign import HANGS, campaign
from packages import installed, script_at

import rfrope

ROOT = pathlib.Path(__file__).parents[2]
if not (ROOT / "examples").is_dir():
    pytest.skip("examples/ is not here", allow_module_level=True)


@pytest.fixture(scope="module")
def on_a_cluster():
    """Return the module examples/cluster.py."""
    with script_at(ROOT / "examples" / "cluster.py") as module:
        yield module


class Pretended:
    """A Dask client that works here, when asked for a result, and notes how much is under way."""

    def __init__(self):
        self.waiting, self.most = 0, 0

    def scatter(self, task, **_):
        return pickle.loads(pickle.dumps(task))

    def nthreads(self):
        return {"a": 1, "b": 2}

    def submit(self, function, *arguments, pure):
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        return types.SimpleNamespace(result=lambda: self.finished(function, arguments))

    def finished(self, function, arguments):
        self.waiting -= 1
        return pickle.loads(pickle.dumps(function(*arguments)))


def test_batches_on_a_cluster_give_the_same_bits_and_bound_what_is_under_way(on_a_cluster, capsys):
    client = Pretended()
    batches = on_a_cluster.Batches(client, size=3, ahead=2)
    options = {"n_samples": 2**21 + 5, "rng": 0}
    found, wanted = (rfrope.estimate_kernel([1.0, 2.0], "gaussian", executor=e, **options) for e in (batches, None))
    np.testing.assert_array_equal(found.value, wanted.value)
    np.testing.assert_array_equal(found.stderr, wanted.stderr)
    assert client.most == 2 * 3
    (asked,) = batches.questions
    assert (asked.draws, asked.chunks) == (2**21 + 5, 2**5 + 1)
    on_a_cluster.report(asked, 1e-5)
    said = capsys.readouterr().out
    assert f"bytes on the wire for each chunk: {asked.sent / 33:.0f} to a worker" in said
    assert re.search(r"1e\+13 draws: 1.5\de\+08 chunks", said)


@campaign
def test_the_command_validates_on_a_cluster():
    installed("distributed")
    command = [sys.executable, "examples/cluster.py", "--draws", "2e5", "--trials", "300"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS, check=True).stdout
    assert "matern(nu=1.5, scale=64): passed, " in said
    assert "on 1024 cores: " in said
