# One environment, .venv, for everything. Stamps make the second time quick.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow check reference clean

demo: .venv/.installed
	$(BIN)/transformer-mt train configs/sample.toml
	$(BIN)/transformer-mt evaluate checkpoints/sample --samples 5
	@echo
	@echo "Translate German sentences of this kind (Ctrl-D ends):"
	@echo "    $(BIN)/transformer-mt translate checkpoints/sample"
	@echo "Train on text of your own: see \"Your own text\" in README.md."

# Two tests at once. With worksteal, most files have one process, and what they
# share is made once.
test: .venv/.installed-test
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: .venv/.installed-test
	$(BIN)/python -m pytest -m slow -n 2 --dist worksteal

check: .venv/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

# docs/reference.md, from the declarations of keys and options; table and pictures of docs/model.md.
reference: .venv/.installed
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_model.py

clean:
	rm -rf .venv checkpoints/sample

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

.venv/.installed-test: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[test]'
	touch .venv/.installed $@
