# Everything a newcomer needs. `make up` runs Casemate, `make test` proves it.
SHELL := /bin/sh
export CARGO_TARGET_DIR ?= $(CURDIR)/target
FMT := cargo fmt --all -- --config imports_granularity=Module,group_imports=StdExternalCrate

.PHONY: help up down build test soak check bench gen fmt clean

help: ## lists the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

up: ## sets up all there is, starts the service, prints the login link (root)
	@deploy/need
	@deploy/up

down: ## stops the service; sessions stay, unless ALL=1 (root)
	@deploy/down $(if $(ALL),--all)

build: ## release programs in target/dist/release, page embedded
	@deploy/need
	@deploy/packages build
	@deploy/page
	@deploy/programs release

test: ## sets up and runs the whole suite (root)
	@deploy/need
	@deploy/packages test
	@deploy/test

soak: ## the suite with its long counts (root)
	@deploy/need
	@deploy/packages test
	@deploy/packages soak
	@CASEMATE_SOAK=1 deploy/test

check: ## formats, lints and generated files, changing nothing
	@deploy/need
	@deploy/packages build
	$(FMT) --check
	@deploy/page
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cd web-term && npm run check
	deploy/generated --check
	cargo run -q --locked -p casemate-tests --bin covers
	@deploy/shipped

bench: ## measures against peers and writes docs/benchmarks.md (root)
	@deploy/need
	@deploy/packages bench
	@deploy/page
	@deploy/programs release
	tests/bench/run

gen: ## rewrites golden files and generated types
	@deploy/need
	deploy/generated

fmt: ## formats
	$(FMT)

clean: ## removes what was built
	rm -rf target web-term/dist web-term/node_modules tests/browser/node_modules
