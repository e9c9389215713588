"""How long `import attention_lib` takes beyond `import torch`, in fresh processes."""

from __future__ import annotations

import statistics
import subprocess
import sys

import report
from tqdm import tqdm

BAR = 0.050
SCRIPT = """
import sys, time, torch
known = set(sys.modules)
start = time.process_time(), time.perf_counter()
import attention_lib
print(time.process_time() - start[0], time.perf_counter() - start[1])
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - known}))
"""


def measure() -> tuple[float, float, list[str]]:
    """CPU seconds, seconds by the clock, and the top-level packages that came along."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    times, packages = done.stdout.splitlines()
    cpu, clock = map(float, times.split())
    return cpu, clock, packages.split()


def main(arguments: list[str] | None = None) -> None:
    given = report.options(__doc__).parse_args(arguments)
    rounds = given.rounds or (2 if given.quick else 21)
    measure()  # writes the bytecode
    taken = [measure() for _ in tqdm(range(rounds), unit="process")]
    cpu, clock, packages = zip(*taken, strict=True)
    medians = {"cpu": statistics.median(cpu), "clock": statistics.median(clock)}
    rows = [[name, f"{1e3 * seconds:.1f}"] for name, seconds in medians.items()]
    print("\n" + report.table(["beyond import torch", "ms"], rows))
    print(f"Bar: {1e3 * BAR:.0f} ms. Also imported: {', '.join(packages[0])}.")
    report.write(
        given.json,
        "import_time",
        summary=medians,
        rounds={"cpu": cpu, "clock": clock},
        packages=packages[0],
    )


if __name__ == "__main__":
    main()
