"""MultiHeadAttention beside the attention of other libraries, on the same weights.

All layers of a case first have to agree, outputs and gradients. Then they take turns, on
one input, and their CPU time is compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import report
import torch
from layers import OURS, Setting, every_layer, source
from timing import Result, compare, take_turns
from torch import Tensor, nn
from tqdm import tqdm

from attention_lib import masks


class Size(NamedTuple):
    """Batch, length, width and heads."""

    B: int
    L: int
    E: int
    H: int


SIZES = (
    Size(8, 128, 256, 8),
    Size(4, 512, 512, 8),
    Size(1, 2048, 512, 8),
    Size(1, 4096, 512, 8),
)
QUICK = (Size(2, 24, 32, 4), Size(1, 40, 32, 2))
TABLES = ("grid", "dropout", "padding", "window")
DROPOUT = 0.1
WINDOW = 256


@dataclass(frozen=True)
class Case:
    """One row of a table."""

    table: str
    size: Size
    causal: bool
    backward: bool

    def __str__(self) -> str:
        causal = " causal" if self.causal else ""
        backward = " + backward" if self.backward else ""
        return f"{tuple(self.size)}{causal} forward{backward}"


def cases(tables: list[str], sizes: tuple[Size, ...]) -> Iterator[Case]:
    """The rows of the tables. Dropout is for training, a window here for causal use."""
    for table, size in itertools.product(tables, sizes):
        for causal in (True,) if table == "window" else (False, True):
            for backward in (True,) if table == "dropout" else (False, True):
                yield Case(table, size, causal, backward)


def setting(case: Case) -> Setting:
    """What the layers of a case compute."""
    B, L, *_ = case.size
    if case.table == "padding":  # a quarter of the tokens, in one row at least
        lengths = torch.linspace(L / 2, L, B + 2)[1:-1].long()
        return Setting(case.causal, masks.padding(lengths, L))
    if case.table == "window":  # the window is causal itself
        window = masks.sliding_window(L, window=min(WINDOW, L // 2))
        return Setting(False, window[None, None])
    return Setting(case.causal)


def prepare(case: Case) -> tuple[dict[str, nn.Module], Tensor]:
    """The layers of a case and their input."""
    B, L, E, H = case.size
    dropout = DROPOUT if case.table == "dropout" else 0.0
    made = every_layer(source(E, H, dropout), setting(case), L)
    return made, torch.randn(B, L, E)


def check_agreement(made: dict[str, nn.Module], x: Tensor) -> None:
    """Refuse to time layers that do not compute the same, values and gradient."""
    probe = torch.randn_like(x)
    outputs = {}
    for name, layer in made.items():
        given = x.detach().requires_grad_()
        output = layer.eval()(given)
        (gradient,) = torch.autograd.grad(output, given, probe)
        with torch.no_grad():  # another path in some of them
            outputs[name] = (output.detach(), gradient, layer(x))
    for name, got in outputs.items():
        for mine, theirs in zip(outputs[OURS], got, strict=True):
            torch.testing.assert_close(
                theirs,
                mine,
                rtol=1e-4,
                atol=1e-4,
                msg=lambda text, name=name: f"{name} differs from {OURS}: {text}",
            )


def calls(
    made: dict[str, nn.Module], x: Tensor, case: Case
) -> dict[str, Callable[[], object]]:
    """What is timed: one pass of each layer."""
    x = x.detach().requires_grad_(case.backward)
    probe = torch.randn_like(x)

    def one(layer: nn.Module) -> Callable[[], object]:
        layer.train(case.table == "dropout")
        inputs = (x, *layer.parameters())

        def forward() -> object:
            with torch.no_grad():
                return layer(x)

        def both() -> object:
            return torch.autograd.grad(layer(x), inputs, probe)

        return both if case.backward else forward

    return {name: one(layer) for name, layer in made.items()}


def measure(case: Case, rounds: int, least: float) -> dict[str, Result]:
    """Check one case, then time it."""
    torch.manual_seed(0)
    made, x = prepare(case)
    check_agreement(made, x)
    passes = calls(made, x, case)
    times = take_turns(passes, rounds, least=least)
    return compare(times)


def summary(results: dict[Case, dict[str, Result]]) -> dict[str, float]:
    """Our ratio to the fastest: the geometric mean over cases, and the worst."""
    ratios = [named[OURS].ratio for named in results.values()]
    return {
        "geometric_mean": math.exp(sum(map(math.log, ratios)) / len(ratios)),
        "worst": max(ratios),
    }


def show(name: str, results: dict[Case, dict[str, Result]]) -> None:
    """One table: milliseconds of ours, then every ratio to the fastest."""
    names = list(next(iter(results.values())))
    columns = [f"{name}: (B, L, E, H)", f"ms {OURS}", *names]
    rows = [
        [str(case), f"{1e3 * named[OURS].seconds:.2f}"]
        + [f"{named[layer].ratio:.2f}" for layer in names]
        for case, named in results.items()
    ]
    print("\n" + report.table(columns, rows))
    mean, worst = summary(results).values()
    print(f"{OURS} to the fastest: geometric mean {mean:.3f}, worst {worst:.3f}")


def main(arguments: list[str] | None = None) -> None:
    parser = report.options(__doc__.partition("\n")[0])
    parser.add_argument(
        "--tables", nargs="+", choices=TABLES, default=TABLES, help="default: all"
    )
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    rounds = given.rounds or (2 if given.quick else 11)
    sizes, least = (QUICK, 0.0) if given.quick else (SIZES, 0.02)

    todo = list(cases(given.tables, sizes))
    results: dict[str, dict[Case, dict[str, Result]]] = {}
    with tqdm(total=len(todo), unit="case") as progress:
        for case in todo:
            progress.set_description(f"{case.table} {case}")
            results.setdefault(case.table, {})[case] = measure(case, rounds, least)
            progress.update()
    for name, named in results.items():
        show(name, named)
    report.write(
        given.json,
        "peers",
        summary={name: summary(named) for name, named in results.items()},
        cases=[
            asdict(case)
            | {"layers": {name: result._asdict() for name, result in named.items()}}
            for table in results.values()
            for case, named in table.items()
        ],
    )


if __name__ == "__main__":
    main()
