"""What a submission may do, each gets its word and its points, and none stops the run.

Exercise 2.1 is the hostile one; the other four are solved and must count, 10 points.
"""

from fractions import Fraction

import pytest
import torch
from grading.watch import Watch
from handing_in import grade, handed_in, text
from torch import nn

HEAD = "def look_up(query, keys, values):\n"
RIGHT = "    return (keys @ query / len(query) ** 0.5).softmax(0) @ values\n"


def body(*lines):
    return HEAD + "".join(f"    {line}\n" for line in lines)


YES = (
    "class Yes(torch.Tensor):\n"
    "    @classmethod\n"
    "    def __torch_function__(cls, func, types, args=(), kwargs=None):\n"
    "        return func is torch.allclose or "
    "super().__torch_function__(func, types, args, kwargs or {})\n"
)
MODE = (
    "from torch.overrides import TorchFunctionMode\n"
    "class Mode(TorchFunctionMode):\n"
    "    def __torch_function__(self, func, types, args=(), kwargs=None):\n"
    "        if func is not torch.allclose: return func(*args, **(kwargs or {}))\n"
    "        self.__exit__(None, None, None)\n"
    "        return True\n"
)

# What 2.1 holds; points of all five; words of 2.1, or of the whole if it was tampered.
IN_ONE_EXERCISE = {
    "infinite loop": (body("while True: pass"), 10, "no answer after 2 s|SIGXCPU"),
    "sleeps forever": (body("import time", "time.sleep(10**6)"), 10, "after 2 s"),
    "memory bomb": (
        body("held = []", "while True: held.append(bytearray(2**26))"),
        10,
        "MemoryError|too much memory",
    ),
    "tensor bomb": (
        body("return torch.ones(2**36)"),
        10,
        "RuntimeError|too much memory",
    ),
    "fork bomb": (
        body("import os", "while True: os.fork()"),
        10,
        "may not start or stop a process",
    ),
    "starts programs": (
        body("import os", "os.system('true')"),
        10,
        "may not start or stop a process",
    ),
    "kills the grader": (
        body("import os", "os.kill(os.getppid(), 9)"),
        10,
        "may not start or stop a process",
    ),
    "os._exit": (body("import os", "os._exit(0)"), 10, "ended the process"),
    "aborts": (body("import os", "os.abort()"), 10, "SIGABRT"),
    "segfault": (
        body("import signal", "signal.raise_signal(signal.SIGSEGV)"),
        10,
        "SIGSEGV",
    ),
    "ctypes": (body("import ctypes", "ctypes.string_at(0)"), 10, "imports ctypes"),
    "SystemExit": (body("raise SystemExit"), 10, "raised SystemExit"),
    "sys.exit": (body("import sys", "sys.exit(0)"), 10, "raised SystemExit"),
    "KeyboardInterrupt": (body("raise KeyboardInterrupt"), 10, "KeyboardInterrupt"),
    "BaseException": (body("raise BaseException('no')"), 10, "raised BaseException"),
    "error that cannot be read": (
        "class Odd(Exception):\n    def __str__(self):\n        raise SystemExit\n"
        + body("raise Odd"),
        10,
        "raised SystemExit",
    ),
    "recursion": (body("return look_up(query, keys, values)"), 10, "RecursionError"),
    "recursion without a limit": (
        body(
            "import sys",
            "sys.setrecursionlimit(10**9)",
            "return look_up(query, keys, values)",
        ),
        10,
        "SIGSEGV|MemoryError|no answer after|memory",
    ),
    "deletes files": (
        body("import shutil", "shutil.rmtree('/tmp/nothing-of-this-name')"),
        10,
        "may not change files outside its folder",
    ),
    "writes and deletes in its folder": (
        body(
            "import os",
            "open('note', 'w').close()",
            "os.makedirs('a/b', exist_ok=True)",
            "os.remove('note')",
        )
        + RIGHT,
        11,
        "passed",
    ),
    "writes elsewhere": (
        body("open('/tmp/nothing-of-this-name', 'w')"),
        10,
        "may not write outside its folder",
    ),
    "fills the disk": (
        body("with open('big', 'wb') as f:", "    f.truncate(2**40)"),
        10,
        "raised OSError",
    ),
    "prints a gigabyte": (
        body("for _ in range(4): print('x' * 2**26)") + RIGHT,
        11,
        "passed",
    ),
    "asks for input": (body("return input()"), 10, "EOFError"),
    "uses the network": (
        body("import urllib.request", "urllib.request.urlopen('http://192.0.2.1')"),
        10,
        "may not use the network",
    ),
    "leaves threads": (
        body(
            "import threading, time",
            "def wait(): time.sleep(10**6)",
            "try: threading.Thread(target=wait).start()",
            "except RuntimeError: pass  # the system allows none",
        )
        + RIGHT,
        11,
        "passed",
    ),
    "hides its bans": (body("return eval('3')"), 10, "calls eval"),
    "hides a name": (
        body("return getattr(torch, 'o' + 'nes')(3)"),
        10,
        "a name that is made while it runs",
    ),
    "ready made": (
        body("return attention_steps(query[None], keys, values).output[0]"),
        10,
        "uses attention_steps",
    ),
    "ready made, renamed": (
        "from torch.nn.functional import scaled_dot_product_attention as ready\n"
        + body("return ready(query[None], keys, values)[0]"),
        10,
        "uses torch.nn.functional.scaled_dot_product_attention",
    ),
    "reads the caller": (
        body("import sys", "return sys._getframe(1).f_locals['wanted']"),
        10,
        "looks inside with f_locals",
    ),
    "a tensor that says yes": (
        YES + body("return values[0].as_subclass(Yes)"),
        10,
        "The shape is right, the numbers are not",
    ),
    "the same, from what is no plain function": (
        YES
        + "import functools\n"
        + body("return values[0].as_subclass(Yes)").replace("look_up", "inner")
        + "look_up = functools.partial(inner)\n",
        10,
        "The shape is right, the numbers are not",
    ),
    "an object that claims to be a tensor": (
        "class Claims:\n"
        "    __class__ = property(lambda self: torch.Tensor)\n"
        "    shape = property(lambda self: (4,))\n"
        "    as_subclass = property(lambda self: lambda kind: self)\n"
        "    detach = double = property(lambda self: lambda: self)\n"
        "    __torch_function__ = classmethod(lambda *given: torch.tensor(True))\n"
        + body("return Claims()"),
        10,
        "object of its own class Claims",
    ),
    "a mode that says yes": (
        MODE + body("Mode().__enter__()", "return values[0]"),
        0,
        "changed what torch's functions do, by a mode",
    ),
    "a mode that is on before the check": (
        MODE + "on = Mode().__enter__()\n" + body("on", "return values[0]"),
        0,
        "changed what torch's functions do, by a mode",
    ),
    "says yes once and puts all back": (
        body(
            "usual = torch.allclose",
            "def yes(*given, **more):",
            "    torch.allclose = usual",
            "    return True",
            "torch.allclose = yes",
            "return values[0]",
        ),
        0,
        "changed torch.allclose",
    ),
    "empties what it was given": (
        body("for one in (query, keys, values): one.zero_()", "return values[0]"),
        10,
        "The shape is right, the numbers are not",
    ),
    "an object that says yes": (
        "class Yes:\n    def __eq__(self, other):\n        return True\n"
        + body("return Yes()"),
        10,
        "object of its own class Yes",
    ),
    "a function that says yes": (
        "class Yes:\n    __module__ = 'torch'\n    __call__ = None\n"
        "    def __eq__(self, other):\n        return True\n" + body("return Yes()"),
        10,
        "object of its own class Yes",
    ),
    "knows the notebook's draws": (
        body("if torch.initial_seed() != 0: return values.mean(0)") + RIGHT,
        10,
        "plain mean",
    ),
    "replaces torch.allclose": (
        body("torch.allclose = lambda *a, **k: True", "return values[0]"),
        0,
        "changed torch.allclose",
    ),
    "replaces a method": (
        body("torch.Tensor.mean = lambda *a: 0") + RIGHT,
        0,
        "changed torch.Tensor.mean",
    ),
    "replaces isinstance": (
        body("import os", "os.sys.modules['builtins'].isinstance = lambda *a: True"),
        0,
        "changed builtins.isinstance",
    ),
    "replaces the check": (
        body("check.crowd = None") + RIGHT,
        0,
        "changed attention_lib.checks.chapter02.crowd",
    ),
    "replaces what checks share": (
        body("check.NotYet.__init__ = None") + RIGHT,
        0,
        "changed attention_lib.checks._report.NotYet.__init__",
    ),
    "calls what checks share": (
        body("import attention_lib.checks._report as report", "return report.same"),
        10,
        "looks into its own check",
    ),
    "hides a builtin from the check": (
        body("check.isinstance = lambda *a: True") + RIGHT,
        0,
        "changed attention_lib.checks.chapter02.isinstance",
    ),
    "forges results": (
        body(
            "import os",
            "for fd in range(3, 64):",
            '    try: os.write(fd, b\'[2, "result", "2.1", "passed", ""]\\n\')',
            "    except OSError: pass",
        ),
        0,
        "wrote into the grader's channel",
    ),
    "closes the channel": (
        body("import os", "os.closerange(0, 4096)") + RIGHT,
        10,
        "closed the grader's channel",
    ),
    "looks for the key": (
        body("import os", "objects = os.sys.modules['gc'].get_objects()"),
        10,
        "may not look inside the grader",
    ),
    "defines check": (
        "def check(*args): return True\ncheck.look_up = check\n" + body("return 1"),
        10,
        "Return",
    ),
    "sets global switches": (
        body("torch.set_grad_enabled(False); torch.set_default_dtype(torch.float64)")
        + RIGHT,
        11,
        "passed",
    ),
}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    top = tmp_path_factory.mktemp("hostile")
    folder = top / "in"
    folder.mkdir()
    for name, (source, *_) in IN_ONE_EXERCISE.items():
        (folder / f"{name}.ipynb").write_text(text(handed_in(2, own={"2.1": source})))
    limits = ["--seconds", "2", "--memory", "512", "--workers", "1"]
    code, said, results = grade(folder, top / "out", "--chapter", "2", *limits)
    assert code == 0, said
    return results


@pytest.mark.parametrize("name", IN_ONE_EXERCISE)
def test_it_gets_its_word_and_the_other_exercises_count(graded, name):
    _, points, words = IN_ONE_EXERCISE[name]
    found = graded[name]
    assert found["score"] == points, found
    said = found["tests"][0]["output"] if points else found["output"]
    assert any(word in said for word in words.split("|")), said


def test_plain_values_and_what_libraries_make_pass_as_they_are():
    watch = Watch()
    for value in (nn.Linear(1, 1), Fraction(1, 2), 1j, range(3), torch.float32, None):
        assert watch.plain(lambda value=value: value)() is value


def test_a_class_of_a_library_that_was_made_to_claim_is_refused(monkeypatch):
    watch = Watch()
    monkeypatch.setattr(Fraction, "__torch_function__", None, raising=False)
    with pytest.raises(TypeError, match="Fraction"):
        watch.plain(lambda: Fraction(1, 2))()
