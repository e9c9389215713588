"""A ban is read from the answer's syntax tree, with all that the answer calls."""

import pytest
from exercises import exercises
from grading.bans import violation
from grading.code import statements
from grading.submission import Cell
from notebook_files import read
from rubric import ROOT, make_rubric

SOFTMAX = ("softmax",)
GIVEN = (
    "import torch\nimport torch.nn.functional as F\nfrom torch import softmax as ready"
)


def found(source, forbids=SOFTMAX, given=GIVEN):
    own, broken = statements([Cell(1, source)])
    assert not broken
    return violation(("answer",), forbids, own, statements([Cell(0, given)])[0])


@pytest.mark.parametrize(
    "source",
    [
        "def answer(x): return x.softmax(-1)",
        "def answer(x): return F.softmax(x, dim=-1)",
        "def answer(x): return torch.nn.functional.softmax(x, -1)",
        "def answer(x): return torch.log_softmax(x, -1).exp()",
        "def answer(x): return torch.nn.Softmax(-1)(x)",
        "def answer(x): return torch._C._nn.softmax(x, -1)",
        "def answer(x): return torch.ops.aten._softmax(x, -1, False)",
        "def answer(x): return ready(x, -1)",
        "from torch import softmax as s\ndef answer(x): return s(x, -1)",
        "def answer(x):\n    from torch import softmax as s\n    return s(x, -1)",
        "s = torch.softmax\ndef answer(x): return s(x, -1)",
        "def helper(x): return x.softmax(-1)\ndef answer(x): return helper(x)",
        "class A:\n    def f(self, x): return x.softmax(-1)\ndef answer(x): return A().f(x)",
        "answer = torch.compile(lambda x: x.softmax(-1))",
        "answer = torch.softmax",
        "def answer(x): return getattr(torch, 'softmax')(x, -1)",
        "def answer(x, f=torch.softmax): return f(x, -1)",
        "@torch.softmax\ndef answer(x): return x",
    ],
)
def test_what_is_forbidden_is_found_under_every_name(source):
    assert "softmax" in found(source).lower()


@pytest.mark.parametrize(
    "source",
    [
        "def answer(x): return x.exp() / x.exp().sum(-1, keepdim=True)",
        "def softmax(x): return x.exp()\ndef answer(x): return softmax(x)",
        "def answer(x):\n    softmax = x.exp()\n    return softmax / softmax.sum()",
        "def answer(x, softmax): return softmax(x)",
        """
class S:
    def softmax(self, x): return x
    def f(self, x): return self.softmax(x)
def answer(x): return S().f(x)""",
        "def unused(x): return x.softmax(-1)\ndef answer(x): return x",
        "def answer(x):\n    '''Not torch's own softmax.'''\n    return x",
        "def answer(model): return model.eval()",
        "def answer(x): return getattr(x, 'T')",
    ],
)
def test_what_is_done_by_hand_is_not(source):
    assert found(source) is None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def answer(x): return eval('x.soft' + 'max(-1)')", "calls eval"),
        ("def answer(x): exec('1')", "calls exec"),
        ("def answer(x): return getattr(x, 'soft' + 'max')(-1)", "while it runs"),
        ("def answer(x):\n    g = getattr\n    return g(x, 'y')", "hands on getattr"),
        (
            "from operator import methodcaller as m\ndef answer(x): return m('y')(x)",
            "imports operator.methodcaller",
        ),
        ("def answer(x): return __import__('torch')", "calls __import__"),
        ("import importlib\ndef answer(x): importlib.x", "imports importlib"),
        ("def answer(f): return f.__closure__", "looks inside with __closure__"),
        ("def answer(f): return getattr(f, '__code__')", "looks inside with __code__"),
        ("def answer(f): return vars(f)", "calls vars"),
        (
            "def answer(*a):\n    from attention_lib.checks.chapter06 import _reference",
            "looks into its own check",
        ),
        ("def answer(*a): return check._reference(*a)", "looks into its own check"),
    ],
)
def test_what_hides_or_pries_is_found_in_every_exercise(source, words):
    assert words in found(source, forbids=())


def test_a_definition_of_the_chapter_is_read_too_unless_it_is_replaced():
    given = "def three_lines(x): return x.softmax(-1)"
    asked = "def answer(x): return three_lines(x)"
    assert "softmax" in found(asked, given=given)
    assert found("def three_lines(x): return x\n" + asked, given=given) is None


@pytest.mark.parametrize(
    "path", sorted((ROOT / "book").glob("[0-9]*.ipynb")), ids=lambda path: path.stem
)
def test_no_solution_breaks_a_ban(path):
    rubric = make_rubric(path)
    given, _ = statements([Cell(0, rubric.library), Cell(0, rubric.preamble)])
    for task, one in zip(rubric.tasks, exercises(read(path)), strict=True):
        own, _ = statements([Cell(1, one.solution)])
        assert violation(task.answers, task.forbids, own, given) is None


def test_the_bans_that_the_book_pronounces_are_declared():
    declared = {
        task.number: task.forbids
        for path in (ROOT / "book").glob("[0-9]*.ipynb")
        for task in make_rubric(path).tasks
    }
    for number in ("2.1", "2.2", "4.1", "8.1", "8.3", "11.2", "11.4", "12.5"):
        assert declared[number], number
