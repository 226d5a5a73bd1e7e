# shellcheck shell=bash
# The library of the runtime "toyruntime": see Runtime.bash in bridge/script/runtimes/runtime_interface.py.

runtime_check() { :; }

runtime_start() {
    local name=${NAME[$1]}
    write_exports "$1" "run/$name.env"
    command_of "$1"
    go "$name"
    exec setsid bash -c '. "$1"; export GREETING=$2; shift 2; exec "$@"' toy "run/$name.env" "$GREETING" "${COMMAND[@]}"
}

runtime_exec() { "${@:2}"; }
runtime_clean() { rm -f "run/${NAME[$1]}.env"; }
