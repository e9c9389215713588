"""Characters in, characters out; the split, the batches, the dates."""

import datetime

import pytest
import torch

from attention_lib import text

TEXT = "to be or not to be, that is the question"


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_a_vocabulary_gives_back_what_it_takes():
    vocabulary = text.Vocabulary("xyz ")
    ids = vocabulary.encode("zy x")
    assert ids.tolist() == [2, 1, 3, 0] and ids.dtype == torch.int64
    assert vocabulary.decode(ids) == vocabulary.decode([2, 1, 3, 0]) == "zy x"
    assert vocabulary.encode("").shape == (0,)


def test_a_vocabulary_refuses_what_it_does_not_hold():
    with pytest.raises(ValueError, match=r"text holds \['a', 'b'\]"):
        text.Vocabulary("xyz").encode("bxa")
    with pytest.raises(ValueError, match="each character once"):
        text.Vocabulary("xyx")


def test_the_parts_of_a_corpus_are_the_text():
    corpus = text.Corpus(TEXT, validation=0.25)
    assert corpus.vocabulary.characters == "".join(sorted(set(TEXT)))
    decoded = [
        corpus.vocabulary.decode(part) for part in (corpus.train, corpus.validation)
    ]
    assert decoded == [TEXT[:30], TEXT[30:]]


def test_targets_follow_the_inputs_and_come_from_the_training_part():
    corpus = text.Corpus(TEXT, validation=0.25)
    inputs, targets = corpus.batch(300, 4)
    assert inputs.shape == targets.shape == (300, 4)
    pieces = {
        corpus.vocabulary.decode([*row, end[-1]])
        for row, end in zip(inputs.tolist(), targets.tolist(), strict=True)
    }
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert pieces == {TEXT[i : i + 5] for i in range(26)}


def test_a_seed_gives_one_batch_on_every_device(device):
    corpus = text.Corpus(TEXT)
    first = corpus.batch(3, 5, generator=seeded(1))
    again = corpus.batch(3, 5, generator=seeded(1), device=device)
    assert torch.equal(first[0], again[0].cpu()) and torch.equal(
        first[1], again[1].cpu()
    )
    assert again[0].device.type == device.type
    assert not torch.equal(first[0], corpus.batch(3, 5, generator=seeded(2))[0])


def test_windows_cover_the_validation_part_once():
    corpus = text.Corpus(TEXT, validation=0.5)  # 20 characters, so 19 targets
    inputs, targets = corpus.windows(6)
    assert inputs.shape == targets.shape == (3, 6)
    assert torch.equal(inputs.flatten(), corpus.validation[:18])
    assert torch.equal(targets.flatten(), corpus.validation[1:19])
    assert corpus.windows(19)[0].shape == (1, 19)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: text.Corpus(TEXT, validation=0.0), "leaves a part empty"),
        (lambda: text.Corpus(TEXT, validation=1.0), "leaves a part empty"),
        (lambda: text.Corpus("a"), "leaves a part empty"),
        (lambda: text.Corpus(TEXT).batch(0, 5), "batch=0"),
        (lambda: text.Corpus(TEXT).batch(1, 0), "length=0"),
        (lambda: text.Corpus(TEXT).batch(1, 36), "length=36.* below the 36 characters"),
        (lambda: text.Corpus(TEXT).windows(4), "length=4 must be from 1 to 3"),
        (lambda: text.Corpus(TEXT).windows(0), "length=0"),
        (lambda: text.dates(0), "batch=0"),
    ],
)
def test_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_the_topics_of_python_make_a_corpus():
    topics = text.python_topics()
    assert topics.count('The "assert" statement') == 1
    corpus = text.Corpus(topics)
    assert len(corpus.vocabulary) < 128
    assert abs(len(corpus.validation) - 0.1 * len(topics)) <= 1


FORMATS = ("%d %B %Y", "%B %d, %Y", "%d.%m.%Y", "%m/%d/%Y", "%b %d %Y")


def test_a_date_reads_in_exactly_one_format_and_that_is_the_answer():
    inputs, targets = text.dates(400, generator=seeded(3))
    assert inputs.shape == (400, 18) and targets.shape == (400, 10)
    seen = set()
    for row, answer in zip(inputs, targets, strict=True):
        written = text.DATE_CHARACTERS.decode(row).rstrip("_")
        expected = datetime.date.fromisoformat(text.DATE_CHARACTERS.decode(answer))
        read = {}
        for pattern in FORMATS:
            try:
                read[pattern] = datetime.datetime.strptime(written, pattern).date()
            except ValueError:
                continue
        assert set(read.values()) == {expected}, written
        assert 1900 <= expected.year < 2100
        seen |= set(read)
    assert seen == set(FORMATS)


def test_dates_come_out_the_same_on_every_device(device):
    first = text.dates(5, generator=seeded(1))
    again = text.dates(5, generator=seeded(1), device=device)
    assert torch.equal(first[0], again[0].cpu()) and torch.equal(
        first[1], again[1].cpu()
    )
