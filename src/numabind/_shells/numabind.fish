# Completion of numabind for fish; made by: numabind completion fish
function __numabind_words --description 'The verb, "" before there is one; then "command" and its words, if it has begun'
    set -l takers @takers@
    set -l words (commandline -opc)
    set -l verb
    set -e words[1]
    while set -q words[1]
        set -l word $words[1]
        set -e words[1]
        switch $word
            case --
                printf '%s\n' "$verb" command $words
                return
            case '-*'
                contains -- $word $takers; and set -e words[1]
            case '*'
                if set -q verb[1]
                    printf '%s\n' "$verb" command $word $words
                    return
                end
                set verb $word
        end
    end
    printf '%s\n' "$verb"
end
function __numabind_verb --description 'Whether options and operands of this verb go here'
    set -l words (__numabind_words)
    test (count $words) = 1 -a "$words[1]" = "$argv[1]"
end
function __numabind_command --description 'Whether the command of this verb goes here'
    set -l words (__numabind_words)
    test (count $words) -gt 1 -a "$words[1]" = "$argv[1]"
end
function __numabind_own --description 'What its shell would offer for that command'
    set -l words (__numabind_words)
    complete -C (string join ' ' -- $words[3..-1] (commandline -ct))
end
function __numabind_device
    for path in /sys/class/{infiniband,nvme,net}/*/device
        string split -f 5 / $path
    end
end
complete -c numabind -f
@completions@
