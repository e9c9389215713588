"""The log of a run: valid JSON, safe in a crash, and without influence on the run."""

import json
import math

import pytest
import torch
from torch import nn

from attention_lib import (
    KeyValueCache,
    MultiHeadAttention,
    RotaryEmbedding,
    TransformerBlock,
    diagnostics,
    masks,
)
from attention_lib.run_log import RunLog, read_log

B, L, E, H = 3, 5, 24, 4
NUMBERS = {
    *("entropy", "sink_mass", "saturation", "query_norm"),
    *("key_norm", "score_limit", "nonfinite"),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def strict(text):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def observed(path, model, *args, step=0, every=1, **kwargs):
    with RunLog(path) as log, log.observe(model, step, every=every):
        output = model(*args, **kwargs)
    return output, read_log(path)


# Writing and reading


def test_values_that_are_not_finite_are_valid_json_and_come_back(path):
    values = {
        "nan": math.nan,
        "up": math.inf,
        "down": -math.inf,
        "list": [1.5, math.nan, torch.tensor(math.inf)],
        "table": {"x": torch.tensor([2.5]), "flag": True, "none": None, "text": "é\n"},
    }
    with RunLog(path) as log:
        log.write(step=1, **values)
    (line,) = strict(path.read_text("utf-8"))
    assert (line["nan"], line["up"], line["down"]) == ("NaN", "Infinity", "-Infinity")
    (back,) = read_log(path)
    assert math.isnan(back["nan"]) and math.isnan(back["list"][1])
    assert (back["up"], back["down"]) == (math.inf, -math.inf)
    assert back["list"][2] == math.inf and back["step"] == 1
    assert back["table"] == {"x": 2.5, "flag": True, "none": None, "text": "é\n"}


def test_every_line_is_in_the_file_at_once(path):
    log = RunLog(path)
    for step in range(3):
        log.write(step=step)
        assert len(read_log(path)) == step + 1
    log.close()


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_cut_last_line_is_left_out_and_then_removed(path, cut):
    whole = '{"step": 0}\n{"step": 1}\n'
    path.write_text(whole[:-cut] if cut < len(whole) else "")
    left = read_log(path)
    assert left == [{"step": 0}, {"step": 1}][: 2 if cut == 1 else 1]
    with RunLog(path) as log:
        log.write(step=2)
    assert strict(path.read_text()) == read_log(path) == [*left, {"step": 2}]


def test_an_old_log_is_continued(path):
    for step in (0, 1):
        with RunLog(path) as log:
            log.write(step=step)
    assert read_log(path) == [{"step": 0}, {"step": 1}]


def test_a_broken_line_in_the_middle_is_named(path):
    path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"run.jsonl, line 2 is no JSON object"):
        read_log(path)
    path.write_text("[1]\n{}\n")
    with pytest.raises(ValueError, match="line 1 is no JSON object"):
        read_log(path)


def test_wrong_calls(path):
    log = RunLog(path)
    with pytest.raises(TypeError, match=r"shape \(2,\) is no single number"):
        log.write(loss=torch.zeros(2))
    with pytest.raises(TypeError, match="not JSON serializable"):
        log.write(loss=object())
    with (
        pytest.raises(ValueError, match="every=0 must be at least 1"),
        log.observe(MultiHeadAttention(E, H), 0, every=0),
    ):
        pass
    with (
        pytest.raises(ValueError, match="no MultiHeadAttention to observe: Linear"),
        log.observe(nn.Linear(2, 2), 0),
    ):
        pass
    log.close()
    with pytest.raises(ValueError, match="run.jsonl is closed"):
        log.write(step=1)
    with pytest.raises(FileNotFoundError):
        RunLog(path.parent / "missing" / "run.jsonl")
    assert path.read_text() == ""


# Statistics


def test_the_statistics_are_those_of_the_weights(path):
    layer = MultiHeadAttention(E, H)
    x = torch.randn(B, L, E)
    keep = masks.padding([5, 2, 4], L)
    keep = keep & masks.causal(L)
    keep[1, ..., 0, :] = False  # a query that may see nothing
    output, lines = observed(path, layer, x, attn_mask=keep)
    wanted, weights = layer(x, attn_mask=keep, need_weights=True)
    torch.testing.assert_close(output, wanted)
    expected = diagnostics.summary(weights.detach())
    assert [line["head"] for line in lines] == [0, 1, 2, 3]
    for line in lines:
        assert set(line) == {"step", "layer", "head"} | NUMBERS
        for name in ("entropy", "sink_mass", "saturation"):
            assert line[name] == pytest.approx(
                expected[name][line["head"]].item(), abs=1e-6
            )
        assert line["nonfinite"] == 0


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("scale", [None, 0.3, -0.3])
def test_no_dot_product_exceeds_the_limit(path, kv_heads, scale):
    norms = {"query_norm": nn.RMSNorm(6), "key_norm": nn.RMSNorm(6)}
    layer = MultiHeadAttention(
        E, H, num_kv_heads=kv_heads, scale=scale, rotary=RotaryEmbedding(6), **norms
    )
    # Uneven gains, so that the lengths differ from head to head.
    nn.init.uniform_(layer.query_norm.weight)
    nn.init.uniform_(layer.key_norm.weight)
    x = torch.randn(B, L, E)
    _, lines = observed(path, layer, x)
    q, k, _ = layer.project(x)
    q, k = layer.query_norm(q), layer.key_norm(k).repeat_interleave(H // kv_heads, 1)
    factor = abs(scale) if scale else 6**-0.5
    for head, line in enumerate(lines):
        longest = q[:, head].norm(dim=-1).max(), k[:, head].norm(dim=-1).max()
        assert line["query_norm"] == pytest.approx(longest[0].item(), rel=1e-5)
        assert line["key_norm"] == pytest.approx(longest[1].item(), rel=1e-5)
        limit = longest[0] * longest[1] * factor
        assert line["score_limit"] == pytest.approx(limit.item(), rel=1e-5)


def test_cross_attention_and_arguments_by_name(path):
    layer = MultiHeadAttention(E, H, kdim=7)
    x, context = torch.randn(B, L, E), torch.randn(B, 9, 7)
    _, lines = observed(path, layer, x, key=context)
    _, again = observed(path, layer, query=x, key=context)
    _, more = observed(path, layer, x, context, context)
    assert lines == again[4:] == more[8:] and len(lines) == 4


def test_nan_is_seen_and_written(path):
    x = torch.randn(B, L, E)
    x[1, 3] = math.nan
    _, lines = observed(path, MultiHeadAttention(E, H), x)
    strict(path.read_text())
    assert all(math.isnan(line["entropy"]) for line in lines)
    assert all(line["nonfinite"] == pytest.approx(1 / 3) for line in lines)


def test_every_layer_of_a_model_and_half_precision(path):
    model = nn.Sequential(*(TransformerBlock(E, H) for _ in range(2))).bfloat16()
    _, lines = observed(path, model, torch.randn(B, L, E, dtype=torch.bfloat16), step=7)
    names = [(line["step"], line["layer"], line["head"]) for line in lines]
    assert names == [(7, f"{i}.attention", h) for i in (0, 1) for h in range(H)]


# No influence


def test_steps_that_are_not_due_hang_nothing_on_the_model(path):
    layer = MultiHeadAttention(E, H)
    x = torch.randn(B, L, E)
    with RunLog(path) as log:
        for step in range(7):
            with log.observe(layer, step, every=3):
                assert len(layer._forward_hooks) == (step % 3 == 0)
                layer(x)
            assert len(layer._forward_hooks) == 0
    assert sorted({line["step"] for line in read_log(path)}) == [0, 3, 6]


def train(path, every):
    """Weights after some steps with dropout, observed or not."""
    torch.manual_seed(0)
    model = TransformerBlock(E, H, dropout=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with RunLog(path) as log:
        for step in range(6):
            x = torch.randn(B, L, E)
            with log.observe(model, step + (every is None), every=every or 10**9):
                loss = model(x, is_causal=True).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert model.training
    return [value.detach() for value in model.parameters()], torch.rand(3)


def test_an_observed_run_is_the_same_run_to_the_last_bit(tmp_path):
    plain, draws = train(tmp_path / "a", None)
    seen, draws_seen = train(tmp_path / "b", 2)
    assert read_log(tmp_path / "a") == [] and read_log(tmp_path / "b")
    assert torch.equal(draws, draws_seen)
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))


def test_a_cache_is_filled_once(path):
    layer = MultiHeadAttention(E, H, rotary=RotaryEmbedding(6)).eval()
    x = torch.randn(B, L, E)
    plain, seen = (KeyValueCache.for_layer(layer, B, L) for _ in range(2))
    for t in range(L):
        token = x[:, t : t + 1]
        wanted = layer(token, is_causal=True, cache=plain)
        output, lines = observed(path, layer, token, is_causal=True, cache=seen)
        assert torch.equal(output, wanted) and seen.length == t + 1
    assert torch.equal(plain.keys, seen.keys)
    # The last query sees every key: its entropy is that of the last row.
    _, weights = layer(x, is_causal=True, need_weights=True)
    last = diagnostics.entropy(weights.detach())[:, :, -1].mean(0)
    for line, nats in zip(lines[-H:], last.tolist(), strict=True):
        assert line["entropy"] == pytest.approx(nats, abs=1e-5)


def test_nothing_is_written_or_left_behind_when_the_model_raises(path):
    layer = MultiHeadAttention(E, H)
    log = RunLog(path)
    with pytest.raises(ZeroDivisionError), log.observe(layer, 0):
        layer(torch.randn(B, L, E))
        raise ZeroDivisionError
    log.close()
    assert path.read_text() == "" and len(layer._forward_hooks) == 0


def test_a_failing_statistic_leaves_the_training_mode(path, monkeypatch):
    layer = MultiHeadAttention(E, H).train()

    def fail(weights):
        raise ZeroDivisionError

    monkeypatch.setattr(diagnostics, "entropy", fail)
    log = RunLog(path)
    with pytest.raises(ZeroDivisionError), log.observe(layer, 0):
        layer(torch.randn(B, L, E))
    log.close()
    assert layer.training
