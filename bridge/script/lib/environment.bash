# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# The variables of a container, as files: no value is ever in a process list.

# Variables of the batch system and of MPI: BATCH are those of the job, DEVICES those of its GPUs.
BATCH='SLURM_*|PMI*|OMPI_*|MPI_*|HYDRA_*|HYDI_*'
DEVICES='CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK'

# container_variables I: set VARIABLES, with those of the batch system. The pod's variables override those of the job,
# but not those of the devices.
container_variables() {
    local name before=() after=()
    variables_of "$1"
    for name in $(compgen -e); do
        # patterns: to compile a regular expression for each name takes longer
        case $name in
        SLURM_JWT) ;; # a token that commands of Slurm would use as the site's user
        PODBRIDGE_GROUP_SIZE | PODBRIDGE_GROUP_RANK | PODBRIDGE_GROUP_HOSTS | PODBRIDGE_GROUP_HOSTFILE)
            before+=("$name" "${!name}")
            ;;
        MASTER_ADDR | MASTER_PORT | WORLD_SIZE | RANK | PET_RDZV_CONF)
            [[ ! $RENDEZVOUS_PORT ]] || before+=("$name" "${!name}")
            ;;
        *)
            # shellcheck disable=SC2053
            if [[ $name == @($DEVICES) ]]; then
                after+=("$name" "${!name}")
            elif [[ $name == @($BATCH) && ! ($MPI_ASKED && ${KIND[$1]} == main) ]]; then
                before+=("$name" "${!name}")
            fi
            ;;
        esac
    done
    VARIABLES=("${before[@]}" "${VARIABLES[@]}" "${after[@]}")
}

# given_devices: set GIVEN to the names of the allocated GPUs, with the machine's numbers if the batch system has them.
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

# devices_or_cannot I: a pod that requests GPUs gets the allocated ones, not all of the machine.
devices_or_cannot() {
    if [[ $GPU_RESOURCE ]]; then
        given_devices || cannot "${NAME[$1]}" 128 'CreateContainerConfigError permanent' \
            "the pod asks for $GPU_RESOURCE, but the batch system named no devices (CUDA_VISIBLE_DEVICES and the like)"
    else
        GIVEN=()
        # without it, a runtime that shows all devices would let the container use them
        export CUDA_VISIBLE_DEVICES='' ROCR_VISIBLE_DEVICES=''
    fi
}

# is_foreign NAME: whether no shell can assign the name, as "a.b". FOREIGN has names and values of such variables.
is_foreign() { [[ $1 != [A-Za-z_]* || $1 == *[!A-Za-z0-9_]* ]]; }

# exports I: EXPORTS is shell text. SPECIAL gets variables that a shell does not assign, as NAME=VALUE.
exports() {
    local k quote="'\"'\"'" # apptainer's own shell keeps the backslash of '\''
    container_variables "$1"
    SPECIAL=() FOREIGN=() EXPORTS=()
    for ((k = 0; k < ${#VARIABLES[@]}; k += 2)); do
        if is_foreign "${VARIABLES[k]}"; then
            FOREIGN+=("${VARIABLES[@]:k:2}")
        elif is_special "${VARIABLES[k]}"; then
            SPECIAL+=("${VARIABLES[k]}=${VARIABLES[k + 1]}")
        else
            EXPORTS+=("export ${VARIABLES[k]}='${VARIABLES[k + 1]//\'/$quote}'")
        fi
    done
}

# write_exports I FILE
write_exports() {
    exports "$1"
    printf '%s\n' "${EXPORTS[@]}" >"$2"
}

is_special() {
    case $1 in
    BASH_ENV) return 1 ;;
    UID | EUID | GID | PPID | GROUPS | SHELLOPTS | BASH* | RANDOM | SRANDOM | SECONDS | LINENO | HISTCMD | DIRSTACK) return 0 ;;
    FUNCNAME | EPOCH* | _ | PWD | OLDPWD | SHLVL | POSIXLY_CORRECT | OPTIND | IFS) return 0 ;;
    esac
    return 1
}

# write_lines I FILE QUOTE: NAME=VALUE line by line, the value between QUOTE and QUOTE. What is no line (breaks in it, too
# long for the readers of such files, or like a comment) goes to FILE.more as shell text, or to FOREIGN; MORE has the names.
write_lines() {
    local k name line quote="'\\''"
    container_variables "$1"
    MORE=() FOREIGN=()
    : >"$2.more"
    for ((k = 0; k < ${#VARIABLES[@]}; k += 2)); do
        name=${VARIABLES[k]} line=${VARIABLES[k + 1]}
        if [[ $name != '#'* && $line != *[$'\n\r']* && $((${#name} + ${#line})) -le 8000 ]]; then
            printf '%s=%s%s%s\n' "$name" "$3" "$line" "$3"
            continue
        fi
        MORE+=("$name")
        if is_foreign "$name"; then
            FOREIGN+=("$name" "$line")
        else
            printf "export %s='%s'\n" "$name" "${line//\'/$quote}" >>"$2.more"
        fi
    done >"$2"
}

# write_foreign NAME: FOREIGN as the file of this container that set_foreign takes.
write_foreign() {
    ((${#FOREIGN[@]} == 0)) || printf '%s=%s\0' "${FOREIGN[@]}" >"run/$1.foreign.env"
}

# set_foreign NAME [KEPT]: SETTER stands before a command that is to have the variables of write_foreign, and of those that
# it has otherwise only what matches KEPT. Empty if the container has none.
set_foreign() {
    SETTER=()
    [[ -s run/$1.foreign.env ]] || return 0
    export PERL_BADLANG=0 # no warnings of locales that are not there; the setter removes it
    find_setter && SETTER+=("run/$1.foreign.env" "${2-.}")
}

# find_setter: SETTER runs a command with more variables, as SETTER... FILE KEPT COMMAND...; FILE has NAME=VALUE, each
# with NUL at its end, or is the number of a descriptor. PROBLEM is what is missing.
find_setter() {
    local program
    PROBLEM='variables whose names are not made of letters, digits and _ need perl or python3 on this machine'
    for program in perl python3 /usr/libexec/platform-python; do
        program=$(type -P -- "$program") || continue
        case ${program##*/} in
        perl) SETTER=("$program" -e "$SET_BY_PERL") ;;
        # isolated: the pod's PYTHON* variables are for its own program
        *) SETTER=("$program" -I -S -c "$SET_BY_PYTHON") ;;
        esac
        "${SETTER[@]}" /dev/null . true </dev/null >/dev/null 2>&1 && return
    done
    SETTER=()
    return 1
}

# shellcheck disable=SC2016
SET_BY_PERL='
my ($file, $kept) = splice @ARGV, 0, 2;
open(my $in, $file =~ /^[0-9]+$/ ? "<&=" : "<", $file) or die "$file: $!\n";
binmode $in;
delete $ENV{PERL_BADLANG};
/(?:$kept)/ or delete $ENV{$_} for keys %ENV;
local $/ = "\0";
while (<$in>) {
    chomp;
    my ($name, $value) = split /=/, $_, 2;
    $ENV{$name} = $value;
}
close $in;
exec { $ARGV[0] } @ARGV;
print STDERR "$ARGV[0]: $!\n";
exit 126;'
# A Python ignores SIGPIPE, and may have added variables of its own to os.environ. Indentation is lost in the library.
SET_BY_PYTHON='
import os, re, signal, sys
source, kept, *words = sys.argv[1:]
read = lambda file: [pair.partition(b"=")[::2] for pair in open(file, "rb").read().split(b"\0") if b"=" in pair]
own = {name: value for name, value in read("/proc/self/environ") if re.search(os.fsencode(kept), name)}
own.pop(b"PERL_BADLANG", None)
own.update(read(int(source) if source.isdigit() else source))
for number in signal.SIGPIPE, signal.SIGXFSZ: signal.signal(number, signal.SIG_DFL)
try: os.execvpe(words[0], words, own)
except OSError as error: print(words[0], error.strerror, sep=": ", file=sys.stderr)
sys.exit(126)'

# become FILE WORD...: execute a program whose environment also has the variables of FILE.more.
become() {
    # shellcheck disable=SC2016
    exec "$BASH" --norc --noprofile -c '. "$0"; exec "$@"' "$1.more" "${@:2}"
}
