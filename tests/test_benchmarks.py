"""The benchmarks compare layers that agree, and compute medians and ratios right.

No time is asserted: what a machine needs is for the benchmarks to print.
"""

import itertools
import json
import warnings

import decode
import gpu
import import_time
import kernel_checks
import kernel_times
import layers
import peers
import pytest
import reference
import report
import timing
import torch
from torch.utils import flop_counter

from attention_lib.kernels import runs_on

SIZE = peers.Size(B=3, L=10, E=24, H=4)
CASES = list(peers.cases(list(peers.TABLES), (SIZE,)))


# Timing --------------------------------------------------------------------------------


class Clock:
    """Stands still but where a call moves it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def call(self, seconds, log=None, name=None):
        def run():
            self.now += seconds
            if log is not None:
                log.append(name)

        return run


def test_times_are_those_of_one_call():
    clock = Clock()
    calls = {"short": clock.call(0.002), "long": clock.call(0.3)}
    times = timing.take_turns(calls, 4, least=0.02, clock=clock)
    assert times["short"] == pytest.approx([0.002] * 4)
    assert times["long"] == pytest.approx([0.3] * 4)


def test_short_calls_are_repeated_until_they_last():
    clock, log = Clock(), []
    timing.take_turns({"a": clock.call(0.004, log)}, 3, least=0.02, clock=clock)
    assert len(log) == 2 + 3 * 5  # two to warm up
    log.clear()
    timing.take_turns({"a": clock.call(0.004, log)}, 3, least=0, clock=clock)
    assert len(log) == 2 + 3


def test_what_comes_before_is_not_in_the_time():
    clock, log = Clock(), []
    calls = {name: clock.call(0.1, log, name) for name in "ab"}

    def before(name):
        clock.now += 7
        log.append(name.upper())

    times = timing.take_turns(calls, 3, least=0, before=before, clock=clock)
    assert times == {"a": pytest.approx([0.1] * 3), "b": pytest.approx([0.1] * 3)}
    assert all(log[n].lower() == log[n + 1] for n in range(0, len(log), 2))


def test_each_round_has_every_call_and_another_first():
    clock, log = Clock(), []
    calls = {name: clock.call(0.1, log, name) for name in "abcd"}
    timing.take_turns(calls, 4, least=0, clock=clock)
    rounds = list(zip(*[iter(log[8:])] * 4, strict=True))
    assert all(sorted(order) == list("abcd") for order in rounds)
    firsts = [order[0] for order in rounds]
    assert rounds[0] == tuple("abcd")
    assert len(set(rounds)) == 4 and len(set(firsts)) > 1
    followers = set(itertools.chain(*(itertools.pairwise(order) for order in rounds)))
    assert {("a", "b"), ("b", "a")} <= followers


def test_ratios_are_taken_within_a_round():
    times = {"fast": [1.0, 10.0, 2.0], "slow": [3.0, 20.0, 8.0]}
    results = timing.compare(times)
    assert results["fast"] == (2.0, 1.0, times["fast"])
    assert results["slow"] == (8.0, 3.0, times["slow"])
    assert timing.compare(times, to="slow")["fast"].ratio == pytest.approx(1 / 3)


# Peers ---------------------------------------------------------------------------------


@pytest.fixture(params=CASES, ids=lambda case: f"{case.table} {case}")
def case(request):
    return request.param


def test_all_layers_of_a_case_agree(case):
    made, x = peers.prepare(case)
    peers.check_agreement(made, x)


def test_a_case_hides_what_it_says(case):
    made, x = peers.prepare(case)
    weights = layers.source(SIZE.E, SIZE.H)
    plain = layers.Explicit(weights, layers.Setting(), SIZE.L)
    plain.load_state_dict(made["explicit"].state_dict())
    hides = case.causal or case.table == "padding"
    assert torch.allclose(plain(x), made["explicit"].eval()(x), atol=1e-6) is not hides


def test_each_pass_is_of_the_whole_layer(case):
    made, x = peers.prepare(case)
    for name, run in peers.calls(made, x, case).items():
        result = run()
        if not case.backward:
            assert result.shape == x.shape and not result.requires_grad, name
            continue
        shapes = [tuple(gradient.shape) for gradient in result]
        parameters = [tuple(p.shape) for p in made[name].parameters()]
        assert shapes == [tuple(x.shape), *parameters], name
        assert sum(gradient.numel() for gradient in result[1:]) == 4 * 24 * 25, name


def test_dropout_acts_in_every_layer():
    case = next(case for case in CASES if case.table == "dropout")
    made, x = peers.prepare(case)
    peers.calls(made, x, case)
    for name, layer in made.items():
        assert not torch.equal(layer(x), layer(x)), name


@pytest.mark.parametrize("part", ["weight", "bias", "mask"])
def test_a_layer_that_differs_is_not_timed(part):
    made, x = peers.prepare(peers.Case("grid", SIZE, True, False))
    if part == "mask":
        made["SDPA"].causal = False
    else:
        with torch.no_grad():
            getattr(made["SDPA"].out, part)[-1] += 0.01
    with pytest.raises(AssertionError, match="SDPA differs from ours"):
        peers.check_agreement(made, x)


def test_the_fast_path_is_on_again_after_a_call():
    weights = layers.source(SIZE.E, SIZE.H)
    plain = layers.Best(weights, layers.Setting(), SIZE.L, fast_path=False)
    plain(torch.randn(1, SIZE.L, SIZE.E))
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_summary_is_the_geometric_mean_and_the_worst():
    ratios = {case: r for case, r in zip(CASES, (1.0, 2.0, 4.0), strict=False)}
    results = {
        case: {layers.OURS: timing.Result(0.1, ratio, [0.1])}
        for case, ratio in ratios.items()
    }
    found = peers.summary(results)
    assert found == {"geometric_mean": pytest.approx(2), "worst": 4}


# Decoding ------------------------------------------------------------------------------


def test_every_way_to_decode_is_measured():
    results = decode.measure(context=5, tokens=3, rounds=2, embed_dim=24, num_heads=4)
    assert list(results) == list(decode.WAYS)
    assert results[decode.BY_HAND].ratio == 1
    assert all(len(result.rounds) == 2 for result in results.values())


def test_within_a_window_both_caches_are_measured():
    sizes = {"embed_dim": 24, "num_heads": 4, "window": 3}
    results = decode.measure(context=7, tokens=5, rounds=2, **sizes)
    assert list(results) == [decode.ROLLING, decode.MASKED]
    assert results[decode.MASKED].ratio == 1


def test_a_window_of_another_width_is_not_timed(monkeypatch):
    class Short(decode.Rolling):
        def __init__(self, layer, room, window):
            super().__init__(layer, room, window - 1)

    monkeypatch.setitem(decode.WITHIN, decode.ROLLING, Short)
    with pytest.raises(AssertionError, match="RollingCache differs from one pass"):
        decode.measure(5, 3, 1, embed_dim=24, num_heads=4, window=3)


@pytest.mark.parametrize("name", [decode.OURS, decode.BY_HAND, "torch.cat"])
def test_a_way_that_forgets_is_not_timed(monkeypatch, name):
    class Forgets(decode.WAYS[name]):
        def step(self, x):
            self.start()
            return super().step(x)

    monkeypatch.setitem(decode.WAYS, name, Forgets)
    with pytest.raises(AssertionError, match=f"{name} differs from one pass"):
        decode.measure(context=5, tokens=3, rounds=1, embed_dim=24, num_heads=4)


# The kernels on a GPU -------------------------------------------------------------------

needs_interpreter = pytest.mark.skipif(
    torch.cuda.is_available() or not runs_on("cpu"), reason="needs Triton's interpreter"
)
CHECK = (17, 35, 24, 2, False, True)


@pytest.mark.parametrize("causal", [False, True])
def test_the_definition_is_that_of_the_reference(causal):
    query, key, value = (
        torch.randn(3, heads, length, 5, dtype=torch.float64)
        for heads, length in ((4, 6), (2, 7), (2, 7))
    )
    mask = torch.rand(3, 4, 6, 7) > 0.4
    mask[:, :, 2] = False
    keep = mask.tril() if causal else mask
    output, log_sum = kernel_checks.definition(query, key, value, keep)
    shared = (x.repeat_interleave(2, dim=1) for x in (key, value))
    weights, want = reference.attention(query, *shared, mask, causal)
    torch.testing.assert_close(output, want)
    assert torch.equal(log_sum == -torch.inf, weights.sum(dim=-1) == 0)
    scores = query @ key.repeat_interleave(2, dim=1).mT / 5**0.5
    again = (scores - log_sum[..., None].nan_to_num(neginf=0)).exp() * keep
    torch.testing.assert_close(again, weights)


@needs_interpreter
@pytest.mark.parametrize("wrong", [None, "output", "gradient", "log-sum-exp"])
def test_a_check_finds_what_is_wrong(wrong, monkeypatch):
    attend, attend_lse = (
        kernel_checks.flash_attention,
        kernel_checks.flash_attention_lse,
    )

    def broken(*args, **kwargs):
        output = attend(*args, **kwargs)
        if wrong == "output":
            return output * 1.02
        return output + (output - output.detach()) * 0.02 if wrong else output

    def broken_lse(*args, **kwargs):
        output, log_sum = attend_lse(*args, **kwargs)
        return output, log_sum + 0.01 * (wrong == "log-sum-exp")

    monkeypatch.setattr(kernel_checks, "flash_attention", broken)
    monkeypatch.setattr(kernel_checks, "flash_attention_lse", broken_lse)
    check = kernel_checks.Check(torch.float32, *CHECK)
    (entry,) = gpu.check_all([check], gpu.Budget(1e9), torch.device("cpu"))
    assert entry["right"] is (wrong is None)
    bad = {name for name, (error, bound) in entry["errors"].items() if error > bound}
    assert (
        wrong is None
        or bad
        >= {
            "output": {"output"},
            "gradient": {"grad query", "grad key", "grad value"},
            "log-sum-exp": {"log-sum-exp"},
        }[wrong]
    )


def test_operations_are_those_that_torch_counts():
    case = kernel_times.Case(3, 4, 2, 10, 8, causal=False)
    shape = (3, 4, 10, 8)
    forward = flop_counter.sdpa_flop_count(shape, shape, shape)
    backward = flop_counter.sdpa_backward_flop_count(shape, shape, shape, shape)
    assert case.operations(backward=False) == forward
    assert case.operations(backward=True) == forward + backward
    pairs = torch.ones(10, 10).tril().sum() / 100
    causal = kernel_times.Case(3, 4, 2, 10, 8)
    assert causal.operations(backward=False) == pytest.approx(forward * pairs.item())


def test_the_budget_leaves_out_what_would_take_too_long():
    clock = Clock()
    budget, done = gpu.Budget(9.5, clock), []
    for seconds in budget.spend([2, 1, 3, 1, 1]):
        clock.now += seconds
        done.append(seconds)
    assert done == [2, 1, 3, 1]  # at 7, one like the longest would end at 10
    assert list(budget.spend([1], share=0.5)) == []


def test_who_refuses_says_why():
    def refuses(error, *said):
        def call():
            for each in said:
                warnings.warn(each, stacklevel=1)
            raise error

        return kernel_times.attempt(call)

    no_kernel = RuntimeError("No available kernel. Aborting execution.")
    assert refuses(no_kernel) == ([], "No available kernel. Aborting execution.")
    said = (
        "Flash attention kernel not used because: (Triggered internally at a.cpp:1.)",
        "Only half. (Triggered internally at b.cpp:2.)",
        "Flash attention has been runtime disabled. (Triggered internally at c.cpp:3.)",
    )
    assert refuses(no_kernel, *said) == ([], "Only half.")
    assert refuses(torch.cuda.OutOfMemoryError("CUDA..."), *said)[1] == "out of memory"
    assert refuses(ValueError("at 1:2\nmore"), *said)[1] == "at 1:2"
    assert kernel_times.attempt(lambda: [torch.ones(2)])[1] == ""


def test_a_kernel_that_differs_is_not_timed(monkeypatch):
    attention = kernel_times.attention

    def broken(name, case, mask):
        attend = attention(name, case, mask)
        if name != "math":
            return attend
        return lambda *inputs: attend(*inputs) * 1.1

    monkeypatch.setattr(kernel_times, "attention", broken)
    case = kernel_times.Case(2, 4, 4, 9, 16, torch.float32)
    times, refused = kernel_times.measure(case, 2, 0.0, torch.device("cpu"))
    assert refused["math"].startswith("differs from ours by 0.1")
    assert {"cuDNN", "efficient"} <= set(refused)  # torch has them on GPUs alone
    for which in kernel_times.PASSES:
        assert set(times[which]) == {"ours", "flash"}
        assert all(len(result.rounds) == 2 for result in times[which].values())


@needs_interpreter
def test_a_dry_run_prints_tables_and_writes_json(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(kernel_checks, "TINY", [CHECK])
    monkeypatch.setattr(kernel_times, "TINY", [kernel_times.Case(1, 2, 2, 17, 16)])
    threads = str(torch.get_num_threads())
    options = ["--interpret", "--rounds", "1", "--threads", threads]
    gpu.main([*options, "--json", str(tmp_path)])
    said = capsys.readouterr().out
    assert "float32 (17, 35, 24) 2 to 1 mask" in said and "NO" not in said
    assert "in 1 of 1 rows, cuDNN: No viable backend" in said
    content = json.loads((tmp_path / "gpu.json").read_text())
    assert [entry["right"] for entry in content["checks"]] == [True] * 3
    (case,) = content["cases"]
    assert set(case["passes"]) == set(content["summary"]) == set(gpu.PASSES)
    assert case["passes"]["forward"]["ours"]["tflops"] > 0
    assert set(case["refused"]) == {"cuDNN", "efficient"}
    assert content["left_out"] == []


@needs_interpreter
def test_a_run_that_finds_faults_says_which(monkeypatch, capsys):
    def fails(*arguments):
        raise RuntimeError("Triton Error [CUDA]: an illegal address\nmore")

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(kernel_times, "TINY", kernel_times.TINY[:1])
    monkeypatch.setattr(kernel_checks, "errors", lambda *_: {"output": (3.0, 2.0)})
    monkeypatch.setattr(kernel_times, "measure", fails)
    options = ["--interpret", "--threads", str(torch.get_num_threads())]
    with pytest.raises(SystemExit, match="Not right: bfloat16 .*causal, all"):
        gpu.main(options)
    said = capsys.readouterr().out
    assert "1.50" in said and "NO" in said
    assert "in 1 of 1 rows, all: Triton Error [CUDA]: an illegal address" in said
    monkeypatch.setattr(kernel_checks, "errors", fails)
    with pytest.raises(SystemExit, match="Not right"):
        gpu.main(options)
    assert "bfloat16 (20, 20, 16) causal: Triton Error" in capsys.readouterr().out
    gpu.main([*options, "--budget", "0"])
    assert "No time was left for 11: bfloat16" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    with pytest.raises(SystemExit) as stopped:
        gpu.main([])
    assert stopped.value.code == 2
    assert "needs a CUDA GPU" in capsys.readouterr().err


# Import, tables and files --------------------------------------------------------------


def test_import_is_timed_in_a_fresh_process():
    cpu, clock, packages = import_time.measure()
    assert 0 < cpu and 0 < clock
    assert "attention_lib" in packages and "torch" not in packages


def test_a_table_lines_up():
    rows = [["a", "10.25"], ["longer", "3"]]
    assert report.table(["name", "ms"], rows) == (
        "name       ms\n------  -----\na       10.25\nlonger      3"
    )


@pytest.mark.parametrize(
    "benchmark", [peers, decode], ids=lambda module: module.__name__
)
def test_a_quick_run_prints_a_table_and_writes_json(benchmark, tmp_path, capsys):
    threads = str(torch.get_num_threads())
    options = ["--quick", "--rounds", "1", "--threads", threads, "--json"]
    benchmark.main([*options, str(tmp_path)])
    name = benchmark.__name__
    content = json.loads((tmp_path / f"{name}.json").read_text())
    assert content["benchmark"] == name
    assert content["environment"]["versions"]["torch"] == torch.__version__
    assert content["cases"] and content["summary"]
    assert benchmark.OURS in capsys.readouterr().out
    benchmark.main([*options, str(tmp_path / "own.json")])
    assert json.loads((tmp_path / "own.json").read_text())["benchmark"] == name
