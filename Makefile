# Cairn is built by this one file. `make help` lists the targets.
#
# Every kind of build (release, test, san, ...) has its own folder build/<kind>/ with the same things in it:
#     libcairn.a  libcairn.so  parts.a  cairn  cairn-bench  cairn-tests  crash/NAME  load/NAME  fuzz/NAME
# Sources are found, not listed: what lies in src/ is in the product, except *_test.c.

BUILD ?= build
PREFIX ?= /usr/local
CYCLES ?= 200
IMAGES ?= 20000
SEEDS ?= 20000
SECONDS_EACH ?= 60

MAKEFLAGS += --no-builtin-rules
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += --jobs=$(shell nproc)
endif
SHELL := /bin/bash
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := all

# --- Libraries -------------------------------------------------------------------------------------------------
# build/deps.mk says how to use the libraries. Make finds it missing, calls ./bootstrap, and starts again. llhttp is a
# small archive that we link into our own files, without showing its names to those who link libcairn.so.

# (libpq and libcurl are loaded when they are needed, see src/db/libpq.h: their headers only. The tests link libpq.)
LIBRARIES := sqlite3 libssl libcrypto yyjson libuv libllhttp libnghttp2 libprotobuf-c
LIBCAIRN_LIBRARIES := sqlite3 libcrypto yyjson
DEPS := build/deps/usr/lib/$(shell uname -m)-linux-gnu

ifneq ($(filter-out help clean layers format conformance,$(or $(MAKECMDGOALS),all)),)
include build/deps.mk
endif

build/deps.mk: packages.txt bootstrap
	@./bootstrap build
	@mkdir -p $(@D)
	@export PKG_CONFIG_PATH=$(DEPS)/pkgconfig; \
	cflags=$$(pkg-config --cflags $(LIBRARIES) libpq libcurl) && libs=$$(pkg-config --libs $(LIBRARIES)) && \
	libcairn_libs=$$(pkg-config --libs $(LIBCAIRN_LIBRARIES)) && \
	libs=$${libs//-lllhttp/-l:libllhttp.a -Wl,--exclude-libs,libllhttp.a} && \
	{ echo "DEP_CFLAGS := $${cflags//-I/-isystem }"; echo "DEP_LIBS := $$libs"; \
	echo "LIBCAIRN_DEP_LIBS := $$libcairn_libs"; } > $@

# What `test` and the checking targets need beyond that. One after the other: apt takes a lock.
$(BUILD)/have-test $(BUILD)/have-check: $(BUILD)/have-%: packages.txt bootstrap
	@./bootstrap $*
	@mkdir -p $(@D) && touch $@
$(BUILD)/have-check: | $(BUILD)/have-test

# A library from build/deps is not where the loader looks: our programs carry the way to it.
OWN_LIBS := $(wildcard $(DEPS)/*.so.[0-9])
BUILD_RPATH = $(if $(OWN_LIBS),-Wl$(comma)-rpath$(comma)$(CURDIR)/$(DEPS))
comma := ,

# --- Sources ---------------------------------------------------------------------------------------------------

ALL_C := $(sort $(shell find src -name '*.c'))
UNIT_C := $(filter %_test.c,$(ALL_C))
PRODUCT_C := $(filter-out %_test.c,$(ALL_C))
# libcairn is the C library and no more: no loop, no network. The programs link it, and the other parts before it.
LIB_C := $(filter src/base/% src/core/% src/db/% src/ledger/% src/lib/%,$(PRODUCT_C))
CLI_C := $(filter src/cli/%,$(PRODUCT_C))
PARTS_C := $(filter-out $(LIB_C) $(CLI_C),$(PRODUCT_C))
# Messages of other programs' protocols: protoc-c makes C of them, which is not ours to warn about.
PROTO := $(shell find src -name '*.proto')
PROTO_C := $(patsubst %.proto,$(BUILD)/gen/%.pb-c.c,$(notdir $(PROTO)))
HARNESS_C := $(wildcard tests/test.c tests/conformance/*.c tests/model/*.c)
# Tests may look into the CLI's parts, all but its main().
TEST_C := $(UNIT_C) $(HARNESS_C) $(filter-out src/cli/main.c,$(CLI_C))
BENCH_C := $(wildcard bench/*.c)
CRASH_C := $(wildcard tests/crash/*.c)
LOAD_C := $(wildcard tests/load/*.c)
E2E_C := $(wildcard tests/e2e/lib/*.c)
FUZZ_C := $(wildcard tests/fuzz/*_fuzz.c)
OURS := $(shell find src include tests bench examples -name '*.[ch]' 2>/dev/null)

# --- Flags -----------------------------------------------------------------------------------------------------

# (ISO C's 4095 characters for a string literal bind no compiler of ours; the SQL of a view is longer.)
WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wswitch-enum \
	-Wvla -Wformat=2 -Wundef -Wno-overlength-strings
CPPFLAGS_OURS = -D_GNU_SOURCE -Isrc -Iinclude -Itests -isystem $(BUILD)/gen $(DEP_CFLAGS)
CFLAGS_OURS := -std=c17 -g -fPIC -fvisibility=hidden -pthread $(WARNINGS)
HARDENED := -O2 -D_FORTIFY_SOURCE=3 -fstack-protector-strong
LIBS = $(DEP_LIBS) -ldl -lm
LIBCAIRN_LIBS = $(LIBCAIRN_DEP_LIBS) -ldl -lm

# The public header names the version; the shared library's name changes when programs must be linked again.
VERSION := $(shell sed -n 's/^\#define CAIRN_VERSION "\(.*\)"/\1/p' include/cairn.h 2>/dev/null)
SOVERSION := 0

KINDS := release test san tsan cover clang fuzz
CC_release := gcc
CC_test := gcc
CC_san := gcc
CC_tsan := gcc
CC_cover := gcc
CC_clang := clang
CC_fuzz := clang
# Objects are -fPIC with hidden symbols: as good as -fPIE in a program, and the shared library uses the same ones.
FLAGS_release := $(HARDENED)
FLAGS_test := $(HARDENED) -Werror
FLAGS_clang := $(HARDENED) -Werror
# Instrumented, gcc loses the ranges of variables and warns of cuts that cannot be.
FLAGS_san := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -Werror -Wno-format-truncation
FLAGS_tsan := -O1 -fno-omit-frame-pointer -fsanitize=thread -Werror -Wno-format-truncation
FLAGS_cover := -O0 --coverage -fprofile-update=atomic
FLAGS_fuzz := -O1 -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -Werror

$(BUILD)/gen/%.pb-c.c: src/adapters/temporal/%.proto build/deps.mk
	@mkdir -p $(@D)
	@protoc-c --proto_path=$(<D) --c_out=$(@D) $<

# --- One kind of build -----------------------------------------------------------------------------------------

objects = $(patsubst %.c,$(BUILD)/$(1)/obj/%.o,$(2))
proto_objects = $(patsubst $(BUILD)/gen/%.c,$(BUILD)/$(1)/obj/gen/%.o,$(PROTO_C))
crash_programs = $(patsubst tests/crash/%.c,$(BUILD)/$(1)/crash/%,$(CRASH_C))
load_programs = $(patsubst tests/load/%.c,$(BUILD)/$(1)/load/%,$(LOAD_C))
e2e_programs = $(patsubst tests/e2e/lib/%.c,$(BUILD)/$(1)/e2e/%,$(E2E_C))
fuzz_programs = $(patsubst tests/fuzz/%_fuzz.c,$(BUILD)/$(1)/fuzz/%,$(FUZZ_C))
products = $(BUILD)/$(1)/libcairn.a $(BUILD)/$(1)/libcairn.so $(if $(wildcard src/cli/main.c),$(BUILD)/$(1)/cairn) \
	$(if $(BENCH_C),$(BUILD)/$(1)/cairn-bench)
test_programs = $(BUILD)/$(1)/cairn-tests $(call crash_programs,$(1)) $(call load_programs,$(1)) $(call e2e_programs,$(1)) $(call fuzz_programs,$(1))

define KIND
LINK_$(1) = $$(CC_$(1)) $$(FLAGS_$(1)) -pthread -Wl,-z,relro,-z,now $$(LDFLAGS)

$(BUILD)/$(1)/obj/%.o: %.c Makefile build/deps.mk $(if $(filter clang,$(CC_$(1))),| $(BUILD)/have-check)
	@mkdir -p $$(@D)
	@echo "  CC    $(1) $$<"
	@$$(CC_$(1)) $$(CPPFLAGS_OURS) $$(CFLAGS_OURS) $$(FLAGS_$(1)) $$(CFLAGS) -MMD -MP -c $$< -o $$@

$(BUILD)/$(1)/obj/gen/%.o: $(BUILD)/gen/%.c
	@mkdir -p $$(@D)
	@$$(CC_$(1)) $$(CPPFLAGS_OURS) $$(CFLAGS_OURS) $$(FLAGS_$(1)) -w $$(CFLAGS) -c $$< -o $$@
$(call objects,$(1),$(filter src/adapters/temporal/%,$(ALL_C)) tests/fuzz/temporal_fuzz.c): $(PROTO_C)

$(call objects,$(1),$(UNIT_C) $(HARNESS_C)): | $(BUILD)/have-test
$(BUILD)/$(1)/obj/src/api/openapi.o: contracts/openapi.json

$(BUILD)/$(1)/libcairn.a: $(call objects,$(1),$(LIB_C))
$(BUILD)/$(1)/parts.a: $(call objects,$(1),$(PARTS_C)) $(call proto_objects,$(1))
$(BUILD)/$(1)/libcairn.a $(BUILD)/$(1)/parts.a:
	@mkdir -p $$(@D) && rm -f $$@
	@ar rcs $$@ $$^

$(BUILD)/$(1)/libcairn.so: $(call objects,$(1),$(LIB_C))
	@mkdir -p $$(@D)
	@$$(LINK_$(1)) -shared -Wl,-z,defs -Wl,-soname,libcairn.so.$$(SOVERSION) -o $$@ $$^ $$(BUILD_RPATH) $$(LIBCAIRN_LIBS)

$(BUILD)/$(1)/cairn: $(call objects,$(1),$(CLI_C)) $(BUILD)/$(1)/parts.a $(BUILD)/$(1)/libcairn.a
	@echo "  LINK  $$@"
	@$$(LINK_$(1)) -pie -o $$@ $$^ $$(BUILD_RPATH) $$(LIBS)

$(BUILD)/$(1)/cairn-bench: $(call objects,$(1),$(BENCH_C)) $(BUILD)/$(1)/parts.a $(BUILD)/$(1)/libcairn.a
	@echo "  LINK  $$@"
	@$$(LINK_$(1)) -pie -o $$@ $$^ $$(BUILD_RPATH) $$(LIBS)

$(BUILD)/$(1)/cairn-tests: $(call objects,$(1),$(TEST_C)) $(BUILD)/$(1)/parts.a $(BUILD)/$(1)/libcairn.a
	@echo "  LINK  $$@"
	@$$(LINK_$(1)) -pie -o $$@ $$^ $$(BUILD_RPATH) -lcmocka -lpq $$(LIBS)

$(BUILD)/$(1)/crash/%: $(BUILD)/$(1)/obj/tests/crash/%.o $(BUILD)/$(1)/parts.a $(BUILD)/$(1)/libcairn.a
	@mkdir -p $$(@D)
	@echo "  LINK  $$@"
	@$$(LINK_$(1)) -pie -o $$@ $$^ $$(BUILD_RPATH) $$(LIBS)

$(BUILD)/$(1)/load/%: $(BUILD)/$(1)/obj/tests/load/%.o $(BUILD)/$(1)/parts.a $(BUILD)/$(1)/libcairn.a
	@mkdir -p $$(@D)
	@echo "  LINK  $$@"
	@$$(LINK_$(1)) -pie -o $$@ $$^ $$(BUILD_RPATH) $$(LIBS)

$(BUILD)/$(1)/e2e/%: $(BUILD)/$(1)/obj/tests/e2e/lib/%.o $(BUILD)/$(1)/parts.a $(BUILD)/$(1)/libcairn.a
	@mkdir -p $$(@D)
	@echo "  LINK  $$@"
	@$$(LINK_$(1)) -pie -o $$@ $$^ $$(BUILD_RPATH) $$(LIBS)

# A fuzz target is driven by libFuzzer in kind fuzz; everywhere else a small main() replays the corpus.
$(BUILD)/$(1)/fuzz/%: $(BUILD)/$(1)/obj/tests/fuzz/%_fuzz.o $(if $(filter fuzz,$(1)),,$(BUILD)/$(1)/obj/tests/fuzz/replay_main.o) \
		$(BUILD)/$(1)/parts.a $(BUILD)/$(1)/libcairn.a
	@mkdir -p $$(@D)
	@echo "  LINK  $$@"
	@$$(LINK_$(1)) $(if $(filter fuzz,$(1)),-fsanitize=fuzzer) -o $$@ $$^ $$(BUILD_RPATH) $$(LIBS)

.PRECIOUS: $(BUILD)/$(1)/obj/%.o
endef
$(foreach kind,$(KINDS),$(eval $(call KIND,$(kind))))

-include $(shell find $(BUILD) -path '*/obj/*.d' 2>/dev/null)

# --- Targets ---------------------------------------------------------------------------------------------------

.PHONY: all run test san tsan clang fuzz crash sim bench conformance cover lint layers format install uninstall clean help

all: $(patsubst $(BUILD)/release/%,$(BUILD)/%,$(call products,release)) ## build/cairn, libcairn.a, libcairn.so and cairn-bench

$(BUILD)/libcairn.a $(BUILD)/libcairn.so $(BUILD)/cairn $(BUILD)/cairn-bench: $(BUILD)/%: $(BUILD)/release/%
	@cp -f $< $@

run: all ## carry out examples/orders with live progress, show its result, and verify the ledger
	@CAIRN=$(BUILD)/cairn scripts/demo.sh

test: $(call products,test) $(call test_programs,test) ## layers, unit tests on SQLite and PostgreSQL, e2e, short crash tests, load, fuzz corpora; keeps build/test/log
	@set -o pipefail; scripts/with-postgres scripts/test-all $(BUILD)/test 2>&1 | tee $(BUILD)/test/log

san: $(call products,san) $(call test_programs,san) ## the same tests with AddressSanitizer and UBSan, all but load
	@CAIRN_TEST_SCALE=$${CAIRN_TEST_SCALE:-20} scripts/with-postgres scripts/test-all $(BUILD)/san unit sim e2e crash fuzz

tsan: $(call products,tsan) $(call test_programs,tsan) ## with ThreadSanitizer, all but the tests named in tests/single-threaded
	@CAIRN_TEST_SCALE=$${CAIRN_TEST_SCALE:-10} scripts/with-postgres scripts/test-all $(BUILD)/tsan unit e2e crash

clang: $(call products,clang) $(call test_programs,clang) ## build everything with clang, warnings as errors

fuzz: $(call fuzz_programs,fuzz) ## libFuzzer on each tests/fuzz target, SECONDS_EACH=60
	@scripts/fuzz $(BUILD)/fuzz $(SECONDS_EACH)

crash: $(call products,release) $(call crash_programs,release) ## kill -9 and power cuts in full length, CYCLES=200 IMAGES=20000
	@CYCLES=$(CYCLES) IMAGES=$(IMAGES) scripts/with-postgres scripts/test-all $(BUILD)/release crash

sim: $(BUILD)/release/cairn ## the engine in simulated worlds with faults, SEEDS=20000
	@$(BUILD)/release/cairn selftest --seeds $(SEEDS)

bench: all | $(BUILD)/have-test ## the canonical workloads, one JSON line a figure; BENCH_OPTIONS="--seconds 5"
	@scripts/with-postgres scripts/bench $(BUILD)/cairn-bench $(BENCH_OPTIONS)

conformance: ## which clauses of the contracts hold, by the log of the last make test; it fails only if a MUST does
	@scripts/conformance $(BUILD)/test/log

cover: $(call products,cover) $(call test_programs,cover) | $(BUILD)/have-check ## line coverage of core and ledger, at least 90 %
	@find $(BUILD)/cover -name '*.gcda' -delete
	@CAIRN_TEST_SCALE=$${CAIRN_TEST_SCALE:-20} scripts/with-postgres scripts/test-all $(BUILD)/cover
	@scripts/cover $(BUILD)/cover

lint: $(PROTO_C) | $(BUILD)/have-check ## clang-tidy, gcc -fanalyzer and cppcheck over the product, or over FILES="a.c b.c"
	@scripts/lint $(CPPFLAGS_OURS) $(CFLAGS_OURS) -- $(or $(FILES),$(PRODUCT_C))

layers: ## no include points sideways or upwards, no function has too many parameters, and docs/errors.md is as the table of codes
	@scripts/layers
	@scripts/params
	@scripts/errors-page --check

format: ## clang-format over all C files
	@./bootstrap check && clang-format -i $(OURS)

# The installed files find a library from build/deps beside libcairn, wherever PREFIX is moved to.
INSTALLED := $(BUILD)/release/installed
$(INSTALLED)/cairn: $(call objects,release,$(CLI_C)) $(BUILD)/release/parts.a $(BUILD)/release/libcairn.a
	@mkdir -p $(@D)
	@$(LINK_release) -pie -o $@ $^ $(if $(OWN_LIBS),-Wl$(comma)-rpath$(comma)'$$ORIGIN/../lib') $(LIBS)

$(INSTALLED)/libcairn.so: $(call objects,release,$(LIB_C))
	@mkdir -p $(@D)
	@$(LINK_release) -shared -Wl,-z,defs -Wl,-soname,libcairn.so.$(SOVERSION) -o $@ $^ \
		$(if $(OWN_LIBS),-Wl$(comma)-rpath$(comma)'$$ORIGIN') $(LIBCAIRN_LIBS)

install: all $(INSTALLED)/cairn $(INSTALLED)/libcairn.so ## into PREFIX (/usr/local), below DESTDIR if that is set
	@scripts/install "$(DESTDIR)$(PREFIX)" "$(PREFIX)" $(VERSION) $(SOVERSION) $(BUILD) $(OWN_LIBS)

uninstall: ## take away again what install has put
	@scripts/install --remove "$(DESTDIR)$(PREFIX)"

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

clean: ## remove all that was built (build/deps stays)
	@find $(BUILD) -mindepth 1 -maxdepth 1 ! -name deps ! -name deps.mk -exec rm -rf {} + 2>/dev/null || true
