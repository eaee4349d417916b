"""Time of reading frequencies; `benchmarks.sums` has the mean kernel itself, and bases for a context."""

import rfrope
from rfrope import analysis

LLAMA = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


class Long:
    """Frequencies of Llama 3.1 and a plain ladder of its base, over a context of 4096 positions and of 131072."""

    params = (("llama3", "ladder"), (4096, 131_072))
    param_names = ("frequencies", "context")

    def setup(self, frequencies, context):
        scaled = rfrope.models.from_rope_parameters(LLAMA, head_dim=128)
        self.frequencies = scaled.frequencies if frequencies == "llama3" else rfrope.geometric(64, base=5e5)
        analysis.summarise(self.frequencies, 64)  # what is slow at the first call

    def time_fit_kernel(self, frequencies, context):
        analysis.fit_kernel(self.frequencies, context - 1)

    def time_summarise(self, frequencies, context):
        analysis.summarise(self.frequencies, context)
