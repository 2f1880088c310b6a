//! `--shell`: lines for `eval`, whatever is in the key.

use super::wait_until_free;
use crate::support::Backend;

on_backends!(one_server, three_servers, this_host:
    eval_exports_key_token_and_fence,
    no_key_can_break_out_of_its_quotes,
    release_needs_only_the_exported_variables,
);

/// Runs a script in a shell, with redlock in "$REDLOCK_BIN" and these variables. Returns its
/// output.
#[track_caller]
fn script(backend: &Backend, shell: &str, text: &str, key: &str) -> String {
    let mut command = std::process::Command::new(shell);
    command.args(["-euc", text]).env_clear().envs(backend.variables());
    command.env("KEY", key).env("PATH", "/usr/bin:/bin").current_dir(backend.notes());
    let text = text.to_owned();
    let output = command.env("redlock", crate::support::run::binary()).output().expect(shell);
    assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {text}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Acquires "$KEY"; the status of a failed acquire is not lost in the eval.
const ACQUIRE: &str = r#"lock=$("$redlock" acquire --key="$KEY" --ttl 60s --shell); eval "$lock""#;

fn eval_exports_key_token_and_fence(backend: &Backend) {
    let text = format!(
        r#"{ACQUIRE}; env | sed -n 's/^\(REDLOCK_KEY\|REDLOCK_FENCE\)=//p' | sort
        test -n "$REDLOCK_TOKEN"; "$redlock" status k --check owned"#
    );
    let printed = script(backend, "sh", &text, "k");
    let (fence, key) = printed.trim().split_once('\n').expect("two lines");
    assert!(fence.parse::<u64>().is_ok() && key == "k", "{printed}");
}

fn no_key_can_break_out_of_its_quotes(backend: &Backend) {
    let keys = [
        "it's",
        "$(touch hit)",
        "`touch hit`",
        "a\"b",
        "a b;touch hit",
        "\\",
        "'",
        "!x",
        "-n",
        "a\nb",
        "~",
        "*",
        "ü",
    ];
    for shell in ["sh", "bash"] {
        for key in keys {
            let text = format!(
                r#"{ACQUIRE}; test "$REDLOCK_KEY" = "$KEY"; "$redlock" release; test ! -e hit; echo well"#
            );
            assert_eq!(script(backend, shell, &text, key), "well\n", "{key:?}");
        }
    }
}

fn release_needs_only_the_exported_variables(backend: &Backend) {
    let text = format!(r#"{ACQUIRE}; "$redlock" extend --ttl 50s; "$redlock" release"#);
    assert_eq!(script(backend, "sh", &text, "k"), "");
    wait_until_free(backend);
}

/// `eval "$(...)"` alone would continue without the lock, as the status of an empty eval is 0.
#[test]
fn a_failure_is_not_lost_in_eval() {
    let backend = Backend::one_server();
    let token = super::token(super::acquire(&backend));
    let text = r#"set +e; eval "$("$redlock" acquire --key k -n -q --shell)"; echo "$?""#;
    assert_eq!(script(&backend, "sh", text, "k"), "75\n");
    super::release(&backend, &token).done().expect_code(0);
}
