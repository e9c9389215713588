"""Claims, verdicts and the cells that measure them: they agree, and faults are found."""

import copy
import functools
import re

import pytest
from claims import VERDICTS, faults, measured, read_chapters, read_claims
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from notebooks import ROOT
from sample_claims import claim_cells, sample_chapters, sample_claims

BOOK = ROOT / "book"


def test_the_book_bears_its_ledger_out():
    assert faults(read_claims(BOOK / "claims.yml"), read_chapters(BOOK)) == []


def test_the_ledger_has_every_claim():
    ids = [claim.id for claim in read_claims(BOOK / "claims.yml")]
    assert ids[:44] == [f"C{number:02}" for number in range(1, 45)]


@pytest.mark.parametrize(
    "path", sorted(BOOK.glob("*.ipynb")), ids=lambda path: path.stem
)
def test_verdicts_are_stated_only_where_they_are_measured(path):
    """A verdict in a cell without its tag would escape the ledger."""
    nb = read_chapters(BOOK)[path.stem]
    for cell in nb.cells:
        text = "".join(out.get("text", "") for out in cell.get("outputs", []))
        stated = re.findall(rf"^(C\d\d) (?:{'|'.join(VERDICTS)})", text, re.MULTILINE)
        tagged = [f"claim-{id}" for id in stated]
        assert tagged == [t for t in cell.metadata.get("tags", []) if t in tagged]


@pytest.fixture
def claims():
    return sample_claims()


@pytest.fixture
def chapters():
    return sample_chapters()


def test_a_sound_book_has_no_faults(claims, chapters):
    assert faults(claims, chapters) == []


def test_the_measured_sentence_is_read_from_the_output(claims, chapters):
    line = measured(claims[1], chapters)
    assert (line.id, line.verdict) == ("C02", "does not hold")
    assert line.sentence == "sums run from 0.4 to 2.1: no pattern"
    assert measured(claims[2], chapters) is None


def cell_fault(spoil):
    """Spoil the cell that measures C01, or the text before it."""

    @functools.wraps(spoil)
    def change(claims, chapters):
        nb = chapters["01-rows"]
        spoil(nb.cells[2], nb)

    return change


@cell_fault
def says_another_verdict(cell, nb):
    cell.outputs[0].text = "C01 holds with a condition: each of 12 rows\n"


@cell_fault
def says_no_verdict(cell, nb):
    cell.outputs[0].text = "each of 12 rows sums to 1\n"


@cell_fault
def says_it_as_a_warning(cell, nb):
    cell.outputs[0].name = "stderr"


@cell_fault
def says_nothing_after_the_verdict(cell, nb):
    cell.outputs[0].text = "C01 holds: \n"


@cell_fault
def says_two_verdicts(cell, nb):
    cell.outputs[0].text += "C02 does not hold: nor does this\n"


@cell_fault
def has_no_outputs(cell, nb):
    cell.outputs = []


@cell_fault
def asserts_nothing(cell, nb):
    cell.source = cell.source.replace("assert error", "error")


@cell_fault
def asserts_a_constant(cell, nb):
    cell.source = cell.source.replace("error < 1", "True")


@cell_fault
def mentions_assert_in_a_comment(cell, nb):
    cell.source = "# assert error < 1\nprint('C01 holds: so')"


@cell_fault
def is_not_compared(cell, nb):
    cell.metadata.tags.append("nbval-ignore-output")


@cell_fault
def is_not_run(cell, nb):
    cell.metadata.tags.append("nbval-skip")


@cell_fault
def hides_its_output_for_good(cell, nb):
    cell.metadata.tags.append("remove-output")


@cell_fault
def may_fail(cell, nb):
    cell.metadata.tags.append("raises-exception")


@cell_fault
def is_not_compared_by_a_comment(cell, nb):
    cell.source = "# NBVAL_IGNORE_OUTPUT\n" + cell.source


@cell_fault
def was_not_executed(cell, nb):
    cell.execution_count = None


@cell_fault
def has_no_label(cell, nb):
    nb.cells[1].source = "Is it so?"


@cell_fault
def has_another_label(cell, nb):
    nb.cells[1].source = "(claim-c02)="


@cell_fault
def has_a_label_in_a_sentence(cell, nb):
    nb.cells[1].source = "The line (claim-c01)= goes before the cell."


@cell_fault
def has_its_label_in_code(cell, nb):
    nb.cells[1] = new_code_cell('"""\n(claim-c01)=\n"""')


@cell_fault
def has_its_label_two_cells_before(cell, nb):
    nb.cells.insert(2, new_markdown_cell("Predict first."))


@cell_fault
def is_text(cell, nb):
    nb.cells[2] = new_markdown_cell("C01 holds", metadata={"tags": ["claim-C01"]})


@cell_fault
def is_there_twice(cell, nb):
    nb.cells += copy.deepcopy(nb.cells[1:3])


@cell_fault
def is_untagged(cell, nb):
    cell.metadata.tags.remove("claim-C01")


@cell_fault
def has_a_claim_without_entry(cell, nb):
    nb.cells += claim_cells("C77", "C77 holds: nobody listed it")


@cell_fault
def has_a_claim_without_verdict(cell, nb):
    nb.cells += claim_cells("C03", "C03 holds: the list does not say so")


def verdict_before_its_chapter(claims, chapters):
    claims[2] = claims[2]._replace(verdict="holds")


def chapter_without_its_verdict(claims, chapters):
    chapters["02-diagonals"] = new_notebook()


def measured_in_another_chapter(claims, chapters):
    claims[0] = claims[0]._replace(chapter="02-diagonals")
    chapters["02-diagonals"] = new_notebook()


def unknown_verdict(claims, chapters):
    claims[0] = claims[0]._replace(verdict="holds mostly")
    chapters["01-rows"].cells[2].outputs[0].text = "C01 holds mostly: in 11 of 12\n"


def ids_out_of_order(claims, chapters):
    claims.reverse()


def id_given_twice(claims, chapters):
    claims[2] = claims[2]._replace(id="C02")


def malformed_id(claims, chapters):
    claims[2] = claims[2]._replace(id="D3")


def empty_claim(claims, chapters):
    claims[2] = claims[2]._replace(claim=" ")


def malformed_chapter(claims, chapters):
    claims[2] = claims[2]._replace(chapter="diagonals.ipynb")


def two_names_for_one_chapter(claims, chapters):
    claims[2] = claims[2]._replace(chapter="01-columns")


FAULTS = {
    says_another_verdict: "cell 3: prints 'holds with a condition', .* says 'holds'",
    says_no_verdict: "cell 3: must print one verdict, on C01; it prints none",
    says_it_as_a_warning: "it prints none",
    says_nothing_after_the_verdict: "it prints none",
    says_two_verdicts: "it prints C01, C02",
    has_no_outputs: "it prints none",
    asserts_nothing: "measures C01 without asserting",
    asserts_a_constant: "measures C01 without asserting",
    mentions_assert_in_a_comment: "measures C01 without asserting",
    is_not_compared: "is tagged nbval-ignore-output",
    is_not_run: "is tagged nbval-skip",
    hides_its_output_for_good: "is tagged remove-output",
    may_fail: "is tagged raises-exception",
    is_not_compared_by_a_comment: "holds a comment that keeps",
    was_not_executed: "has no execution count",
    has_no_label: r"must be text that holds the line \(claim-c01\)=",
    has_another_label: r"holds the line \(claim-c01\)=",
    has_a_label_in_a_sentence: r"holds the line \(claim-c01\)=",
    has_its_label_in_code: r"must be text that holds",
    has_its_label_two_cells_before: r"holds the line \(claim-c01\)=",
    is_text: "only a code cell",
    is_there_twice: "C01: 2 cells are tagged claim-C01",
    is_untagged: "C01: 0 cells are tagged claim-C01",
    has_a_claim_without_entry: "cell 7: claims.yml has no verdict for C77",
    has_a_claim_without_verdict: "cell 7: claims.yml has no verdict for C03",
    verdict_before_its_chapter: "C03: has a verdict, but 02-diagonals is not in",
    chapter_without_its_verdict: "C03: 02-diagonals is in the book",
    measured_in_another_chapter: "01-rows, cell 3: C01 belongs to 02-diagonals",
    unknown_verdict: "C01: 'holds mostly' is no verdict",
    ids_out_of_order: "C02: comes after C03",
    id_given_twice: "C02: comes after C02",
    malformed_id: "D3: an id is C and two digits",
    empty_claim: "C03: has no claim",
    malformed_chapter: "C03: 'diagonals.ipynb' is no chapter's name",
    two_names_for_one_chapter: "C03: 01-columns and 01-rows have the same number",
}


@pytest.mark.parametrize(
    ("spoil", "expected"), FAULTS.items(), ids=[spoil.__name__ for spoil in FAULTS]
)
def test_a_spoiled_book_is_reported(claims, chapters, spoil, expected):
    spoil(claims, chapters)
    found = faults(claims, chapters)
    assert any(re.search(expected, text) for text in found), found


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("- {id: C01, claim: So, chapter: 01-rows, verdct: holds}", TypeError),
        ("- {id: C01, claim: So}", TypeError),
    ],
)
def test_fields_are_fixed(tmp_path, text, error):
    (tmp_path / "claims.yml").write_text(text)
    with pytest.raises(error, match="verdct|chapter"):
        read_claims(tmp_path / "claims.yml")
