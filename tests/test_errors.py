"""Wrong calls, as a table: each is refused before any arithmetic, in words that help.

The rows of a module stand in ``wrong_<module>.py``. A row says what the error's message
holds: the argument, what came, what was expected.
"""

import re

import pytest
import wrong_additive
import wrong_attention
import wrong_masks
from samples import Kernels
from wrong_row import Row

TABLES = [wrong_attention, wrong_additive, wrong_masks]
ROWS = [row for table in TABLES for row in table.ROWS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_refuses(row: Row) -> None:
    wrong_call = row.prepare()
    with Kernels() as kernels, pytest.raises(row.error, match=re.escape(row.message)):
        wrong_call()
    assert not kernels.names, "something was computed before the error"


def test_every_row_has_its_own_name() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
