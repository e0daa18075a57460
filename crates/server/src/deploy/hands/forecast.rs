//! What a run would change on its nodes, as far as that can be told beforehand.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hoist_api::deploy::{Change, Predicted};
use hoist_engine::StepId;
use hoist_engine::action::Prediction;
use hoist_engine::execute::Forecast;

use super::{Arc, Grip, Outputs, Place, Plan, Site, Way, action, chain, secret};

/// Instances that are listed; beyond it they are only counted.
pub(crate) const MAX_PREDICTED: usize = 10_000;
/// Bytes of one diff, and of all of them.
pub(crate) const MAX_DIFF: usize = 16 * 1024;
pub(crate) const MAX_DIFFS: usize = 1024 * 1024;
/// What was not looked at in this time is not looked at.
const LOOK_FOR: Duration = Duration::from_secs(10);

/// What was found, and how many instances were not looked at.
#[derive(Debug, Default)]
pub(in crate::deploy) struct Foreseen {
    pub(in crate::deploy) predictions: Vec<Predicted>,
    pub(in crate::deploy) left_out: usize,
}

impl Grip {
    /// Of all that is done in a plan but `kept`. Nothing is changed.
    pub(in crate::deploy) fn foresee(&self, plan: &Plan, kept: &BTreeSet<StepId>) -> Foreseen {
        let site = Site {
            catalog: self.catalog().clone(),
            secrets: Arc::clone(&self.secrets) as Arc<dyn action::Secrets>,
            outputs: Outputs::none(),
            place: Place::Below(self.local_root.clone()),
        };
        let ready = secret::ensure_private_dir(&self.local_root);
        let ready = ready.map_err(|error| chain(&error));
        let ways = self.ways(plan.draft().subjects.iter().map(String::as_str));
        let forecast = Forecast::new(&site, plan);
        let deadline = Instant::now() + LOOK_FOR;
        let (mut foreseen, mut room) = (Foreseen::default(), MAX_DIFFS);
        for id in plan.ids() {
            let Some(step) = plan.step(id) else { continue };
            if step.skip.is_some() || kept.contains(&id) {
                continue;
            }
            if foreseen.predictions.len() == MAX_PREDICTED || Instant::now() > deadline {
                foreseen.left_out += 1;
                continue;
            }
            let way = step.subject.map(|at| &ways[at as usize]);
            let (change, text) = match way {
                Some(Way::Local) => match ready
                    .clone()
                    .and_then(|()| forecast.of(id, deadline).map_err(|failure| failure.reason))
                {
                    Ok(Prediction::Diff(diff)) => (Change::Diff, diff),
                    Ok(Prediction::NoChange) => (Change::None, String::new()),
                    Ok(Prediction::CannotPredict) => {
                        let action = &step.call.action;
                        (Change::Unknown, format!("`{action}` cannot tell before it is done"))
                    }
                    Err(reason) => (Change::Unknown, reason),
                },
                Some(Way::None(reason)) => (Change::Unknown, reason.clone()),
                Some(Way::Ssh | Way::Agent) => {
                    (Change::Unknown, "nobody looks at nodes that are other machines".to_owned())
                }
                None => (Change::Unknown, "it is on no node".to_owned()),
            };
            let instance = plan.vertex(id).name.clone();
            foreseen.predictions.push(predicted(instance, change, text, &mut room));
        }
        foreseen
    }
}

fn predicted(instance: String, change: Change, text: String, room: &mut usize) -> Predicted {
    let (mut diff, mut reason) = (String::new(), String::new());
    match change {
        Change::Diff => {
            diff = cut(text, MAX_DIFF.min(*room));
            *room -= diff.len().min(*room);
        }
        Change::Unknown => reason = cut(text, MAX_DIFF),
        Change::None => {}
    }
    Predicted { instance, change, diff, reason }
}

/// The first lines, and how much is missing.
fn cut(mut text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let end = text[..text.floor_char_boundary(most)].rfind('\n').map_or(0, |at| at + 1);
    let missing = text.len() - end;
    text.truncate(end);
    text + &format!("({missing} bytes more)\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_is_cut_between_lines_and_all_of_them_together_are_bounded() {
        let long = "+ grün\n".repeat(MAX_DIFF);
        let mut room = MAX_DIFFS;
        let mut all = 0;
        for _ in 0..2 * MAX_DIFFS / MAX_DIFF {
            let one = predicted("a@n".to_owned(), Change::Diff, long.clone(), &mut room);
            let (head, tail) = one.diff.rsplit_once('(').expect("something is missing");
            assert!(head.len() <= MAX_DIFF && (head.is_empty() || head.ends_with('\n')));
            let missing = long.len() - head.len();
            assert_eq!(tail, format!("{missing} bytes more)\n"));
            all += head.len();
        }
        assert!(all <= MAX_DIFFS && all > MAX_DIFFS - MAX_DIFF, "{all}");
        let mut room = MAX_DIFFS;
        let exact = format!("{}\n", "x".repeat(MAX_DIFF - 1));
        let one = predicted("a@n".to_owned(), Change::Diff, exact.clone(), &mut room);
        assert_eq!(one.diff, exact, "at the limit nothing is missing");
    }
}
