"""The step-through figure as HTML: what it holds, and that it stands alone."""

import re
from html.parser import HTMLParser
from urllib.parse import unquote
from xml.etree import ElementTree

import matplotlib
import matplotlib.pyplot as plt
import pytest

from attention_lib import Stepper, plotting


@pytest.fixture(autouse=True)
def _agg():
    with matplotlib.rc_context():
        matplotlib.use("agg")
        plotting.use_style()
        yield
    plt.close("all")


def figures(count, size=(3, 2)):
    made = []
    for i in range(count):
        figure, ax = plt.subplots(figsize=size)
        ax.plot([0, 1], [0, i / 3], label=f'"{i}" & <more>')
        ax.legend()
        made.append(figure)
    return made


class Tags(HTMLParser):
    """Tags with their attributes, in order."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def of(self, tag):
        return [attrs for name, attrs in self.found if name == tag]


def test_each_step_is_a_figure_with_its_caption_and_alt():
    stepper = Stepper(figures(3), ["one", "two <b>", "three"], ["a", 'b "q"', "c"])
    text = stepper._repr_html_()
    tags = Tags(text)
    assert [img["alt"] for img in tags.of("img")] == ["a", 'b "q"', "c"]
    assert re.findall(r"<figcaption>(.*?)</figcaption>", text) == [
        "1. one",
        "2. two &lt;b&gt;",
        "3. three",
    ]
    assert len(tags.of("figure")) == 3


def test_the_caption_is_the_alt_where_none_is_given():
    tags = Tags(Stepper(figures(2), ["one", "two"])._repr_html_())
    assert [img["alt"] for img in tags.of("img")] == ["one", "two"]


def test_every_picture_is_well_formed_svg_without_date_or_outside_address():
    stepper = Stepper(figures(2), ["one", "two"])
    for img, frame in zip(
        Tags(stepper._repr_html_()).of("img"), stepper.frames, strict=True
    ):
        kind, _, data = img["src"].partition(",")
        assert kind == "data:image/svg+xml"
        root = ElementTree.fromstring(unquote(data))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.attrib["width"] == "216pt"
        assert len(root.findall(".//{*}path")) > 3
        for word in ("metadata", "matplotlib", "<!--", "dc:date"):
            assert word not in frame
        outside = re.findall(r"https?://[^\"' )]+", frame)
        assert set(outside) <= {
            "http://www.w3.org/2000/svg",
            "http://www.w3.org/1999/xlink",
        }


def test_numbers_keep_two_decimals_and_the_curve_its_place():
    figure = plt.figure(figsize=(3, 2), layout="none")
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, 3), ylim=(0, 2))
    ax.plot([1 / 7, 2 / 7, 20 / 7], [1 / 3, 5 / 3, 1 / 3], color="#123456")
    frame = Stepper([figure], ["one"]).frames[0]
    decimals = re.findall(r"\.(\d+)", "".join(paths(frame)))
    assert max(map(len, decimals)) == 2
    (curve,) = re.findall(r'd="([^"]*)"[^>]*stroke: #123456', frame)
    numbers = [float(number) for number in re.findall(r"[\d.]+", curve)]
    # 72 points an inch, y downwards from 144 points.
    expected = [72 / 7, 144 - 72 / 3, 144 / 7, 144 - 360 / 3, 1440 / 7, 144 - 72 / 3]
    assert numbers == pytest.approx(expected, abs=0.01)


def paths(frame):
    return re.findall(r' d="([^"]*)"', frame)


def test_the_same_figures_give_the_same_bytes():
    first = Stepper(figures(2), ["one", "two"])._repr_html_()
    assert Stepper(figures(2), ["one", "two"])._repr_html_() == first


def test_a_frame_is_far_smaller_than_matplotlib_writes_it():
    import io

    figure, ax = plt.subplots(figsize=(3, 2))
    ax.plot([i / 7 for i in range(200)], [i * i / 9 for i in range(200)])
    out = io.StringIO()
    figure.savefig(out, format="svg")
    frame = Stepper([figure], ["one"]).frames[0]
    assert len(frame) < 0.85 * len(out.getvalue())


def test_the_repr_is_the_captions_and_the_figures_are_closed():
    made = figures(2)
    stepper = Stepper(made, ["one", "two"])
    assert repr(stepper) == "Stepper with 2 steps:\n  1. one\n  2. two"
    assert not set(plt.get_fignums()) & {figure.number for figure in made}


def test_words_of_another_language_reach_the_controls():
    stepper = Stepper(figures(1), ["eins"], words={"next": 'Weiter "jetzt"'})
    (box,) = [a for a in Tags(stepper._repr_html_()).of("div") if a.get("role")]
    assert box["data-next"] == 'Weiter "jetzt"' and box["data-back"] == "Previous step"
    assert box["aria-label"] == "Steps"


def test_style_and_script_come_with_it_and_name_nothing_outside():
    text = Stepper(figures(1), ["one"])._repr_html_()
    script = text[text.index("<script>") :]
    assert ".stepper" in text[text.index("<style>") :] and "data-ready" in script
    assert not re.search(r"https?:|import |fetch\(|innerHTML", script)
    assert not re.search(r"@import|url\(", text[text.index("<style>") :])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0, []), "figures, captions and alts hold 0, 0 and 0"),
        ((2, ["one"]), "hold 2, 1 and 1, expected the same number"),
        ((2, ["one", "two"], ["one"]), "hold 2, 2 and 1"),
        ((2, ["one", " "]), "must not be empty"),
        ((2, ["one", "two"], ["one", ""]), "must not be empty"),
        ((1, ["one"], None, {"forth": "x"}), r"unknown keys \['forth'\]"),
    ],
)
def test_stepper_refuses(arguments, match):
    count, *rest = arguments
    with pytest.raises(ValueError, match=match):
        Stepper(figures(count), *rest)


def test_stepper_refuses_figures_of_different_sizes():
    with pytest.raises(ValueError, match=r"sizes .*2.0, 2.0.*3.0, 2.0.* one size"):
        Stepper([*figures(1), *figures(1, size=(2, 2))], ["one", "two"])
