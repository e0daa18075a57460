//! Misbehaving plug-ins: each comes to an end, with an error that names the misbehaviour.

use std::time::{Duration, Instant};

use hoist_engine::action::{Action, Stream};
use hoist_engine::plugin::{GRACE, LINGER, MAX_BYTES, MAX_ERROR_LINE, MAX_LINE, MAX_LINES};
use hoist_engine::record::FailureKind;
use hoist_testkit::eventually;
use serde_json::{Value, json};

use crate::stage::{SECRET, Stage, open_to_all, opened, private, refused};

/// Asserts that the plug-in fails in both isolations with this kind and this text in the reason.
#[track_caller]
fn fails(stage: &Stage, body: &str, kind: FailureKind, reason: &str) {
    let path = stage.put_shell("hostile", body);
    for failure in stage.failure(&path, &Value::Null) {
        assert_eq!(failure.kind, kind, "{failure}");
        assert!(failure.reason.contains(reason), "{failure}");
        assert!(failure.reason.contains("`run` of plug-in `hostile`"), "the place: {failure}");
        assert!(failure.reason.contains(';'), "the remedy: {failure}");
    }
}

/// Waits until no process has this word in its command line.
#[track_caller]
fn are_gone(word: &str) {
    eventually("processes of the plug-in end", || {
        let left = processes(word);
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}

fn processes(word: &str) -> Vec<String> {
    let entries = fs_err::read_dir("/proc").expect("a proc").flatten();
    let line = |entry: fs_err::DirEntry| fs_err::read(entry.path().join("cmdline")).ok();
    let lines = entries.filter_map(line).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    lines.filter(|line| line.contains(word)).collect()
}

#[test]
fn hanging_plug_in_is_killed_at_its_deadline() {
    let mut stage = Stage::new();
    stage.time = Duration::from_secs(1);
    let body = "trap '' TERM; while :; do sleep 7531; done";
    let began = Instant::now();
    fails(&stage, body, FailureKind::Timeout, "timed out after");
    // Twice the deadline, with a margin for slow machines.
    assert!(began.elapsed() < 2 * (stage.time + GRACE + LINGER) + Duration::from_secs(20));
    are_gone("7531");
}

#[test]
fn cancelled_plug_in_can_clean_up() {
    for isolation in [private(), open_to_all()] {
        let stage = Stage::new();
        let body =
            "trap 'echo cleaned >trace; exit 1' TERM; echo up >&2; while :; do sleep 0.05; done";
        let plugin = opened(&stage.put_shell("hostile", body), &isolation);
        let failure = std::thread::scope(|scope| {
            let run = scope.spawn(|| stage.with(Value::Null, |step, ctx| plugin.apply(step, ctx)));
            eventually("plug-in is up", || {
                let lines = stage.paper.lines();
                if lines.contains(&(Stream::Err, "up".to_owned())) { Ok(()) } else { Err(lines) }
            });
            stage.cancel.cancel();
            run.join().expect("no panic").expect_err("the run was stopped")
        });
        assert!(failure.reason.contains("because the run was stopped"), "{failure}");
        assert_eq!(fs_err::read_to_string(stage.work().join("trace")).unwrap(), "cleaned\n");
    }
}

#[test]
fn plug_in_output_is_bounded() {
    let stage = Stage::new();
    let log = r#"{"t":"log","msg":"x"}"#;
    fails(
        &stage,
        &format!("yes '{log}'"),
        FailureKind::Internal,
        &format!("more than {MAX_LINES} lines"),
    );
    fails(
        &stage,
        "yes >&2",
        FailureKind::Internal,
        &format!("standard error has more than {MAX_BYTES} bytes"),
    );
    fails(&stage, "yes | tr -d '\\n'", FailureKind::Internal, "standard output has more than");
    let most = 2 * 3 * MAX_BYTES;
    assert!(stage.paper.bytes() < most, "{} bytes were kept", stage.paper.bytes());
}

#[test]
fn long_line_is_refused_on_stdout_and_cut_on_stderr() {
    let stage = Stage::new();
    let long = "head -c 10000000 /dev/zero | tr '\\0' x";
    let wanted = format!("longer than {MAX_LINE} bytes");
    fails(&stage, &format!("{long}; echo; result"), FailureKind::Internal, &wanted);
    let stage = Stage::new();
    let plugin = opened(&stage.put_shell("talker", &format!("{long} >&2; result")), &private());
    stage.with(Value::Null, |step, ctx| plugin.apply(step, ctx)).expect("that does no harm");
    assert_eq!(stage.paper.bytes(), MAX_ERROR_LINE);
}

#[test]
fn result_at_the_limit_is_accepted() {
    let stage = Stage::new();
    // The line without the text has 43 bytes.
    let body = |length: usize| {
        format!(
            r#"printf '{{"t":"result","ok":true,"receipt":{{"a":"'; head -c {length} /dev/zero | tr '\0' x; echo '"}}}}'"#
        )
    };
    let around = r#"{"t":"result","ok":true,"receipt":{"a":""}}"#.len();
    let plugin = opened(&stage.put_shell("hostile", &body(MAX_LINE - around)), &private());
    let done = stage.with(Value::Null, |step, ctx| plugin.apply(step, ctx)).expect("it fits");
    assert_eq!(done.receipt["a"].as_str().map(str::len), Some(MAX_LINE - around));
    fails(&stage, &body(MAX_LINE - around + 1), FailureKind::Internal, "longer than");
}

#[test]
fn invalid_message_is_reported_with_its_line() {
    let stage = Stage::new();
    let place = "line 2 of the output is not a message";
    let lines = [
        "hello",
        "",
        "7",
        r#"{"t":"resutl","ok":true}"#,
        r#"{"t":"result"}"#,
        r#"{"t":"progress","done":-1}"#,
        r"\377\376",
    ];
    for line in lines {
        let body =
            format!(r#"echo '{{"t":"progress","done":1,"total":2}}'; printf '{line}\n'; result"#);
        fails(&stage, &body, FailureKind::Internal, place);
    }
    let deep = format!("printf '%s\\n' '{}'", "[".repeat(5000));
    fails(&stage, &deep, FailureKind::Internal, "line 1 of the output is not a message");
}

#[test]
fn result_must_be_single_and_last() {
    let stage = Stage::new();
    fails(
        &stage,
        "result; result",
        FailureKind::Internal,
        "line 2 of the output comes after the result",
    );
    fails(
        &stage,
        r#"result; echo '{"t":"log","msg":"and"}'"#,
        FailureKind::Internal,
        "after the result",
    );
}

#[test]
fn exits_without_a_result_are_distinguished() {
    let stage = Stage::new();
    fails(&stage, "exit 0", FailureKind::Exit, "exited with status 0 and without a result");
    fails(
        &stage,
        "echo 'no disk' >&2; exit 3",
        FailureKind::Exit,
        "status 3 and without a result (`no disk`)",
    );
    fails(&stage, "result; exit 4", FailureKind::Exit, "reported success but exited with status 4");
    fails(&stage, "kill -9 $$", FailureKind::Exit, "without a result");
    fails(&stage, "result; sleep 7533", FailureKind::Internal, "did not exit within");
    are_gone("7533");
}

#[test]
fn plug_in_that_closes_its_output_is_ended() {
    let mut stage = Stage::new();
    let path = stage.put_shell("hostile", "exec >&-; sleep 7532");
    // In namespaces the launcher also holds the output, so the deadline ends it.
    stage.time = LINGER + Duration::from_secs(2);
    let [within, without] = stage.failure(&path, &Value::Null);
    assert_eq!(within.kind, FailureKind::Timeout, "{within}");
    assert!(without.reason.contains("closed its output without a result"), "{without}");
    are_gone("7532");
}

#[test]
fn reported_failure_is_the_reason() {
    let stage = Stage::new();
    let path =
        stage.put_shell("hostile", r#"echo '{"t":"result","ok":false,"error":"no disk"}'; exit 1"#);
    for failure in stage.failure(&path, &Value::Null) {
        assert_eq!(failure.kind, FailureKind::Exit);
        assert_eq!(failure.reason, "`run` of plug-in `hostile`: no disk");
    }
}

#[test]
fn daemon_that_holds_the_pipe_is_an_error() {
    let stage = Stage::new();
    // In a session of its own, like a daemon.
    fails(&stage, "setsid sleep 7534 & result", FailureKind::Internal, "left processes behind");
    are_gone("7534");
    let quiet = "setsid sleep 7535 >/dev/null 2>&1 </dev/null & result";
    let plugin = opened(&stage.put_shell("quiet", quiet), &private());
    let failure = stage.with(Value::Null, |step, ctx| plugin.apply(step, ctx)).unwrap_err();
    assert!(failure.reason.contains("left processes behind"), "{failure}");
    are_gone("7535");
}

#[test]
fn all_children_are_gone_after_the_deadline() {
    let mut stage = Stage::new();
    stage.time = Duration::from_secs(2);
    let body = "for n in 1 2 3 4 5 6 7 8 9; do (trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 7536; :' & sleep 7536 & wait; :) & done; wait";
    fails(&stage, body, FailureKind::Timeout, "timed out after");
    are_gone("7536");
}

#[test]
fn printed_secrets_are_redacted() {
    let body = r#"
secret=$(cat <&3)
echo "stderr $secret" >&2
head -c 8182 /dev/zero | tr '\0' x >&2; echo "$secret" >&2
echo '{"t":"log","msg":"log '"$secret"'"}'
echo '{"t":"result","ok":true,"receipt":{"'"$secret"'":["receipt '"$secret"'"]}}'
"#;
    let input = json!({"secrets": {"value": "site/db"}});
    for isolation in [private(), open_to_all()] {
        let stage = Stage::new();
        let plugin = opened(&stage.put_shell("leaky", body), &isolation);
        let done =
            stage.with(input.clone(), |step, ctx| plugin.apply(step, ctx)).expect("it works");
        assert_eq!(done.receipt, json!({"[hidden]": ["receipt [hidden]"]}));
        let said = stage.paper.lines();
        assert!(said.contains(&(Stream::Err, "stderr [hidden]".to_owned())), "{said:?}");
        assert!(said.contains(&(Stream::Out, "log [hidden]".to_owned())), "{said:?}");
        assert!(said.iter().all(|(_, line)| !line.contains(&SECRET[..4])), "{said:?}");
    }
    let stage = Stage::new();
    let path = stage.put_shell("leaky", "cat <&3; echo");
    for failure in stage.failure(&path, &input) {
        assert!(failure.reason.contains("`[hidden]`"), "{failure}");
        assert!(!failure.reason.contains(SECRET), "{failure}");
    }
}

#[test]
fn secret_is_not_in_arguments_or_environment() {
    let body = r#"
if cat /proc/self/environ | grep -q k[e]ttle || grep -q k[e]ttle /proc/$$/cmdline /proc/$PPID/cmdline; then exit 9; fi
[ "$(cat <&3)" = kettle-and-drum ] || exit 8
cat /proc/self/environ | tr '\0' '\n' | cut -d= -f1 >&2
result"#;
    for isolation in [private(), open_to_all()] {
        let stage = Stage::new();
        let plugin = opened(&stage.put_shell("looks", body), &isolation);
        let input = json!({"secrets": {"value": "site/db"}});
        stage.with(input, |step, ctx| plugin.apply(step, ctx)).expect("it is where it should be");
        let said = stage.paper.lines();
        let names: Vec<&str> = said
            .iter()
            .filter(|(stream, _)| *stream == Stream::Err)
            .map(|(_, line)| line.as_str())
            .collect();
        assert!(names.contains(&"PATH"), "{said:?}");
        // The shell sets the last two itself.
        let known = ["PATH", "HOME", "LC_ALL", "HOIST_ATTEMPT", "HOIST_LEDGER", "PWD", "OLDPWD"];
        assert!(names.iter().all(|name| known.contains(name)), "{said:?}");
    }
}

#[test]
fn unknown_or_too_many_secrets_are_refused() {
    let stage = Stage::new();
    let path = stage.put_shell("hostile", "result");
    let many: serde_json::Map<String, Value> =
        (0..8).map(|n| (n.to_string(), json!("site/db"))).collect();
    let inputs = [
        (json!({"secrets": {"a": "site/none"}}), "secret `site/none` not found"),
        (json!({"secrets": {"a": 7}}), "must be a reference"),
        (json!({"secrets": []}), "must be an object"),
        (json!({"secrets": many}), "8 secrets are named; at most 7 are available"),
    ];
    for (input, reason) in inputs {
        for failure in stage.failure(&path, &input) {
            assert!(failure.reason.contains(reason), "{failure}");
        }
    }
}

#[test]
fn plug_in_sees_no_devices_network_or_processes() {
    let stage = Stage::new();
    let body = r#"
ls /dev | tr '\n' ' ' >&2; echo >&2
grep -c : /proc/net/dev >&2
ls -d /proc/[0-9]* | wc -l >&2
[ -d /sys/kernel ] && echo "in ${PWD##*/}" >&2
result"#;
    let plugin = opened(&stage.put_shell("looks", body), &private());
    stage.with(Value::Null, |step, ctx| plugin.apply(step, ctx)).expect("it works");
    let said: Vec<String> = stage.paper.lines().into_iter().map(|(_, line)| line).collect();
    assert_eq!(said[0].trim(), "fd full null random shm urandom zero");
    // Only a loopback interface that is down.
    assert_eq!(said[1], "1");
    assert!(said[2].trim().parse::<u32>().unwrap() < 8, "{said:?}");
    assert_eq!(said[3], "in work");
}

#[test]
fn plug_in_cannot_undo_its_isolation() {
    let stage = Stage::new();
    let body = r#"
mkdir there
mount -t devtmpfs x there 2>/dev/null && echo devtmpfs >&2
mount -t tmpfs x there 2>/dev/null && echo tmpfs >&2
mount --bind / there 2>/dev/null && echo bind >&2
mknod disk b 8 0 2>/dev/null && echo mknod >&2
unshare --user --map-root-user --mount mount -t devtmpfs x there 2>/dev/null && echo "once more" >&2
grep NoNewPrivs /proc/self/status >&2
chown 1:1 there 2>/dev/null || [ "$(stat -c %u there)" = 0 ] && echo "files are its business" >&2
result"#;
    let plugin = opened(&stage.put_shell("mounts", body), &private());
    stage.with(Value::Null, |step, ctx| plugin.apply(step, ctx)).expect("it works");
    let said: Vec<String> = stage.paper.lines().into_iter().map(|(_, line)| line).collect();
    assert_eq!(said, ["NoNewPrivs:\t1", "files are its business"]);
}

#[test]
fn plug_in_need_not_read_its_request() {
    let stage = Stage::new();
    let text = r#"#!/bin/sh
echo '{"t":"result","ok":true,"diagnostics":[],"description":{"proto":[1],"name":"deaf","version":"1"}}'
"#;
    let plugin = opened(&stage.put("deaf", text), &private());
    let large = json!({"text": "x".repeat(4 * 1024 * 1024)});
    assert_eq!(plugin.validate(&large), []);
}

#[test]
fn file_without_valid_description_is_refused() {
    let stage = Stage::new();
    let describe = |fields: &str| {
        format!("#!/bin/sh\necho '{{\"t\":\"result\",\"ok\":true,\"description\":{{{fields}}}}}'\n")
    };
    let cases = [
        (describe(r#""proto":[2,3],"name":"odd","version":"1""#), "speaks versions [2, 3]"),
        (describe(r#""proto":[1],"name":"even","version":"1""#), "the name `even`"),
        (describe(r#""name":"odd","version":"1""#), "`description`: missing field `proto`"),
        (
            "#!/bin/sh\necho '{\"t\":\"result\",\"ok\":true}'\n".to_owned(),
            "`description` is missing",
        ),
        ("#!/no/such/interpreter\n".to_owned(), "without a result"),
        (String::new(), "without a result"),
    ];
    for (text, reason) in cases {
        let error = refused(&stage.put("odd", &text)).to_string();
        assert!(error.contains(reason), "{error}");
    }
}
