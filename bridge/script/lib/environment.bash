# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# The variables of a container, as files: no value ever stands in a process list.

# write_exports I FILE: as shell text. SPECIAL are those that a shell keeps to itself, as NAME=VALUE.
write_exports() {
    local k quote="'\"'\"'" # apptainer's own shell keeps the backslash of '\''
    variables_of "$1"
    SPECIAL=()
    for ((k = 0; k < ${#VARIABLES[@]}; k += 2)); do
        if is_special "${VARIABLES[k]}"; then
            SPECIAL+=("${VARIABLES[k]}=${VARIABLES[k + 1]}")
        else
            printf "export %s='%s'\n" "${VARIABLES[k]}" "${VARIABLES[k + 1]//\'/$quote}"
        fi
    done >"$2"
}

is_special() {
    case $1 in
    BASH_ENV) return 1 ;;
    UID | EUID | GID | PPID | GROUPS | SHELLOPTS | BASH* | RANDOM | SRANDOM | SECONDS | LINENO | HISTCMD | DIRSTACK) return 0 ;;
    FUNCNAME | EPOCH* | _ | PWD | OLDPWD | SHLVL | POSIXLY_CORRECT | OPTIND | IFS) return 0 ;;
    esac
    return 1
}

# write_lines I FILE QUOTE: NAME=VALUE line by line, the value between QUOTE and QUOTE. What is no line (breaks in it, or
# too long for the readers of such files) goes to FILE.more as shell text; MORE has their names.
write_lines() {
    local k quote="'\\''" line
    variables_of "$1"
    MORE=()
    : >"$2.more"
    for ((k = 0; k < ${#VARIABLES[@]}; k += 2)); do
        line=${VARIABLES[k + 1]}
        if [[ $line == *[$'\n\r']* || ${#line} -gt 8000 ]]; then
            MORE+=("${VARIABLES[k]}")
            printf "export %s='%s'\n" "${VARIABLES[k]}" "${line//\'/$quote}" >>"$2.more"
        else
            printf '%s=%s%s%s\n' "${VARIABLES[k]}" "$3" "$line" "$3"
        fi
    done >"$2"
}

# Become a program whose environment has, on top, what FILE.more holds: become FILE WORD...
become() {
    # shellcheck disable=SC2016
    exec "$BASH" --norc --noprofile -c '. "$0"; exec "$@"' "$1.more" "${@:2}"
}
