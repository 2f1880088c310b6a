# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_redlock_global_optspecs
    string join \n h/help V/version
end

function __fish_redlock_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_redlock_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_redlock_using_subcommand
    set -l cmd (__fish_redlock_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c redlock -n "__fish_redlock_needs_command" -s h -l help -d 'Print help'
complete -c redlock -n "__fish_redlock_needs_command" -s V -l version -d 'Print version'
complete -c redlock -n "__fish_redlock_needs_command" -f -a "run" -d 'Take the lock, run the command, release the lock'
complete -c redlock -n "__fish_redlock_needs_command" -f -a "break" -d 'Force a lock open on the servers and wake the next waiter'
complete -c redlock -n "__fish_redlock_needs_command" -f -a "completions" -d 'Print the completion script for a shell'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s k -l key -d 'Lock name (any bytes, up to 1024); repeat to take several locks, all or nothing' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -s c -l command -d 'Run STRING with $SHELL -c instead of a command' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -s r -l redis -d 'A server, redis://[user:password@]host[:port][/db] or unix:///path; repeat (3 or 5) for a lock that survives the loss of a minority' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l prefix -d 'Prefix of the Redis keys; \'\' uses the bare KEY as the lock [default: lock]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l node-timeout -d 'Timeout for one request to a server [default: ttl/20 within 200ms..1s; with one server ttl/3 within 1s..5s]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l local-dir -d 'Directory for lock files [default: /run/lock, /dev/shm or /tmp]' -r -F
complete -c redlock -n "__fish_redlock_using_subcommand run" -l quarantine -d 'How long a server that may have lost its data is kept from voting; "off" disables this [default: 30s with several servers, off with one]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l prefer -d 'Queueing order: fair (FIFO), writers first, or readers first [default: fair]' -r -f -a "fair\t'First in, first out'
writers\t'An exclusive request goes ahead of every waiter that did not ask for this'
readers\t'A shared request joins current readers, even if writers are waiting'"
complete -c redlock -n "__fish_redlock_using_subcommand run" -l reader-group -d 'With --shared: share with the same group only' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l slots -d 'Up to N holders at once, each with its number, 0 to N-1, in REDLOCK_SLOT' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -s w -l wait -d 'Wait at most this long; 0 means --nonblock [default: forever]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l retries -d 'Retry up to N times instead of queueing' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l retry-interval -d 'Pause between retries (+/- 50%) [default: 1s]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l jitter -d 'Random delay before the first attempt, up to this long' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -s E -l conflict-exit-code -d 'Exit code if the lock is held [default: 75]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l ttl -d 'Lease: how long the lock survives if redlock dies; renewed every third of it; "none" never expires [default: 30s]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l max-hold -d 'Stop the command and release the lock after this long (exit 124)' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l min-hold -d 'Keep the lock at least this long, even if the command ends sooner' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l on-lost -d 'What to do when the lock is lost while the command runs [default: stop]' -r -f -a "stop\t'Stop the command\'s whole tree before the lease ends, exit 79'
warn\t'Warn and let the command run'"
complete -c redlock -n "__fish_redlock_using_subcommand run" -l signal -d 'Signal sent first to stop the command (lock lost or --max-hold expired) [default: TERM]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l kill-after -d 'Time from that signal to SIGKILL [default: 5s, at most a third of the ttl]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l on-unavailable -d 'What to do when the servers cannot be reached or cannot serve [default: fail]' -r -f -a "fail\t'Exit 69'
skip\t'Exit 0 without running the command'
run\t'Run the command without a lock'
wait\t'Keep trying until --wait is over, then exit 69 (with -n: at once)'"
complete -c redlock -n "__fish_redlock_using_subcommand run" -l label -d 'Label shown to waiters' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l events -d 'Append a JSON line for each event to FILE' -r -F
complete -c redlock -n "__fish_redlock_using_subcommand run" -l local -d 'Lock on this host even if servers are configured'
complete -c redlock -n "__fish_redlock_using_subcommand run" -l require-server -d 'Exit 78 if no server is configured, instead of locking on this host'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s s -l shared -d 'Take the lock in shared mode'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s x -l exclusive -d 'Take the lock in exclusive mode (default)'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s n -l nonblock -d 'Fail at once if the lock is held'
complete -c redlock -n "__fish_redlock_using_subcommand run" -l reentrant -d 'Run at once if an outer run holds the lock, under its lock'
complete -c redlock -n "__fish_redlock_using_subcommand run" -l wait-tree -d 'Hold the lock until the command\'s last descendant has ended'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s q -l quiet -d 'Print errors only'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s v -l verbose -d 'Print every step'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c redlock -n "__fish_redlock_using_subcommand break" -s k -l key -d 'Lock name' -r
complete -c redlock -n "__fish_redlock_using_subcommand break" -s r -l redis -d 'A server, redis://[user:password@]host[:port][/db] or unix:///path; repeat (3 or 5) for a lock that survives the loss of a minority' -r
complete -c redlock -n "__fish_redlock_using_subcommand break" -l prefix -d 'Prefix of the Redis keys; \'\' uses the bare KEY as the lock [default: lock]' -r
complete -c redlock -n "__fish_redlock_using_subcommand break" -l node-timeout -d 'Timeout for one request to a server [default: ttl/20 within 200ms..1s; with one server ttl/3 within 1s..5s]' -r
complete -c redlock -n "__fish_redlock_using_subcommand break" -l yes -d 'Break the lock; without this flag, only show the holder'
complete -c redlock -n "__fish_redlock_using_subcommand break" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c redlock -n "__fish_redlock_using_subcommand completions" -s h -l help -d 'Print help'
