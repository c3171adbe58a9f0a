# Completion of numabind for bash; made by: numabind completion bash
_numabind() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local takers=' @takers@ '
    local verb= start= options= operands= what= words= i
    COMPREPLY=()
    # The verb, and where a command of its own begins. Readline takes --mode=node for three words.
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --) start=$((i + 1)) && break ;;
        =) ((i++)) ;;
        -*) [[ $takers == *" ${COMP_WORDS[i]} "* && ${COMP_WORDS[i + 1]} != = ]] && ((i++)) ;;
        *) if [[ $verb ]]; then start=$i && break; else verb=${COMP_WORDS[i]}; fi ;;
        esac
    done
    if [[ $start && $verb == @(@commands@) ]]; then
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset "$start"
            return
        elif declare -F _command_offset >/dev/null; then
            _command_offset "$start"
            return
        fi
    fi
    if [[ $word == = ]]; then
        word=
    elif [[ $before == = ]]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    case $verb in
@verbs@
    esac
    if [[ $start && $verb == @(@commands@) ]]; then
        what=FILE
        ((start == COMP_CWORD)) && what=COMMAND
    elif [[ ! $what ]]; then
        what=$operands
        [[ $word == -* || ! $what || $what == COMMAND && ! $word ]] && what=$options
    fi
    case $what in
    NOTHING) ;;
    FILE) compopt -o default ;;
    DIR) compopt -o dirnames ;;
    COMMAND) mapfile -t COMPREPLY < <(compgen -c -- "$word") ;;
    *)
        case $what in
        PID) words=$(cd /proc && echo [0-9]*) ;;
        DEVICE)
            for i in /sys/class/{infiniband,nvme,net}/*/device; do
                [[ -e $i ]] && i=${i%/device} && words+=" ${i##*/}"
            done
            ;;
        *) words=$what ;;
        esac
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
        ;;
    esac
}
complete -F _numabind numabind
