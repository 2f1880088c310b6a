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

# The keys of locks that are taken, where the options that were typed say. Bounded in time, and silent if there is none.
_redlock_keys() {
    local cur=$1 where=() word key i breaks=
    for ((i = 2; i < ${#words[@]} - 1; i++)); do
        word=${words[i]//[\"\']/}
        case $word in
            --) break ;;
            --local | -r?*) where+=("$word") ;;
            -r | --redis | --username | --password-file | --sentinel-username | --sentinel-password-file | --tls-ca | --tls-cert | --tls-key | --tls-server-name | --prefix | --config | --local-dir) where+=("$word" "${words[++i]//[\"\']/}") ;;
            --*=*) case ${word%%=*} in -r | --redis | --username | --password-file | --sentinel-username | --sentinel-password-file | --tls-ca | --tls-cert | --tls-key | --tls-server-name | --prefix | --config | --local-dir) where+=("$word") ;; esac ;;
        esac
    done
    # bash replaces only what stands behind a colon.
    if [[ $COMP_WORDBREAKS == *:* ]]; then breaks=${cur%"${cur##*:}"}; fi
    cur=${cur//\\/}
    while IFS= read -r key; do
        if [[ $key == "$cur"* ]]; then COMPREPLY+=("$(printf %q "${key#"$breaks"}")"); fi
    done < <(timeout 2 redlock list --keys --node-timeout 500ms "${where[@]}" 2>/dev/null </dev/null)
}

# The values of an option.
_redlock_values() {
    local cur=$2
    case $1 in
        -k | --key) _redlock_keys "$cur" ;;
        --prefer) COMPREPLY=($(compgen -W "fair writers readers" -- "$cur")) ;;
        --password-file) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
        --sentinel-password-file) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
        --tls-ca) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
        --tls-cert) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
        --tls-key) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
        --config) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
        --local-dir) compopt -o filenames; COMPREPLY=($(compgen -d -- "$cur")) ;;
        --on-unavailable) COMPREPLY=($(compgen -W "fail skip run wait" -- "$cur")) ;;
        --on-lost) COMPREPLY=($(compgen -W "stop warn" -- "$cur")) ;;
        --signal) COMPREPLY=($(compgen -W "TERM INT HUP QUIT KILL USR1 USR2" -- "$cur")) ;;
        --events) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
        --check) COMPREPLY=($(compgen -W "held free owned" -- "$cur")) ;;
        --svg) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
    esac
}

_redlock() {
    local line=$COMP_LINE rest words=() first=() cur options valued arguments word option= i
    COMPREPLY=()
    # COMP_WORDS, with what bash takes apart at : and = put together again, and where each of them begins.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        rest=${line#"${line%%[![:blank:]]*}"}
        if [ "$i" -eq 0 ] || [ "$rest" != "$line" ]; then
            words+=("")
            first+=("$i")
        fi
        words[${#words[@]} - 1]+=${COMP_WORDS[i]}
        line=${rest#"${COMP_WORDS[i]}"}
    done
    cur=${words[${#words[@]} - 1]}
    if [ "${#words[@]}" -eq 2 ]; then
        COMPREPLY=($(compgen -W "run acquire extend release status list doctor history break completions help --help --version" -- "$cur"))
        return
    fi
    case ${words[1]} in
        run)
            options="-k --key -s --shared -x --exclusive --slots --prefer --reader-group -n --nonblock -w --wait --retries --retry-interval --supersede --jitter -E --conflict-exit-code --ttl --quarantine --min-hold -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local --local-dir --require-server --on-unavailable --on-lost --signal --label --events --hook --history -q --quiet -v --verbose -h --help -c --command --reentrant --cancel-in-progress --once --max-hold --wait-tree --kill-after"
            valued="-k --key --slots --prefer --reader-group -w --wait --retries --retry-interval --jitter -E --conflict-exit-code --ttl --quarantine --min-hold -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local-dir --on-unavailable --on-lost --signal --label --events --hook --history -c --command --once --max-hold --kill-after"
            arguments=""
            ;;
        acquire)
            options="-k --key -s --shared -x --exclusive --slots --prefer --reader-group -n --nonblock -w --wait --retries --retry-interval --supersede --jitter -E --conflict-exit-code --ttl --quarantine --min-hold -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local --local-dir --require-server --label --events --hook --history -q --quiet -v --verbose -h --help --json --shell --for-shell --watch-pid --on-unavailable --on-lost --signal"
            valued="-k --key --slots --prefer --reader-group -w --wait --retries --retry-interval --jitter -E --conflict-exit-code --ttl --quarantine --min-hold -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local-dir --label --events --hook --history --watch-pid --on-unavailable --on-lost --signal"
            arguments=""
            ;;
        extend)
            options="-k --key -t --token --quarantine -q --quiet -v --verbose -h --help -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local --local-dir --require-server --ttl"
            valued="-k --key -t --token --quarantine -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local-dir --ttl"
            arguments="KEY"
            ;;
        release)
            options="-k --key -t --token -q --quiet -v --verbose -h --help -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local --local-dir --require-server"
            valued="-k --key -t --token -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local-dir"
            arguments="KEY"
            ;;
        status)
            options="-k --key --check --token --wait-free -w --wait --watch --interval --json -q --quiet -v --verbose -h --help -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local --local-dir --require-server"
            valued="-k --key --check --token -w --wait --interval -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local-dir"
            arguments="KEY"
            ;;
        list)
            options="--waiting --keys --openmetrics --watch --interval --json -q --quiet -v --verbose -h --help -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local --local-dir --require-server"
            valued="--interval -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local-dir"
            arguments=""
            ;;
        doctor)
            options="--quarantine --json -h --help -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local --local-dir --require-server -q --quiet -v --verbose --ttl"
            valued="--quarantine -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local-dir --ttl"
            arguments=""
            ;;
        history)
            options="-k --key --failed --since -n --limit --svg --json -q --quiet -v --verbose -h --help -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local --local-dir --require-server"
            valued="-k --key --since -n --limit --svg -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local-dir"
            arguments="KEY"
            ;;
        break)
            options="-k --key --yes --token --slot --now -w --wait -h --help -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local --local-dir --require-server"
            valued="-k --key --token --slot -w --wait -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local-dir"
            arguments="KEY"
            ;;
        completions)
            options="-h --help"
            valued=""
            arguments="bash zsh fish elvish powershell"
            ;;
        help)
            options="-h --help"
            valued=""
            arguments="run acquire extend release status list doctor history break completions help"
            ;;
        *) return ;;
    esac

    # Where options end, and which of them waits for its value.
    for ((i = 2; i < ${#words[@]} - 1; i++)); do
        word=${words[i]}
        if [ -n "$option" ]; then
            option=
            continue
        fi
        case $word in
            --)
                if [ "${words[1]}" = run ]; then _redlock_command "${first[i + 1]}"; fi
                return
                ;;
            --*) case " $valued " in *" $word "*) option=$word ;; esac ;;
            -*) case " $valued " in *" -${word: -1} "*) option=-${word: -1} ;; esac ;;
            *)
                if [ "${words[1]}" = run ]; then
                    _redlock_command "${first[i]}"
                    return
                fi
                ;;
        esac
    done

    if [[ -z $option && $cur == --*=* ]]; then
        option=${cur%%=*} cur=${cur#*=}
    fi
    if [ -n "$option" ]; then
        _redlock_values "$option" "$cur"
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
    elif [ "${words[1]}" = run ]; then
        _redlock_command "$COMP_CWORD"
    elif [ "$arguments" = KEY ]; then
        _redlock_keys "$cur"
    else
        COMPREPLY=($(compgen -W "$arguments" -- "$cur"))
    fi
}

complete -F _redlock redlock
