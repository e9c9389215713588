"""Whatever a subject does, it is reported, and the caller's things stay as they were."""

import time

import pytest
import torch
from faults import E, Plain
from torch import nn

from attention_lib import MultiHeadAttention
from attention_lib.doctor import UnknownSubject, dependency_map
from attention_lib.doctor.examination import run_examination
from attention_lib.doctor.probing import TimeUp, time_limit


def codes(subject, kind="attention", **declared):
    examination = run_examination(subject, kind, **{"embed_dim": E, **declared})
    return [f.code for f in examination.findings]


# Subjects that misbehave --------------------------------------------------------------


def raises(x):
    raise RuntimeError("no luck")


def leaves(x):
    raise SystemExit(3)


@pytest.mark.parametrize(
    "subject",
    [
        raises,
        leaves,
        lambda x: None,
        lambda x: "text",
        lambda x: x.long(),
        lambda x: x[0],
        lambda x: x[:, :1],
        lambda x: [],
        lambda x: {"out": 3},
    ],
    ids=[
        *("raises", "exits", "nothing", "text", "integers", "one axis less"),
        *("one token", "empty list", "no tensor"),
    ],
)
def test_no_answer_is_reported(subject):
    assert codes(subject) == ["AT900"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_answer_that_is_not_finite_is_reported(value):
    assert codes(lambda x: x * value)[0] in ("AT503", "AT100")


def test_a_constant_is_vacuous():
    examination = run_examination(lambda x: torch.zeros_like(x), embed_dim=E)
    assert [f.code for f in examination.findings] == ["AT100"]
    assert not examination.passed


def test_a_zero_output_projection_is_vacuous_and_named():
    layer = MultiHeadAttention(E, 2)
    nn.init.zeros_(layer.out_proj.weight)
    found = run_examination(layer).findings[0]
    assert found.code == "AT100" and "out_proj.weight" in found.causes[0].text


def test_an_endless_loop_is_interrupted():
    def loops(x):
        while x.shape[1] == 9:
            time.sleep(0.01)
        return x.cumsum(1)

    examination = run_examination(loops, embed_dim=E, causal="always", deadline=0.3)
    every = [*examination.findings]
    every += [g for f in examination.findings for g in f.follows]
    assert "AT901" in [f.code for f in every]


def test_a_mapping_and_an_output_object_are_read():
    plain = Plain().double()

    def mapping(x, mask=None, causal=False):
        return {"out": plain(x, mask=mask, causal=causal)}

    assert "AT900" not in codes(mapping)


def test_an_object_with_attend_is_called():
    class Holder:
        def __init__(self):
            self.module = Plain()

        def attend(self, x, **how):
            return self.module(x, **how)

    assert not [c for c in codes(Holder().attend, num_heads=2) if c != "AT501"]
    assert not [c for c in codes(Holder(), num_heads=2) if c != "AT501"]


def test_an_unknown_signature_prints_the_adapter_to_write():
    with pytest.raises(UnknownSubject, match="def attend") as caught:
        run_examination(lambda x, spectrum: x, embed_dim=E)
    assert "'spectrum'" in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"causal": True}, "causal=True must be one of"),
        ({"masks": "padding"}, "masks='padding' must be one of"),
        ({"pattern": "window"}, "pattern='window' must be"),
        ({"pattern": "stripes:3"}, "pattern='stripes:3' must be"),
        ({"embed_dim": 0}, "embed_dim=0 must be an integer"),
        ({"allow": {"AT201": ""}}, "to a reason"),
        ({"kind": "lstm"}, "kind='lstm' must be one of"),
    ],
)
def test_a_declaration_without_meaning_is_refused(declared, words):
    with pytest.raises(ValueError, match=words):
        run_examination(Plain(), **declared)


def test_the_width_is_found_out():
    assert not codes(nn.Sequential(nn.Linear(6, 6)), embed_dim=None).count("AT900")


# What is meant ------------------------------------------------------------------------


def test_an_allowed_code_is_printed_and_not_counted():
    class Averages(Plain):
        def normalise(self, z, keep):
            w = torch.sigmoid(z)
            return w if keep is None else w * keep

    found = run_examination(Averages(), allow={"AT201": "a gate, not a mean"})
    assert not [f for f in found.findings if f.severity == "fault"]
    assert found.allowed[0][0].code == "AT201"
    assert found.allowed[0][1] == "a gate, not a mean"


def test_the_line_to_repeat_it_holds_what_was_declared():
    found = run_examination(Plain(), causal="flag", num_heads=2, seed=3)
    assert found.repeat == (
        "examine(subject, \"attention\", num_heads=2, causal='flag', seed=3)"
    )
    assert found.declared == {"num_heads": 2, "causal": "flag"}


# What stays as it was -----------------------------------------------------------------


@pytest.mark.parametrize("through", ["module", "closure", "method"])
def test_the_subject_is_not_changed(through):
    class Counts(Plain):
        def __init__(self):
            super().__init__(p=0.1)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x, **how):
            self.calls = self.calls + 1
            return super().forward(x, **how)

    module = Counts().train()
    module.wq.eval()
    module.wk.weight.requires_grad_(False)
    module.wv.weight.grad = torch.ones(E, E)
    state = {k: v.clone() for k, v in module.state_dict().items()}

    def closure(x, mask=None, causal=False):
        return module(x, mask=mask, causal=causal)

    subject = {"module": module, "closure": closure, "method": module.forward}[through]
    run_examination(subject, embed_dim=E)
    assert module.training and not module.wq.training
    assert not module.wk.weight.requires_grad
    assert torch.equal(module.wv.weight.grad, torch.ones(E, E))
    assert module.wq.weight.dtype == torch.float32
    for key, value in module.state_dict().items():
        assert torch.equal(value, state[key])


def test_the_surroundings_are_not_changed():
    def meddles(x):
        torch.manual_seed(0)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        return x.cumsum(1)

    before = torch.get_rng_state()
    run_examination(meddles, embed_dim=E)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()


def test_two_examinations_agree():
    first, second = (run_examination(Plain(), seed=1) for _ in range(2))
    assert [f.evidence.text for f in first.findings] == [
        f.evidence.text for f in second.findings
    ]


def test_the_time_limit_gives_back_the_alarm():
    with pytest.raises(TimeUp), time_limit(0.05):
        while True:
            time.sleep(0.01)
    time.sleep(0.1)  # nothing goes off any more


# The map ------------------------------------------------------------------------------


def test_dependency_map_of_a_causal_layer():
    layer = MultiHeadAttention(E, 2)
    size = dependency_map(layer, torch.randn(2, 4, E), causal=True)
    assert torch.equal(size > 0, torch.ones(4, 4, dtype=torch.bool).tril())


def test_dependency_map_of_a_context():
    layer = MultiHeadAttention(E, 2).double()
    x, context = (torch.randn(2, n, E, dtype=torch.float64) for n in (3, 5))
    assert dependency_map(layer, x, context=context).shape == (3, 5)


def test_dependency_map_says_what_was_raised():
    with pytest.raises(RuntimeError, match="no luck"):
        dependency_map(raises, torch.randn(1, 2, E))


def test_a_subject_that_cannot_be_copied_is_set_back():
    class Alone(Plain):
        def __deepcopy__(self, memo):
            raise TypeError("one of a kind")

    module = Alone().train()
    weight = module.wq.weight
    before = weight.detach().clone()
    run_examination(module)
    assert module.training and module.wq.weight is weight
    assert weight.dtype == torch.float32 and torch.equal(weight, before)


def test_a_class_is_made_with_the_declared_sizes():
    examination = run_examination(Plain, embed_dim=9, num_heads=3, causal="flag")
    assert not [f for f in examination.findings if f.severity == "fault"]

    class Needs(nn.Module):
        def __init__(self, spectrum):
            super().__init__()

    with pytest.raises(UnknownSubject, match="it is a class"):
        run_examination(Needs)


def test_a_dtype_that_is_promised_makes_a_fault_of_a_note():
    def attend(x, mask=None):
        z = x @ x.mT
        z = z if mask is None else z.masked_fill(~mask, -1e9)
        return z.softmax(-1) @ x

    declared = {"embed_dim": E, "masks": "any"}
    noted = run_examination(attend, **declared).findings
    assert ("AT502", "note") in [(f.code, f.severity) for f in noted]
    found = run_examination(attend, dtype=torch.float16, **declared).findings
    assert ("AT502", "fault") in [(f.code, f.severity) for f in found]


def test_a_subject_that_runs_in_float32_alone_is_examined_there():
    plain = Plain()

    def attend(x, mask=None, causal=False):
        assert x.dtype == torch.float32
        return plain(x, mask=mask, causal=causal)

    examination = run_examination(attend, embed_dim=E, num_heads=2)
    assert examination.dtype == "float32"
    assert not [f for f in examination.findings if f.severity == "fault"]
