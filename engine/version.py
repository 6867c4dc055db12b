"""The program's version, for recordings and for ``--version``. The packaging reads it from here."""

VERSION = "0.1.0"
