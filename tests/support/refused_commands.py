"""Command lines that are refused: words of the command, exit code, words of the error.

They run in the folder of `tests/cli/conftest.py`; `{model}` is a tiny model with its texts. A wrong word in one option
alone, as ``--seed x`` or a file that is not there, is the sweep's of `bad_commands.py`.
"""

from __future__ import annotations

import pytest

LOADING = [pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("Deprecation", "Future", "User")]
CHECK, DESIGN = "validate gaussian --samples 256 --trials 64", "design gaussian --head-dim 32 --context 256"
TEXT = "heads {model} --texts {model}/text.txt --documents 4 --tokens 32"
TUNE = "tune {model} --context 64 --trained 32 --window 16 --steps 2 --texts {model}/0.txt {model}/1.txt {model}/2.txt"
TUNE += " {model}/3.txt {model}/4.txt {model}/5.txt"

ROWS = [
    ("nonsense", 2, "usage: rfrope"),
    ("doctor cupy", 2, "usage: rfrope"),
    ("validate gausian", 2, "unknown kernel 'gausian'; did you mean 'gaussian'? Expected one of 'gaussian', "),
    # validate
    ("validate 'gaussian; cauchy'", 2, "cannot read kernel"),
    ("validate gaussian --trials 3", 2, "--trials is 3; expected a whole number from 4"),
    ("validate gaussian --seed x", 2, "argument --seed: 'x' is not a whole number"),
    (f"{CHECK} --alpha 1", 2, "--alpha is 1.0; expected a number between 0 and 1"),
    (f"{CHECK} --qk damaged.npz", 2, "--qk damaged.npz: "),
    (f"{CHECK} --qk none.npz", 2, "--qk none.npz: holds weights (3,); expected arrays q and k"),
    (f"{CHECK} --html page.txt", 2, "--html page.txt: expected a name that ends in .html"),
    # design
    ("design gaussian --head-dim 63 --context 64", 2, "--head-dim is 63; expected an even number"),
    ("design gaussian --head-dim 64 --context 1", 2, "--context is 1; expected a whole number from 2"),
    ("design gaussian --head-dim 64 --context 64,48", 2, "--context is (64, 48); expected one number or 1, one for"),
    ("design gaussian --head-dim 4096 --context 64 --design optimised", 2, "expected at most 1024 unknowns"),
    ("design gaussian 'gaussian(ndim=2)' --head-dim 8 --context 9", 2, "has kernels with [1, 2] axes"),
    ("design gaussian cauchy --head-dim 8 --context 9 --heads 3", 2, "--heads is 3 but kernel has 2 kernels"),
    ("design sinc --head-dim 8 --context 9 --heads 2 --ladder 8:64", 2, "sinc(bandwidth=1.0), which has no single"),
    (f"{DESIGN} --design orthogonal", 2, "--design is 'orthogonal' but gaussian(scale=1.0) has one axis"),
    (f"{DESIGN} --design Optimized", 2, "--design: 'Optimized' is unknown; did you mean 'optimised'? Expected one of"),
    (f"{DESIGN} --norm sup", 2, "--norm is 'sup' but design is 'auto'"),
    (f"{DESIGN} --ladder 8:512", 2, "--ladder is (8.0, 512.0); expected a single kernel and heads with it"),
    (f"{DESIGN} --heads 2 --ladder 8", 2, "argument --ladder: '8' is not a range; expected two numbers"),
    (f"{DESIGN} --heads 2 --ladder 0:8", 2, "--ladder[0] is 0.0; expected a positive finite number"),
    (f"{DESIGN} -o set.txt", 2, "-o set.txt: path is 'set.txt'; expected a name that ends in .npz"),
    # inspect
    ("inspect", 2, "no frequencies to inspect; expected a config.json, a file of frequencies, or --base"),
    ("inspect --base 1e4 --head-dim 8", 2, "--base 10000: expected --head-dim and --context with it"),
    ("inspect --base 1e4 --head-dim 7 --context 8", 2, "--head-dim is 7; expected an even number"),
    ("inspect --head-dim 8", 2, "--head-dim 8: expected it with --base"),
    ("inspect meta-llama/Llama-3.1-8B", 2, "there is no such file or folder here, and nothing is downloaded; expected"),
    ("inspect broken.json", 2, "broken.json"),
    ("inspect bert.json", 2, "RoPE"),
    ("inspect bare.json", 2, "bare.json gives no context; expected --context"),
    ("inspect no_context.npz", 2, "no_context.npz holds no context; expected --context"),
    ("inspect plane.npz --context 4,4,4", 2, "--context has 3 numbers; expected one, or 2"),
    ("inspect config.json --context 4,4", 2, "--context is (4, 4): a model's config has one axis; expected one number"),
    ("inspect --base 1e4 --head-dim 32 --context 512 --seq-len 9", 2, "--seq-len 9: expected it with a SOURCE"),
    # plan
    ("plan config.json --context 256", 2, "--context is 256; expected more than the 256 trained positions"),
    ("plan config.json --context 999 --method su", 2, "--method su: name is 'su'; expected one of 'yarn'"),
    ("plan config.json --context 999 --part text", 2, "--part text: config.json has a RoPE for the whole model"),
    ("plan layers.json --context 999 --part text", 2, "--part text: layers.json has a RoPE for 'full_attention', 's"),
    ("plan layers.json --context 999 --part sliding_attention", 2, "has nothing to plan: sliding_attention sees 64"),
    ("plan config.json --context 999 -o rope.npz", 2, "rope.npz exists; expected a new name, or --force"),
    ("plan no_context.npz --context 999", 2, "has nothing to plan: it gives no context; expected --trained"),
    ("plan bare.json --context 999", 2, "bare.json has nothing to plan: it gives no context; expected --trained"),
    ("plan vision.json --context 999", 2, "nothing to plan: it turns by the two axes of a picture"),
    ("plan polar.npz --context 999", 2, "rope is polar, but the methods for longer contexts"),
    # export
    ("export --to vllm", 2, "expected FILE and --to ENGINE, or --list, or --conformance DIR"),
    ("export rope.npz", 2, "expected FILE and --to ENGINE"),
    ("export rope.npz --to vlm", 2, "argument --to: 'vlm' is unknown; did you mean 'vLLM'? Expected one of 'trans"),
    ("export rope.npz --to vllm --model config.json", 2, "expected -o with them"),
    ("export rope.npz --to vllm --part a", 2, "expected -o with them"),
    ("export rope.npz --to vllm --dtype float16", 2, "--dtype is 'float16', which vLLM does not use"),
    ("export rope.npz --to vllm -o new.txt", 2, "-o new.txt: path is 'new.txt'; expected for vLLM"),
    ("export rope.npz --to vllm -o new.json --model none", 2, "-o new.json: none: "),
    ("export rope.npz --to llama.cpp -o new.gguf", 2, "model is None; expected for llama.cpp the GGUF to copy"),
    ("export layers.json --to json", 2, "has a RoPE for 'full_attention', 'sliding_attention'; expected one of them"),
    ("export polar.npz --to transformers", 2, "it is polar, and no engine supports polar attention"),
    # compare
    ("compare qwen.json --engine vlm", 2, "--engine: 'vlm' is unknown; did you mean 'vLLM'? Expected one of 'trans"),
    ("compare", 2, "SOURCE"),
    # audit
    ("audit config.json qwen.json", 2, "FILE config.json: expected a name that ends in .npy or .npz"),
    ("audit damaged.npz qwen.json", 2, "FILE damaged.npz: BadZipFile: File is not a zip file"),
    ("audit objects.npy qwen.json", 2, "pickled objects are never loaded"),
    ("audit none.npz qwen.json", 2, "holds no frequencies or tables of a RoPE"),
    ("audit right.npy none.npz", 2, "expected what rfrope.save writes"),
    # check
    ("check", 2, "TARGET"),
    ("check qwen.json broken.json", 2, "is not valid JSON"),
    ("check qwen.json plane.npz", 2, "expected (D,)"),
    ("check nowhere.json", 2, "target: nowhere.json: there is no such file"),
    ("check qwen.json --engine vlm", 2, "did you mean 'vLLM'"),
    # heads
    (f"{TEXT} --tokens 2", 2, "--tokens is 2; expected at least 5"),
    (f"{TEXT} --documents 2", 2, "--documents is 2; expected at least 3"),
    (f"{TEXT} --documents 90", 2, "the text has 400 tokens; expected 2880 for 90 documents of 32"),
    (f"{TEXT} --table heads.txt", 2, "--table heads.txt: expected a name that ends in .csv"),
    (f"{TEXT} --texts {{model}}/0.txt {{model}}/1.txt", 2, "--texts has 2 files; expected one, or at least 3"),
    (f"{TEXT} --texts {{model}}/binary.txt", 2, "binary.txt: expected a text in UTF-8"),
    (f"{TEXT} --part full", 2, "--part is 'full', but LlamaForCausalLM has Ropes for ''"),
    (f"{TEXT} --skip 29", 2, "--skip is 29; expected at most 28 of 32 tokens"),
    ("heads nowhere --texts {model}/0.txt", 2, "MODEL nowhere: nowhere does not exist; expected a folder with"),
    ("heads {model}/0.txt --texts {model}/0.txt", 2, "is a file; expected a folder with a model, or a GGUF file"),
    ("heads . --texts {model}/0.txt", 2, "does not load: "),
    # tune
    (f"{TUNE} --starts yawn", 2, "--starts is 'yawn'; did you mean 'yarn'"),
    (f"{TUNE} --window 65", 2, "--window is 65; expected"),
    (f"{TUNE} --learnable phases", 2, "--learnable is 'phases'; expected"),
    (f"{TUNE} --context 32", 2, "--context is 32; expected more than the 32 trained positions"),
    (f"{TUNE} --trained 64", 2, "--context is 64; expected more than the 64 trained positions"),
    (f"{TUNE} -o rope.txt", 2, "-o rope.txt: "),
    ("tune {model} --context 64 --texts {model}/binary.txt", 2, "expected a text in UTF-8"),
    ("tune nowhere --context 64 --texts {model}/0.txt", 2, "does not exist"),
    ("tune {model} --context 8192 --texts {model}/0.txt", 2, "tokens; expected 65536 for 8 documents of 8192"),
]
