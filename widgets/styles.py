"""Style sheets for the few Qt widgets that we do not paint ourselves: text fields, scroll bars, menus."""

from __future__ import annotations

from widgets.theme import mix, theme


def scroll_style() -> str:
    """Thin scroll bars without arrows, and scroll areas without a frame."""
    t = theme()
    grip = mix(t.line, t.text, 0.18).name()
    return (
        "QScrollArea, QScrollArea > QWidget > QWidget#scrolled { background: transparent; border: none; }"
        "QScrollBar:vertical { background: transparent; width: 8px; margin: 0; }"
        "QScrollBar:horizontal { background: transparent; height: 8px; margin: 0; }"
        f"QScrollBar::handle {{ background: {grip}; border-radius: 3px; min-height: 24px; min-width: 24px; margin: 1px;"
        " }"
        f"QScrollBar::handle:hover {{ background: {mix(t.line, t.text, 0.4).name()}; }}"
        "QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }"
        "QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }")


def field_style() -> str:
    """A text field in a well: the prompt box, the inspector's texts."""
    t = theme()
    return (
        f"QPlainTextEdit, QTextEdit {{ background: {t.field}; color: {t.text}; border: 1px solid {t.line};"
        f" border-radius: 4px; padding: 4px 6px; selection-background-color: {t.accent};"
        f" selection-color: {t.on_accent}; placeholder-text-color: {t.secondary}; }}"
        f"QPlainTextEdit:focus {{ border-color: {t.accent}; }}"
        f"QPlainTextEdit:disabled {{ color: {t.secondary}; }}") + scroll_style()


def menu_style() -> str:
    """Pop-up menus of our own controls."""
    t = theme()
    return (
        f"QMenu {{ background: {t.panel}; color: {t.text}; border: 1px solid {t.outline.name()}; padding: 4px; }}"
        "QMenu::item { padding: 5px 20px 5px 24px; border-radius: 4px; }"
        f"QMenu::item:selected {{ background: {t.pressed.name()}; }}"
        f"QMenu::item:disabled {{ color: {t.secondary}; }}"
        f"QMenu::separator {{ height: 1px; background: {t.line}; margin: 4px 8px; }}")
