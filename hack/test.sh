#!/usr/bin/env bash
# Runs everything: style, types, layers, then unit, contract, end-to-end and chaos tests on real daemons.
# With other arguments, only pytest runs, with them: ./hack/test.sh unit -k hostlist
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$checkout"
ensure_venv
bin=$cache/venv/bin

usage="usage: hack/test.sh [--long]       run everything
       hack/test.sh --fast         run linters, types, layers and unit tests: no daemons, under 2 minutes
       hack/test.sh ARGS...        run pytest alone, with ARGS

unit, contract, e2e and chaos stand for the folders of that name in tests/. Options for pytest:
  --long    run fuzzing and chaos at full length
  --keep    keep clusters running, so that the next run of the same tests starts in seconds; stop them with
            ./hack/down.sh --tests

examples: ./hack/test.sh unit -k hostlist
          ./hack/test.sh e2e -k 'test_story and 26.05' --keep
          ./hack/test.sh tests/contract/script/test_mpi.py"
long=()
suites=(unit contract e2e chaos)
if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    echo "$usage"
    exit 0
elif [[ ${1:-} == --long ]]; then
    long=(--long)
    shift
elif [[ ${1:-} == --fast && $# -eq 1 ]]; then
    suites=(unit)
    shift
fi
if [[ $# -gt 0 ]]; then
    words=("${long[@]}")
    for word; do
        case $word in
        unit | contract | e2e | chaos) words+=("tests/$word") ;;
        *) words+=("$word") ;;
        esac
    done
    exec "$python" -m pytest "${words[@]}"
fi

failed=()
skipped=()

check() {
    local name=$1 begun=$SECONDS
    shift
    say "--- $name"
    if "$@"; then
        say "    passed in $((SECONDS - begun)) s"
    else
        say "    FAILED after $((SECONDS - begun)) s"
        failed+=("$name")
    fi
}

[[ ${#suites[@]} -eq 1 ]] || check "the real systems" "$python" -m cluster install
check "ruff check" "$bin/ruff" check .
check "ruff format" "$bin/ruff" format --check .
check "mypy" "$bin/mypy"
check "mypy (hack)" env MYPYPATH=hack:. "$bin/mypy" -p cluster
check "lint-imports" "$bin/lint-imports"

if ! command -v shellcheck >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends shellcheck >/dev/null 2>&1 || true
fi
if command -v shellcheck >/dev/null; then
    check "shellcheck" shellcheck -x hack/*.sh .ci/run
else
    skipped+=("shellcheck (not on this machine, apt cannot install it)")
fi

# Most of the time of a test with real daemons is waiting, so several files, or several clusters, are at work at once.
# Chaos has the machine to itself.
declare -A spread=(
    [unit]="-n 2 --dist loadfile" [contract]="-n 4 --dist loadfile" [e2e]="-n 3" [chaos]="-n 0"
)
# Two cores and many daemons: a test that failed beside others is run again alone, and named in the end. Not so unit
# tests, which need no daemons, and chaos, whose failures are what it looks for.
alone=()

run_suite() {
    local suite=$1
    # shellcheck disable=SC2086  # words
    "$python" -m pytest ${spread[$suite]} "${long[@]}" --durations 10 --durations-min 5 "tests/$suite" && return
    [[ $suite == contract || $suite == e2e ]] || return 1
    say "    what failed beside other tests is run again, alone"
    "$python" -m pytest -n 0 -ra "${long[@]}" --last-failed --last-failed-no-failures none --maxfail 3 "tests/$suite" || return 1
    alone+=("$suite tests")
}

for suite in "${suites[@]}"; do
    if compgen -G "tests/$suite/**" >/dev/null; then
        check "$suite tests" run_suite "$suite"
    else
        skipped+=("$suite tests (there are none)")
    fi
done

for item in "${skipped[@]}"; do
    say "skipped: $item"
done
if [[ ${#failed[@]} -gt 0 ]]; then
    say "FAILED: ${failed[*]}"
    exit 1
fi
if [[ ${#alone[@]} -gt 0 ]]; then
    say "passed in $SECONDS s, but some of these only alone (both runs are above): ${alone[*]}"
else
    say "all passed in $SECONDS s"
fi
