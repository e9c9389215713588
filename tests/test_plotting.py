"""What the figures say: which numbers, where, in which colour, and what they refuse."""

import hashlib
import io
import itertools
import subprocess
import sys

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_rgb

from attention_lib import attention_steps, plotting

LETTERS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


@pytest.fixture(autouse=True)
def _fresh_figures():
    with matplotlib.rc_context():
        matplotlib.use("agg")
        yield
    plt.close("all")


def cells(ax):
    """The text of each cell by (row, column)."""
    return {
        (round(text.get_position()[1] - 0.5), round(text.get_position()[0] - 0.5)): text
        for text in ax.texts
    }


def drawn(ax):
    """The array of the heat map, hidden cells masked."""
    return ax.collections[0].get_array()


def svg(figure):
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


# Heat map


def test_rows_are_queries_from_the_top_and_columns_are_keys():
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.5, 0.5]])
    ax = plotting.heatmap(weights, ["a", "b"], ["x", "y", "z"])
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("query", "key")
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["x", "y", "z"]
    top, bottom = (ax.transData.transform((0.5, y))[1] for y in (0.5, 1.5))
    assert top > bottom
    assert {at: text.get_text() for at, text in cells(ax).items()} == {
        (0, 0): "0.70",
        (0, 1): "0.20",
        (0, 2): "0.10",
        (1, 0): "0.00",
        (1, 1): "0.50",
        (1, 2): "0.50",
    }
    torch.testing.assert_close(torch.tensor(drawn(ax).filled()), weights.double())


def test_colours_span_0_to_1_so_that_maps_compare():
    ax = plotting.heatmap(torch.tensor([[0.25, 0.75]]))
    assert ax.collections[0].get_clim() == (0.0, 1.0)
    ax = plotting.heatmap(torch.tensor([[0.25, 0.75]]), vmin=-1, vmax=3)
    assert ax.collections[0].get_clim() == (-1, 3)


def test_hidden_cells_are_blank_over_hatching_and_small_ones_are_not():
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.4, 0.6, 0.0]])
    keep = torch.tensor([[True, False, False], [True, True, True]])
    ax = plotting.heatmap(weights, keep=keep)
    assert drawn(ax).mask.tolist() == (~keep).tolist()
    assert set(cells(ax)) == {(0, 0), (1, 0), (1, 1), (1, 2)}
    assert ax.patch.get_hatch()
    assert not drawn(plotting.heatmap(weights)).mask.any()


def test_keep_broadcasts_and_may_have_leading_axes_of_size_1():
    weights = torch.full((2, 3), 0.5)
    for keep in (torch.tensor([True, True, False]),) * 2:
        assert drawn(plotting.heatmap(weights, keep=keep)).mask[:, 2].all()
        keep = keep.view(1, 1, 3)
        assert drawn(plotting.heatmap(weights, keep=keep)).mask.sum() == 2


def test_nan_is_written_even_without_values_and_never_looks_hidden():
    weights = torch.tensor([[torch.nan, 0.5]])
    ax = plotting.heatmap(weights, values=False)
    assert {at: t.get_text() for at, t in cells(ax).items()} == {(0, 0): "nan"}


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]
)
def test_takes_any_real_dtype(dtype):
    ax = plotting.heatmap(torch.tensor([[0, 1, 1], [1, 0, 1]], dtype=dtype))
    assert drawn(ax).tolist() == [[0, 1, 1], [1, 0, 1]]


def test_takes_what_requires_grad_and_lives_elsewhere(device):
    weights = torch.rand(2, 3, device=device, requires_grad=True)
    keep = torch.ones(2, 3, dtype=torch.bool, device=device)
    ax = plotting.heatmap(weights * 1, keep=keep)
    torch.testing.assert_close(
        torch.tensor(drawn(ax).filled()), weights.detach().cpu().double()
    )
    assert weights.grad is None


def contrast(first, second):
    """Contrast ratio of WCAG 2."""

    def luminance(color):
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def inverted(color):
    """The colour under CSS ``invert(.93) hue-rotate(180deg)``."""
    red, green, blue = (0.93 - 0.86 * c for c in color)
    twice_grey = 2 * (0.213 * red + 0.715 * green + 0.072 * blue)
    return [min(max(twice_grey - c, 0), 1) for c in (red, green, blue)]


@pytest.mark.parametrize("cmap", ["Blues", "Greens", "Greys"])
def test_a_value_is_legible_on_its_cell_in_light_and_dark_mode(cmap):
    ax = plotting.heatmap(torch.linspace(0, 1, 12).view(3, 4), cmap=cmap)
    ax.figure.draw_without_rendering()
    shades = ax.collections[0].get_facecolors().reshape(3, 4, 4)
    ratios = []
    for (i, j), text in cells(ax).items():
        ink, paper = to_rgb(text.get_color()), shades[i, j, :3].tolist()
        ratios += [contrast(ink, paper), contrast(inverted(ink), inverted(paper))]
    assert len(ratios) == 24 and min(ratios) >= 3.1
    assert sorted(ratios)[4] >= 4.5  # all but a few in the middle of the map


@pytest.mark.parametrize("shape", [(3, 3), (2, 7), (14, 14)])
def test_values_stay_inside_their_cells(shape):
    with matplotlib.rc_context():
        plotting.use_style()
        ax = plotting.heatmap(torch.full(shape, 0.88))
        ax.figure.canvas.draw()
        assert len(ax.texts) == shape[0] * shape[1]
        corner, next_corner = ax.transData.transform([(0, 0), (1, 1)])
        width, height = abs(next_corner - corner)
        for text in ax.texts:
            box = text.get_window_extent()
            assert box.width < width and box.height < height


def test_values_too_small_to_read_are_left_out():
    assert not plotting.heatmap(torch.full((40, 40), 0.5)).texts
    assert not plotting.heatmap(torch.full((3, 3), 0.5), values=False).texts


def test_fmt_is_a_format_or_a_function_and_minus_is_a_minus():
    matrix = torch.tensor([[-0.5, 1.0]])
    ax = plotting.heatmap(matrix, fmt="{:.1f}", vmin=-1)
    assert [t.get_text() for t in ax.texts] == ["\N{MINUS SIGN}0.5", "1.0"]
    ax = plotting.heatmap(matrix, fmt=lambda w: f"<{w:g}>", vmin=-1)
    assert [t.get_text() for t in ax.texts] == ["<\N{MINUS SIGN}0.5>", "<1>"]


def test_positions_are_written_without_tokens_and_thinned_out_when_many():
    ax = plotting.heatmap(torch.zeros(2, 3))
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "1", "2"]
    ax = plotting.heatmap(torch.zeros(2, 200))
    labels = [int(t.get_text()) for t in ax.get_xticklabels()]
    assert labels[0] == 0 and 5 < len(labels) < 40
    assert [round(at - 0.5) for at in ax.get_xticks()] == labels


def test_long_tokens_are_turned_so_that_they_do_not_overlap():
    tokens = ["internationalisation"] * 6
    ax = plotting.heatmap(torch.zeros(6, 6), tokens, tokens)
    ax.figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert all(a.x1 <= b.x0 for a, b in itertools.pairwise(boxes))


def test_draws_on_the_axes_given_and_shows_nothing(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda *a, **k: pytest.fail("show was called"))
    _, (left, right) = plt.subplots(1, 2)
    before = plt.get_fignums()
    assert plotting.heatmap(torch.eye(2), ax=right, title="eye") is right
    assert right.get_title() == "eye" and not left.collections
    assert plt.get_fignums() == before


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"weights": torch.zeros(2, 8, 5, 7)}, ValueError, r"weights\[0, 0\]"),
        (
            {"weights": torch.zeros(8, 5, 7)},
            ValueError,
            r"one head, as in weights\[0\]",
        ),
        ({"weights": torch.zeros(5)}, ValueError, r"shape \(5,\), expected \(L, S\)"),
        ({"weights": torch.zeros(0, 5)}, ValueError, r"\(0, 5\)"),
        ({"weights": torch.zeros(2, 3, dtype=torch.complex64)}, TypeError, "complex64"),
        ({"queries": "abc"}, ValueError, "queries holds 3 tokens, expected 2"),
        ({"keys": "ab"}, ValueError, "keys holds 2 tokens, expected 3"),
        ({"keep": torch.ones(2, 3)}, TypeError, "float32, expected torch.bool"),
        (
            {"keep": torch.ones(3, 2, dtype=torch.bool)},
            ValueError,
            r"keep has shape \(3, 2\)",
        ),
        (
            {"keep": torch.ones(4, 2, 3, dtype=torch.bool)},
            ValueError,
            r"keep has shape \(4, 2, 3\)",
        ),
    ],
)
def test_heatmap_refuses(arguments, error, match):
    with pytest.raises(error, match=match):
        plotting.heatmap(**{"weights": torch.zeros(2, 3), **arguments})


# Heads


def test_heads_draws_every_head_once_in_order():
    weights = torch.rand(5, 2, 3)
    figure = plotting.heads(weights, "ab", "xyz", columns=2)
    assert [ax.get_title() for ax in figure.axes] == [f"head {h}" for h in range(5)]
    for ax, matrix in zip(figure.axes, weights, strict=True):
        torch.testing.assert_close(torch.tensor(drawn(ax).filled()), matrix.double())
    names = [[t.get_text() for t in ax.get_xticklabels()] for ax in figure.axes]
    assert names == [[], [], [], ["x", "y", "z"], ["x", "y", "z"]]
    names = [[t.get_text() for t in ax.get_yticklabels()] for ax in figure.axes]
    assert names == [["a", "b"], [], ["a", "b"], [], ["a", "b"]]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"weights": torch.zeros(2, 3)}, r"\(2, 3\), expected \(H, L, S\)"),
        ({"columns": 0}, "columns=0"),
        ({"titles": ["one"]}, "titles holds 1 titles, expected 5"),
    ],
)
def test_heads_refuses(arguments, match):
    with pytest.raises(ValueError, match=match):
        plotting.heads(**{"weights": torch.zeros(5, 2, 3), **arguments})


# Steps


def titles(figure):
    return [ax.get_title() for ax in figure.axes if ax.get_title()]


def words(figure):
    """What stands between the panels."""
    return [t.get_text() for ax in figure.axes if not ax.get_title() for t in ax.texts]


def test_steps_shows_only_what_differs():
    plain = attention_steps(LETTERS, LETTERS, LETTERS)
    assert titles(plotting.steps(plain)) == ["scores", "weights", "output"]
    causal = attention_steps(LETTERS, LETTERS, LETTERS, is_causal=True)
    assert titles(plotting.steps(causal)) == ["scores", "masked", "weights", "output"]
    both = attention_steps(LETTERS, LETTERS, LETTERS, is_causal=True, softcap=0.5)
    figure = plotting.steps(both, value=LETTERS)
    assert titles(figure) == [
        "scores",
        "capped",
        "masked",
        "weights",
        "value",
        "output",
    ]


def test_steps_says_what_leads_from_one_to_the_next():
    plain = attention_steps(LETTERS, LETTERS, LETTERS)
    spoken = [word for word in words(plotting.steps(plain)) if word]
    assert spoken == ["softmax", "by row", "@ value"]
    spoken = [word for word in words(plotting.steps(plain, value=LETTERS)) if word]
    assert spoken == ["softmax", "by row", "@", "="]
    hidden = attention_steps(LETTERS, LETTERS, LETTERS, is_causal=True)
    assert "hide" in words(plotting.steps(hidden))
    bias = torch.tensor([[0.0, -1.0, -2.0]])
    shifted = attention_steps(LETTERS, LETTERS, LETTERS, attn_mask=bias)
    assert "add" in words(plotting.steps(shifted))


def test_steps_of_unequal_lengths_and_widths():
    query, key, value = torch.rand(2, 5), torch.rand(4, 5), torch.rand(4, 3)
    keep = torch.tensor([[True, True, False, False], [False] * 4])
    steps = attention_steps(query, key, value, attn_mask=keep)
    figure = plotting.steps(steps, "ab", "wxyz", value=value)
    panels = {ax.get_title(): ax for ax in figure.axes if ax.get_title()}
    assert drawn(panels["weights"]).mask.tolist() == (~keep).tolist()
    assert drawn(panels["masked"]).mask.tolist() == (~keep).tolist()
    assert not drawn(panels["scores"]).mask.any()
    assert drawn(panels["value"]).shape == (4, 3)
    torch.testing.assert_close(
        torch.tensor(drawn(panels["output"]).filled()), steps.output.double()
    )
    labels = [(ax.get_ylabel(), ax.get_xlabel()) for ax in panels.values()]
    assert labels == [("query", "key")] * 3 + [("key", "feature"), ("query", "feature")]


def test_steps_takes_gradients_and_writes_by_its_formats():
    x = LETTERS.clone().requires_grad_()
    steps = attention_steps(x, x, x)
    figure = plotting.steps(steps, "ABC", "ABC", fmt="{:.1f}", score_fmt="{:.3f}")
    panels = {ax.get_title(): ax for ax in figure.axes if ax.get_title()}
    assert {len(text.get_text()) for text in panels["scores"].texts} == {5}
    assert {len(text.get_text()) for text in panels["weights"].texts} == {3}


def test_steps_refuses_batches_and_no_columns():
    x = torch.rand(2, 3, 5, 4)
    with pytest.raises(ValueError, match=r"steps.scores has shape .*one head"):
        plotting.steps(attention_steps(x, x, x))
    plain = attention_steps(LETTERS, LETTERS, LETTERS)
    with pytest.raises(ValueError, match="columns=0"):
        plotting.steps(plain, columns=0)
    with pytest.raises(
        ValueError, match=r"value has shape \(2, 3\), expected \(3, 2\)"
    ):
        plotting.steps(plain, value=LETTERS.T)


def test_steps_with_a_nan_repeats_no_panel():
    x = LETTERS.clone()
    x[0, 0] = torch.nan
    figure = plotting.steps(attention_steps(x, x, x))
    assert titles(figure) == ["scores", "weights", "output"]


# Spread


def test_spread_draws_the_median_the_range_and_every_run():
    runs = torch.tensor([[1.0, 5.0], [2.0, 9.0], [6.0, 7.0]])
    ax = plotting.spread([10, 20], runs, label="ours")
    median, *each = ax.lines
    assert median.get_ydata().tolist() == [2.0, 7.0] and median.get_label() == "ours"
    assert [line.get_ydata().tolist() for line in each] == runs.tolist()
    assert len({line.get_color() for line in ax.lines}) == 1
    assert all(line.get_linewidth() < median.get_linewidth() for line in each)
    band = ax.collections[0].get_paths()[0].vertices
    assert band[band[:, 0] == 10, 1].min() == 1 and band[band[:, 0] == 10, 1].max() == 6
    assert band[band[:, 0] == 20, 1].min() == 5 and band[band[:, 0] == 20, 1].max() == 9
    labels = ax.get_legend_handles_labels()[1]
    assert labels == ["ours"]


def test_spread_leaves_missing_points_out():
    ax = plotting.spread([1, 2], [[1.0, float("nan")], [3.0, 4.0], [5.0, 6.0]])
    assert ax.lines[0].get_ydata().tolist()[0] == 3.0
    band = ax.collections[0].get_paths()[0].vertices
    assert band[band[:, 0] == 2, 1].min() == 4 and band[band[:, 0] == 2, 1].max() == 6


def test_a_second_spread_on_the_same_axes_takes_the_next_colour():
    ax = plotting.spread([1, 2], torch.rand(3, 2))
    assert plotting.spread([1, 2], torch.rand(3, 2), ax=ax) is ax
    assert ax.lines[0].get_color() != ax.lines[4].get_color()


@pytest.mark.parametrize(
    "runs", [[1.0, 2.0], [[1.0, 2.0, 3.0]], torch.zeros(0, 2), torch.zeros(2, 3)]
)
def test_spread_refuses_what_is_not_one_row_per_seed(runs):
    with pytest.raises(ValueError, match="runs has shape"):
        plotting.spread([1, 2], runs)


# Flow


def test_flow_draws_each_box_and_arrow():
    boxes = {"x": (0, 0.5, "(B, L, E)"), "query": (1, 0, "(B, L, D)"), "key": (1, 1)}
    arrows = [("x", "query", "W_q"), ("x", "key"), ("query", "key")]
    ax = plotting.flow(boxes, arrows, highlight=["key"])
    texts = [t.get_text() for t in ax.texts]
    assert {"x", "query", "key", "(B, L, E)", "(B, L, D)", "W_q"} <= set(texts)
    assert len(ax.patches) == 6
    places = {t.get_text(): t.get_position() for t in ax.texts}
    assert places["query"][1] > places["x"][1] > places["key"][1]
    assert places["x"][0] < places["query"][0] == places["key"][0]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"boxes": {}}, "at least one box"),
        ({"arrows": [("a", "c")]}, r"no box is named \['c'\]"),
        ({"highlight": ["z"]}, r"no box is named \['z'\]"),
    ],
)
def test_flow_refuses(arguments, match):
    with pytest.raises(ValueError, match=match):
        plotting.flow(**{"boxes": {"a": (0, 0), "b": (1, 0)}, **arguments})


# Style


def test_colours_can_be_told_apart_by_lightness_or_line():
    assert len(set(plotting.COLORS)) == 4
    plotting.use_style()
    cycle = list(matplotlib.rcParams["axes.prop_cycle"])
    assert [entry["color"] for entry in cycle] == list(plotting.COLORS)
    assert len({entry["linestyle"] for entry in cycle}) == 4


DRAW = """
import hashlib, sys
import matplotlib
matplotlib.use("agg")
import torch
from attention_lib import attention_steps, plotting
sys.path.insert(0, "tests")
from test_plotting import LETTERS, svg
plotting.use_style()
steps = attention_steps(LETTERS, LETTERS, LETTERS, is_causal=True)
figure = plotting.steps(steps, "ABC", "ABC", value=LETTERS)
print(hashlib.sha256(svg(figure).encode()).hexdigest())
"""


def test_the_same_code_draws_the_same_bytes_in_another_process(pytestconfig):
    plotting.use_style()
    steps = attention_steps(LETTERS, LETTERS, LETTERS, is_causal=True)
    here = svg(plotting.steps(steps, "ABC", "ABC", value=LETTERS))
    run = subprocess.run(
        [sys.executable, "-c", DRAW],
        capture_output=True,
        text=True,
        cwd=pytestconfig.rootpath,
        check=False,
    )
    assert run.stdout.strip() == hashlib.sha256(here.encode()).hexdigest(), run.stderr


def test_figures_in_a_kernel_are_svg_with_png_beside_it(monkeypatch):
    from matplotlib_inline import backend_inline

    from attention_lib.plotting import _style

    asked = []
    monkeypatch.setattr(_style, "_in_jupyter", lambda: True)
    monkeypatch.setattr(
        backend_inline, "set_matplotlib_formats", lambda *f, **k: asked.append((f, k))
    )
    plotting.use_style()
    assert asked == [(("svg", "png"), {"metadata": {"Date": None, "Creator": None}})]
