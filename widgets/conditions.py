"""Conditions to run until, in words, and the small editor for those on a gauge."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, QEvent, QPoint, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QGuiApplication, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QComboBox, QDoubleSpinBox, QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from engine.trace.conditions import GAUGES, Gauge, parse_gauge
from widgets.theme import theme


def gauge_name(name: str) -> str:
    """What people call the gauge."""
    return {
        "kv_use": QCoreApplication.translate("Conditions", "KV use"),
        "waiting": QCoreApplication.translate("Conditions", "waiting requests"),
        "running": QCoreApplication.translate("Conditions", "running requests"),
        "budget_use": QCoreApplication.translate("Conditions", "token budget used"),
        "itl_p99": "ITL p99",
        "ttft_p50": "TTFT p50",
        "step": QCoreApplication.translate("Conditions", "step time"),
        "tokens_per_s": QCoreApplication.translate("Conditions", "throughput"),
    }[name]


def gauge_text(gauge: Gauge) -> str:
    """Such as "KV use > 90 %"."""
    unit = GAUGES[gauge.name].unit
    return f"{gauge_name(gauge.name)} {'>' if gauge.above else '<'} {gauge.value:,.10g}{f' {unit}' if unit else ''}"


def condition_text(condition: str) -> str:
    """What playing runs until, in the language of the window; "" is the end."""
    kinds = {
        "": QCoreApplication.translate("Conditions", "the end"),
        "preemption": QCoreApplication.translate("Conditions", "next preemption"),
        "hit": QCoreApplication.translate("Conditions", "next prefix hit"),
        "chunk": QCoreApplication.translate("Conditions", "next chunk"),
        "eviction": QCoreApplication.translate("Conditions", "next eviction"),
        "finish": QCoreApplication.translate("Conditions", "next finished request"),
        "knob": QCoreApplication.translate("Conditions", "next knob change"),
    }
    if condition in kinds:
        return kinds[condition]
    try:
        gauge = parse_gauge(condition)
    except ValueError:
        gauge = None
    return gauge_text(gauge) if gauge is not None else condition


class GaugeEditor(QFrame):
    """A gauge, above or below, and a value. Emits ``chosen`` with the condition and goes; Escape or a click beside it
    closes it without. It begins with what was chosen last."""

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self._heading = QLabel()
        self._heading.setProperty("role", "secondary")
        self.gauge, self.direction = QComboBox(), QComboBox()
        self.value = QDoubleSpinBox()
        self.value.setMinimumWidth(96)
        self._unit = QLabel()
        self.run = QPushButton()
        self.run.setDefault(True)
        line = QHBoxLayout()
        line.setSpacing(8)
        for widget in (self.gauge, self.direction, self.value, self._unit):
            line.addWidget(widget)
        line.addStretch(1)
        line.addSpacing(8)
        line.addWidget(self.run)
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 12, 16, 16)
        column.setSpacing(8)
        column.addWidget(self._heading)
        column.addLayout(line)
        self._values = {name: kind.usual for name, kind in GAUGES.items()}
        self.retranslate()
        self._take_gauge()
        self.gauge.currentIndexChanged.connect(self._take_gauge)
        self.value.valueChanged.connect(self._keep_value)
        self.run.clicked.connect(self._accept)
        line_edit = self.value.lineEdit()
        line_edit.returnPressed.connect(self._accept)

    def retranslate(self) -> None:
        gauge, direction = max(0, self.gauge.currentIndex()), max(0, self.direction.currentIndex())
        self.gauge.blockSignals(True)
        self.gauge.clear()
        for name in GAUGES:
            self.gauge.addItem(gauge_name(name), name)
        self.gauge.setCurrentIndex(gauge)
        self.gauge.blockSignals(False)
        self.direction.clear()
        self.direction.addItem(self.tr("rises above"), True)
        self.direction.addItem(self.tr("falls below"), False)
        self.direction.setCurrentIndex(direction)
        self._heading.setText(self.tr("Play, and stop at the step in which"))
        self.run.setText(self.tr("Run"))

    def show_condition(self, condition: str) -> None:
        """Begin with ``condition``, if it is one on a gauge."""
        try:
            gauge = parse_gauge(condition) if condition else None
        except ValueError:
            gauge = None
        if gauge is not None:
            self._values[gauge.name] = gauge.value
            self.gauge.setCurrentIndex(self.gauge.findData(gauge.name))
            self.direction.setCurrentIndex(0 if gauge.above else 1)
            self._take_gauge()

    def condition(self) -> str:
        return Gauge(self.gauge.currentData(), bool(self.direction.currentData()), self.value.value()).text

    def pop_up(self, below: QWidget) -> None:
        """Open under ``below``, inside the screen."""
        self.adjustSize()
        at = below.mapToGlobal(QPoint(0, below.height() + 4))
        screen = (QGuiApplication.screenAt(at) or QGuiApplication.primaryScreen()).availableGeometry()
        self.move(max(screen.left(), min(at.x(), screen.right() - self.width())),
                  max(screen.top(), min(at.y(), screen.bottom() - self.height())))
        self.show()
        self.value.setFocus()
        self.value.selectAll()

    def _take_gauge(self) -> None:
        name = self.gauge.currentData()
        kind = GAUGES[name]
        value = self._values[name]
        self.value.blockSignals(True)
        self.value.setDecimals(1 if kind.unit in ("ms", "%") else 0)
        self.value.setRange(0, kind.largest)
        self.value.setSingleStep(5 if kind.unit else 1)
        self.value.setValue(value)
        self.value.blockSignals(False)
        self._unit.setText(kind.unit)

    def _keep_value(self, value: float) -> None:
        self._values[self.gauge.currentData()] = value

    def _accept(self) -> None:
        self.value.interpretText()
        self.hide()
        self.chosen.emit(self.condition())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), QColor(theme().panel))
        painter.setPen(QPen(theme().outline, 1))
        painter.drawRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5))

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
