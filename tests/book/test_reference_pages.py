"""Glossary, bibliography, API and notation say what is so, and leave nothing out."""

import importlib
import inspect
import pkgutil
import re
from collections import Counter
from fractions import Fraction
from itertools import chain
from types import ModuleType

import nbformat
import pytest
import torch
import torch.nn.functional as F
from bs4 import BeautifulSoup
from notebooks import ROOT
from pybtex.database import parse_file
from small_build import build_pages
from torch import nn
from torch.nn.attention.flex_attention import create_mask

import attention_lib
from attention_lib import checks, context_parallel, doctor, kernels

BOOK = ROOT / "book"


def read(name):
    return (BOOK / name).read_text("utf-8")


def repeated(names):
    return [name for name, times in Counter(names).items() if times > 1]


# Glossary.

ENTRY = re.compile(r"^(\S.*)\n((?:  .*\n)+)", re.MULTILINE)
DEFINITION = re.compile(r"\[([^\]]+)\]\{\.language-zh\}\. (.+)")


def glossary():
    """Each term with its Chinese term and its definition."""
    text = read("glossary.md")
    body = re.search(r"```\{glossary\}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1]
    found = []
    for term, lines in ENTRY.findall(body):
        match = DEFINITION.fullmatch(" ".join(lines.split()))
        assert match, f"{term}: no Chinese term, or no definition"
        found.append((term, *match.groups()))
    assert len(found) == len(re.findall(r"^\S", body, re.MULTILINE))
    return found


def test_glossary_terms_are_in_order_and_differ():
    terms = [term.casefold() for term, _, _ in glossary()]
    assert terms == sorted(terms)
    assert len(terms) >= 60
    assert repeated(terms) == []
    assert repeated(chinese for _, chinese, _ in glossary()) == []


def test_glossary_has_both_languages():
    for term, chinese, definition in glossary():
        assert re.search(r"[A-Za-z]", term)
        assert re.search(r"[\u4e00-\u9fff]", chinese), (
            f"{term}: {chinese} is not Chinese"
        )
        assert not re.search(r"[\u4e00-\u9fff]", term + definition)
        assert definition[0].isupper() or definition.startswith("{term}`")
        assert definition.endswith("."), f"{term}: {definition}"


def test_glossary_refers_to_its_own_terms_only():
    terms = {term.casefold() for term, _, _ in glossary()}
    for _, _, definition in glossary():
        for text, target in re.findall(
            r"\{term\}`([^`<]+?)(?: <([^>]+)>)?`", definition
        ):
            assert (target or text).casefold() in terms


def test_glossary_marks_up_its_languages(tmp_path):
    source = tmp_path / "book"
    source.mkdir()
    (source / "conf.py").write_text(
        "extensions = ['myst_parser']\nmyst_enable_extensions = ['attrs_inline']\n"
    )
    (source / "index.md").write_text("# Book\n```{toctree}\nglossary\nnotation\n```\n")
    (source / "notation.md").write_text("# Notation\n")
    (source / "glossary.md").write_text(read("glossary.md"), encoding="utf-8")
    site = tmp_path / "site"
    assert build_pages(source, site) == ""
    page = BeautifulSoup((site / "glossary.html").read_text("utf-8"), "html.parser")
    definitions = page.select("dl.glossary > dd")
    assert len(definitions) == len(glossary())
    for definition, (_, chinese, _) in zip(definitions, glossary(), strict=True):
        assert [tag.get_text() for tag in definition.select("[lang=zh]")] == [chinese]


# Bibliography.

CITATION = re.compile(r"\{cite(?::\w+)?\}`([^`]+)`")


def citations():
    """Every key that the book cites, with the file that does."""
    for path in sorted([*BOOK.glob("*.md"), *BOOK.glob("*.ipynb")]):
        text = path.read_text("utf-8")
        if path.suffix == ".ipynb":
            cells = nbformat.reads(text, as_version=4).cells
            text = "\n".join(cell.source for cell in cells)
        for keys in CITATION.findall(text):
            for key in keys.split(","):
                yield path.name, key.strip()


def bibliography():
    """The entries of the bibliography, by key. A key given twice is an error."""
    return parse_file(BOOK / "references.bib").entries


def test_citations_are_found():
    text = "as {cite:t}`vaswani2017attention` and {cite}`a2000b, c2001d` show"
    assert CITATION.findall(text) == ["vaswani2017attention", "a2000b, c2001d"]
    assert ("notation.md", "vaswani2017attention") in citations()


def test_every_cited_key_exists():
    assert [pair for pair in citations() if pair[1] not in bibliography()] == []


def test_bibliography_is_in_order_and_differs():
    entries = bibliography()
    assert list(entries) == sorted(entries)
    for field in ("title", "doi", "eprint", "url"):
        values = [entry.fields.get(field, "").casefold() for entry in entries.values()]
        assert repeated(value for value in values if value) == []


@pytest.mark.parametrize("key", bibliography())
def test_reference_is_complete(key):
    entry = bibliography()[key]
    fields = entry.fields
    assert entry.persons["author"] and fields["title"].strip()
    family = entry.persons["author"][0].last_names[-1].casefold()
    assert re.fullmatch(rf"{family}{fields['year']}[a-z]+\d?", key)
    assert 1900 < int(fields["year"]) <= 2026
    assert {"doi", "eprint", "url"} & set(fields), "no way to find it"
    assert re.fullmatch(r"10\.\d{4,}/\S+", fields.get("doi", "10.1000/x"))
    assert re.fullmatch(r"\d{4}\.\d{4,5}", fields.get("eprint", "1706.03762"))
    assert fields.get("url", "https://").startswith("https://")
    venue = {"article": "journal", "inproceedings": "booktitle"}.get(entry.type)
    assert venue is None or fields[venue].strip()
    assert re.fullmatch(r"\d+(--\d+)?", fields.get("pages", "1--2"))


# API.


def public_names():
    """Every public name of the package, from where a reader imports it."""
    for name in attention_lib.__all__:
        thing = getattr(attention_lib, name)
        if isinstance(thing, ModuleType):
            yield from (f"attention_lib.{name}.{inner}" for inner in thing.__all__)
        else:
            yield f"attention_lib.{name}"
    for module in (
        context_parallel,
        doctor,
        kernels,
    ):  # imported by those who want them
        yield from (f"{module.__name__}.{name}" for name in module.__all__)
    yield "attention_lib.doctor.testing.AttentionTests"
    yield "attention_lib.checks.Result"
    for chapter in pkgutil.iter_modules(checks.__path__, "attention_lib.checks."):
        module = importlib.import_module(chapter.name)
        yield from (f"{chapter.name}.{name}" for name in getattr(module, "__all__", ()))


def api():
    return read("api.md") + read("checks.md")


def documented_names():
    return re.findall(
        r"^\.\. auto(?:function|class|data):: ([\w.]+)", api(), re.MULTILINE
    )


def test_api_has_every_public_name_once():
    assert sorted(documented_names()) == sorted(public_names())


def test_api_says_when_to_use_each_name():
    listed = re.findall(r"^\| \{py:\w+\}`~(\S+)` \| \S", api(), re.MULTILINE)
    assert sorted(listed) == sorted(documented_names())


# Notation.


def table(heading):
    """The cells of the first table under a heading of the notation."""
    text = read("notation.md").partition(f"# {heading}\n")[2]
    lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_names_in_code_are_parameters():
    names = list(chain(*(re.findall(r"`(\w+)`", row[2]) for row in table("Letters"))))
    parameters = inspect.signature(attention_lib.MultiHeadAttention).parameters
    assert names == ["num_heads", "num_kv_heads", "head_dim", "embed_dim"]
    assert set(names) <= set(parameters)


def test_letters_are_those_of_the_docstrings():
    letters = {row[0] for row in table("Letters")[2:]}
    for row in table("Shapes")[2:]:
        assert set(re.findall(r"[A-Z]\w*", row[1])) <= letters


def test_weights_read_aloud_are_those_of_the_example():
    rows = [row[1:] for row in table("Reading W[i, j] aloud")[2:]]
    weights = [[Fraction(cell) for cell in row[:3]] for row in rows[:3]]
    tokens = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    projection = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    query = 2**0.5 * torch.tensor(2.0, dtype=torch.float64).log() * tokens @ projection
    steps = attention_lib.attention_steps(query, tokens, tokens)
    expected = torch.tensor([[float(w) for w in row] for row in weights])
    torch.testing.assert_close(steps.weights, expected.double(), atol=1e-7, rtol=0)
    assert [Fraction(row[3]) for row in rows[:3]] == [sum(row) for row in weights]
    columns = [sum(column) for column in zip(*weights, strict=True)]
    assert [Fraction(cell) for cell in rows[3][:3]] == columns


def torch_says(where):
    """What the table says that True means, for one of torch's arguments."""
    rows = table("Masks, here and elsewhere")
    return {"not" not in row[2] for row in rows if where in row[0] + row[1]}


@pytest.fixture
def keep():
    """Which of 3 queries may attend to which of 4 keys; no row or column is alike."""
    return torch.tensor([[1, 0, 0, 1], [0, 1, 1, 1], [1, 1, 0, 0]]).bool()


def test_polarity_of_the_functions(keep):
    q, k, v = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4, 2)
    ours = attention_lib.attention_steps(q, k, v, keep)
    assert torch.equal(ours.weights > 0, keep)
    theirs = F.scaled_dot_product_attention(q[None], k[None], v[None], keep)
    torch.testing.assert_close(theirs[0], ours.output)
    assert torch_says("this book") == torch_says("F.scaled_dot") == {True}


def test_polarity_of_the_layer(keep):
    layer = nn.MultiheadAttention(6, 1, batch_first=True)
    x, memory = torch.randn(1, 3, 6), torch.randn(1, 4, 6)
    _, weights = layer(x, memory, memory, attn_mask=~keep)
    assert torch.equal(weights[0] > 0, keep)
    _, weights = layer(x, memory, memory, key_padding_mask=~keep[:1])
    assert torch.equal(weights[0] > 0, keep[0].expand(3, 4))
    assert torch_says("nn.MultiheadAttention") == {False}


def test_polarity_of_flex_attention(keep):
    mask = create_mask(lambda b, h, i, j: keep[i, j], 1, 1, 3, 4, device="cpu")
    assert torch.equal(mask[0, 0], keep)
    assert torch_says("flex_attention") == {True}


def test_conversions_give_keep(keep):
    block = re.search(r"```python\n(.*?)```", read("notation.md"), re.DOTALL)[1]
    padding = torch.tensor([[0, 0, 0, 1], [0, 1, 1, 1]]).bool()  # (B, S)
    given = {
        "attn_mask": ~keep,
        "key_padding_mask": padding,
        "attention_mask": (~padding).long(),
    }
    results = []
    for line in block.splitlines():
        names = dict(given)
        exec(line, names)  # noqa: S102 - the page's own lines
        results.append(names["keep"])
    assert torch.equal(results[0], keep)
    assert torch.equal(results[1], attention_lib.masks.padding([3, 1], 4))
    assert torch.equal(results[2], results[1])
