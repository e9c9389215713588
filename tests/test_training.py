"""The training loop: it learns, repeats itself, cleans up, and stops at a NaN."""

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attention_lib import tasks, training


def model(seed=0, classes=4, dropout=0.0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Embedding(classes, 6), nn.Dropout(dropout), nn.Linear(6, classes)
    )


def echo(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return lambda: tasks.lookback(5, 3, back=0, symbols=4, generator=generator)


def test_fit_learns_and_returns_every_loss():
    net = model()
    losses = training.fit(net, echo(), steps=80, lr=0.05, progress=False)
    assert len(losses) == 80 and all(isinstance(loss, float) for loss in losses)
    assert losses[0] > 1 and losses[-1] < 0.1
    assert training.accuracy(net, echo(9)) == 1.0


def test_fit_is_adam_on_cross_entropy():
    net, sample = model(), echo()
    losses = training.fit(net, sample, steps=5, lr=0.02, progress=False)
    again, draw = model(), echo()
    optimizer = torch.optim.Adam(again.parameters(), lr=0.02)
    for loss in losses:
        inputs, targets = draw()
        error = F.cross_entropy(again(inputs).permute(0, 2, 1), targets)
        assert error.item() == pytest.approx(loss, rel=1e-6)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
    for ours, theirs in zip(net.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_same_seeds_give_the_same_losses():
    def run(seed):
        net = model(seed, dropout=0.2)
        return training.fit(net, echo(seed), steps=10, progress=False)

    assert run(1) == run(1) != run(2)


def test_a_loss_of_ones_own():
    def squared(output, targets):
        return (output - F.one_hot(targets, 4)).square().mean()

    net, (inputs, targets) = model(), echo()()
    expected = (net(inputs) - F.one_hot(targets, 4)).square().mean().item()
    losses = training.fit(net, echo(), steps=60, lr=0.05, loss=squared, progress=False)
    assert losses[0] == pytest.approx(expected)
    assert losses[-1] < 0.1 * losses[0]


def test_on_step_comes_after_each_update():
    net, seen = model(), []
    start = net[2].weight.detach().clone()
    training.fit(
        net,
        echo(),
        steps=3,
        progress=False,
        on_step=lambda i: seen.append((i, torch.equal(net[2].weight, start))),
    )
    assert seen == [(0, False), (1, False), (2, False)]


def test_training_happens_in_train_mode_and_leaves_each_module_as_it_was():
    net = model()
    net.eval()
    net[1].train()  # one module set apart
    modes = []

    def sample():
        modes.append([module.training for module in net.modules()])
        return echo()()

    training.fit(net, sample, steps=1, progress=False)
    training.accuracy(net, sample, batches=1)
    assert modes == [[True] * 4, [False] * 4]
    assert [module.training for module in net.modules()] == [False, False, True, False]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_before_the_update(bad):
    net = model()

    def loss(output, targets):
        loss.calls += 1
        return output.sum() * (bad if loss.calls == 3 else 0.1)

    loss.calls = 0
    kept = []
    match = (
        rf"loss is {bad} at step 2 of 9 \(lr=0.01\); the losses before it: \[.+, .+\]"
    )
    with pytest.raises(FloatingPointError, match=match):
        training.fit(
            net,
            echo(),
            steps=9,
            lr=0.01,
            loss=loss,
            progress=False,
            on_step=lambda i: kept.append(net[2].weight.detach().clone()),
        )
    assert torch.equal(net[2].weight, kept[-1]) and net[2].weight.isfinite().all()


def test_the_bar_carries_its_label_and_goes_away(capsys, monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)  # tqdm reads the environment once
    training.fit(model(), echo(), steps=30, label="tied")
    shown = capsys.readouterr().err
    assert "tied:" in shown
    assert shown.split("\r")[-1] == "" and not shown.split("\r")[-2].strip()
    training.fit(model(), echo(), steps=3, progress=False)
    assert capsys.readouterr().err == ""


def test_no_bar_where_the_environment_says_so(capsys, monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    for name in [name for name in sys.modules if name.split(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)
    training.fit(model(), echo(), steps=3)
    assert capsys.readouterr().err == ""


def test_cross_entropy_leaves_ignored_positions_out():
    logits, targets = torch.randn(2, 3, 5, 4), torch.randint(4, (2, 3, 5))
    targets[0, 1, 2] = targets[1, 0, 4] = tasks.IGNORE
    asked = targets != tasks.IGNORE
    log_softmax = logits.double().log_softmax(-1)
    expected = -log_softmax[asked].gather(1, targets[asked][:, None]).mean()
    torch.testing.assert_close(
        training.cross_entropy(logits, targets), expected.float()
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cross_entropy_of_half_logits_is_computed_in_float32(dtype):
    logits, targets = 30 * torch.randn(7, 5).to(dtype), torch.randint(5, (7,))
    loss = training.cross_entropy(logits, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, F.cross_entropy(logits.float(), targets))


def test_accuracy_counts_what_is_asked():
    logits = torch.eye(4)[torch.tensor([[0, 1, 2], [3, 0, 1]])]
    targets = torch.tensor([[0, 2, tasks.IGNORE], [3, 1, 1]])
    assert training.accuracy(nn.Identity(), lambda: (logits, targets), batches=3) == 0.6


def test_accuracy_keeps_no_graph():
    net, grads = model(), []
    net.register_forward_hook(lambda m, args, out: grads.append(out.requires_grad))
    training.accuracy(net, echo(), batches=2)
    assert grads == [False, False]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: training.fit(model(), echo(), steps=0), "steps=0 must be at least 1"),
        (
            lambda: training.fit(model(), echo(), steps=1, lr=0.0),
            "lr=0.0 must be above",
        ),
        (lambda: training.fit(model(), echo(), steps=1, lr=math.nan), "lr=nan"),
        (lambda: training.accuracy(model(), echo(), batches=0), "batches=0"),
        (
            lambda: training.fit(
                model(),
                lambda: (torch.zeros(2, 3).long(), torch.zeros(2).long()),
                steps=1,
            ),
            r"returns shape \(2, 3, 4\), expected \(2, classes\)",
        ),
        (
            lambda: training.accuracy(
                nn.Identity(), lambda: (torch.zeros(2, 4), torch.full((2,), -100))
            ),
            "asks for nothing",
        ),
    ],
)
def test_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_the_mode_comes_back_after_an_error_too():
    net = model().eval()
    with pytest.raises(ZeroDivisionError):
        training.fit(net, lambda: 1 / 0, steps=1, progress=False)
    assert not any(module.training for module in net.modules())
