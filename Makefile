# Queengate. `make` prints what there is.

SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := bin/queengate
TOOL := go tool -modfile=tools/go.mod
TESTENV := scripts/testenv.sh
# Tests run together with the race detector and in random order, always.
GOTEST := go test -race -shuffle=on
ARGS ?=

.PHONY: help build run test test/race test/e2e fuzz bench lint fmt generate baseline verify check rel rel-gateway rel-nightly rel-mutants rel-test

help: ## print this help
	@awk -F ':.*## ' '/^[a-z0-9\/-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build the server into bin/
	go build -o $(BIN) ./cmd/queengate

run: ## build, then run everything on this machine; ARGS="--http 127.0.0.1:8081" passes flags
	@scripts/need.sh postgres curl
	@$(MAKE) --no-print-directory build
	@exec $(BIN) up $(ARGS)

test: rel-test test/race test/e2e ## all tests, with a temporary PostgreSQL and Redis

test/race: ## all tests but the end-to-end ones
	@scripts/need.sh cc curl postgres redis
	$(TESTENV) $(GOTEST) -timeout 8m $$(go list ./... | grep -v /internal/e2e$$)

test/e2e: ## the end-to-end tests: the real binary, PostgreSQL and sockets
	@scripts/need.sh cc curl postgres redis
	$(TESTENV) $(GOTEST) -timeout 10m ./internal/e2e

rel-test: ## the judge of reliability runs: its self-tests (deploy/rel, a module of its own)
	@scripts/need.sh cc
	cd deploy/rel && $(GOTEST) -timeout 2m ./...

rel: ## the reliability run: all workloads under all faults, judged (two minutes); ARGS="-seed 7" repeats one
	@scripts/need.sh postgres
	cd deploy/rel && go run ./cmd/rel run $(ARGS)

rel-gateway: ## the same for gateways: limits, slots, walls and pools of fleets (four minutes); ARGS="-part ci" takes some
	@scripts/need.sh postgres redis
	cd deploy/rel && go run ./cmd/rel gate $(ARGS)

rel-nightly: ## seventy minutes of reliability runs; broken off, it goes on where it was
	@scripts/need.sh postgres
	cd deploy/rel && go run ./cmd/rel run -nightly $(ARGS)

rel-mutants: ## breaks the product on purpose, and sees who notices; ARGS="-only PATTERN" takes some
	@scripts/need.sh postgres redis
	cd deploy/rel && go run ./cmd/rel mutants $(ARGS)

FUZZTIME ?= 10s
fuzz: ## every fuzz target for FUZZTIME (10s)
	@set -euo pipefail; grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u | while read -r dir; do \
		grep -hoE '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | cut -d' ' -f2 | while read -r target; do \
			echo "$$dir $$target"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$dir </dev/null; \
		done; \
	done

# What the group `proxies` measures the gateway beside, when it is asked for.
RIVALS = $(if $(findstring -group,$(ARGS)),$(if $(findstring proxies,$(ARGS)),$(EVERY_RIVAL)),$(EVERY_RIVAL))
EVERY_RIVAL := redis nginx haproxy caddy
bench: ## the product beside PostgreSQL's own ceiling, in one run; ARGS passes flags
	@scripts/need.sh postgres
	@[ -z "$(RIVALS)" ] || scripts/need.sh $(RIVALS) || echo "the bench goes on without the rows of what is missing" >&2
	go run ./internal/bench $(ARGS)

lint: ## vet and staticcheck
	go vet ./...
	$(TOOL) staticcheck ./...
	cd deploy/rel && go vet ./... && go tool -modfile=../../tools/go.mod staticcheck ./...

fmt: ## format the code
	$(TOOL) gofumpt -w -extra $$(git ls-files --cached --others --exclude-standard '*.go')

generate: ## write what is generated: docs/config.md
	go test ./cmd/queengate -run '^TestTheReferenceOfSettingsIsUpToDate$$' -update

baseline: ## with a release: record its schema and statements, which the next one must not break
	$(TESTENV) go test ./broker/store -run '^TestTheBaselineIsRecorded$$' -baseline

verify: ## fail when formatting or something generated is stale
	@out=$$($(TOOL) gofumpt -l -extra $$(git ls-files --cached --others --exclude-standard '*.go')); \
		[ -z "$$out" ] || { echo "not formatted, run make fmt:"; echo "$$out"; exit 1; }
	go mod verify
	cd deploy/rel && go mod verify
	go test ./cmd/queengate -run '^TestTheReferenceOfSettingsIsUpToDate$$'

check: ## everything that CI runs
	.ci/run
