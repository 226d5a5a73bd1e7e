#!/usr/bin/env bash
# Runs the linters: all of them, or those that are named. ./hack/test.sh and .pre-commit-config.yaml call it.
# Exit status 77: the linter is not on this machine.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$checkout"
skipped=77
export MYPY_CACHE_DIR="$cache/mypy" # a fresh checkout has none of its own
linters=(ruff-check ruff-format mypy mypy-hack import-linter shellcheck actionlint generated docs)

lint() {
    local bin=$venv/bin
    case $1 in
    ruff-check) "$bin/ruff" check . ;;
    ruff-format) "$bin/ruff" format --check . ;;
    mypy) "$bin/mypy" ;;
    mypy-hack) MYPYPATH=hack:. "$bin/mypy" -p cluster -p generate ;;
    import-linter) "$bin/lint-imports" ;;
    generated) ./hack/generate.sh --check ;;
    docs) ./hack/docs.sh --check ;;
    shellcheck)
        if ! command -v shellcheck >/dev/null; then
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends shellcheck >/dev/null 2>&1 || true
        fi
        if ! command -v shellcheck >/dev/null; then
            say "shellcheck is not installed, and apt cannot install it"
            return "$skipped"
        fi
        shellcheck -x hack/*.sh .ci/run
        ;;
    actionlint)
        if ! command -v go >/dev/null && [[ ! -x $cache/bin/actionlint ]]; then
            say "actionlint is not built, and Go is not installed"
            return "$skipped"
        fi
        "$python" -c 'from cluster.systems import install; install.ensure(modules=[install.ACTIONLINT])'
        "$cache/bin/actionlint" .github/workflows/*.yaml
        ;;
    *)
        say "error: no linter $1; allowed: ${linters[*]}"
        return 2
        ;;
    esac
}

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    echo "usage: hack/lint.sh [LINTER...]    LINTER: ${linters[*]}"
    exit 0
elif [[ ${1:-} == --list ]]; then
    printf '%s\n' "${linters[@]}"
    exit 0
fi
ensure_venv
for name in "${@:-${linters[@]}}"; do
    lint "$name"
done
