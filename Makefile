# The same targets run on a developer's machine and in CI. `make` alone lists them.

SHELL := bash

# Caddy's storage and logging drivers that a router has no use for.
TAGS := nobadger,nomysql,nopgx
# What `go env -w` or the environment set stays in force.
export GOFLAGS := $(strip $(shell go env GOFLAGS) -tags=$(TAGS))

# Built by the go command in its own cache, apart from go.mod and from our build tags. v2.15.0 needs Go 1.26.
GOLANGCI_LINT := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

T     ?= ./...
F     ?=
BENCH ?= .
COUNT ?= 1
TIME  ?= 30s

# The race detector needs cgo, and cgo needs a C compiler; the product needs neither.
HAVE_CC := $(shell command -v $$(go env CC) 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help build check test lint fmt bench demo e2e fuzz

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the router, as bin/caddy
	CGO_ENABLED=0 go build -trimpath -o bin/caddy ./xcaddy

check: ## all that CI asks of a change: builds, vet, gofmt, lint, short tests under the race detector
	CGO_ENABLED=0 go build ./...
ifneq ($(HAVE_CC),)
	CGO_ENABLED=1 go build ./...
else
	@echo "no C compiler: no cgo build, no race detector"
endif
	go vet ./...
	@unformatted=$$(gofmt -l .) && { test -z "$$unformatted" || { echo "not in gofmt's form:"; echo "$$unformatted"; exit 1; }; }
	$(MAKE) --no-print-directory lint
	go test $(if $(HAVE_CC),-race) -short ./...

test: ## all tests
	go test ./...

lint: ## golangci-lint (the first run builds it, which takes minutes)
	GOFLAGS= $(GOLANGCI_LINT) run

fmt: ## gofmt all files
	gofmt -w .

bench: ## benchmarks; T=./index BENCH=CachedTokens COUNT=10 for benchstat
	go test -run '^$$' -bench '$(BENCH)' -count $(COUNT) $(T)

demo: ## a simulated fleet under each policy, with the table of results
	go run ./bench demo $(ARGS)

e2e: ## the OpenAI SDK and curl against Caddyfile.example (needs python3)
	./e2e/run.sh

fuzz: ## fuzz for TIME each; T=./index F=FuzzName TIME=5m, default: every target 30s
	@found=; for package in $$(go list $(T)); do \
	  listed=$$(go test -list '$(if $(F),^$(F)$$,^Fuzz)' "$$package") || { echo "$$listed"; exit 1; }; \
	  for target in $$(grep '^Fuzz' <<<"$$listed"); do \
	    found=1; echo "$$package $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(TIME) "$$package" || exit 1; \
	  done; \
	done; \
	[ -n "$$found" ] || { echo "no fuzz target $(F) in $(T)"; exit 1; }
