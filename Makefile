# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
SOURCES := jev schemas extractors model tests benchmarks examples training

.PHONY: demo serve test lint check format clean

demo: $(VENV)/.server
	$(BIN)/jev ask "My card was charged twice and nobody answers my mails. I want my money back today!" \
		--noul "refund=Does the customer want money back?" \
		--choice "topic: What is it about?=refund,weather,music,travel" \
		--noul "weather=Is it about the weather?"

serve: $(VENV)/.server
	$(BIN)/jev serve

# In two processes, each file in one of them. What fails is run once more by itself: tests with real
# processes and decoders can starve on a busy machine, and what is really broken fails again.
test: $(VENV)/.dev
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder \
		|| $(BIN)/pytest --last-failed --last-failed-no-failures none

lint: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

check: lint
	.ci/check-installed $(abspath $(BIN)/python)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

# The pins name exact versions; a stamp file says which extras are in the environment.
$(VENV)/.server: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(PIP) install -c constraints.txt -e '.[server]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.server

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
