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
complete -c redlock -n "__fish_redlock_needs_command" -f -a "break" -d 'Take a lock on servers from whoever holds it, and wake the next one'
complete -c redlock -n "__fish_redlock_needs_command" -f -a "completions" -d 'Print the completion script for a shell'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s k -l key -d 'Name of the lock: any bytes, at most 1024; several times for several locks, all or none' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -s c -l command -d 'Run STRING with $SHELL -c instead of a command' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -s r -l redis -d 'A server, redis://[user:password@]host[:port][/db] or unix:///path; several, best 3 or 5, for locks that survive the loss of a minority' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l prefix -d 'First part of our keys\' names; \'\' makes the lock the bare KEY [default: lock]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l node-timeout -d 'What a server may take to answer [default: a twentieth of the ttl, 100ms to 1s]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l local-dir -d 'Folder of the lock files on this host [default: /run/lock, /dev/shm or /tmp]' -r -F
complete -c redlock -n "__fish_redlock_using_subcommand run" -l quarantine -d 'How long a server that may have lost its locks does not vote, or off [default: 30s with several servers, off with one]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l prefer -d 'Who goes before whom: first come first served; waiting writers first; readers while readers have it [default: fair]' -r -f -a "fair\t'First come, first served'
writers\t'An exclusive request goes before all that wait without this wish'
readers\t'A shared request enters while others hold the lock shared, whoever waits'"
complete -c redlock -n "__fish_redlock_using_subcommand run" -l reader-group -d 'With --shared: share with those of the same group only' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l slots -d 'Up to N holders at once, each with its number, 0 to N-1, in REDLOCK_SLOT' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -s w -l wait -d 'Wait at most so long; 0 is --nonblock [default: for ever]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l retries -d 'Ask at most N times more, without queueing' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l retry-interval -d 'Between two such attempts, give or take a half [default: 1s]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l jitter -d 'Sleep a random time up to this before asking, so that not everyone asks at once' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -s E -l conflict-exit-code -d 'Exit code when somebody else holds the lock [default: 75]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l ttl -d 'How long the lock outlives a dead redlock; renewed at a third of it; none for a lock that never expires [default: 30s]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l max-hold -d 'Stop the command and release the lock after so long, exit 124' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l min-hold -d 'Leave the lock taken until so long after it was taken, also if the command ends earlier' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l on-lost -d 'What to do when the lock is lost while the command runs [default: stop]' -r -f -a "stop\t'Stop the command\'s whole tree before the lease ends, exit 79'
warn\t'Only tell, and let it run'"
complete -c redlock -n "__fish_redlock_using_subcommand run" -l signal -d 'The first signal when the command is stopped: the lock is lost, or --max-hold over [default: TERM]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l kill-after -d 'Between the first signal and SIGKILL when the command is stopped [default: 5s, at most a third of the ttl]' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l on-unavailable -d 'What to do when the servers cannot be reached or cannot serve [default: fail]' -r -f -a "fail\t'Exit 69'
skip\t'Exit 0 without running the command'
run\t'Run the command without a lock'"
complete -c redlock -n "__fish_redlock_using_subcommand run" -l label -d 'A word about this run, shown to those who wait' -r
complete -c redlock -n "__fish_redlock_using_subcommand run" -l events -d 'Append a JSON line for each event to FILE' -r -F
complete -c redlock -n "__fish_redlock_using_subcommand run" -l local -d 'Lock on this host, as without a server, also if servers are configured'
complete -c redlock -n "__fish_redlock_using_subcommand run" -l require-server -d 'Exit 78 if no server is configured, instead of locking on this host'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s s -l shared -d 'Share the lock with others who ask for it shared'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s x -l exclusive -d 'Have the lock alone; this is the default'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s n -l nonblock -d 'Do not wait if somebody else holds the lock'
complete -c redlock -n "__fish_redlock_using_subcommand run" -l wait-tree -d 'Hold the lock until the command\'s last descendant has ended'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s q -l quiet -d 'Say nothing but errors'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s v -l verbose -d 'Tell what happens'
complete -c redlock -n "__fish_redlock_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c redlock -n "__fish_redlock_using_subcommand break" -s k -l key -d 'Name of the lock' -r
complete -c redlock -n "__fish_redlock_using_subcommand break" -s r -l redis -d 'A server, redis://[user:password@]host[:port][/db] or unix:///path; several, best 3 or 5, for locks that survive the loss of a minority' -r
complete -c redlock -n "__fish_redlock_using_subcommand break" -l prefix -d 'First part of our keys\' names; \'\' makes the lock the bare KEY [default: lock]' -r
complete -c redlock -n "__fish_redlock_using_subcommand break" -l node-timeout -d 'What a server may take to answer [default: a twentieth of the ttl, 100ms to 1s]' -r
complete -c redlock -n "__fish_redlock_using_subcommand break" -l yes -d 'Do it; without, only say who holds the lock'
complete -c redlock -n "__fish_redlock_using_subcommand break" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c redlock -n "__fish_redlock_using_subcommand completions" -s h -l help -d 'Print help'
