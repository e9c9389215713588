"""The command line: what it accepts, prints and returns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types

import pytest
import torch
from examinations import FUTURE, examination, faulty
from torch import nn

from attention_lib.doctor import _target
from attention_lib.doctor.__main__ import main
from attention_lib.doctor._options import parser
from attention_lib.doctor.findings import Examination
from attention_lib.doctor.report import Report

MODULE = '''
"""A module of a user."""
import torch

print("printed by the module")


class Sound(torch.nn.Module):
    def __init__(self, d_model, nhead=1):
        super().__init__()
        print("printed by the constructor")
        self.sizes = d_model, nhead


class InOrder(torch.nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.sizes = a, b


class Configured:
    def __init__(self, *, config):
        pass


class Outer:
    Inner = Sound


class Raising:
    def __init__(self):
        raise RuntimeError("no weights here")


def make():
    return Sound(8, 2)


def make_sized(embed_dim, num_heads):
    return Sound(embed_dim, num_heads)


def attend(query, key, value):
    return value


def leave():
    raise SystemExit(0)


sound = Sound(8, 2)
other = Sound(6, 3)
'''
BROKEN = {
    "raises": "1 / 0",
    "needs": "import no_such_package",
    "exits": "import sys; sys.exit(0)",
    "slip": "def f(:",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder, from which the command is run."""
    (tmp_path / "mine.py").write_text(MODULE)
    for name, text in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(text)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("import package.missing")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mine", *BROKEN, "package", "package.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path
    for name in ("mine", *BROKEN, "package", "package.inner"):
        sys.modules.pop(name, None)


class Doctor:
    """Stands for ``examine``: keeps what it was asked, returns what it is told."""

    def __init__(self):
        self.answer: Examination | Exception = examination()

    def __call__(self, subject, **declared):
        self.subject, self.declared = subject, declared
        print("printed while examining")
        if isinstance(self.answer, Exception):
            raise self.answer
        return Report(self.answer)


@pytest.fixture
def doctor(monkeypatch):
    name = "attention_lib.doctor.examination"
    stand_in = types.ModuleType(name)
    stand_in.examine = Doctor()
    monkeypatch.setitem(sys.modules, name, stand_in)
    return stand_in.examine


@pytest.fixture
def run(folder, doctor, capsys):
    """Run the command; return its status, what it printed, and its complaints."""

    def command(*arguments):
        try:
            status = main(list(arguments))
        except SystemExit as exit:
            status = exit.code
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return command


# Exit status.


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (examination(), 0),
        (faulty(), 1),
        (examination(passed=(), error="no tensor"), 2),
        (ValueError("adapter to write:\n  def f(x): ..."), 2),
        (KeyError("own"), 3),
        (TypeError("own"), 3),
    ],
)
def test_exit_status(run, doctor, answer, status):
    doctor.answer = answer
    assert run("mine:sound")[0] == status


def test_report_is_all_that_is_printed(run, doctor):
    doctor.answer = faulty()
    status, out, complaints = run("mine:Sound", "--embed-dim", "8")
    assert out == f"{Report(faulty())}\n"
    assert status == 1
    for part in ("module", "constructor", "while examining"):
        assert re.search(f"^printed.* {part}$", complaints, re.MULTILINE)


def test_unknown_subject_gets_the_adapter_and_no_traceback(run, doctor):
    doctor.answer = ValueError("write this adapter:\n  def f(x): ...")
    _, out, complaints = run("mine:sound")
    assert out == ""
    assert complaints.endswith("could not run: write this adapter:\n  def f(x): ...\n")
    assert "Traceback" not in complaints


def test_own_error_says_what_to_report(run, doctor):
    doctor.answer = KeyError("a key")
    status, out, complaints = run("mine:sound", "--pattern", "window 3")
    assert (status, out) == (3, "")
    for part in (
        "an error of its own; it says nothing about your module",
        "attention_lib.doctor mine:sound --pattern 'window 3'",
        f"torch {torch.__version__}",
        "KeyError: 'a key'",
    ):
        assert part in complaints


# Targets.


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("mine", "'mine' is not of the form package.module:name"),
        (":sound", "is not of the form"),
        ("mine:", "is not of the form"),
        ("mine.py:sound", "is a file; write its module, mine:sound"),
        ("./package/inner.py:f", "is a file; write its module, package.inner:f"),
        ("absent:f", "there is no module 'absent' here or among the installed"),
        ("package.absent:f", "there is no module 'package.absent' here"),
        ("package.inner:f", "importing package.inner: it needs 'package.missing'"),
        ("mine:absent", "mine:absent: there is no 'absent' in mine"),
        ("mine:Outer.absent", "there is no 'absent' in Outer"),
        ("raises:f", "importing raises raised ZeroDivisionError: division by zero"),
        ("needs:f", "importing needs: it needs 'no_such_package'"),
        ("exits:f", "importing exits raised SystemExit: 0 (exits.py, line 1)"),
        (
            "slip:f",
            "importing slip raised SyntaxError: invalid syntax (slip.py, line 1)",
        ),
        ("mine:Configured", "mine:Configured could not be made: TypeError:"),
        ("mine:Raising", "RuntimeError: no weights here (mine.py, line "),
        ("mine:leave", "mine:leave could not be made: SystemExit: 0"),
        ("mine:Sound", "missing 1 required positional argument: 'd_model'"),
        ("..mine:f", "importing ..mine raised TypeError"),
    ],
)
def test_bad_target_is_one_clear_line(run, target, said):
    status, out, complaints = run(target)
    assert (status, out) == (2, "")
    last = complaints.rstrip("\n").split("\n")[-1]
    assert last.startswith("attention doctor: could not run: ")
    assert said in last
    assert "Traceback" not in complaints


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        (("mine:Sound", "--embed-dim", "8", "--num-heads", "4"), (8, 4)),
        (("mine:Sound", "--embed-dim", "8"), (8, 1)),
        (("mine:InOrder", "--embed-dim", "8", "--num-heads", "4"), (8, 4)),
        (("mine:Outer.Inner", "--embed-dim", "6"), (6, 1)),
        (("mine:make",), (8, 2)),
        (("mine:make", "--embed-dim", "64"), (8, 2)),
        (("mine:make_sized", "--embed-dim", "6", "--num-heads", "3"), (6, 3)),
        (("mine:sound",), (8, 2)),
    ],
)
def test_target_makes_the_subject(run, doctor, arguments, sizes):
    assert run(*arguments)[0] == 0
    assert doctor.subject.sizes == sizes


def test_function_of_queries_keys_and_values_is_the_subject(run, doctor):
    assert run("mine:attend", "--kind", "core")[0] == 0
    assert doctor.subject.__name__ == "attend"
    assert doctor.declared == {"kind": "core"}


def test_target_can_be_taken_as_it_is(run, doctor):
    assert run("mine:make", "--as-is")[0] == 0
    assert doctor.subject.__name__ == "make"
    assert doctor.declared == {}


def test_torch_layers_are_targets(run, doctor):
    target = "torch.nn:MultiheadAttention"
    assert run(target, "--embed-dim", "8", "--num-heads", "2")[0] == 0
    assert isinstance(doctor.subject, nn.MultiheadAttention)


def test_interruption_is_not_the_users_fault(monkeypatch, run):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(_target.importlib, "import_module", stop)
    status, _, complaints = run("mine:sound")
    assert (status, complaints) == (2, "attention doctor: could not run: interrupted\n")


# Declarations.


def test_nothing_is_declared_unless_given(run, doctor):
    run("mine:sound")
    assert doctor.declared == {}


def test_every_declaration_has_its_option(run, doctor):
    status, _, complaints = run(
        *("mine:sound", "--kind", "attention", "--embed-dim", "8", "--num-heads", "2"),
        *("--causal", "flag", "--pattern", "window:3", "--masks", "any"),
        *("--context", "--weights", "heads", "--positions", "relative"),
        *("--normalization", "sink", "--residual", "--scale", "0.5"),
        *("--no-differentiable", "--dtype", "float16", "--seed", "3"),
        *("--reference", "mine:other"),
        *("--allow", 'AT501="every row sees itself"', "--allow", "at312=ours = theirs"),
    )
    assert status == 0, complaints
    assert doctor.declared.pop("reference").sizes == (6, 3)
    assert doctor.declared == {
        "kind": "attention",
        "embed_dim": 8,
        "num_heads": 2,
        "causal": "flag",
        "pattern": "window:3",
        "masks": "any",
        "context": True,
        "weights": "heads",
        "positions": "relative",
        "normalization": "sink",
        "residual": True,
        "scale": 0.5,
        "differentiable": False,
        "dtype": torch.float16,
        "seed": 3,
        "allow": {"AT501": "every row sees itself", "AT312": "ours = theirs"},
    }


def test_none_is_declared_as_none(run, doctor):
    run("mine:sound", "--weights", "none", "--positions", "none", "--no-context")
    assert doctor.declared == {"weights": None, "positions": None, "context": False}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "required: TARGET"),
        (("mine:sound", "--embed-dim", "0"), "expected a whole number >= 1, got '0'"),
        (("mine:sound", "--embed-dim", "x"), "expected a whole number >= 1, got 'x'"),
        (("mine:sound", "--allow", "AT501"), "'AT501' has no reason; write AT501="),
        (("mine:sound", "--allow", 'AT501=""'), "has no reason"),
        (("mine:sound", "--allow", "AT199=why"), "there is no code 'AT199'"),
        (("mine:sound", "--causal", "yes"), "invalid choice: 'yes'"),
        (("mine:sound", "--casual", "flag"), "unrecognized arguments: --casual"),
        (("mine:sound", "--reference", "mine"), "'mine' is not of the form"),
    ],
)
def test_wrong_options_are_refused(run, arguments, said):
    status, out, complaints = run(*arguments)
    assert (status, out) == (2, "")
    assert said in complaints
    assert "Traceback" not in complaints


# Formats.


def test_formats_are_those_of_the_report(run, doctor):
    doctor.answer = faulty()
    report = Report(faulty())
    assert run("mine:sound", "--format", "json")[1] == report.to_json() + "\n"
    assert run("mine:sound", "--format", "html")[1] == report.to_html()
    where = {"file": "mine.py", "line": 8}
    assert (
        run("mine:sound", "--format", "github")[1] == report.to_github(**where) + "\n"
    )
    assert run("mine:sound", "--format", "sarif")[1] == report.to_sarif(**where) + "\n"


def test_place_is_left_out_for_what_is_elsewhere(run, doctor):
    doctor.answer = faulty()
    arguments = ("--embed-dim", "8", "--num-heads", "2", "--format", "github")
    _, out, _ = run("torch.nn:MultiheadAttention", *arguments)
    assert out.startswith("::error title=AT101")


def test_output_goes_to_a_file(run, doctor, folder):
    doctor.answer = faulty(subject="注意")
    status, out, complaints = run("mine:sound", "--output", "report.txt")
    assert (status, out) == (1, "")
    assert "1 fault, 9 ok, 1 not checked: AT101>, written to report.txt" in complaints
    written = (folder / "report.txt").read_text("utf-8")
    assert written == f"{Report(doctor.answer)}\n"


def test_output_that_cannot_be_written_is_said(run):
    status, _, complaints = run("mine:sound", "--output", "absent/report.txt")
    assert status == 2
    assert complaints.endswith(
        "cannot write absent/report.txt: No such file or directory\n"
    )


@pytest.mark.parametrize("wanted", [True, False])
def test_colour_is_for_a_terminal(run, doctor, monkeypatch, wanted):
    monkeypatch.setattr(
        "attention_lib.doctor.report.terminal_has_color", lambda _: wanted
    )
    doctor.answer = faulty()
    assert ("\033[1;31mfault" in run("mine:sound")[1]) is wanted
    assert "\033" not in run("mine:sound", "--format", "json")[1]


# Help and explanations.


def test_help_fits_a_terminal_and_has_an_example(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run("--help")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    for part in ("examples:", "--causal always", "explain AT101", "exit status:"):
        assert part in out


def test_every_option_is_explained():
    assert all(action.help for action in parser()._actions)


def test_explain_prints_codes(run):
    status, out, _ = run("explain", "at101", "AT501")
    assert status == 0
    assert out.startswith("AT101: the output can see the future\n")
    assert "\nAT501: " in out


@pytest.mark.parametrize("code", ["AT999", "masks", ""])
def test_explain_of_an_unknown_code_is_refused(run, code):
    status, out, complaints = run("explain", code)
    assert (status, out) == (2, "")
    assert complaints.startswith(f"attention doctor: no code {code!r}. ")


def test_explain_without_a_code_is_refused(run):
    assert run("explain")[0] == 2


def process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "attention_lib.doctor", *arguments],
        check=False,
        capture_output=True,
        env={**os.environ, **environment},
    )


def test_command_runs_and_escapes_what_the_terminal_cannot_show():
    done = process("explain", "注意", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert done.stderr.startswith(b"attention doctor: no code '\\u6ce8\\u610f'")
    done = process("explain", "AT101")
    assert done.returncode == 0
    assert done.stdout.startswith(b"AT101: ")


def test_data_of_a_fault_can_be_read_by_a_program(run, doctor):
    doctor.answer = faulty()
    data = json.loads(run("mine:sound", "--format", "json")[1])
    assert data["findings"][0]["code"] == FUTURE.code
