# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# The variables of a container, as files: no value ever stands in a process list.

# What the batch system and MPI tell each process: BATCH is of the job, DEVICES of the GPUs that it was given.
BATCH='SLURM_*|PMI*|OMPI_*|MPI_*|HYDRA_*|HYDI_*'
DEVICES='CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK'

# container_variables I: VARIABLES, with those of the batch system. The pod's own come after those of the job, and before
# those of devices, which are not the pod's to choose.
container_variables() {
    local name before=() after=()
    variables_of "$1"
    for name in $(compgen -e); do
        # a token that commands of Slurm would use as the site's user
        [[ $name == SLURM_JWT ]] && continue
        if [[ $name =~ ^($DEVICES)$ ]]; then
            after+=("$name" "${!name}")
        elif [[ $name =~ ^(${BATCH//\*/.*})$ && ! ($MPI_ASKED && ${KIND[$1]} == main) ]]; then
            before+=("$name" "${!name}")
        fi
    done
    VARIABLES=("${before[@]}" "${VARIABLES[@]}" "${after[@]}")
}

# given_devices: GIVEN are the names of the GPUs that the batch system gave, numbers of the machine where it tells them.
given_devices() {
    local name list=''
    for name in SLURM_JOB_GPUS SLURM_STEP_GPUS ${DEVICES//|/ }; do
        list=${!name-}
        [[ ! $list ]] || break
    done
    GIVEN=()
    [[ $list =~ ^[A-Za-z0-9,:._-]+$ && $list != NoDevFiles ]] || return 1
    IFS=, read -r -a GIVEN <<<"$list"
}

# devices_or_cannot I: a pod that asks for GPUs gets those that it was given, not all that the machine has.
devices_or_cannot() {
    if [[ $GPU_RESOURCE ]]; then
        given_devices || cannot "${NAME[$1]}" 128 CreateContainerConfigError \
            "the pod asks for $GPU_RESOURCE, but the batch system named no devices (CUDA_VISIBLE_DEVICES and the like)"
    else
        GIVEN=()
        # without it, a runtime that shows all devices would let the container use them
        export CUDA_VISIBLE_DEVICES='' ROCR_VISIBLE_DEVICES=''
    fi
}

# write_exports I FILE: as shell text. SPECIAL are those that a shell keeps to itself, as NAME=VALUE.
write_exports() {
    local k quote="'\"'\"'" # apptainer's own shell keeps the backslash of '\''
    container_variables "$1"
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
    container_variables "$1"
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
