"""What commands share: errors of files."""

import re

import pytest

from rfrope.cli import shared


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError(2, "No such file", "model.json"), "-o out.json: model.json: No such file"),
        (FileNotFoundError(2, "No such file", "./out.json"), "-o out.json: No such file"),
        (OSError("it is damaged"), "-o out.json: it is damaged"),
        (ValueError("it says nothing"), "-o out.json: it says nothing"),
    ],
)
def test_an_error_of_another_file_names_both(error, told):
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"), shared.naming("-o", "out.json"):
        raise error
