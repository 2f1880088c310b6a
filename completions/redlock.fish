# Completion of redlock for fish. Made from src/cli by tests/suite/cli/generated; do not edit.

# Where, in the words before the cursor, the command begins that is run; 0 if it does not begin there.
function __redlock_command_begins
    set -l words $argv
    set -l valued -k --key --slots --prefer --reader-group -w --wait --retries --retry-interval --jitter -E --conflict-exit-code --ttl --quarantine --min-hold -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --node-timeout --config --local-dir --on-unavailable --on-lost --signal --label --events --hook --history -c --command --once --max-hold --kill-after
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

# The keys of locks that are taken, where the options that were typed say. Bounded in time, and silent if there is none.
function __redlock_keys
    set -l words (commandline -opc)
    set -l valued -r --redis --username --password-file --sentinel-username --sentinel-password-file --tls-ca --tls-cert --tls-key --tls-server-name --prefix --config --local-dir
    set -l flags --local
    set -l where
    set -l i 3
    while test $i -le (count $words)
        set -l word $words[$i]
        if test "$word" = --
            break
        else if contains -- $word $valued; and test $i -lt (count $words)
            set i (math $i + 1)
            set -a where $word $words[$i]
        else if contains -- $word $flags; or contains -- (string split -m 1 = -- $word)[1] $valued; or string match -q -- '-r?*' $word
            set -a where $word
        end
        set i (math $i + 1)
    end
    timeout 2 redlock list --keys --node-timeout 500ms $where 2>/dev/null </dev/null
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
complete -c redlock -n __fish_use_subcommand -a acquire -d 'Take a lock for several steps, and print its token'
complete -c redlock -n __fish_use_subcommand -a extend -d 'Renew a lock\'s lease'
complete -c redlock -n __fish_use_subcommand -a release -d 'Release a lock'
complete -c redlock -n __fish_use_subcommand -a status -d 'Show who holds a lock, and who waits for it'
complete -c redlock -n __fish_use_subcommand -a list -d 'List the locks that are taken'
complete -c redlock -n __fish_use_subcommand -a doctor -d 'Check whether locks work here'
complete -c redlock -n __fish_use_subcommand -a history -d 'Show who held locks, how long, and how it ended'
complete -c redlock -n __fish_use_subcommand -a break -d 'Take a lock away from its holder'
complete -c redlock -n __fish_use_subcommand -a completions -d 'Print the completion script for a shell'
complete -c redlock -n __fish_use_subcommand -a help -d 'Explain a command and its options'
complete -c redlock -n __fish_use_subcommand -s h -l help -d 'Print help'
complete -c redlock -n __fish_use_subcommand -s V -l version -d 'Print the version'

# redlock run
complete -c redlock -n '__redlock_in_options run' -s k -l key -x -a '(__redlock_keys)' -d 'Name of the lock; repeat to take several at once'
complete -c redlock -n '__redlock_in_options run' -s s -l shared -d 'Take the lock in shared mode'
complete -c redlock -n '__redlock_in_options run' -s x -l exclusive -d 'Take the lock in exclusive mode (default)'
complete -c redlock -n '__redlock_in_options run' -l slots -x -d 'Up to N holders at once; REDLOCK_SLOT is 0 to N-1'
complete -c redlock -n '__redlock_in_options run' -l prefer -x -a 'fair writers readers' -d 'Queueing order: fair, writers or readers first'
complete -c redlock -n '__redlock_in_options run' -l reader-group -x -d 'With --shared: share only within this group'
complete -c redlock -n '__redlock_in_options run' -s n -l nonblock -d 'Fail at once if the lock is held'
complete -c redlock -n '__redlock_in_options run' -s w -l wait -x -d 'Wait at most this long [default: forever]'
complete -c redlock -n '__redlock_in_options run' -l retries -x -d 'Retry up to N times instead of queueing'
complete -c redlock -n '__redlock_in_options run' -l retry-interval -x -d 'Pause between retries (+/- 50%) [default: 1s]'
complete -c redlock -n '__redlock_in_options run' -l supersede -d 'Newest waiter wins: older ones give up'
complete -c redlock -n '__redlock_in_options run' -l jitter -x -d 'Maximum random delay before the first attempt'
complete -c redlock -n '__redlock_in_options run' -s E -l conflict-exit-code -x -d 'Exit code if the lock is held [default: 75]'
complete -c redlock -n '__redlock_in_options run' -l ttl -x -d 'Length of the lease [default: 30s]'
complete -c redlock -n '__redlock_in_options run' -l quarantine -x -d 'Keep a restarted server from voting for this long'
complete -c redlock -n '__redlock_in_options run' -l min-hold -x -d 'Keep the lock at least this long'
complete -c redlock -n '__redlock_in_options run' -s r -l redis -x -d 'A Redis server; repeat (3 or 5) for Redlock'
complete -c redlock -n '__redlock_in_options run' -l username -x -d 'User to log in as, if the URL names none'
complete -c redlock -n '__redlock_in_options run' -l password-file -r -F -d 'File with the password, if it is not in the URL'
complete -c redlock -n '__redlock_in_options run' -l sentinel-username -x -d 'User to log in to Sentinels as'
complete -c redlock -n '__redlock_in_options run' -l sentinel-password-file -r -F -d 'File with the Sentinels\' own password'
complete -c redlock -n '__redlock_in_options run' -l tls-ca -r -F -d 'Authorities to trust for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options run' -l tls-cert -r -F -d 'Client certificate for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options run' -l tls-key -r -F -d 'Private key of the client certificate (PEM)'
complete -c redlock -n '__redlock_in_options run' -l tls-server-name -x -d 'Name in the certificate, if not the URL\'s host'
complete -c redlock -n '__redlock_in_options run' -l prefix -x -d 'Prefix of the Redis keys [default: lock]'
complete -c redlock -n '__redlock_in_options run' -l node-timeout -x -d 'Timeout for one request to a server'
complete -c redlock -n '__redlock_in_options run' -l config -r -F -d 'Read this config file and no other'
complete -c redlock -n '__redlock_in_options run' -l local -d 'Lock on this host even if servers are configured'
complete -c redlock -n '__redlock_in_options run' -l local-dir -x -a '(__fish_complete_directories)' -d 'Directory for lock files; implies --local'
complete -c redlock -n '__redlock_in_options run' -l require-server -d 'Fail if no server is configured (exit 78)'
complete -c redlock -n '__redlock_in_options run' -l on-unavailable -x -a 'fail skip run wait' -d 'If the servers are down: fail, skip, run or wait'
complete -c redlock -n '__redlock_in_options run' -l on-lost -x -a 'stop warn' -d 'If the lock is lost: stop the command, or warn'
complete -c redlock -n '__redlock_in_options run' -l signal -x -a 'TERM INT HUP QUIT KILL USR1 USR2' -d 'Signal that stops the command [default: TERM]'
complete -c redlock -n '__redlock_in_options run' -l label -x -d 'Label shown to waiters'
complete -c redlock -n '__redlock_in_options run' -l events -r -F -d 'Append a JSON line for each event to FILE'
complete -c redlock -n '__redlock_in_options run' -l hook -x -d 'Run CMD with each event as JSON on its stdin'
complete -c redlock -n '__redlock_in_options run' -l history -x -d 'Finished runs to keep for "redlock history"'
complete -c redlock -n '__redlock_in_options run' -s q -l quiet -d 'Print errors only'
complete -c redlock -n '__redlock_in_options run' -s v -l verbose -d 'Print every step'
complete -c redlock -n '__redlock_in_options run' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options run' -s c -l command -x -d 'Run STRING with $SHELL -c instead of a command'
complete -c redlock -n '__redlock_in_options run' -l reentrant -d 'Run at once under the lock of an outer run'
complete -c redlock -n '__redlock_in_options run' -l cancel-in-progress -d 'Newest run wins: stop the run in progress'
complete -c redlock -n '__redlock_in_options run' -l once -x -d 'Skip if a run has succeeded within this time'
complete -c redlock -n '__redlock_in_options run' -l max-hold -x -d 'Stop the command after this long (exit 124)'
complete -c redlock -n '__redlock_in_options run' -l wait-tree -d 'Hold the lock until background processes end'
complete -c redlock -n '__redlock_in_options run' -l kill-after -x -d 'Time from that signal to SIGKILL [default: 5s]'

# redlock acquire
complete -c redlock -n '__redlock_in_options acquire' -s k -l key -x -a '(__redlock_keys)' -d 'Name of the lock; repeat to take several at once'
complete -c redlock -n '__redlock_in_options acquire' -s s -l shared -d 'Take the lock in shared mode'
complete -c redlock -n '__redlock_in_options acquire' -s x -l exclusive -d 'Take the lock in exclusive mode (default)'
complete -c redlock -n '__redlock_in_options acquire' -l slots -x -d 'Up to N holders at once; REDLOCK_SLOT is 0 to N-1'
complete -c redlock -n '__redlock_in_options acquire' -l prefer -x -a 'fair writers readers' -d 'Queueing order: fair, writers or readers first'
complete -c redlock -n '__redlock_in_options acquire' -l reader-group -x -d 'With --shared: share only within this group'
complete -c redlock -n '__redlock_in_options acquire' -s n -l nonblock -d 'Fail at once if the lock is held'
complete -c redlock -n '__redlock_in_options acquire' -s w -l wait -x -d 'Wait at most this long [default: forever]'
complete -c redlock -n '__redlock_in_options acquire' -l retries -x -d 'Retry up to N times instead of queueing'
complete -c redlock -n '__redlock_in_options acquire' -l retry-interval -x -d 'Pause between retries (+/- 50%) [default: 1s]'
complete -c redlock -n '__redlock_in_options acquire' -l supersede -d 'Newest waiter wins: older ones give up'
complete -c redlock -n '__redlock_in_options acquire' -l jitter -x -d 'Maximum random delay before the first attempt'
complete -c redlock -n '__redlock_in_options acquire' -s E -l conflict-exit-code -x -d 'Exit code if the lock is held [default: 75]'
complete -c redlock -n '__redlock_in_options acquire' -l ttl -x -d 'Length of the lease [default: 30s]'
complete -c redlock -n '__redlock_in_options acquire' -l quarantine -x -d 'Keep a restarted server from voting for this long'
complete -c redlock -n '__redlock_in_options acquire' -l min-hold -x -d 'Keep the lock at least this long'
complete -c redlock -n '__redlock_in_options acquire' -s r -l redis -x -d 'A Redis server; repeat (3 or 5) for Redlock'
complete -c redlock -n '__redlock_in_options acquire' -l username -x -d 'User to log in as, if the URL names none'
complete -c redlock -n '__redlock_in_options acquire' -l password-file -r -F -d 'File with the password, if it is not in the URL'
complete -c redlock -n '__redlock_in_options acquire' -l sentinel-username -x -d 'User to log in to Sentinels as'
complete -c redlock -n '__redlock_in_options acquire' -l sentinel-password-file -r -F -d 'File with the Sentinels\' own password'
complete -c redlock -n '__redlock_in_options acquire' -l tls-ca -r -F -d 'Authorities to trust for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options acquire' -l tls-cert -r -F -d 'Client certificate for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options acquire' -l tls-key -r -F -d 'Private key of the client certificate (PEM)'
complete -c redlock -n '__redlock_in_options acquire' -l tls-server-name -x -d 'Name in the certificate, if not the URL\'s host'
complete -c redlock -n '__redlock_in_options acquire' -l prefix -x -d 'Prefix of the Redis keys [default: lock]'
complete -c redlock -n '__redlock_in_options acquire' -l node-timeout -x -d 'Timeout for one request to a server'
complete -c redlock -n '__redlock_in_options acquire' -l config -r -F -d 'Read this config file and no other'
complete -c redlock -n '__redlock_in_options acquire' -l local -d 'Lock on this host even if servers are configured'
complete -c redlock -n '__redlock_in_options acquire' -l local-dir -x -a '(__fish_complete_directories)' -d 'Directory for lock files; implies --local'
complete -c redlock -n '__redlock_in_options acquire' -l require-server -d 'Fail if no server is configured (exit 78)'
complete -c redlock -n '__redlock_in_options acquire' -l label -x -d 'Label shown to waiters'
complete -c redlock -n '__redlock_in_options acquire' -l events -r -F -d 'Append a JSON line for each event to FILE'
complete -c redlock -n '__redlock_in_options acquire' -l hook -x -d 'Run CMD with each event as JSON on its stdin'
complete -c redlock -n '__redlock_in_options acquire' -l history -x -d 'Finished runs to keep for "redlock history"'
complete -c redlock -n '__redlock_in_options acquire' -s q -l quiet -d 'Print errors only'
complete -c redlock -n '__redlock_in_options acquire' -s v -l verbose -d 'Print every step'
complete -c redlock -n '__redlock_in_options acquire' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options acquire' -l json -d 'Print a JSON object instead of the token'
complete -c redlock -n '__redlock_in_options acquire' -l shell -d 'Print lines for eval: export REDLOCK_TOKEN=...'
complete -c redlock -n '__redlock_in_options acquire' -l for-shell -d 'Keep the lock until the calling shell exits'
complete -c redlock -n '__redlock_in_options acquire' -l watch-pid -x -d 'Keep the lock until this process exits'
complete -c redlock -n '__redlock_in_options acquire' -l on-unavailable -x -a 'fail skip run wait' -d 'If the servers are down: fail, or wait'
complete -c redlock -n '__redlock_in_options acquire' -l on-lost -x -a 'stop warn' -d 'If the keeper loses the lock: stop PID, or warn'
complete -c redlock -n '__redlock_in_options acquire' -l signal -x -a 'TERM INT HUP QUIT KILL USR1 USR2' -d 'Signal of --on-lost stop [default: TERM]'

# redlock extend
complete -c redlock -n '__redlock_in_options extend' -s k -l key -x -a '(__redlock_keys)' -d 'Name of the lock, as an option'
complete -c redlock -n '__redlock_in_options extend' -s t -l token -x -d 'The token [default: $REDLOCK_TOKEN]'
complete -c redlock -n '__redlock_in_options extend' -l quarantine -x -d 'Keep a restarted server from voting for this long'
complete -c redlock -n '__redlock_in_options extend' -s q -l quiet -d 'Print errors only'
complete -c redlock -n '__redlock_in_options extend' -s v -l verbose -d 'Print every step'
complete -c redlock -n '__redlock_in_options extend' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options extend' -s r -l redis -x -d 'A Redis server; repeat (3 or 5) for Redlock'
complete -c redlock -n '__redlock_in_options extend' -l username -x -d 'User to log in as, if the URL names none'
complete -c redlock -n '__redlock_in_options extend' -l password-file -r -F -d 'File with the password, if it is not in the URL'
complete -c redlock -n '__redlock_in_options extend' -l sentinel-username -x -d 'User to log in to Sentinels as'
complete -c redlock -n '__redlock_in_options extend' -l sentinel-password-file -r -F -d 'File with the Sentinels\' own password'
complete -c redlock -n '__redlock_in_options extend' -l tls-ca -r -F -d 'Authorities to trust for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options extend' -l tls-cert -r -F -d 'Client certificate for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options extend' -l tls-key -r -F -d 'Private key of the client certificate (PEM)'
complete -c redlock -n '__redlock_in_options extend' -l tls-server-name -x -d 'Name in the certificate, if not the URL\'s host'
complete -c redlock -n '__redlock_in_options extend' -l prefix -x -d 'Prefix of the Redis keys [default: lock]'
complete -c redlock -n '__redlock_in_options extend' -l node-timeout -x -d 'Timeout for one request to a server'
complete -c redlock -n '__redlock_in_options extend' -l config -r -F -d 'Read this config file and no other'
complete -c redlock -n '__redlock_in_options extend' -l local -d 'Lock on this host even if servers are configured'
complete -c redlock -n '__redlock_in_options extend' -l local-dir -x -a '(__fish_complete_directories)' -d 'Directory for lock files; implies --local'
complete -c redlock -n '__redlock_in_options extend' -l require-server -d 'Fail if no server is configured (exit 78)'
complete -c redlock -n '__redlock_in_options extend' -l ttl -x -d 'New lease, from now on [default: 30s]'
complete -c redlock -n '__redlock_in_options extend' -a '(__redlock_keys)'

# redlock release
complete -c redlock -n '__redlock_in_options release' -s k -l key -x -a '(__redlock_keys)' -d 'Name of the lock, as an option'
complete -c redlock -n '__redlock_in_options release' -s t -l token -x -d 'The token [default: $REDLOCK_TOKEN]'
complete -c redlock -n '__redlock_in_options release' -s q -l quiet -d 'Print errors only'
complete -c redlock -n '__redlock_in_options release' -s v -l verbose -d 'Print every step'
complete -c redlock -n '__redlock_in_options release' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options release' -s r -l redis -x -d 'A Redis server; repeat (3 or 5) for Redlock'
complete -c redlock -n '__redlock_in_options release' -l username -x -d 'User to log in as, if the URL names none'
complete -c redlock -n '__redlock_in_options release' -l password-file -r -F -d 'File with the password, if it is not in the URL'
complete -c redlock -n '__redlock_in_options release' -l sentinel-username -x -d 'User to log in to Sentinels as'
complete -c redlock -n '__redlock_in_options release' -l sentinel-password-file -r -F -d 'File with the Sentinels\' own password'
complete -c redlock -n '__redlock_in_options release' -l tls-ca -r -F -d 'Authorities to trust for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options release' -l tls-cert -r -F -d 'Client certificate for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options release' -l tls-key -r -F -d 'Private key of the client certificate (PEM)'
complete -c redlock -n '__redlock_in_options release' -l tls-server-name -x -d 'Name in the certificate, if not the URL\'s host'
complete -c redlock -n '__redlock_in_options release' -l prefix -x -d 'Prefix of the Redis keys [default: lock]'
complete -c redlock -n '__redlock_in_options release' -l node-timeout -x -d 'Timeout for one request to a server'
complete -c redlock -n '__redlock_in_options release' -l config -r -F -d 'Read this config file and no other'
complete -c redlock -n '__redlock_in_options release' -l local -d 'Lock on this host even if servers are configured'
complete -c redlock -n '__redlock_in_options release' -l local-dir -x -a '(__fish_complete_directories)' -d 'Directory for lock files; implies --local'
complete -c redlock -n '__redlock_in_options release' -l require-server -d 'Fail if no server is configured (exit 78)'
complete -c redlock -n '__redlock_in_options release' -a '(__redlock_keys)'

# redlock status
complete -c redlock -n '__redlock_in_options status' -s k -l key -x -a '(__redlock_keys)' -d 'Name of the lock, as an option'
complete -c redlock -n '__redlock_in_options status' -l check -x -a 'held free owned' -d 'Exit 0 if true, 1 if not'
complete -c redlock -n '__redlock_in_options status' -l token -x -d 'Token for --check owned'
complete -c redlock -n '__redlock_in_options status' -l wait-free -d 'Wait until the lock is free and has no waiters'
complete -c redlock -n '__redlock_in_options status' -s w -l wait -x -d 'With --wait-free: at most this long (exit 75)'
complete -c redlock -n '__redlock_in_options status' -l watch -d 'Refresh until ^C'
complete -c redlock -n '__redlock_in_options status' -l interval -x -d 'With --watch: refresh interval'
complete -c redlock -n '__redlock_in_options status' -l json -d 'Print JSON'
complete -c redlock -n '__redlock_in_options status' -s q -l quiet -d 'Print errors only'
complete -c redlock -n '__redlock_in_options status' -s v -l verbose -d 'Print every step'
complete -c redlock -n '__redlock_in_options status' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options status' -s r -l redis -x -d 'A Redis server; repeat (3 or 5) for Redlock'
complete -c redlock -n '__redlock_in_options status' -l username -x -d 'User to log in as, if the URL names none'
complete -c redlock -n '__redlock_in_options status' -l password-file -r -F -d 'File with the password, if it is not in the URL'
complete -c redlock -n '__redlock_in_options status' -l sentinel-username -x -d 'User to log in to Sentinels as'
complete -c redlock -n '__redlock_in_options status' -l sentinel-password-file -r -F -d 'File with the Sentinels\' own password'
complete -c redlock -n '__redlock_in_options status' -l tls-ca -r -F -d 'Authorities to trust for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options status' -l tls-cert -r -F -d 'Client certificate for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options status' -l tls-key -r -F -d 'Private key of the client certificate (PEM)'
complete -c redlock -n '__redlock_in_options status' -l tls-server-name -x -d 'Name in the certificate, if not the URL\'s host'
complete -c redlock -n '__redlock_in_options status' -l prefix -x -d 'Prefix of the Redis keys [default: lock]'
complete -c redlock -n '__redlock_in_options status' -l node-timeout -x -d 'Timeout for one request to a server'
complete -c redlock -n '__redlock_in_options status' -l config -r -F -d 'Read this config file and no other'
complete -c redlock -n '__redlock_in_options status' -l local -d 'Lock on this host even if servers are configured'
complete -c redlock -n '__redlock_in_options status' -l local-dir -x -a '(__fish_complete_directories)' -d 'Directory for lock files; implies --local'
complete -c redlock -n '__redlock_in_options status' -l require-server -d 'Fail if no server is configured (exit 78)'
complete -c redlock -n '__redlock_in_options status' -a '(__redlock_keys)'

# redlock list
complete -c redlock -n '__redlock_in_options list' -l waiting -d 'Only locks that others wait for'
complete -c redlock -n '__redlock_in_options list' -l keys -d 'Print only the keys, one per line'
complete -c redlock -n '__redlock_in_options list' -l openmetrics -d 'Print metrics for Prometheus'
complete -c redlock -n '__redlock_in_options list' -l watch -d 'Refresh until ^C'
complete -c redlock -n '__redlock_in_options list' -l interval -x -d 'With --watch: refresh interval'
complete -c redlock -n '__redlock_in_options list' -l json -d 'Print JSON'
complete -c redlock -n '__redlock_in_options list' -s q -l quiet -d 'Print errors only'
complete -c redlock -n '__redlock_in_options list' -s v -l verbose -d 'Print every step'
complete -c redlock -n '__redlock_in_options list' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options list' -s r -l redis -x -d 'A Redis server; repeat (3 or 5) for Redlock'
complete -c redlock -n '__redlock_in_options list' -l username -x -d 'User to log in as, if the URL names none'
complete -c redlock -n '__redlock_in_options list' -l password-file -r -F -d 'File with the password, if it is not in the URL'
complete -c redlock -n '__redlock_in_options list' -l sentinel-username -x -d 'User to log in to Sentinels as'
complete -c redlock -n '__redlock_in_options list' -l sentinel-password-file -r -F -d 'File with the Sentinels\' own password'
complete -c redlock -n '__redlock_in_options list' -l tls-ca -r -F -d 'Authorities to trust for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options list' -l tls-cert -r -F -d 'Client certificate for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options list' -l tls-key -r -F -d 'Private key of the client certificate (PEM)'
complete -c redlock -n '__redlock_in_options list' -l tls-server-name -x -d 'Name in the certificate, if not the URL\'s host'
complete -c redlock -n '__redlock_in_options list' -l prefix -x -d 'Prefix of the Redis keys [default: lock]'
complete -c redlock -n '__redlock_in_options list' -l node-timeout -x -d 'Timeout for one request to a server'
complete -c redlock -n '__redlock_in_options list' -l config -r -F -d 'Read this config file and no other'
complete -c redlock -n '__redlock_in_options list' -l local -d 'Lock on this host even if servers are configured'
complete -c redlock -n '__redlock_in_options list' -l local-dir -x -a '(__fish_complete_directories)' -d 'Directory for lock files; implies --local'
complete -c redlock -n '__redlock_in_options list' -l require-server -d 'Fail if no server is configured (exit 78)'

# redlock doctor
complete -c redlock -n '__redlock_in_options doctor' -l quarantine -x -d 'Keep a restarted server from voting for this long'
complete -c redlock -n '__redlock_in_options doctor' -l json -d 'Print JSON'
complete -c redlock -n '__redlock_in_options doctor' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options doctor' -s r -l redis -x -d 'A Redis server; repeat (3 or 5) for Redlock'
complete -c redlock -n '__redlock_in_options doctor' -l username -x -d 'User to log in as, if the URL names none'
complete -c redlock -n '__redlock_in_options doctor' -l password-file -r -F -d 'File with the password, if it is not in the URL'
complete -c redlock -n '__redlock_in_options doctor' -l sentinel-username -x -d 'User to log in to Sentinels as'
complete -c redlock -n '__redlock_in_options doctor' -l sentinel-password-file -r -F -d 'File with the Sentinels\' own password'
complete -c redlock -n '__redlock_in_options doctor' -l tls-ca -r -F -d 'Authorities to trust for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options doctor' -l tls-cert -r -F -d 'Client certificate for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options doctor' -l tls-key -r -F -d 'Private key of the client certificate (PEM)'
complete -c redlock -n '__redlock_in_options doctor' -l tls-server-name -x -d 'Name in the certificate, if not the URL\'s host'
complete -c redlock -n '__redlock_in_options doctor' -l prefix -x -d 'Prefix of the Redis keys [default: lock]'
complete -c redlock -n '__redlock_in_options doctor' -l node-timeout -x -d 'Timeout for one request to a server'
complete -c redlock -n '__redlock_in_options doctor' -l config -r -F -d 'Read this config file and no other'
complete -c redlock -n '__redlock_in_options doctor' -l local -d 'Lock on this host even if servers are configured'
complete -c redlock -n '__redlock_in_options doctor' -l local-dir -x -a '(__fish_complete_directories)' -d 'Directory for lock files; implies --local'
complete -c redlock -n '__redlock_in_options doctor' -l require-server -d 'Fail if no server is configured (exit 78)'
complete -c redlock -n '__redlock_in_options doctor' -s q -l quiet -d 'Print only problems, and nothing if there is none'
complete -c redlock -n '__redlock_in_options doctor' -s v -l verbose -d 'Print one line for each check'
complete -c redlock -n '__redlock_in_options doctor' -l ttl -x -d 'Lease that runs use [default: 30s]'

# redlock history
complete -c redlock -n '__redlock_in_options history' -s k -l key -x -a '(__redlock_keys)' -d 'Name of the lock, as an option'
complete -c redlock -n '__redlock_in_options history' -l failed -d 'Only runs that failed'
complete -c redlock -n '__redlock_in_options history' -l since -x -d 'Only runs that ended after this time'
complete -c redlock -n '__redlock_in_options history' -s n -l limit -x -d 'Only the last N runs'
complete -c redlock -n '__redlock_in_options history' -l svg -r -F -d 'Write the timeline to FILE as a picture'
complete -c redlock -n '__redlock_in_options history' -l json -d 'Print JSON'
complete -c redlock -n '__redlock_in_options history' -s q -l quiet -d 'Print errors only'
complete -c redlock -n '__redlock_in_options history' -s v -l verbose -d 'Print every step'
complete -c redlock -n '__redlock_in_options history' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options history' -s r -l redis -x -d 'A Redis server; repeat (3 or 5) for Redlock'
complete -c redlock -n '__redlock_in_options history' -l username -x -d 'User to log in as, if the URL names none'
complete -c redlock -n '__redlock_in_options history' -l password-file -r -F -d 'File with the password, if it is not in the URL'
complete -c redlock -n '__redlock_in_options history' -l sentinel-username -x -d 'User to log in to Sentinels as'
complete -c redlock -n '__redlock_in_options history' -l sentinel-password-file -r -F -d 'File with the Sentinels\' own password'
complete -c redlock -n '__redlock_in_options history' -l tls-ca -r -F -d 'Authorities to trust for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options history' -l tls-cert -r -F -d 'Client certificate for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options history' -l tls-key -r -F -d 'Private key of the client certificate (PEM)'
complete -c redlock -n '__redlock_in_options history' -l tls-server-name -x -d 'Name in the certificate, if not the URL\'s host'
complete -c redlock -n '__redlock_in_options history' -l prefix -x -d 'Prefix of the Redis keys [default: lock]'
complete -c redlock -n '__redlock_in_options history' -l node-timeout -x -d 'Timeout for one request to a server'
complete -c redlock -n '__redlock_in_options history' -l config -r -F -d 'Read this config file and no other'
complete -c redlock -n '__redlock_in_options history' -l local -d 'Lock on this host even if servers are configured'
complete -c redlock -n '__redlock_in_options history' -l local-dir -x -a '(__fish_complete_directories)' -d 'Directory for lock files; implies --local'
complete -c redlock -n '__redlock_in_options history' -l require-server -d 'Fail if no server is configured (exit 78)'
complete -c redlock -n '__redlock_in_options history' -a '(__redlock_keys)'

# redlock break
complete -c redlock -n '__redlock_in_options break' -s k -l key -x -a '(__redlock_keys)' -d 'Name of the lock, as an option'
complete -c redlock -n '__redlock_in_options break' -l yes -d 'Break the lock without asking'
complete -c redlock -n '__redlock_in_options break' -l token -x -d 'Break this grant only, never a later one'
complete -c redlock -n '__redlock_in_options break' -l slot -x -d 'Break the holder of this slot only'
complete -c redlock -n '__redlock_in_options break' -l now -d 'Free the lock without waiting for its holder'
complete -c redlock -n '__redlock_in_options break' -s w -l wait -x -d 'Wait at most this long for the outcome'
complete -c redlock -n '__redlock_in_options break' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options break' -s r -l redis -x -d 'A Redis server; repeat (3 or 5) for Redlock'
complete -c redlock -n '__redlock_in_options break' -l username -x -d 'User to log in as, if the URL names none'
complete -c redlock -n '__redlock_in_options break' -l password-file -r -F -d 'File with the password, if it is not in the URL'
complete -c redlock -n '__redlock_in_options break' -l sentinel-username -x -d 'User to log in to Sentinels as'
complete -c redlock -n '__redlock_in_options break' -l sentinel-password-file -r -F -d 'File with the Sentinels\' own password'
complete -c redlock -n '__redlock_in_options break' -l tls-ca -r -F -d 'Authorities to trust for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options break' -l tls-cert -r -F -d 'Client certificate for rediss:// servers (PEM)'
complete -c redlock -n '__redlock_in_options break' -l tls-key -r -F -d 'Private key of the client certificate (PEM)'
complete -c redlock -n '__redlock_in_options break' -l tls-server-name -x -d 'Name in the certificate, if not the URL\'s host'
complete -c redlock -n '__redlock_in_options break' -l prefix -x -d 'Prefix of the Redis keys [default: lock]'
complete -c redlock -n '__redlock_in_options break' -l node-timeout -x -d 'Timeout for one request to a server'
complete -c redlock -n '__redlock_in_options break' -l config -r -F -d 'Read this config file and no other'
complete -c redlock -n '__redlock_in_options break' -l local -d 'Lock on this host even if servers are configured'
complete -c redlock -n '__redlock_in_options break' -l local-dir -x -a '(__fish_complete_directories)' -d 'Directory for lock files; implies --local'
complete -c redlock -n '__redlock_in_options break' -l require-server -d 'Fail if no server is configured (exit 78)'
complete -c redlock -n '__redlock_in_options break' -a '(__redlock_keys)'

# redlock completions
complete -c redlock -n '__redlock_in_options completions' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options completions' -a 'bash zsh fish elvish powershell'

# redlock help
complete -c redlock -n '__redlock_in_options help' -s h -l help -d 'Print this summary; --help explains every option'
complete -c redlock -n '__redlock_in_options help' -a 'run acquire extend release status list doctor history break completions help'
complete -c redlock -n __redlock_in_command -x -a '(__redlock_complete_command)'
