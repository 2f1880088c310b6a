# Completion of redlock for fish. Made from src/cli by tests/suite/cli/generated; do not edit.

# Where, in the words before the cursor, the command begins that is run; 0 if it does not begin there.
function __redlock_command_begins
    set -l words $argv
    set -l valued -k --key -c --command --slots --prefer --reader-group -w --wait --retries --retry-interval --jitter -E --conflict-exit-code --ttl --max-hold --min-hold -r --redis --username --password-file --prefix --node-timeout --config --local-dir --quarantine --on-unavailable --on-lost --signal --kill-after --label --events
    set -l i 3
    while test $i -le (count $words)
        set -l word $words[$i]
        if test "$word" = --
            echo (math $i + 1)
            return
        else if contains -- $word $valued
            set i (math $i + 2)
        else if string match -qr -- '^-[^-]' $word; and contains -- -(string sub -s -1 -- $word) $valued
            set i (math $i + 2)
        else if string match -q -- '-*' $word
            set i (math $i + 1)
        else
            echo $i
            return
        end
    end
    echo 0
end

# Still among the options of this subcommand?
function __redlock_in_options
    set -l words (commandline -opc)
    test (count $words) -ge 2; and test "$words[2]" = $argv[1]; or return 1
    test $argv[1] != run; or test (__redlock_command_begins $words) -eq 0
end

# At the command that is run, or in its arguments?
function __redlock_in_command
    set -l words (commandline -opc)
    test (count $words) -ge 2; and test "$words[2]" = run
end

function __redlock_complete_command
    set -l words (commandline -opc)
    set -l begin (__redlock_command_begins $words)
    set -l command
    if test $begin -gt 0; and test $begin -le (count $words)
        set command (string escape -- $words[$begin..-1])
    end
    set -l current (commandline -ct)
    # Before the command, what begins with a dash is an option of redlock.
    if set -q command[1]; or not string match -q -- '-*' $current
        complete --do-complete=(string join ' ' -- $command $current)
    end
end

complete -c redlock -f
complete -c redlock -n __fish_use_subcommand -a run -d 'Take a lock, run a command, release the lock'
complete -c redlock -n __fish_use_subcommand -a break -d 'Take a lock on servers away from its holder'
complete -c redlock -n __fish_use_subcommand -a completions -d 'Print the completion script for a shell'
complete -c redlock -n __fish_use_subcommand -a help -d 'Explain a command and its options'
complete -c redlock -n __fish_use_subcommand -s h -l help -d 'Print help'
complete -c redlock -n __fish_use_subcommand -s V -l version -d 'Print the version'

# redlock run
complete -c redlock -n '__redlock_in_options run' -s k -l key -x -d 'Name of the lock; repeat to take several at once'
complete -c redlock -n '__redlock_in_options run' -s c -l command -x -d 'Run STRING with $SHELL -c instead of a command'
complete -c redlock -n '__redlock_in_options run' -s s -l shared -d 'Take the lock in shared mode'
complete -c redlock -n '__redlock_in_options run' -s x -l exclusive -d 'Take the lock in exclusive mode (default)'
complete -c redlock -n '__redlock_in_options run' -l slots -x -d 'Up to N holders at once; REDLOCK_SLOT is 0 to N-1'
complete -c redlock -n '__redlock_in_options run' -l prefer -x -a 'fair writers readers' -d 'Queueing order: fair, writers or readers first'
complete -c redlock -n '__redlock_in_options run' -l reader-group -x -d 'With --shared: share with the same group only'
complete -c redlock -n '__redlock_in_options run' -s n -l nonblock -d 'Fail at once if the lock is held'
complete -c redlock -n '__redlock_in_options run' -s w -l wait -x -d 'Wait at most this long [default: forever]'
complete -c redlock -n '__redlock_in_options run' -l retries -x -d 'Retry up to N times instead of queueing'
complete -c redlock -n '__redlock_in_options run' -l retry-interval -x -d 'Pause between retries (+/- 50%) [default: 1s]'
complete -c redlock -n '__redlock_in_options run' -l supersede -d 'Of the waiters with this option, keep the newest'
complete -c redlock -n '__redlock_in_options run' -l reentrant -d 'Run at once under the lock of an outer run'
complete -c redlock -n '__redlock_in_options run' -l jitter -x -d 'Random delay before the first attempt, at most this'
complete -c redlock -n '__redlock_in_options run' -s E -l conflict-exit-code -x -d 'Exit code if the lock is held [default: 75]'
complete -c redlock -n '__redlock_in_options run' -l ttl -x -d 'How long the lock outlives a crash [default: 30s]'
complete -c redlock -n '__redlock_in_options run' -l max-hold -x -d 'Stop the command after this long (exit 124)'
complete -c redlock -n '__redlock_in_options run' -l min-hold -x -d 'Keep the lock at least this long'
complete -c redlock -n '__redlock_in_options run' -l wait-tree -d 'Hold the lock until background processes ended'
complete -c redlock -n '__redlock_in_options run' -s r -l redis -x -d 'A Redis server; repeat (3 or 5) for Redlock'
complete -c redlock -n '__redlock_in_options run' -l username -x -d 'User to log in with, if the URL names none'
complete -c redlock -n '__redlock_in_options run' -l password-file -r -F -d 'File with the password, if it is not in the URL'
complete -c redlock -n '__redlock_in_options run' -l prefix -x -d 'Prefix of the Redis keys [default: lock]'
complete -c redlock -n '__redlock_in_options run' -l node-timeout -x -d 'Timeout for one request to a server'
complete -c redlock -n '__redlock_in_options run' -l config -r -F -d 'Read this config file and no other'
complete -c redlock -n '__redlock_in_options run' -l local -d 'Lock on this host even if servers are configured'
complete -c redlock -n '__redlock_in_options run' -l local-dir -x -a '(__fish_complete_directories)' -d 'Directory for lock files; implies --local'
complete -c redlock -n '__redlock_in_options run' -l require-server -d 'Fail if no server is configured (exit 78)'
complete -c redlock -n '__redlock_in_options run' -l quarantine -x -d 'Keep a restarted server from voting for this long'
complete -c redlock -n '__redlock_in_options run' -l on-unavailable -x -a 'fail skip run wait' -d 'If the servers are down: fail, skip, run or wait'
complete -c redlock -n '__redlock_in_options run' -l on-lost -x -a 'stop warn' -d 'If the lock is lost: stop the command, or warn'
complete -c redlock -n '__redlock_in_options run' -l signal -x -a 'TERM INT HUP QUIT KILL USR1 USR2' -d 'Signal that stops the command [default: TERM]'
complete -c redlock -n '__redlock_in_options run' -l kill-after -x -d 'Time from that signal to SIGKILL [default: 5s]'
complete -c redlock -n '__redlock_in_options run' -l label -x -d 'Label shown to waiters'
complete -c redlock -n '__redlock_in_options run' -l events -r -F -d 'Append a JSON line for each event to FILE'
complete -c redlock -n '__redlock_in_options run' -s q -l quiet -d 'Print errors only'
complete -c redlock -n '__redlock_in_options run' -s v -l verbose -d 'Print every step'
complete -c redlock -n '__redlock_in_options run' -s h -l help -d 'Print this summary; --help explains every option'

# redlock break
complete -c redlock -n '__redlock_in_options break' -s k -l key -x -d 'Name of the lock, as an option'
complete -c redlock -n '__redlock_in_options break' -l yes -d 'Break it; without this, only show the holder'
complete -c redlock -n '__redlock_in_options break' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options break' -s r -l redis -x -d 'A Redis server; repeat (3 or 5) for Redlock'
complete -c redlock -n '__redlock_in_options break' -l username -x -d 'User to log in with, if the URL names none'
complete -c redlock -n '__redlock_in_options break' -l password-file -r -F -d 'File with the password, if it is not in the URL'
complete -c redlock -n '__redlock_in_options break' -l prefix -x -d 'Prefix of the Redis keys [default: lock]'
complete -c redlock -n '__redlock_in_options break' -l node-timeout -x -d 'Timeout for one request to a server'
complete -c redlock -n '__redlock_in_options break' -l config -r -F -d 'Read this config file and no other'

# redlock completions
complete -c redlock -n '__redlock_in_options completions' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options completions' -a 'bash zsh fish'

# redlock help
complete -c redlock -n '__redlock_in_options help' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options help' -a 'run break completions help'
complete -c redlock -n __redlock_in_command -x -a '(__redlock_complete_command)'
