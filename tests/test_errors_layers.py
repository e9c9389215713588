"""Wrong calls of positions, cache, layers, blocks and interop, as a table.

Each is refused before any arithmetic, in words that name the argument.
"""

import re

import pytest
import wrong_decoding
import wrong_layers
import wrong_positions
from samples import Kernels
from wrong_row import Row

TABLES = (wrong_positions, wrong_layers, wrong_decoding)
ROWS = [row for table in TABLES for row in table.ROWS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_refuses(row: Row) -> None:
    wrong_call = row.prepare()
    with Kernels() as kernels, pytest.raises(row.error, match=re.escape(row.message)):
        wrong_call()
    assert not kernels.names, "something was computed before the error"
