# Completion of redlock for bash. Made from src/cli by tests/suite/cli/generated; do not edit.

# The command that is run, which begins at this word, as if it stood alone.
_redlock_command() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif [ "$1" -eq "$COMP_CWORD" ]; then
        COMPREPLY=($(compgen -c -- "${COMP_WORDS[COMP_CWORD]}"))
    else
        compopt -o filenames
        COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
    fi
}

# The values of an option.
_redlock_values() {
    local cur=$2
    case $1 in
        --prefer) COMPREPLY=($(compgen -W "fair writers readers" -- "$cur")) ;;
        --password-file) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
        --config) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
        --local-dir) compopt -o filenames; COMPREPLY=($(compgen -d -- "$cur")) ;;
        --on-unavailable) COMPREPLY=($(compgen -W "fail skip run wait" -- "$cur")) ;;
        --on-lost) COMPREPLY=($(compgen -W "stop warn" -- "$cur")) ;;
        --signal) COMPREPLY=($(compgen -W "TERM INT HUP QUIT KILL USR1 USR2" -- "$cur")) ;;
        --events) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
    esac
}

_redlock() {
    local cur=${COMP_WORDS[COMP_CWORD]} options valued arguments word option i
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "run break completions help --help --version" -- "$cur"))
        return
    fi
    case ${COMP_WORDS[1]} in
        run)
            options="-k --key -c --command -s --shared -x --exclusive --slots --prefer --reader-group -n --nonblock -w --wait --retries --retry-interval --supersede --reentrant --jitter -E --conflict-exit-code --ttl --max-hold --min-hold --wait-tree -r --redis --username --password-file --prefix --node-timeout --config --local --local-dir --require-server --quarantine --on-unavailable --on-lost --signal --kill-after --label --events -q --quiet -v --verbose -h --help"
            valued="-k --key -c --command --slots --prefer --reader-group -w --wait --retries --retry-interval --jitter -E --conflict-exit-code --ttl --max-hold --min-hold -r --redis --username --password-file --prefix --node-timeout --config --local-dir --quarantine --on-unavailable --on-lost --signal --kill-after --label --events"
            arguments=""
            ;;
        break)
            options="-k --key --yes -h --help -r --redis --username --password-file --prefix --node-timeout --config"
            valued="-k --key -r --redis --username --password-file --prefix --node-timeout --config"
            arguments=""
            ;;
        completions)
            options="-h --help"
            valued=""
            arguments="bash zsh fish"
            ;;
        help)
            options="-h --help"
            valued=""
            arguments="run break completions help"
            ;;
        *) return ;;
    esac

    # Where options end, and which of them waits for its value. bash makes words of --ttl=5s: "--ttl" "=" "5s".
    option=
    for ((i = 2; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [ -n "$option" ]; then
            if [ "$word" != = ]; then option=; fi
            continue
        fi
        case $word in
            --)
                if [ "${COMP_WORDS[1]}" = run ]; then _redlock_command $((i + 1)); fi
                return
                ;;
            --*) case " $valued " in *" $word "*) option=$word ;; esac ;;
            -*) case " $valued " in *" -${word: -1} "*) option=-${word: -1} ;; esac ;;
            *)
                if [ "${COMP_WORDS[1]}" = run ]; then _redlock_command "$i"; fi
                return
                ;;
        esac
    done

    if [ -n "$option" ]; then
        if [ "$cur" = = ]; then cur=; fi
        _redlock_values "$option" "$cur"
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
    elif [ "${COMP_WORDS[1]}" = run ]; then
        _redlock_command "$COMP_CWORD"
    else
        COMPREPLY=($(compgen -W "$arguments" -- "$cur"))
    fi
}

complete -F _redlock redlock
