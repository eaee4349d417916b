"""``rfrope compare``: its text, its JSON and its page."""

from rfrope import models


def test_text_and_json(says, folder):
    found = models.compare("qwen.json")
    assert says("compare", "qwen.json") == f"{found.report().led}\n"
    assert says("compare", "qwen.json", "--json") == found.to_dict() | {"html": None}
    laws = found.ropes[0].laws
    (sentence,) = found.ropes[0].list_laws()  # all engines that are known have the same frequencies
    error = f"{laws['vLLM'].sentence}; as many blocks of it err {laws['vLLM'].design_rms:.2g}"
    assert sentence == f"Nearest law of {', '.join(laws)}: {error}."
    assert sentence in says("compare", "qwen.json", "--all")
    assert says("compare", "qwen.json", "--all", "--json")["laws"][0]["vLLM"] == laws["vLLM"].to_dict()
    assert models.compare("qwen.json", seq_len=2).ropes[0].laws == {}
    options = ("--engine", "vllm", "--engine", "Trans_Formers", "--context", "64", "--sources")
    out, source = (
        says("compare", "qwen.json", *options),
        "\n  tools/observe_engines.py of ",
    )
    assert [said for said in ("a text of 64 positions", "They agree.", source) if said not in out] == []
    assert "SGLang" not in out
