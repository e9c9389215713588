"""Right and wrong answers to the exercises of chapter 9."""

import torch

from attention_lib.checks import chapter09 as check

FOUND = {
    "no mask": {"causality", "twin"},
    "triangle upside down": {"causality", "twin"},
    "base 2": {"twin"},
    "divided by S": {"rows", "twin"},
    "not itself": {"rows", "twin"},
}


def replaced(attend, x, change=torch.randn_like, tokens=None, same=torch.equal):
    """The causality check, with parts that a wrong answer changes."""
    before = attend(x)
    for j in tokens or range(1, x.shape[1]):
        other = x.clone()
        other[:, j] = change(x[:, j])
        if not same(attend(other)[:, :j], before[:, :j]):
            return False
    return True


def in_place(attend, x):
    before = attend(x)
    x[:, -1] = 0.0
    return torch.equal(attend(x)[:, :-1], before[:, :-1])


def loose(a, b):
    return torch.allclose(a, b, atol=1e-2)


def bad(output):
    return not bool(output.isfinite().all())


def hunt(model, x, *, bad=bad, pick=0, remove=True):
    """The hunt with hooks, with parts that a wrong answer changes."""
    seen = []

    def watch(name):
        def look(module, args, output):
            if bad(output):
                seen.append(name)

        return look

    hooks = [m.register_forward_hook(watch(name)) for name, m in model.named_modules()]
    model(x)
    if remove:
        for hook in hooks:
            hook.remove()
    return seen[pick] if seen else None


def in_listed_order(model, x):
    """Names the first of the list, not the first that was called."""
    seen = set()

    def watch(name):
        def look(module, args, output):
            if bad(output):
                seen.add(name)

        return look

    hooks = [m.register_forward_hook(watch(name)) for name, m in model.named_modules()]
    model(x)
    for hook in hooks:
        hook.remove()
    inner = [name for name, m in model.named_modules() if not list(m.children())]
    return next((name for name in inner if name in seen), None)


SOLUTIONS = [
    (check.finders, FOUND.get),
    (check.is_causal, replaced),
    (check.first_nonfinite, hunt),
    (check.diagnosis, lambda: {"head split", "head merge"}),
]

WRONG = [
    # exercise 1
    (check.finders, lambda bug: {"twin"}, "causality is missing"),
    (check.finders, lambda bug: FOUND[bug] | {"shapes"}, "shapes does not find it"),
    (check.finders, lambda bug: FOUND[bug] - {"rows"}, "does every one give 1"),
    (check.finders, lambda bug: FOUND[bug] | {"loss"}, "no check 'loss'"),
    # exercise 2
    (check.is_causal, lambda f, x: f(x).shape == x.shape, "not shapes"),
    (check.is_causal, lambda f, x: replaced(f, x, lambda t: t + 3), "constant"),
    (check.is_causal, lambda f, x: replaced(f, x, lambda t: 3 * t), "factor"),
    (check.is_causal, lambda f, x: replaced(f, x, same=loose), "not for close"),
    (check.is_causal, lambda f, x: replaced(f, x, tokens=[1]), "not for close"),
    (check.is_causal, in_place, "caller's x"),
    (check.is_causal, lambda f, x: False, "is accused by"),
    # exercise 3
    (
        check.first_nonfinite,
        lambda m, x: hunt(m, x, bad=lambda y: bool(y.isnan().any())),
        "not a NaN yet",
    ),
    (check.first_nonfinite, lambda m, x: hunt(m, x, pick=-1), "1.1"),
    (check.first_nonfinite, lambda m, x: hunt(m, x, remove=False), "Hooks are left"),
    (check.first_nonfinite, in_listed_order, "order of the calls"),
    # exercise 4
    (check.diagnosis, lambda: {"head split"}, "now fails"),
    (check.diagnosis, lambda: {"head merge", "scale"}, "changes how much"),
    (check.diagnosis, lambda: {"head merge", "dropout"}, "list of suspects"),
    (check.diagnosis, lambda: "head merge", "set of two"),
]
