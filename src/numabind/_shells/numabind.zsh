#compdef numabind
# Completion of numabind for zsh; made by: numabind completion zsh
_numabind_device() {
    local -a found=(/sys/class/{infiniband,nvme,net}/*/device(N:h:t))
    compadd -a found
}
_numabind_own() {
    [[ $words[1] == -- ]] && shift words && ((CURRENT -= 1))
    _normal
}
_numabind() {
    local context state state_descr line
    typeset -A opt_args
    _arguments -C \
        @options@ \
        '1:VERB:->verb' \
        '*::ARG:->rest' && return
    case $state in
    verb)
        local -a verbs=(
            @names@
        )
        _describe -t verbs verb verbs
        ;;
    rest)
        case $words[1] in
@verbs@
        esac
        ;;
    esac
}
# Read as a function of fpath, or sourced.
if [[ $funcstack[1] == _numabind ]]; then
    _numabind "$@"
else
    compdef _numabind numabind
fi
