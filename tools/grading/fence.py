"""What a submission meets when it does what no answer needs: limits, refusals, traces.

This is a fence, not a wall. It holds against accidents and idle tricks. Code that is
written to get out of a Python process gets out; only a container keeps strangers' code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any

NETWORK = ("socket.", "urllib.", "http.", "ftplib.", "smtplib.", "webbrowser.")
PROCESSES = (
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.kill",
    "os.killpg",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.system",
    "pty.spawn",
    "signal.pthread_kill",
    "subprocess.Popen",
)
INSIDE = (
    "ctypes.",
    "gc.get_objects",
    "gc.get_referents",
    "gc.get_referrers",
    "sys._current_exceptions",
    "sys._current_frames",
    "sys.setprofile",
    "sys.settrace",
)
FILES = (
    "os.chmod",
    "os.chown",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "os.utime",
    "shutil.",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Modules whose names the checks call. A check is worth what these are worth.
WATCHED = ("attention_lib", "torch", "torch.nn.functional", "torch.linalg") + (
    "torch.autograd",
    "torch.autograd.functional",
    "torch.random",
    "torch.special",
    "functools",
    "math",
    "os",
    "posixpath",
)


def limit(memory: int, seconds: int) -> None:
    """Bound what this process takes, as far as the system can.

    Parameters
    ----------
    memory
        Bytes beyond what the process holds now.
    seconds
        Of processor time, all exercises together.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    held = _address_space()
    bounds = {
        "RLIMIT_CPU": seconds,
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": 64 * 2**20,
        "RLIMIT_NPROC": 0,  # no processes and no threads; the root user is exempt
        **({"RLIMIT_AS": held + memory} if held else {}),
    }
    for name, bound in bounds.items():
        kind = getattr(resource, name, None)
        if kind is not None:
            _, most = resource.getrlimit(kind)
            if most == resource.RLIM_INFINITY or bound < most:
                resource.setrlimit(kind, (bound, bound))


def _address_space() -> int | None:
    """Bytes that this process maps, where Linux says so; torch's libraries are large."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def refuse(folder: Path) -> list[str]:
    """From now on, refuse what an answer has no use for; returns what was tried.

    Python asks an audit hook before it opens, deletes, connects or starts anything, and
    gives no way to take the hook off again.
    """
    tried: list[str] = []
    inside = os.path.realpath(folder) + os.sep
    realpath, fspath = os.path.realpath, os.fsdecode

    def within(path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        real = realpath(fspath(path))
        return (real + os.sep).startswith(inside) or real == os.devnull

    def opened(path: Any, mode: Any, flags: Any) -> str | None:
        if isinstance(path, int):
            return None
        writes = bool(set(mode) & set("wax+")) if isinstance(mode, str) else False
        if writes or (isinstance(flags, int) and flags & WRITING):
            return None if within(path) else "write outside its folder"
        if isinstance(path, str) and path.startswith("/proc"):
            return "read /proc"
        return None

    def word(event: str, args: tuple[Any, ...]) -> str | None:
        if event == "open":
            return opened(*args)
        if event.startswith(NETWORK):
            return "use the network"
        if event in PROCESSES:
            return "start or stop a process"
        if event.startswith(INSIDE):
            return "look inside the grader"
        if event in ("object.__setattr__", "object.__delattr__"):
            return "change the code of a function" if args[1] == "__code__" else None
        if event.startswith(FILES):
            paths = [one for one in args if isinstance(one, str | bytes | os.PathLike)]
            beside = any(isinstance(one, int) and one > 2 for one in args[-2:])
            if beside and event not in ("os.chmod", "os.chown", "os.mkdir"):
                return "change files through an open folder"
            return (
                None if all(map(within, paths)) else "change files outside its folder"
            )
        return None

    def hook(event: str, args: tuple[Any, ...]) -> None:
        found = word(event, args)
        if found:
            if found not in tried:
                tried.append(found)
            raise PermissionError(f"a submission may not {found}")

    sys.addaudithook(hook)
    return tried


def reset() -> Callable[[], None]:
    """Remember torch's switches for all that runs; the answer puts them back."""
    import torch

    set_grad, set_device = torch.set_grad_enabled, torch.set_default_device

    def put_back() -> None:
        set_grad(True)
        set_device(None)

    return put_back


def modes() -> Callable[[], tuple[int, int]]:
    """How many modes are on; one answers in torch's place, and changes no name."""
    import torch

    functions = torch._C._len_torch_function_stack
    dispatches = torch._C._len_torch_dispatch_stack
    return lambda: (functions(), dispatches())


def kinds() -> frozenset[type]:
    """Every class that there is."""
    found: set[type] = set()
    waiting: list[type] = [object]
    while waiting:
        new = set(type.__subclasses__(waiting.pop())) - found
        found |= new
        waiting += new
    return frozenset(found)


def trace() -> Callable[[], str | None]:
    """Remember the package and what its checks call; the answer names what changed."""
    import torch

    set_dtype, usual = torch.set_default_dtype, torch.get_default_dtype()
    basic = vars(sys.modules["builtins"])
    held = dict(basic)
    before: list[tuple[str, Any, dict[str, Any], bool]] = []
    insides: list[tuple[str, FunctionType, tuple[Any, ...]]] = []
    for name, module in sorted(sys.modules.items()):
        ours = name.partition(".")[0] == "attention_lib"
        if isinstance(module, ModuleType) and (ours or name in WATCHED):
            before.append((name, module, dict(vars(module)), ours))
            for key, one in list(vars(module).items()):
                if isinstance(one, type) and (
                    ours and one.__module__ == name or key in ("Tensor", "Module")
                ):
                    whole = f"{one.__module__}.{one.__qualname__}"
                    before.append((whole, one, dict(vars(one)), True))
                if ours and isinstance(one, FunctionType):
                    insides.append((f"{name}.{key}", one, _inside(one)))

    def changed() -> str | None:
        # Python's own names first, and back in place: the lines below need them.
        for key, one in held.items():
            if basic.get(key) is not one:
                basic.update(held)
                return "builtins." + key
        set_dtype(usual)  # it exchanges torch.Storage
        for name, owner, known, closed in before:
            now = vars(owner)
            for key, one in known.items():
                if now.get(key) is not one:
                    return f"{name}.{key}"
            if closed and len(now) != len(known):
                for key in now:
                    if key not in known and not _harmless(key, now[key]):
                        return f"{name}.{key}"
        for name, one, known_inside in insides:
            if not _same(_inside(one), known_inside):
                return name
        return None

    return changed


def _harmless(key: str, value: Any) -> bool:
    """A module that is imported late, or what Python writes down itself."""
    return isinstance(value, ModuleType) or key in (
        "__warningregistry__",
        "__abstractmethods__",
        "__annotations__",
        "__slotnames__",
    )


def _inside(function: FunctionType) -> tuple[Any, ...]:
    cells: Iterable[CellType] = function.__closure__ or ()
    return (
        function.__code__,
        function.__defaults__,
        *(cell.cell_contents for cell in cells),
        *(getattr(function, "__dict__", {}).values()),
    )


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
