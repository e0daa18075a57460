//! Ctrl-C while something goes on that does not need us.

use std::future::Future;

use hoist_model::Exit;
use tokio::signal::unix::{SignalKind, signal};

use crate::commands::Shell;
use crate::failure::Failure;

/// The waiting command answers the first Ctrl-C. The second one ends the process, because a blocked
/// output may keep the command from answering.
#[expect(clippy::disallowed_methods, reason = "the blocked output cannot be flushed")]
pub(super) fn leave_at_the_second() {
    let wait = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            let Ok(mut pressed) = signal(SignalKind::interrupt()) else { return };
            for _ in 0..2 {
                pressed.recv().await;
            }
            std::process::exit(Exit::Unknown.code().into());
        });
    };
    // Without it, the first one has to do.
    let _ = std::thread::Builder::new().name("interrupt".to_owned()).spawn(wait);
}

/// Sends a request that starts something on the controller. After an interrupt, a warning says that
/// it may have started.
pub(super) async fn told<T, E: Into<Failure>>(
    shell: &mut Shell,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<Result<T, Exit>, Failure> {
    tokio::select! {
        answer = asked => Ok(Ok(answer.map_err(Into::into)?)),
        _ = tokio::signal::ctrl_c() => {
            shell.printer.note(
                "the controller may have begun it all the same; `hoist deploy list` shows that",
            );
            Ok(Err(Exit::Unknown))
        }
    }
}
