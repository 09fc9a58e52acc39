PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test acceptance serve check setup clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[codecs,embedded,local,otel,postgres,parquet,dev]'
	touch $@

demo: setup ## a whole call: server, phone, conversation, metrics, recording
	scripts/demo $(BIN)/callagent

serve: setup ## the server with the example agent, on loopback
	$(BIN)/callagent serve

test: setup ## lint, types and tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -m 'not acceptance' -n 3 --dist loadfile

acceptance: setup ## the long runs, three hours at most; PART=bench|calls|formats|fuzz|media|signalling|soak|storage|web runs one part
	$(BIN)/pip install --quiet --editable '.[fuzz]' || echo 'atheris cannot be had here: the search of python -m fuzz is left out'
	$(BIN)/pytest -m acceptance -s $(if $(PART),--part $(PART))

check: setup ## validate the example agent
	$(BIN)/callagent check

clean:
	rm -rf $(VENV) var
