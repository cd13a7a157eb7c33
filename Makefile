# Two commands: `make demo` and `make test`. Both make what they need, also on a machine that has only
# Python 3.11 or later (Debian, Ubuntu): a venv, the packages, for the tests a browser and a C compiler.
PYTHON ?= python3
VENV = .venv
TEST_VENV = .venv-test
BIN = $(TEST_VENV)/bin
SUDO = $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT = $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq --no-install-recommends
BROWSER = $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
COMPILER = $(shell command -v cc || command -v gcc || command -v clang)
PAGE = tb_plugin/frontend
BUILT_FROM = pyproject.toml hatch_build.py inc_tb/_stats.c $(shell find $(PAGE) -name node_modules -prune -o -type f -print)
# node and npm come from PyPI with the other test tools.
NPM = cd $(PAGE) && PATH="$(abspath $(BIN)):$$PATH" npm

.PHONY: demo test lint tests browser compiler bench screenshots clean

demo: $(VENV)/ready
	$(VENV)/bin/inc-tb demo

test: lint tests

lint: $(TEST_VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(NPM) run check

tests: $(TEST_VENV)/ready browser
	$(NPM) test
	$(BIN)/pytest

bench: $(TEST_VENV)/ready browser
	$(BIN)/python benchmarks/stats.py
	$(BIN)/python benchmarks/diagnose.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.ranking
	$(BIN)/python -m benchmarks.probe
	$(BIN)/python -m benchmarks.tune
	$(BIN)/python -m benchmarks.torch
	$(BIN)/python -m benchmarks.torch_ranking
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.tensorflow
	$(BIN)/python -m benchmarks.times --threads 1

screenshots: $(TEST_VENV)/ready browser
	$(BIN)/python -m tests.browser.screenshots

$(VENV)/ready: $(BUILT_FROM)
	$(call make-venv,$(VENV))
	$(VENV)/bin/pip install -q --disable-pip-version-check -e ".[onnx]"
	touch $@

$(TEST_VENV)/ready: $(BUILT_FROM) | compiler
	$(call make-venv,$(TEST_VENV))
	@echo "Installing all frameworks and test tools: 4 GB, a few minutes."
	$(BIN)/pip install -q --disable-pip-version-check -e ".[all,test]"
	$(NPM) ci --silent
	touch $@

define make-venv
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'inc-tb needs Python 3.11 or later; set PYTHON=')"
	$(PYTHON) -m venv $(1) || { $(APT) python3-venv && $(PYTHON) -m venv --clear $(1); }
endef

browser: | $(TEST_VENV)/ready
	@[ -n "$(BROWSER)" ] || { $(APT) chromium || $(BIN)/playwright install --with-deps chromium; }

compiler:
	@[ -n "$(COMPILER)" ] || { $(APT) gcc libc6-dev; }

clean:
	rm -rf $(VENV) $(TEST_VENV) inc_tb/_stats.so tb_plugin/static $(PAGE)/node_modules nc_workspace build dist
