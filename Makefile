# Two commands: `make demo` and `make test`. Both set up .venv first; see docs/install.md.

SHELL := /bin/bash

.PHONY: help setup demo test clean

help:
	@echo "make demo    set up .venv, then run titanium MD in LAMMPS (a few minutes)"
	@echo "make test    set up .venv with the test tools, then run the tests"
	@echo "make setup   set up .venv only"
	@echo "make clean   remove .venv, build/ and demo/"

setup:
	@bash tools/setup.sh run

demo:
	@bash tools/setup.sh run
	@.venv/bin/python examples/demo/run_demo.py

test:
	@bash tools/setup.sh test
	@OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive .venv/bin/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

clean:
	rm -rf .venv build demo .setup.log
