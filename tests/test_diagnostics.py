"""The statistics against torch.distributions, loops and cases known by hand."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from attention_lib import attention_steps, diagnostics

B, H, L, S = 2, 3, 5, 7
LINE = ("entropy", "effective_keys", "sink_mass")  # one number a row
MATRIX = ("saturation", "effective_rank")  # one number a matrix


def random_weights(dtype=torch.float64):
    return (3 * torch.randn(B, H, L, S, dtype=torch.float64)).softmax(-1).to(dtype)


def call(name, tensor, **options):
    return getattr(diagnostics, name)(tensor, **options)


# Values


def test_entropy_is_that_of_torch_distributions():
    weights = random_weights()
    expected = Categorical(probs=weights).entropy()
    assert expected.shape == (B, H, L)
    torch.testing.assert_close(diagnostics.entropy(weights), expected)
    torch.testing.assert_close(diagnostics.effective_keys(weights), expected.exp())


def test_entropy_of_known_rows():
    for count in range(1, S + 1):
        weights = torch.zeros(1, S)
        weights[0, :count] = 1 / count
        assert diagnostics.entropy(weights).item() == pytest.approx(
            math.log(count), abs=1e-6
        )
        assert diagnostics.effective_keys(weights).item() == pytest.approx(count)


def test_sink_mass_is_the_weight_of_the_first_keys():
    weights = random_weights()
    torch.testing.assert_close(diagnostics.sink_mass(weights), weights[..., 0])
    torch.testing.assert_close(
        diagnostics.sink_mass(weights, first=3),
        weights[..., 0] + weights[..., 1] + weights[..., 2],
    )
    torch.testing.assert_close(
        diagnostics.sink_mass(weights, first=S), torch.ones(B, H, L).double()
    )


def test_saturation_is_the_share_of_rows_above_the_threshold():
    weights = random_weights()
    for threshold in (0.3, 0.6, 0.9):
        expected = [
            [sum(max(row) > threshold for row in head) / L for head in item]
            for item in weights.tolist()
        ]
        result = diagnostics.saturation(weights, threshold)
        torch.testing.assert_close(result, torch.tensor(expected).double())
    assert 0 < diagnostics.saturation(weights, 0.6).mean() < 1
    assert diagnostics.saturation(torch.full((1, 2), 0.5), 0.5) == 0  # not above it


def test_effective_rank_of_known_matrices():
    for rank in (1, 2, 4):
        weights = torch.eye(4)[torch.arange(8) % rank]  # each key by as many queries
        result = diagnostics.effective_rank(weights).item()
        assert result == pytest.approx(rank, abs=1e-4)
    # Singular values 2 and 1, whatever the rotation.
    left = torch.linalg.qr(torch.randn(L, 2).double()).Q
    right = torch.linalg.qr(torch.randn(S, 2).double()).Q
    matrix = left @ torch.diag(torch.tensor([2.0, 1.0]).double()) @ right.T
    expected = Categorical(probs=torch.tensor([2.0, 1.0]).double()).entropy().exp()
    torch.testing.assert_close(diagnostics.effective_rank(matrix), expected)


def test_effective_rank_is_one_number_a_matrix():
    weights = random_weights()
    result = diagnostics.effective_rank(weights)
    assert result.shape == (B, H)
    for b in range(B):
        for h in range(H):
            alone = diagnostics.effective_rank(weights[b, h])
            torch.testing.assert_close(result[b, h], alone)


def test_score_std_is_that_of_the_visible_scores():
    scores = 4 * torch.randn(B, H, L, S).double() + 100
    keep = torch.rand(B, H, L, S) > 0.4
    masked = scores.masked_fill(~keep, -torch.inf)
    expected = [
        [scores[b, h][keep[b, h]].std(correction=0).item() for h in range(H)]
        for b in range(B)
    ]
    torch.testing.assert_close(
        diagnostics.score_std(masked), torch.tensor(expected).double()
    )
    torch.testing.assert_close(
        diagnostics.score_std(scores), scores.flatten(-2).std(-1, correction=0)
    )


# Empty rows, NaN, dtypes, gradients


def test_an_empty_row_gives_0_and_does_not_count():
    weights = random_weights()
    weights[0, 1, 2] = 0
    for name in LINE:
        assert call(name, weights)[0, 1, 2] == 0
    few = weights[0, 1][[0, 1, 3, 4]]
    torch.testing.assert_close(
        diagnostics.saturation(weights, 0.5)[0, 1], diagnostics.saturation(few, 0.5)
    )
    torch.testing.assert_close(
        diagnostics.effective_rank(weights)[0, 1], diagnostics.effective_rank(few)
    )


@pytest.mark.parametrize("name", LINE + MATRIX)
def test_nothing_but_empty_rows_gives_0(name):
    assert (call(name, torch.zeros(B, H, L, S)) == 0).all()


def test_scores_that_are_all_hidden_give_0():
    scores = torch.full((B, H, L, S), -torch.inf)
    scores[1, 2, 0, 0] = 3.0
    assert (diagnostics.score_std(scores) == 0).all()


@pytest.mark.parametrize("name", (*LINE, *MATRIX, "score_std"))
def test_a_nan_shows_where_it_is_and_nowhere_else(name):
    weights = random_weights()
    weights[1, 2, 3, 0] = torch.nan
    result = call(name, weights)
    bad = torch.zeros_like(result, dtype=torch.bool)
    bad[(1, 2, 3) if name in LINE else (1, 2)] = True
    assert torch.equal(result.isnan(), bad)


def test_infinite_scores_show():
    scores = torch.randn(L, S)
    scores[0, 0] = torch.inf
    assert diagnostics.score_std(scores).isnan()


@pytest.mark.parametrize("name", (*LINE, *MATRIX, "score_std"))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_computed_in_float32(name, dtype, device):
    weights = random_weights(dtype).to(device).requires_grad_()
    result = call(name, weights)
    assert result.dtype == torch.float32 and not result.requires_grad
    assert result.device.type == device.type
    exact = call(name, weights.detach().double())
    torch.testing.assert_close(result.double(), exact, atol=2e-5, rtol=2e-5)


# Summary


def test_summary_averages_over_items_and_queries():
    x = torch.randn(B, H, L, 4).double()
    keep = torch.rand(B, 1, L, L) > 0.4
    keep[0, :, 2] = False  # an empty row, so that items have unequal counts
    steps = attention_steps(x, x, x, attn_mask=keep)
    result = diagnostics.summary(steps.weights, steps.masked)
    assert list(result) == [*LINE, *MATRIX, "score_std"]
    for h in range(H):
        rows = torch.cat([steps.weights[b, h] for b in range(B)])
        rows = rows[rows.sum(-1) > 0]
        assert len(rows) == keep.any(-1).sum()
        for name in LINE:
            torch.testing.assert_close(result[name][h], call(name, rows).mean())
        torch.testing.assert_close(
            result["saturation"][h], diagnostics.saturation(rows)
        )
        each = [diagnostics.effective_rank(steps.weights[b, h]) for b in range(B)]
        torch.testing.assert_close(result["effective_rank"][h], sum(each) / B)
        visible = steps.scores[:, h][keep[:, 0]]
        torch.testing.assert_close(result["score_std"][h], visible.std(correction=0))


def test_summary_of_one_item_and_of_none_visible():
    weights = random_weights()[0]
    result = diagnostics.summary(weights)
    assert {tuple(number.shape) for number in result.values()} == {(H,)}
    assert "score_std" not in result
    empty = diagnostics.summary(torch.zeros(B, H, L, S), torch.full((B, H, L, S), -1e9))
    assert all((number == 0).all() for number in empty.values())


# Refused


@pytest.mark.parametrize("name", (*LINE, *MATRIX, "score_std", "summary"))
def test_refuses_what_is_no_matrix_of_floats(name):
    argument = "scores" if name == "score_std" else "weights"
    with pytest.raises(TypeError, match=f"{argument} must be .*int64"):
        call(name, torch.zeros(1, L, S, dtype=torch.int64))
    with pytest.raises(TypeError, match=f"{argument} must be .*list"):
        call(name, [[1.0]])
    with pytest.raises(ValueError, match=rf"{argument} has shape \(7,\)"):
        call(name, torch.zeros(S))
    with pytest.raises(ValueError, match=rf"{argument} has shape \(1, 5, 0\)"):
        call(name, torch.zeros(1, L, 0))


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda w: diagnostics.sink_mass(w, 0), "first=0 must be from 1 to S=7"),
        (lambda w: diagnostics.sink_mass(w, 8), "first=8 must be from 1 to S=7"),
        (lambda w: diagnostics.saturation(w, 1.0), "threshold=1.0"),
        (lambda w: diagnostics.saturation(w, -0.1), "threshold=-0.1"),
        (lambda w: diagnostics.summary(w[0, 0]), r"weights has shape \(5, 7\)"),
        (lambda w: diagnostics.summary(w, w[0]), r"scores has shape \(1, 3, 5, 7\)"),
    ],
)
def test_refuses_numbers_out_of_range(function, match):
    with pytest.raises(ValueError, match=match):
        function(random_weights())


# The finder


class Divide(nn.Module):
    def forward(self, x, by=1.0):
        return {"quotient": x / by, "count": torch.tensor(3)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.divide = Divide()

    def forward(self, x, by=1.0):
        return self.divide(self.inner(self.first(x)), by=by)["quotient"].sum()


def test_a_clean_pass_is_left_alone():
    net, x = Net(), torch.ones(2, 3)
    with diagnostics.find_nonfinite(net):
        watched = net(x)
    assert torch.equal(watched, net(x))
    watched.backward()


def test_the_innermost_first_module_is_named():
    net = Net()
    with torch.no_grad():
        net.inner[0].weight[1, 2] = torch.inf
        net.divide.scale = nn.Parameter(torch.tensor(torch.nan))
    match = (
        r"module inner.0 \(Linear\) returns 0 NaN and 2 infinities of 8 numbers; "
        "inputs finite, parameters not finite: weight"
    )
    with (
        pytest.raises(FloatingPointError, match=match),
        diagnostics.find_nonfinite(net),
    ):
        net(torch.ones(2, 3))


def test_a_module_without_parameters_and_keywords_and_dicts():
    net = Net()
    match = r"module divide \(Divide\) .* inputs finite, parameters finite"
    with (
        pytest.raises(FloatingPointError, match=match),
        diagnostics.find_nonfinite(net),
    ):
        net(torch.ones(2, 3), by=0.0)
    match = (
        r"module divide \(Divide\) returns 8 NaN .* inputs not finite, parameters fin"
    )
    with (
        pytest.raises(FloatingPointError, match=match),
        diagnostics.find_nonfinite(net),
    ):
        net(torch.ones(2, 3), by=torch.tensor(torch.nan))


def test_the_model_itself_can_be_the_one_and_others_are_not_watched():
    model = nn.ReLU()
    match = r"module itself \(ReLU\) .* 1 infinities of 2 .* inputs not finite"
    with (
        pytest.raises(FloatingPointError, match=match),
        diagnostics.find_nonfinite(model),
    ):
        nn.ReLU()(torch.tensor([torch.nan]))
        model(torch.tensor([torch.inf, 1.0]))


def test_the_watch_ends_with_the_block_even_after_an_error():
    net = Net()
    for by in (1.0, 0.0):
        try:
            with diagnostics.find_nonfinite(net):
                net(torch.ones(2, 3), by=by)
        except FloatingPointError:
            pass
        assert all(not module._forward_hooks for module in net.modules())
    assert not net(torch.ones(2, 3), by=0.0).isfinite()
