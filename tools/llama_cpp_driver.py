"""llama.cpp as `observe_engines` runs it: its converter makes a GGUF of a tiny model, its library runs that.

All comes from one package of npm, ``node-llama-cpp``, in the folder ``RFROPE_NODE_MODULES``: built libraries, and the
sources of the same commit, with the converter and headers. The converter runs with the transformers that it asks for;
weights are written by another process, with the newest transformers on the path, since that has today's classes. What
is seen are the nodes by which the graph turns queries and keys, before and after (`llama_cpp_turns.cpp`), and the order
that the converter puts their rows in.

python -m tools.llama_cpp_driver    writes weights, one folder for each line of input: a path and a config in JSON
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from tools.engine_drivers import Seen, Turn, read_table

# what published configs have and those of `engine_families` do not, and sizes that a graph takes for granted
_OWN: dict[str, dict[str, Any]] = {
    "cohere2": {"rotary_pct": 1.0},
    "dots1": {"scoring_func": "sigmoid"},
    "ernie4_5_moe": {"moe_num_shared_experts": 1},
    "falcon_h1": {"head_dim": 32},
    "gemma4_text": {"vocab_size_per_layer_input": 64},
    "hunyuan_v1_moe": {"moe_intermediate_size": [64] * 6, "moe_topk": [1] * 6, "num_shared_expert": [1] * 6},
    "phi": {"intermediate_size": 512},
    "phimoe": {"architectures": ["PhiMoEForCausalLM"]},
    "qwen3_5": {"architectures": ["Qwen3_5ForConditionalGeneration"]},
    "qwen3_5_moe": {"architectures": ["Qwen3_5MoeForConditionalGeneration"]},
}


class LlamaCpp:
    """llama.cpp: each turn of its graph, by the numbers that go in and come out."""

    name = "llama.cpp"

    @staticmethod
    def find_version() -> str:
        """Return the release of llama.cpp that is installed."""
        path = pathlib.Path(os.environ.get("RFROPE_NODE_MODULES", ""), "node_modules/node-llama-cpp/llama")
        return str(json.loads((path / "llama.cpp.info.json").read_text("utf-8"))["tag"]).removeprefix("v")

    def __init__(self) -> None:
        modules = pathlib.Path(os.environ["RFROPE_NODE_MODULES"], "node_modules").resolve()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="observed-llama.cpp-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        source, self.program = self.folder / "source", self.folder / "turns"
        options: dict[str, Any] = {"check": True, "capture_output": True}
        subprocess.run(["git", "clone", "-q", modules / "node-llama-cpp/llama/gitRelease.bundle", source], **options)
        self.binaries = modules / "@node-llama-cpp/linux-x64/bins/linux-x64"
        libraries = [*self.binaries.glob("libllama.*so"), *self.binaries.glob("libggml.*so")]
        libraries += [self.binaries / "libggml-base.so", f"-Wl,-rpath,{self.binaries}"]
        headers = [f"-I{source / one}" for one in ("include", "ggml/include")]
        code = pathlib.Path(__file__).with_name("llama_cpp_turns.cpp")
        subprocess.run(["g++", "-O1", "-std=c++17", *headers, code, "-o", self.program, *libraries], **options)
        self.torch, self.auto = importlib.import_module("torch"), importlib.import_module("transformers")
        asked = (source / "requirements/requirements-convert_legacy_llama.txt").read_text("utf-8")
        if f"transformers=={self.auto.__version__}\n" not in asked:
            raise ImportError(f"transformers is {self.auto.__version__}; the converter asks for:\n{asked}")
        sys.path[:0] = [str(source / "gguf-py"), str(source)]
        self.gguf, self.conversion = importlib.import_module("gguf"), importlib.import_module("conversion")
        self.files = importlib.import_module("safetensors.torch")
        self.auto.logging.set_verbosity(50)
        self.conversion.logger.setLevel(50)
        newest = [path for path in sys.path if (pathlib.Path(path) / "transformers").is_dir()][-1]
        self.weights = subprocess.Popen(
            [sys.executable, "-m", "tools.llama_cpp_driver"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([newest, str(pathlib.Path(__file__).parents[1])])},
        )  # fmt: skip
        atexit.register(self.weights.terminate)

    def see(self, config: dict[str, Any], length: int) -> Seen:
        own = _OWN.get(config["model_type"], {})
        folder = self.write_weights(config | {key: one for key, one in own.items() if key != "architectures"})
        (folder / "config.json").write_text(json.dumps(config | own), "utf-8")
        model = self.convert(folder)
        positions = [0, *(2**i for i in range(20) if 2**i < length)]
        ran = subprocess.run(
            [self.program, model, str(length), *map(str, positions)],
            capture_output=True, check=False, timeout=60, env=os.environ | {"LLAMA_CPP_BINARIES": str(self.binaries)},
        )  # fmt: skip
        if ran.returncode:
            said = [line for line in ran.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
            raise RuntimeError(said[0] if said else f"exit code {ran.returncode}")
        order = self.find_order(model, folder)
        seen: Seen = {}
        for layer, turn in read_nodes(ran.stdout, positions, order):
            if not seen.setdefault(layer, turn).is_like(turn.frequencies, turn.factor):
                raise LookupError("its queries and keys turn differently")
        if not seen:
            raise LookupError("no rotary node")
        return seen

    def write_weights(self, config: dict[str, Any]) -> pathlib.Path:
        """Return the folder with weights of a family."""
        folder = self.folder / config["model_type"]
        if not folder.exists():
            assert self.weights.stdin
            assert self.weights.stdout
            self.weights.stdin.write(json.dumps([str(folder), config]) + "\n")
            self.weights.stdin.flush()
            if said := json.loads(self.weights.stdout.readline()):
                raise LookupError(f"no weights: {said}")
        return folder

    def convert(self, folder: pathlib.Path) -> pathlib.Path:
        """Return the GGUF that the converter makes of a folder, without a tokenizer."""
        model, base = folder / "model.gguf", self.conversion.ModelBase
        with self.torch.inference_mode(), contextlib.redirect_stderr(io.StringIO()):
            held = base.load_hparams(folder, False)
            named = self.conversion.get_model_architecture(held, self.conversion.ModelType.TEXT)
            kind = self.conversion.get_model_class(named, mmproj=False)
            kind.set_vocab, kind.no_mtp = write_vocabulary, True
            kind(folder, self.gguf.LlamaFileType.ALL_F32, model, eager=True).write()
        return model

    def find_order(self, model: pathlib.Path, folder: pathlib.Path) -> np.ndarray:
        """Return the order in the checkpoint of the rows that make the first head of queries, as the GGUF has them."""
        reader = self.gguf.GGUFReader(model)
        held = {one.name: one.data for one in reader.tensors}
        name = next(one for one in sorted(held) if re.match(r"blk\.\d+\.attn_(q|qkv|q_b)\.weight$", one))
        heads = reader.fields[f"{reader.fields['general.architecture'].contents()}.attention.head_count"].contents()
        rows = held[name][: len(held[name]) // (3 if "qkv" in name else 1) // np.max(heads)]
        wanted, found = {row.tobytes(): i for i, row in enumerate(rows)}, np.full(len(rows), -1)
        for file in folder.glob("*.safetensors"):
            for key, value in self.files.load_file(file).items():
                if re.search(r"\.0\.|\.1\.", key) and value.ndim == 2 and value.shape[1] == rows.shape[1]:
                    for i, row in enumerate(value.float().numpy()):
                        if (at := wanted.get(row.tobytes())) is not None:
                            found[at] = i
        if found.min() < 0:
            raise LookupError("the converter changes the rows of queries")
        return np.argsort(np.argsort(found))


def write_vocabulary(converter: Any) -> None:
    """Write a vocabulary without words, in place of a tokenizer's."""
    converter._set_vocab_none()
    converter.gguf_writer.add_vocab_size(converter.find_hparam(["vocab_size"]))


def read_nodes(said: bytes, positions: list[int], order: np.ndarray) -> Iterator[tuple[int, Turn]]:
    """Yield the layer and rotation of each node; `order` is that of the rows of a head."""
    stream = io.BytesIO(said)
    while head := stream.readline():
        layer, _, *sizes = head.decode("utf-8").split()
        width, tokens, turned, mode = map(int, sizes)
        before, after = np.frombuffer(stream.read(8 * width * tokens), "<f4").astype(np.float64).reshape(2, tokens, -1)
        apart = 1 if mode == 0 else turned // 2  # by the enum in ggml.h: neighbours, or halves in all other modes
        first = np.arange(0, turned, 2) if mode == 0 else np.arange(turned // 2)
        one, other = (x[:, first] + 1j * x[:, first + apart] for x in (before, after))
        tables = np.zeros((positions[-1] + 1, turned // 2), complex)
        tables[positions] = other / one
        is_turn = np.allclose(np.abs(other), abs(tables[0, 0]) * np.abs(one), rtol=1e-3, atol=1e-6)
        if not is_turn or not np.array_equal(before[:, turned:], after[:, turned:]):
            raise LookupError("a node that does not turn")
        at = len(order) - width  # with latent attention, the last features of a head
        distance = int(order[at + first[0] + apart] - order[at + first[0]])
        pairing = {1: "interleaved", turned // 2: "half"}.get(distance)
        yield int(layer), Turn(*read_table(tables.real, tables.imag), pairing)


def main() -> None:
    """Write weights for each line of input, and print an error or an empty string."""
    torch, auto = importlib.import_module("torch"), importlib.import_module("transformers")
    for line in sys.stdin:
        folder, config = json.loads(line)
        try:
            named = getattr(auto, config["architectures"][0])
            is_known = config["model_type"] in auto.CONFIG_MAPPING
            make = auto.AutoConfig.for_model if is_known else named.config_class
            with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
                torch.manual_seed(0)
                model = named(
                    make(**{key: one for key, one in config.items() if is_known or key != "model_type"})
                ).float()
                for one in model.parameters():
                    if one.ndim > 1:
                        one.normal_(0.0, 0.05)
                model.save_pretrained(folder)
            vocabulary = {"model": {"vocab": {str(i): i for i in range(64)}}, "added_tokens": []}
            pathlib.Path(folder, "tokenizer.json").write_text(json.dumps(vocabulary), "utf-8")
        except Exception as error:
            print(json.dumps(f"{type(error).__name__}: {error}"[:200]), flush=True)
        else:
            print(json.dumps(""), flush=True)


if __name__ == "__main__":
    main()
