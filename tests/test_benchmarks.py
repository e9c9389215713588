"""The benchmarks compare layers that agree, and compute medians and ratios right.

No time is asserted: what a machine needs is for the benchmarks to print.
"""

import itertools
import json

import decode
import import_time
import layers
import peers
import pytest
import report
import timing
import torch

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


@pytest.mark.parametrize("name", [decode.OURS, decode.BY_HAND, "torch.cat"])
def test_a_way_that_forgets_is_not_timed(monkeypatch, name):
    class Forgets(decode.WAYS[name]):
        def step(self, x):
            self.start()
            return super().step(x)

    monkeypatch.setitem(decode.WAYS, name, Forgets)
    with pytest.raises(AssertionError, match=f"{name} differs from one pass"):
        decode.measure(context=5, tokens=3, rounds=1, embed_dim=24, num_heads=4)


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
