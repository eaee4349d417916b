"""One record for each engine that runs models: what it makes of a config's RoPE, as its source says.

Each rule was written from the files that its record names, in that version, and holds for the model types that it
lists, whose code was read too; of others nothing is claimed. The tests hold the rules against the engines where they
install.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rfrope._core.arguments import show
from rfrope.data.model_types import read_in
from rfrope.models import engine_rules
from rfrope.models.engine_rules import Case, UnknownError, Use


@dataclass(frozen=True)
class Engine:
    """What is known of one engine.

    Attributes
    ----------
    name : str
    version : str
        Version of the source that was read: a release, or a commit and its date.
    sources : tuple of str
        The files, and the functions or classes in them.
    rule : callable
        ``rule(case)`` returns the `Use`, or raises `RefusedError` or `UnknownError`.
    model_types : tuple of str
        For which the rule holds, as the table of model types has them; empty for all that `rfrope.from_config` knows.
    """

    name: str
    version: str
    sources: tuple[str, ...]
    rule: Callable[[Case], Use]
    model_types: tuple[str, ...] = ()

    def use(self, case: Case) -> Use:
        """What the engine does with a config.

        Raises
        ------
        RefusedError
            Where it would stop.
        UnknownError
            Where its source was not read.
        """
        if self.model_types and case.model_type not in self.model_types:
            raise UnknownError(f"its code for model type {show(case.model_type)} was not read")
        return self.rule(case)


ENGINES = (
    Engine(
        "transformers",
        "5.23.0",
        (
            "src/transformers/modeling_rope_utils.py (ROPE_INIT_FUNCTIONS, dynamic_rope_update)",
            "src/transformers/models/*/modeling_*.py (the classes of the model types)",
        ),
        engine_rules.transformers,
    ),
    Engine(
        "vLLM",
        "0.32.0",
        (
            "vllm/model_executor/layers/rotary_embedding/__init__.py (get_rope) and the modules beside it",
            "vllm/transformers_utils/config.py (patch_rope_parameters)",
            "vllm/config/model.py (max_model_len)",
            "vllm/model_executor/models/{llama,mistral,mixtral,phi3,qwen2,qwen2_moe,qwen3,qwen3_moe}.py",
        ),
        engine_rules.vllm,
        read_in("vLLM"),
    ),
    Engine(
        "SGLang",
        "0.5.23",
        (
            "python/sglang/srt/layers/rotary_embedding/factory.py (get_rope), base.py, yarn.py, rope_variant.py",
            "python/sglang/srt/models/{llama,mistral,qwen2,qwen2_moe,qwen3,qwen3_moe}.py",
        ),
        engine_rules.sglang,
        read_in("SGLang"),
    ),
    Engine(
        "llama.cpp",
        "de3ff81 (2026-09-28)",
        (
            "conversion/base.py (TextModel), conversion/llama.py, conversion/qwen.py, conversion/phi.py",
            "src/llama-context.cpp (yarn_attn_factor), src/llama-model.cpp (llama_model_rope_type, get_rope_factors)",
            "src/models/{llama,phi3,qwen2,qwen2moe,qwen3,qwen3moe}.cpp",
            "ggml/src/ggml.c (ggml_rope_yarn_corr_dims), ggml/src/ggml-cpu/ops.cpp (rope_yarn)",
        ),
        engine_rules.llama_cpp,
        read_in("llama.cpp"),
    ),
    Engine(
        "MLX-LM",
        "0.32.2",
        (
            "mlx_lm/models/rope_utils.py (initialize_rope)",
            "mlx_lm/models/{llama,mixtral,phi3,qwen2,qwen3,qwen3_moe}.py (ModelArgs, Attention)",
            "mlx_lm/utils.py (MODEL_REMAPPING)",
        ),
        engine_rules.mlx_lm,
        read_in("MLX-LM"),
    ),
    Engine(
        "TensorRT-LLM",
        "51ea5c9",
        (
            "tensorrt_llm/_torch/attention_backend/interface.py (RopeParams) at 51ea5c9",
            "RopeEmbeddingUtils and RotaryScalingType, which it calls, in a later version: tensorrt_llm/functional.py",
            "tensorrt_llm/_torch/models/modeling_llama.py at 012cf90, modeling_phi3.py at 000a01d, modeling_qwen.py at "
            "047098b, modeling_qwen3.py",
        ),
        engine_rules.tensorrt_llm,
        read_in("TensorRT-LLM"),
    ),
)
