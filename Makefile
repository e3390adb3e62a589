# What a contributor runs; .ci/run calls the same targets. `make` alone lists them.
.PHONY: help setup check test slow rare docs wheel numbers everything pin

help: ## List the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 14

setup: ## Install everything that is needed to develop
	uv sync

check: ## Lint, format and types
	uv run ruff check .
	uv run ruff format --check .
	uv run mypy

test: ## The default tests: offline, on a CPU, in four minutes on two cores
	uv run pytest

slow: ## The others: clusters, several processes, many kills, a real browser
	uv run pytest -m slow

rare: ## What .ci/run leaves out, since another test is much like it
	uv run pytest -m rare

docs: ## Build the site into build/site, warnings are errors; links, examples, commands and options hold
	NO_MKDOCS_2_WARNING=1 uv run mkdocs build --strict --quiet
	uv run pytest tests/test_docs.py tests/test_site.py -m "not rare"

wheel: ## Build wheel and sdist, and use them without the repository: light, then with the demo
	.ci/wheel train

numbers: ## Rewrite the numbers of README and docs/results from the JSON beside them
	uv run python benchmarks/render.py

everything: check test slow rare docs wheel ## All of the above

pin: ## Write the newest exact versions into pyproject.toml
	uv run python scripts/pin.py
