"""Ropes in the formats of engines: `engines.export`, `engines.write` and `engines.rounding`."""
