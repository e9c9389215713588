"""The problems are solvable, ask what they say, and come out the same for one seed."""

import pytest
import torch

from attention_lib import tasks

TASKS = {
    "recall": lambda **k: tasks.recall(7, 5, keys=9, values=4, gap=3, **k),
    "copy": lambda **k: tasks.copy(7, 6, symbols=5, **k),
    "successor": lambda **k: tasks.successor(7, 11, **k),
    "lookback": lambda **k: tasks.lookback(7, 6, (1, 3), symbols=5, **k),
}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_gives_one_batch_and_another_seed_another(name):
    first, again, other = (TASKS[name](generator=seeded(s)) for s in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b) and a.dtype == torch.int64
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("name", TASKS)
def test_the_global_seed_counts_without_a_generator(name):
    torch.manual_seed(5)
    first = TASKS[name]()
    torch.manual_seed(5)
    assert torch.equal(TASKS[name]()[0], first[0])
    assert not torch.equal(TASKS[name]()[0], first[0])


@pytest.mark.parametrize("name", TASKS)
def test_the_batch_is_the_same_on_every_device(name, device):
    here = TASKS[name](generator=seeded(1))
    there = TASKS[name](generator=seeded(1), device=device)
    for a, b in zip(here, there, strict=True):
        assert b.device.type == device.type and torch.equal(a, b.cpu())
    assert TASKS[name](device="meta")[0].device.type == "meta"


def test_recall_asks_for_a_pair_that_was_shown():
    inputs, targets = tasks.recall(50, 5, keys=9, values=4, gap=3)
    assert inputs.shape == (50, 9, 2) and targets.shape == (50,)
    shown, blank, asked = inputs[:, :5], inputs[:, 5:8], inputs[:, 8]
    assert (blank == torch.tensor([9, 4])).all()
    assert (asked[:, 1] == 4).all()
    for row, question, answer in zip(shown, asked[:, 0], targets, strict=True):
        pairs = dict(row.tolist())
        assert len(pairs) == 5
        assert pairs[question.item()] == answer
        assert set(pairs) <= set(range(9)) and set(pairs.values()) <= set(range(4))


def test_recall_draws_every_key_value_and_place():
    inputs, targets = tasks.recall(2000, 3, keys=4, values=5)
    assert set(inputs[:, :3, 0].flatten().tolist()) == set(range(4))
    assert set(targets.tolist()) == set(range(5))
    places = (inputs[:, :3, 0] == inputs[:, 3:, 0]).float().mean(0)
    torch.testing.assert_close(places, torch.full((3,), 1 / 3), atol=0.05, rtol=0)


def test_copy_asks_for_the_first_symbol():
    inputs, targets = tasks.copy(40, 6, symbols=5)
    assert inputs.shape == (40, 8)
    assert torch.equal(inputs[:, 0], targets)
    assert (inputs[:, 1:-1] == 5).all() and (inputs[:, -1] == 6).all()
    assert set(targets.tolist()) == set(range(5))
    assert tasks.copy(2, 0)[0].shape == (2, 2)


def test_successor_points_from_each_item_to_the_next():
    inputs, targets = tasks.successor(20, 11)
    for row, answer in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert sorted(row) == list(range(11))
        assert [row[place] for place in answer] == [(item + 1) % 11 for item in row]
    assert len({tuple(row) for row in inputs.tolist()}) == 20


def test_lookback_names_what_stood_there():
    inputs, targets = tasks.lookback(3, 6, 2, symbols=5)
    assert targets.shape == (3, 6)
    assert (targets[:, :2] == tasks.IGNORE).all()
    assert torch.equal(targets[:, 2:], inputs[:, :4])
    assert torch.equal(*tasks.lookback(3, 6, 0))


def test_lookback_of_several_is_each_of_them():
    inputs, targets = tasks.lookback(3, 6, (4, 1), generator=seeded(1))
    assert targets.shape == (3, 6, 2)
    for i, back in enumerate((4, 1)):
        same, alone = tasks.lookback(3, 6, back, generator=seeded(1))
        assert torch.equal(same, inputs) and torch.equal(targets[..., i], alone)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: tasks.recall(0), "batch=0 must be at least 1"),
        (lambda: tasks.recall(2, 0), "pairs=0"),
        (lambda: tasks.recall(2, 5, keys=4), "pairs=5 must not exceed keys=4"),
        (lambda: tasks.recall(2, 5, values=0), "values=0"),
        (lambda: tasks.recall(2, 5, gap=-1), "gap=-1 must be at least 0"),
        (lambda: tasks.copy(2, -1), "gap=-1 must be at least 0"),
        (lambda: tasks.copy(2, 3, symbols=0), "symbols=0"),
        (lambda: tasks.successor(2, 1), "items=1 must be at least 2"),
        (lambda: tasks.lookback(2, 0), "length=0"),
        (lambda: tasks.lookback(2, 3, 3), "back=3 must hold numbers from 0 to 2"),
        (lambda: tasks.lookback(2, 3, -1), "back=-1"),
        (lambda: tasks.lookback(2, 3, ()), r"back=\(\)"),
        (lambda: tasks.lookback(2, 3, (1, 4)), r"back=\(1, 4\)"),
    ],
)
def test_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
