# make run    opens Cutaway            (ARGS="open FILE" and the like are passed on)
# make test   lints and tests it
# make setup  what both do first: an environment in .venv with everything in it; quick the second time
# make model  downloads and converts the default model, once; it stays in your cache folder
# make clean  removes the environment

VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := setup
.PHONY: setup run test lint model clean

export PIP_DISABLE_PIP_VERSION_CHECK := 1

setup: $(INSTALLED)
	@$(VENV_PYTHON) packaging/check_system.py

# The stamp is as new as the last installation; a changed pyproject.toml asks for another.
$(INSTALLED): pyproject.toml packaging/make_venv.sh
	@PYTHON="$(PYTHON)" packaging/make_venv.sh $(VENV)
	$(VENV_PYTHON) -m pip install --editable '.[dev]'
	@touch $@

run: setup
	$(VENV_PYTHON) -m app $(ARGS)

# Tests draw into memory unless QT_QPA_PLATFORM says otherwise. Without a network there may be no model; the tests
# that need it are then skipped, and say why.
test: lint model
	QT_QPA_PLATFORM=$${QT_QPA_PLATFORM:-offscreen} $(VENV_PYTHON) -m pytest --numprocesses auto $(ARGS)

lint: setup
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m mypy

model: setup
	@$(VENV_PYTHON) -m engine.model.prepare || echo "Going on without the default model."

clean:
	rm -rf $(VENV)
