"""The class edition leads nobody to a notebook with solutions.

`tools/class_edition.py` takes the solutions out and sets the value `class_edition`.
"""

LEADING_AWAY = ("colab", "repository")  # labels of buttons


def drop_buttons(app, pagename, templatename, context, doctree):
    """Take away the buttons that open the complete chapters."""
    if app.config.class_edition and "header_buttons" in context:
        context["header_buttons"] = [
            button
            for button in context["header_buttons"]
            if button.get("label") not in LEADING_AWAY
        ]


def setup(app):
    """Register the extension with Sphinx."""
    app.add_config_value("class_edition", False, "env")
    app.connect("html-page-context", drop_buttons, priority=503)  # after they are put
    return {"parallel_read_safe": True, "parallel_write_safe": True}
