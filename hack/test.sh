#!/usr/bin/env bash
# Runs everything: linters, types, layers, then unit, contract, end-to-end and chaos tests on real daemons.
# With other arguments, only pytest runs, with them: ./hack/test.sh unit -k hostlist
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$checkout"
# Fewer garbage collections of kube-apiserver, etcd and other programs in Go, with more memory: the contract tests of the
# controllers and of the API server need 17 % less CPU time.
export GOGC=${GOGC:-400}

# a line for each part of the long tests: its name, and what it is about
part_lines=$(sed -nE 's/^    "([^"]+)": Part\([0-9]+, "([^"]+)"\),$/\1 \2/p' tests/parts.py)
mapfile -t known_parts < <(cut -d ' ' -f 1 <<<"$part_lines")

usage="usage: hack/test.sh                run linters, types, layers, then all tests on the main versions
       hack/test.sh --fast         run linters, types, layers and unit tests: no daemons, 2 to 5 minutes
       hack/test.sh --long PART    run a part of the long tests, at most 20 minutes each
       hack/test.sh --long         run everything: the above, then each part
       hack/test.sh --within N     run the above, then the part whose turn it is by the hash of the commit, if it fits
                                   into N minutes
       hack/test.sh --python X.Y [ARGS...]
                                   run the unit tests (or pytest with ARGS) on another Python, 3.11 to 3.14
       hack/test.sh [--long PART] ARGS...
                                   run pytest alone, with ARGS

unit, contract, e2e and chaos stand for the directories of that name in tests/. Parts of the long tests:
$(awk '{name = $1; $1 = ""; printf "  %-11s%s\n", name, $0}' <<<"$part_lines")

Options for pytest:
  --keep    keep clusters running, so that the next run of the same tests starts in seconds; stop them with
            ./hack/down.sh --tests
  --kills N number of kills of tests/chaos/test_storm.py and test_pools.py

With PODBRIDGE_TEST_TIMES=FOLDER, each suite writes a table of the seconds and CPU seconds of its files to FOLDER.

examples: ./hack/test.sh unit -k hostlist
          ./hack/test.sh e2e -k 'test_story and 26.05' --keep
          ./hack/test.sh --long 24.11 e2e -k test_story
          ./hack/test.sh tests/contract/script/test_logs.py"
parts=()
other=
within=
suites=(unit contract e2e chaos)
if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    echo "$usage"
    exit 0
elif [[ ${1:-} == --long && $# -eq 1 ]]; then
    parts=("${known_parts[@]}")
    shift
elif [[ ${1:-} == --long ]]; then
    [[ " ${known_parts[*]} " == *" $2 "* ]] || { say "--long $2: must be one of ${known_parts[*]}"; exit 1; }
    [[ $# -gt 2 ]] || { parts=("$2") suites=(); shift 2; }
elif [[ ${1:-} == --fast && $# -eq 1 ]]; then
    suites=(unit)
    shift
elif [[ ${1:-} == --within ]]; then
    [[ $# -eq 2 && $2 =~ ^[0-9]+$ ]] || { say "$usage"; exit 1; }
    within=$2
    shift 2
elif [[ ${1:-} == --python ]]; then
    [[ $# -ge 2 ]] || { say "$usage"; exit 1; }
    other=$2
    shift 2
    [[ $# -gt 0 ]] || set -- -n 3 unit
fi
ensure_venv
if [[ -n $other || $# -gt 0 ]]; then
    # exit code 77: this Python cannot be had
    [[ -z $other ]] || python=$("$python" -m cluster.systems.pythons "$other") || exit
    words=()
    for word; do
        case $word in
        unit | contract | e2e | chaos) words+=("tests/$word") ;;
        *) words+=("$word") ;;
        esac
    done
    # the first test would wait for the build of the control plane or of Kueue, longer than its time limit
    [[ -z ${PODBRIDGE_KUBERNETES:-}${PODBRIDGE_KUEUE:-} ]] || "$python" -m cluster install
    exec "$python" -m pytest "${words[@]}"
fi

failed=()
skipped=()
trap 'exit 130' INT

check() {
    local name=$1 begun=$SECONDS
    shift
    say "--- $name"
    local status=0
    "$@" || status=$?
    if [[ $status -eq 0 ]]; then
        say "    passed in $((SECONDS - begun)) s"
    elif [[ $status -eq 77 ]]; then
        skipped+=("$name (not on this machine)")
    else
        say "    FAILED after $((SECONDS - begun)) s"
        failed+=("$name")
    fi
}

# A test with real daemons mostly waits, so several processes run tests at once (tests/conftest.py distributes them). Of
# the long tests of chaos, each needs a core.
declare -A spread=([unit]="-n 3" [contract]="-n 6" [e2e]="-n 4" [chaos]="-n 4")
# Contract and end-to-end tests that fail beside others run again alone, and the last line names the suite. Unit tests
# need no daemons, and a failure of a chaos test is a finding: neither runs again.
alone=()
tests_failed=1 # exit status of pytest; a run that it could not finish (2: interrupted, 3: internal error) has another
no_tests=5

run_suite() {
    local suite=$1 status=0
    shift
    # shellcheck disable=SC2086  # words
    "$python" -m pytest ${spread[$suite]} "$@" --durations 10 --durations-min 5 "tests/$suite" || status=$?
    [[ $# -eq 0 || $status -ne $no_tests ]] || return 0
    [[ $status -eq $tests_failed && ($suite == contract || $suite == e2e) ]] || return "$status"
    say "    tests that failed beside others run again, alone"
    PODBRIDGE_TEST_TIMES='' "$python" -m pytest -n 0 -ra "$@" --last-failed --last-failed-no-failures none \
        --maxfail 3 "tests/$suite" || return
    alone+=("$suite tests")
}

run_part() {
    local part=$1 suite version
    spread[chaos]="-n 2"
    case $part in
    24.11) "$python" -m cluster install --kubernetes 1.34 ;;
    22.05) "$python" -m cluster install --kubernetes 1.32 ;;
    kubernetes) "$python" -m cluster install --kubernetes 1.32 1.37 ;;
    services) "$python" -m cluster install && "$python" -m cluster.systems.jupyter ;;
    *) "$python" -m cluster install ;;
    esac || { failed+=("the real systems of $part"); return; }
    case $part in
    1.33 | 1.35)
        check "end-to-end tests on Kubernetes $part" \
            env PODBRIDGE_KUBERNETES="$part" ./hack/test.sh -n 4 tests/e2e/test_*.py -k "not test_dra and not resource_slices"
        ;;
    pythons)
        for version in 3.12 3.13 3.14; do
            check "unit tests on Python $version" ./hack/test.sh --python "$version"
        done
        check "command lines of 20,000 pods" "$python" -m tests.unit.script.test_command_lines 20000 $RANDOM --processes 2
        ;;
    *)
        for suite in unit contract e2e chaos; do
            check "$part: $suite tests" run_suite "$suite" --long "$part"
        done
        ;;
    esac
    [[ $part != kueue ]] || check "tests of Kueue 0.16" env PODBRIDGE_KUEUE=0.16 ./hack/test.sh tests/e2e/kueue
}

if [[ ${#suites[@]} -gt 0 ]]; then
    # compiles the tests, once for all processes, while the linters use one core
    "$python" -m pytest --collect-only --quiet -p no:cacheprovider "${suites[@]/#/tests/}" &>/dev/null &
    compiling=$!
    [[ ${#suites[@]} -eq 1 ]] || check "the real systems" "$python" -m cluster install
    for linter in $(./hack/lint.sh --list); do
        check "$linter" ./hack/lint.sh "$linter"
    done
    wait "$compiling" || true
fi
for suite in "${suites[@]}"; do
    check "$suite tests" run_suite "$suite"
done
if [[ -n $within && ${#failed[@]} -eq 0 ]]; then
    turn=$("$python" -m tests.parts "$(git rev-parse HEAD)")
    read -r part minutes <<<"$turn"
    if ((SECONDS / 60 + minutes <= within)); then
        say "--- the turn of this commit: part $part of the long tests"
        parts=("$part")
    else
        skipped+=("part $part of the long tests: it takes $minutes minutes, $((SECONDS / 60)) of $within are over")
    fi
fi
for part in "${parts[@]}"; do
    run_part "$part"
done

for item in "${skipped[@]}"; do
    say "skipped: $item"
done
if [[ ${#failed[@]} -gt 0 ]]; then
    say "FAILED: ${failed[*]}"
    exit 1
fi
if [[ ${#alone[@]} -gt 0 ]]; then
    say "passed in $SECONDS s; these have tests that passed only alone (both runs are above): ${alone[*]}"
else
    say "all passed in $SECONDS s"
fi
