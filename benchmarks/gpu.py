"""The Triton flash attention on a GPU: is it right, and how fast beside torch's kernels?

First the checks, beside float64. Then the times: the same inputs go to our kernels and to
each kernel behind torch's scaled_dot_product_attention, which take turns.
"""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import kernel_checks
import kernel_times
import report
import torch
from kernel_times import BACKENDS, DIFFERS, OURS, PASSES, Case, first_line
from timing import Result
from tqdm import tqdm

from attention_lib.kernels import runs_on

BUDGET = 170.0  # seconds
CHECKS_SHARE = 0.6  # of the budget, at most
FORMULA = (
    "TFLOP/s: 4 B H D operations for each pair of a query and a key in the forward pass, "
    "3.5 times\nthat with the backward pass. Pairs are L², with is_causal L (L + 1) / 2; "
    "padding counts. It is\nthe work of the task, not what a kernel does."
)


@dataclass
class Budget:
    """Takes things up while there is time for one as long as the longest so far."""

    seconds: float
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self.began = self.clock()

    def spend(self, things: Iterable[Any], share: float = 1.0) -> Iterator[Any]:
        longest = 0.0
        for thing in things:
            start = self.clock()
            if start - self.began + longest > share * self.seconds:
                return
            yield thing
            longest = max(longest, self.clock() - start)


def check_all(
    checks: list[kernel_checks.Check], budget: Budget, device: torch.device
) -> list[dict[str, Any]]:
    """Errors and bounds of the checks there is time for."""
    done = []
    for check in tqdm(
        budget.spend(checks, CHECKS_SHARE), total=len(checks), unit="check"
    ):
        entry: dict[str, Any] = {"check": str(check)}
        try:
            entry["errors"] = kernel_checks.errors(check, device)
            pairs = entry["errors"].values()
            entry["right"] = all(error <= bound for error, bound in pairs)
        except Exception as error:  # noqa: BLE001 - the others still say something
            entry |= {"errors": {}, "right": False, "reason": first_line(error)}
        done.append(entry)
    return done


def measure_all(
    cases: tuple[Case, ...],
    budget: Budget,
    rounds: int,
    least: float,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Times of the cases there is time for."""
    done = []
    for case in tqdm(budget.spend(cases), total=len(cases), unit="case"):
        try:
            torch.cuda.empty_cache()  # nothing without a GPU
            times, refused = kernel_times.measure(case, rounds, least, device)
        except Exception as error:  # noqa: BLE001 - out of memory between the rounds, say
            times, refused = {}, {"all": first_line(error)}
        done.append({"case": case, "times": times, "refused": refused})
    return done


def show_checks(done: list[dict[str, Any]]) -> None:
    """A row for each check: errors as shares of what is allowed."""
    rows = []
    for entry in done:
        pairs = [entry["errors"].get(name) for name in kernel_checks.NAMES]
        cells = [f"{pair[0] / pair[1]:.2f}" if pair else "-" for pair in pairs]
        rows.append([entry["check"], *cells, "yes" if entry["right"] else "NO"])
    columns = ["dtype (L, S, D)", *kernel_checks.NAMES, "right"]
    print("\n" + report.table(columns, rows))
    print("Errors beside float64, as shares of what is allowed.")
    for entry in done:
        if "reason" in entry:
            print(f"{entry['check']}: {entry['reason']}")


def speed(case: Case, which: str, result: Result) -> float:
    """TFLOP/s."""
    return case.operations(which == PASSES[1]) / result.seconds / 1e12


def spread(results: Iterable[Result]) -> float:
    """The widest distance between quartiles, as a share of its median."""
    widths = [0.0]
    for result in results:
        if len(result.rounds) > 1:
            low, _, high = statistics.quantiles(result.rounds, n=4)
            widths.append((high - low) / result.seconds)
    return max(widths)


def show_times(done: list[dict[str, Any]], which: str) -> None:
    """A row for each case: TFLOP/s of every way, and our time to the fastest."""
    columns = [f"{which}: (B, H, Hkv, L, D)", OURS, *BACKENDS, "ratio", "spread"]
    rows = []
    for entry in done:
        case, named = entry["case"], entry["times"].get(which, {})
        cells = [
            f"{speed(case, which, named[way]):#.3g}" if way in named else "-"
            for way in (OURS, *BACKENDS)
        ]
        ratio = f"{named[OURS].ratio:.2f}" if named else "-"
        wide = f"{100 * spread(named.values()):.0f} %" if named else "-"
        rows.append([str(case), *cells, ratio, wide])
    print("\n" + report.table(columns, rows))


def show_refusals(done: list[dict[str, Any]]) -> None:
    """What the dashes stand for: each reason once."""
    rows: dict[str, int] = {}
    for entry in done:
        for name, reason in entry["refused"].items():
            told = f"{name}: {reason}"
            rows[told] = rows.get(told, 0) + 1
    for told, count in rows.items():
        print(f"- in {count} of {len(done)} rows, {told}")


def summary(done: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Our ratio to the fastest in each pass: the geometric mean, and the worst."""
    found = {}
    for which in PASSES:
        ratios = [e["times"][which][OURS].ratio for e in done if which in e["times"]]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            found[which] = {"geometric_mean": mean, "worst": max(ratios)}
    return found


def as_json(entry: dict[str, Any]) -> dict[str, Any]:
    case = entry["case"]
    passes = {
        which: {
            name: result._asdict() | {"tflops": speed(case, which, result)}
            for name, result in named.items()
        }
        for which, named in entry["times"].items()
    }
    sizes = dataclasses.asdict(case) | {"dtype": str(case.dtype)}
    return sizes | {"passes": passes, "refused": entry["refused"]}


def main(arguments: list[str] | None = None) -> None:
    parser = report.options(__doc__.partition("\n")[0])
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET,
        metavar="SECONDS",
        help=f"what is less important is left out after them (default: {BUDGET:.0f})",
    )
    parser.add_argument(
        "--interpret",
        action="store_true",
        help="a dry run without a GPU: tiny sizes on the CPU, in Triton's interpreter",
    )
    given = parser.parse_args(arguments)
    if given.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    device = torch.device("cpu" if given.interpret else "cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.exit(
            2, "gpu.py needs a CUDA GPU, and torch sees none. Try: --interpret\n"
        )
    if not runs_on(device):
        parser.exit(2, "gpu.py needs Triton, which is not installed.\n")
    torch.set_num_threads(given.threads)
    tiny = given.quick or given.interpret
    rounds = given.rounds or (2 if tiny else 9)
    budget = Budget(given.budget)

    name = _name(device)
    print(f"On {name}, for {given.budget:.0f} seconds at most.")
    checks, cases = kernel_checks.checks(tiny), kernel_times.cases(tiny)
    checked = check_all(checks, budget, device)
    show_checks(checked)
    measured = measure_all(cases, budget, rounds, 0.0 if tiny else 0.02, device)
    for which in PASSES:
        show_times(measured, which)
    print(f"{FORMULA}\nratio: our time to that of the fastest.", end=" ")
    print("spread: between quartiles, the widest of the row.")
    if given.interpret:
        print("Times of the interpreter say nothing about any GPU.")
    show_refusals(measured)
    for which, found in summary(measured).items():
        mean, worst = found["geometric_mean"], found["worst"]
        print(f"{which}: ours to the fastest, mean {mean:.2f}, worst {worst:.2f}")
    left_out = [
        str(each) for each in (*checks[len(checked) :], *cases[len(measured) :])
    ]
    if left_out:
        print(f"No time was left for {len(left_out)}: {'; '.join(left_out)}")

    report.write(
        given.json,
        "gpu",
        device=name,
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version(),
        checks=checked,
        summary=summary(measured),
        cases=[as_json(entry) for entry in measured],
        left_out=left_out,
    )
    wrong = [entry["check"] for entry in checked if not entry["right"]]
    wrong += [
        f"{entry['case']}, {way}"
        for entry in measured
        for way, reason in entry["refused"].items()
        if way in (OURS, "all") or DIFFERS in reason
    ]
    if wrong:
        sys.exit(f"\nNot right: {'; '.join(wrong)}")


def _name(device: torch.device) -> str:
    if device.type == "cpu":
        return "the CPU, in Triton's interpreter"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)}, capability {major}.{minor}"


if __name__ == "__main__":
    main()
